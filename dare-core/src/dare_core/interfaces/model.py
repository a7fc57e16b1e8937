"""Model adapters: one published family behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dare_core.errors import Problem, UserError
from dare_core.types import AttentionLayout, Message, ModelFacts, Prompt, Scores, Views

if TYPE_CHECKING:
    from torch import Tensor, device, dtype, nn

    from dare_core.interfaces.cache import KeyValueCache, WindowCache
    from dare_core.spec.sections import ModelSection, PeftSection


class TextCodec(ABC):
    """Text to tokens and back, by the family's tokenizer and chat template."""

    @property
    def vocab_size(self) -> int | None:
        """Every id it gives lies below; None = not known, and rows are looked at one by one."""
        return None

    @abstractmethod
    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: chat turns rendered with an open answer header, or plain text as it is.

        Raises:
            UserError: the prompt holds a role the template does not know, or the tokenizer has no template.
        """

    @abstractmethod
    def encode_completion(self, text: str) -> list[int]:
        """Token ids of an answer as the model would have written it after the open header, ending with the
        family's end token, so that prompt ids + completion ids is what generation would produce."""

    def encode_conversation(self, prompt: Prompt, answers: Sequence[int]) -> list[tuple[list[int], bool]]:
        """Token ids of a conversation that ends with an answer to learn, in pieces.

        Every answer stands as the model would have written it: after an open header, by :meth:`encode_completion`.
        What lies between is the template's.

        Args:
            prompt: chat turns, the last of which is an answer.
            answers: indices of the turns that are learnt, rising; the last turn's is among them.

        Returns:
            (ids, learnt) in order, given text and answers in turn.

        Raises:
            UserError: turns and template do not allow it, or the codec writes no such rows.
        """
        raise UserError(
            Problem(
                f"{type(self).__name__} cannot mark several answers of one conversation",
                path="data.trained_turns",
                hint="use 'last' or 'one'",
            )
        )

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Text of response tokens without special tokens."""

    @abstractmethod
    def render(self, messages: Sequence[Message]) -> str:
        """The chat turns as text with an open answer header; for people and records."""


class ModelAdapter(ABC):
    """One model: a torch module, its facts and its text codec.

    An adapter owns the alignment of logits to tokens (nobody else shifts), the mapping of published state
    dicts, packing, and the way blocks are laid out. Adapters are built by :meth:`load` only.
    """

    facts: ModelFacts
    text: TextCodec
    module: nn.Module

    #: named LoRA target groups -> module name patterns (peft ``target_modules``); ``default`` must exist
    lora_targets: ClassVar[dict[str, Sequence[str] | str]]
    #: class names of the repeated layers, for activation checkpointing and sharding
    wrap_units: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def load(cls, section: ModelSection, *, device: device, dtype: dtype, seed: int = 0) -> ModelAdapter:
        """Load a published folder, or start fresh where the section says ``init: random``.

        The folder is never written to and none of its code is run. Tensors are read one shard at a time.
        ``seed`` is the run's: it addresses fresh weights and the first values of adapters.

        Raises:
            UserError: files are missing; tensors are missing, extra or misshapen (each named); ids are
                missing from the published config and from the section.
        """

    @classmethod
    def load_text(cls, section: ModelSection) -> TextCodec | None:
        """The text codec alone, so that data can be checked before weights are read; None if it cannot stand alone.

        Raises:
            UserError: tokenizer files are missing.
        """
        return None

    @abstractmethod
    def token_logp(self, views: Views, *, entropy: bool = False) -> Scores:
        """Log-probabilities of ``views.targets`` at ``views.scored``, with gradient if gradients are enabled.
        ``entropy`` asks for entropies as well, and for whether each target is the most probable token.

        Rows are packed without padding, the output head is applied at scored positions only, in chunks;
        [N,L,V] is never materialised. A row's result does not depend on its neighbours. Float32 at least.
        """

    @abstractmethod
    def logits(
        self,
        tokens: Tensor,
        valid: Tensor,
        where: Tensor,
        *,
        layout: AttentionLayout,
        prompt_length: Tensor,
        condition: Tensor | None = None,
    ) -> Tensor:
        """Aligned logits at chosen positions of B rows.

        Args:
            tokens: [B,L] int64 canvas.
            valid: [B,L] bool positions that exist.
            where: [B,L] bool positions to score, M in all.
            layout: how positions attend (``block``: earlier blocks are visible as they stand on the canvas).
            prompt_length: [B] valid prompt tokens (block layouts with origin ``response`` count from there).
            condition: [M,H] of :meth:`condition_on`, zero where there is no guess yet; given to such models only.

        Returns:
            [M,V] float logits of the token *at* each position, in row-major order of ``where``.
        """

    def condition_on(self, logits: Tensor) -> Tensor | None:
        """[M,H] what a self-conditioned model sees, at its next forward on a block, of the distribution that it guessed
        there ([M,V] logits, temperature applied; Chen et al., "Analog Bits", arXiv:2208.04202). None: it sees nothing.
        """
        return None

    def open_cache(self, slots: int, capacity: int) -> KeyValueCache | None:
        """An empty exact cache for ``slots`` rows of at most ``capacity`` tokens each, valid while the weights stay as
        they are; None: the adapter has none, and decoders compute every row afresh. Capability ``kv-exact``."""
        return None

    def open_window_cache(self, slots: int, capacity: int) -> WindowCache | None:
        """An empty approximate cache for ``slots`` rows of at most ``capacity`` tokens each, or None. Capability
        ``kv-approx``."""
        return None

    def attach_value_head(self) -> None:
        """Make this a value model. :meth:`token_logp` then gives values at scored positions, read where the logits of
        that position are, instead of log-probabilities (0). The head is trained, starts at zero or as saved beside the
        weights, and :meth:`save` writes it. Capability ``value-head``.

        Raises:
            UserError: the family carries none, or the saved head does not fit.
        """
        message = f"models of kind '{self.facts.kind}' carry no value head"
        raise UserError(Problem(message, path="algorithm.value_model", hint="train without a value model"))

    @abstractmethod
    def attach_peft(self, section: PeftSection) -> None:
        """Freeze the base and add adapters through peft, or load those of ``section.adapter``.

        Raises:
            UserError: unknown target group, or adapter files that do not fit this model (named).
        """

    @classmethod
    def check_peft(cls, section: ModelSection, adapters: PeftSection) -> None:
        """Look whether adapters would attach to the section's model, before its weights are read.

        Raises:
            UserError: as :meth:`attach_peft`.
        """

    @abstractmethod
    def base_only(self) -> AbstractContextManager[None]:
        """While open, attached adapters are switched off: the reference policy of LoRA runs."""

    def published(self) -> Iterator[tuple[str, Tensor]]:
        """Published keys and tensors of the current weights, adapters merged: what :meth:`save` writes and what
        backends with weights of their own take over.

        Raises:
            TypeError: the adapter cannot name its tensors; only backends that share the live module work with it.
        """
        raise TypeError(f"{type(self).__name__} does not name its tensors by published keys")

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the model in its published layout (config, shards and index, tokenizer): identical keys, and
        identical bits for tensors that did not change. Adapters are merged into a copy of the weights."""

    @abstractmethod
    def save_adapter(self, folder: Path) -> None:
        """Write attached adapters in peft's own format."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Choices worth recording with a run: attention implementation, dtype, parameter counts, ids used."""
