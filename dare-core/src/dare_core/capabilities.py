"""The one vocabulary by which components say what they provide and what they need.

Each word belongs to the slot that can provide it. A component of any slot may need any word; the
match is made by the spec's cross checks before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from dare_core.components import Slot

#: word -> (slot that provides it, meaning)
VOCABULARY: MappingProxyType[str, tuple[Slot, str]] = MappingProxyType(
    {
        "masked": (Slot.MODEL, "masked diffusion over the whole response (LLaDA, Dream)"),
        "block": (Slot.MODEL, "block diffusion: blocks are denoised left to right (SDAR, LLaDA2.x)"),
        "kv-exact": (Slot.MODEL, "keys and values of finished blocks can be cached without changing any logit"),
        "kv-approx": (Slot.MODEL, "prefix or dual caches are possible, as approximations"),
        "token-logp": (Slot.MODEL, "log-probabilities of chosen positions, with gradient"),
        "value-head": (Slot.MODEL, "can carry a value head: a second model of the family then predicts returns"),
        "mask-token": (
            Slot.MODEL,
            "a mask token: it is what undecided positions hold, and what views hide tokens with",
        ),
        "sampling": (Slot.ROLLOUT, "temperature above 0 is honoured, so samples of a prompt differ"),
        "logp": (Slot.ROLLOUT, "log-probability of each token when it was committed"),
        "commit-step": (Slot.ROLLOUT, "the denoising forward that committed each token; replay is exact"),
        "snapshots": (Slot.ROLLOUT, "inputs, guesses and confidences of each denoising forward on demand"),
        "tree": (Slot.ROLLOUT, "rollouts that branch during denoising"),
        "mixture": (Slot.ROLLOUT, "samples from a mixture of two policies' logits"),
        "weight-sync": (Slot.ROLLOUT, "weights can be replaced between rollouts"),
        "adapters": (Slot.ROLLOUT, "generates with a LoRA adapter attached"),
        "row-estimate": (Slot.LIKELIHOOD, "one value per row [B]"),
        "view-estimate": (Slot.LIKELIHOOD, "one value per view [N]"),
        "token-estimate": (Slot.LIKELIHOOD, "one value per response token [B,L]"),
        "view-token-estimate": (Slot.LIKELIHOOD, "one value per scored token of each view [N,L]"),
        "snapshot-estimate": (Slot.LIKELIHOOD, "one value per token that a recorded snapshot guessed [N,L]"),
        "upper-bound": (Slot.LIKELIHOOD, "an upper estimate beside the lower one"),
        "prompts": (Slot.DATA, "prompts, with a reference answer where the reward wants one"),
        "demonstrations": (Slot.DATA, "prompts with the answer to learn"),
        "pairs": (Slot.DATA, "prompts with a chosen and a rejected answer"),
        "prefix": (Slot.REWARD, "scores intermediate guesses as well as final answers"),
        "multi-process": (Slot.ENGINE, "trains on several processes"),
    }
)


def unknown_words(words: Iterable[str]) -> list[str]:
    """The words that are not in the vocabulary, in sorted order."""
    return sorted(set(words) - VOCABULARY.keys())


def provider_of(word: str) -> Slot:
    """The slot whose component must provide ``word``.

    Raises:
        KeyError: the word is not in the vocabulary.
    """
    return VOCABULARY[word][0]
