"""The distributions published together with core, and the kinds each offers.

Used only to say which package to install for a kind that is not there, and to tell third parties from
our own when third-party plugins are switched off. Never used to load anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dare_core.components import Slot

_TASKS = ("gsm8k", "math", "countdown", "sudoku", "code")

OFFICIAL: Mapping[str, Mapping[Slot, tuple[str, ...]]] = MappingProxyType(
    {
        "dare-llada": {Slot.MODEL: ("llada", "llada-moe")},
        "dare-dream": {Slot.MODEL: ("dream",)},
        "dare-sdar": {Slot.MODEL: ("sdar", "sdar-moe")},
        "dare-llada2": {Slot.MODEL: ("llada2",)},
        "dare-diffusion-gemma": {Slot.MODEL: ("diffusion-gemma",)},
        "dare-algos-grpo": {
            Slot.ALGORITHM: ("d1", "coupled-grpo", "mdpo", "cj-grpo", "justgrpo", "d-treerpo", "tracerl", "wd1"),
            Slot.LIKELIHOOD: ("one-step", "coupled", "trajectory"),
        },
        "dare-algos-elbo": {
            Slot.ALGORITHM: ("sft", "dpo", "vrpo", "spg", "bgpo", "ebpo", "espo"),
            Slot.LIKELIHOOD: ("bernoulli", "count-stratified", "espo", "block-stratified", "spg"),
        },
        "dare-fastdllm": {Slot.ROLLOUT: ("fastdllm",)},
        "dare-sglang": {Slot.ROLLOUT: ("sglang",)},
        "dare-lmdeploy": {Slot.ROLLOUT: ("lmdeploy",)},
        "dare-fsdp": {Slot.ENGINE: ("fsdp",)},
        "dare-deepspeed": {Slot.ENGINE: ("deepspeed",)},
        "dare-ray": {Slot.ENGINE: ("ray",)},
        "dare-eval": {Slot.REWARD: _TASKS, Slot.EVALUATOR: ("task", "lm-eval")},
        "dare-eval-opencompass": {Slot.EVALUATOR: ("opencompass",)},
    }
)


def is_official(distribution: str) -> bool:
    """Whether a distribution (canonical name) is core or published together with it."""
    return distribution == "dare-core" or distribution in OFFICIAL


def official_kinds(slot: Slot) -> dict[str, str]:
    """Kind -> official distribution, for one slot."""
    return {kind: name for name, slots in OFFICIAL.items() for kind in slots.get(slot, ())}
