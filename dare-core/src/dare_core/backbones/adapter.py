"""What all families share whose backbone is a transformers class with a linear output head.

A family subclasses :class:`TransformerAdapter` and states: how published config keys become a module, where
published tensors live in it, how logits are aligned, and how its text is encoded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dare_core.backbones import folders, peft, value_head
from dare_core.backbones.cache import SegmentCache
from dare_core.backbones.fresh import initialise
from dare_core.backbones.head import project, target_logp
from dare_core.backbones.implementations import Attention, choose_attention
from dare_core.backbones.narrow import narrow_products
from dare_core.backbones.packing import Packed, pack_noisy_clean, pack_rows
from dare_core.backbones.quantised import quantise, refuse_saving, require_quantiser
from dare_core.backbones.reading import read_states
from dare_core.backbones.text import MissingCodec
from dare_core.backbones.weights import (
    PublishedWeights,
    WeightLayout,
    check_layout,
    inspect_weights,
    published_tensor,
    read_weights,
    stored_form,
    write_weights,
)
from dare_core.backbones.windows import RowWindows
from dare_core.errors import Problem, UserError
from dare_core.interfaces import ModelAdapter, TextCodec
from dare_core.types import AttentionLayout, ModelFacts, Scores, Views

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection, PeftSection


class TransformerAdapter(ModelAdapter):
    """A transformers module behind :class:`dare_core.interfaces.ModelAdapter`.

    The module has ``model`` (the backbone, called with ``attention_plan``) and ``lm_head`` (a linear map
    without bias).

    Attributes:
        shift: 0 = the state at a position predicts its own token; 1 = it predicts the next one.
        softcap: bound c of logits c tanh(z / c); None = logits as they are.
        window: ranks that layers with a sliding window see, see
            :func:`dare_core.backbones.attention.sees_block`; None = there are no such layers.
        lora_names: published names of adapted modules -> name or names in the module, for ``peft.targets``.
        head_tile: rows and vocabulary entries of the output head computed together; None = by memory.
        max_shard_bytes: limit of one saved weight file; None = the published files, or 5 GB for fresh models.
        published_config: config.json as parsed, or the section's.
        attention: the implementation chosen by ``section.attention``.
        source: folder the model was read from, or None.
    """

    module: Any
    shift: ClassVar[int] = 0
    softcap: float | None = None
    window: int | None = None
    lora_names: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}

    def __init__(
        self,
        section: ModelSection,
        facts: ModelFacts,
        module: nn.Module,
        text: TextCodec,
        published_config: Mapping[str, Any],
        weights: PublishedWeights | None,
        seed: int,
        attention: Attention,
    ) -> None:
        self.section, self.facts, self.module, self.text = section, facts, module, text
        self.published_config = published_config
        self.source = None if section.path is None else Path(section.path)
        self.head_tile: tuple[int, int] | None = None
        self.max_shard_bytes: int | None = None
        self.attention = attention
        self._weights = weights
        self._layout = self.weight_layout(published_config)
        self._seed = seed
        self._peft: peft.Attached | None = None
        self._value_head: nn.Linear | None = None

    @classmethod
    @abstractmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """The module for a published config, with ``attn_implementation=ATTENTION``. Called on the meta device."""

    @classmethod
    @abstractmethod
    def restore_buffers(cls, module: nn.Module, device: torch.device) -> None:
        """Compute again what is not in the weights, such as rotary frequencies, after leaving the meta device."""

    @classmethod
    @abstractmethod
    def weight_layout(cls, published: Mapping[str, Any]) -> WeightLayout:
        """Where each published tensor lives in the module."""

    @classmethod
    def folder_layout(cls, published: Mapping[str, Any], keys: Collection[str]) -> WeightLayout:
        """Like :meth:`weight_layout` for a folder with these tensors, where a family reads a second form too."""
        return cls.weight_layout(published)

    @classmethod
    @abstractmethod
    def fresh_std(cls, published: Mapping[str, Any], parameter: str) -> float | None:
        """Standard deviation of a fresh parameter; None = a scale that starts at 1."""

    @classmethod
    @abstractmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """The codec of the section's tokenizer folder, or of the model's own."""

    @classmethod
    def complete_config(cls, published: Mapping[str, Any]) -> Mapping[str, Any]:
        """A fresh model's config with the keys by which a saved folder is recognised."""
        return published

    @classmethod
    def choose_attention(cls, section: ModelSection, published: Mapping[str, Any], device: torch.device) -> Attention:
        """The implementation that the section asks for, as far as the family has it.

        Raises:
            UserError: it is not available.
        """
        return choose_attention(section.attention, device)

    @classmethod
    def load(
        cls, section: ModelSection, *, device: torch.device, dtype: torch.dtype, seed: int = 0
    ) -> TransformerAdapter:
        """See the interface."""
        if section.quantise is not None:
            require_quantiser(device)
        published = cls._read_config(section)
        attention = cls.choose_attention(section, published, device)
        facts = cls._facts(section, published)
        weights = None if section.path is None else inspect_weights(Path(section.path))
        text = cls._text_or_missing(section, facts)
        with torch.device("meta"):
            module: Any = cls.build_module(published).to(dtype)
        if weights is not None:
            stored = cls.folder_layout(published, weights.shapes.keys())
            check_layout(weights, stored, module)
        read_on = device if section.quantise is None else torch.device("cpu")
        module.to_empty(device=read_on)
        module.tie_weights()
        cls.restore_buffers(module, read_on)
        if weights is not None:
            read_weights(weights, stored, module)
            layout = cls.weight_layout(published)
            weights = weights if stored.keys() == layout.keys() else weights.under(stored, layout)
        else:
            initialise(module, seed, lambda name: cls.fresh_std(published, name))
        if section.quantise is not None:
            quantise(module, section.quantise, device)
        module.eval()
        return cls(section, facts, module, text, published, weights, seed, attention)

    @classmethod
    def load_text(cls, section: ModelSection) -> TextCodec:
        """See the interface."""
        return cls.build_text(section, cls._facts(section, cls._read_config(section)))

    @classmethod
    def _text_or_missing(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Weights without a tokenizer are of use too: text is then an error when it is asked for."""
        folder = section.tokenizer or section.path or ""
        has_any = any((Path(folder) / name).is_file() for name in folders.TOKENIZER_FILES)
        return cls.build_text(section, facts) if section.tokenizer or has_any else MissingCodec(folder)

    @classmethod
    def _read_config(cls, section: ModelSection) -> Mapping[str, Any]:
        if section.path is None:
            return cls.complete_config(section.config or {})
        return folders.read_json(Path(section.path) / folders.CONFIG)

    @classmethod
    def _facts(cls, section: ModelSection, published: Mapping[str, Any]) -> ModelFacts:
        try:
            return section.facts(published)
        except ValueError as error:
            where = None if section.path is None else str(Path(section.path) / folders.CONFIG)
            raise UserError(Problem(str(error), path="model", where=where)) from error

    def token_logp(self, views: Views, *, entropy: bool = False) -> Scores:
        """See the interface. Block layouts are scored with two copies, [noisy | clean]."""
        views = views.to(self._device)
        self._expect_layout(views.layout)
        hidden = self._read_states(self._pack_views(views))
        if self._value_head is not None:
            values = value_head.values_of(hidden, self._value_head)
            nothing = torch.zeros(views.inputs.shape, dtype=values.dtype, device=values.device)
            return Scores(logp=nothing, value=nothing.masked_scatter(views.scored, values))
        logp, spread, correct = target_logp(
            hidden,
            self._head,
            views.targets[views.scored],
            temperature=views.temperature,
            entropy=entropy,
            tile=self.head_tile,
            softcap=self.softcap,
        )
        blank = torch.zeros(views.inputs.shape, dtype=logp.dtype, device=logp.device)
        return Scores(
            logp=blank.masked_scatter(views.scored, logp),
            entropy=None if spread is None else blank.masked_scatter(views.scored, spread),
            correct=None if correct is None else views.scored.masked_scatter(views.scored, correct),
        )

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
        """See the interface."""
        self._expect_layout(layout)
        tokens, valid, where, prompt_length = (t.to(self._device) for t in (tokens, valid, where, prompt_length))
        plan = self.attention.plan
        if layout.finished == "block":
            packed = pack_rows(tokens, valid, where, layout, prompt_length, shift=self.shift, make_plan=plan)
        else:
            # A scored block is computed as one that is denoised, and what lies before it as finished.
            rows = (tokens, tokens, valid, where)
            packed = pack_noisy_clean(*rows, layout, prompt_length, make_plan=plan, condition=condition)
        return project(self._read_states(packed), self._head, self.softcap)

    def open_cache(self, slots: int, capacity: int) -> SegmentCache | None:
        """See the interface. Where logits are shifted, a block's first one would need a state that is not computed."""
        if self.facts.layout.kind != "block" or self.shift:
            return None
        return SegmentCache(slots, capacity, self._cached_states, self._project(), window=self.window)

    def open_window_cache(self, slots: int, capacity: int) -> RowWindows | None:
        """See the interface: models that see whole rows."""
        if self.facts.layout.kind != "full":
            return None
        return RowWindows(slots, capacity, self._cached_states, self._project(), self.shift)

    def _project(self) -> Callable[[Tensor], Tensor]:
        return partial(project, weight=self._head, softcap=self.softcap)

    def _pack_views(self, views: Views) -> Packed:
        valid, where, layout, prompt = views.valid, views.scored, views.layout, views.prompt_length
        plan = self.attention.plan
        if layout.kind == "full":
            return pack_rows(views.inputs, valid, where, layout, prompt, shift=self.shift, make_plan=plan)
        if self.shift:
            raise ValueError("two-copy scoring of a family with shifted logits is not supported")
        return pack_noisy_clean(views.inputs, views.targets, valid, where, layout, prompt, make_plan=plan)

    def _read_states(self, packed: Packed) -> Tensor:
        """[M,H] hidden states at the packed row's places to read."""
        return self._decoded_states(packed) if len(packed.read) else self._no_states()

    def _decoded_states(self, packed: Packed) -> Tensor:
        """As :meth:`_read_states`; a forward that reads nothing may still fill a cache."""
        return read_states(self.module.model, packed)

    def _cached_states(self, packed: Packed) -> Tensor:
        """As :meth:`_decoded_states`, of few tokens. Scoring stays out: equal policies are to give equal bits with and
        without gradient."""
        with narrow_products(packed.tokens, self._head):
            return self._decoded_states(packed)

    def _no_states(self) -> Tensor:
        return self._head.new_zeros((0, self._head.shape[1]))

    def _expect_layout(self, layout: AttentionLayout) -> None:
        if layout.kind != self.facts.layout.kind:
            raise ValueError(f"{self.facts.kind} attends by {self.facts.layout.kind!r} layouts, not {layout.kind!r}")
        own = self.facts.layout.finished
        if layout.finished != own:
            raise ValueError(f"finished blocks of {self.facts.kind} attend by {own!r}, not {layout.finished!r}")

    @property
    def _head(self) -> Tensor:
        head: Tensor = self.module.lm_head.weight
        return head

    @property
    def _device(self) -> torch.device:
        return self._head.device

    def attach_peft(self, section: PeftSection) -> None:
        """See the interface. Names in ``section.targets`` may be published ones or the module's."""
        if self._peft is not None:
            raise UserError(Problem("peft adapters are already attached", path="peft"))
        self._peft = peft.attach(
            self.module, section, self.lora_targets, self.lora_names, seed=self._seed, base=self.section.path
        )

    def attach_value_head(self) -> None:
        """See the interface."""
        self._value_head = value_head.attach(self.module, self._head, self.source)
        if self._head is not self.module.model.get_input_embeddings().weight:
            self._head.requires_grad_(False)

    @classmethod
    def check_peft(cls, section: ModelSection, adapters: PeftSection) -> None:
        """See the interface. Adapters are attached to a module without memory."""
        with torch.device("meta"):
            module = cls.build_module(cls._read_config(section))
        peft.attach(module, adapters, cls.lora_targets, cls.lora_names, seed=0, base=None)

    def base_only(self) -> AbstractContextManager[None]:
        """See the interface."""
        return self._attached().switched_off()

    def save_adapter(self, folder: Path) -> None:
        """See the interface. Names inside are the module's, so peft loads it onto ``adapter.module``."""
        folders.prepare_target(folder, self.source)
        self._attached().save(folder)

    def _attached(self) -> peft.Attached:
        if self._peft is None:
            raise UserError(Problem("no peft adapters are attached", path="peft", hint="add a peft section"))
        return self._peft

    def published(self) -> Iterator[tuple[str, Tensor]]:
        """See the interface. One tensor exists at a time beside the live weights."""
        refuse_saving(self.section.quantise)
        lookup = peft.merged_lookup(self.module)
        for key in self._ordered_keys():
            yield key, published_tensor(self._layout[key], lookup)

    def _ordered_keys(self) -> list[str]:
        """Keys of one published shard follow each other."""
        return list(self._layout) if self._weights is None else list(self._weights.files)

    def save(self, folder: Path) -> None:
        """See the interface. A tensor is written in its published dtype where that loses nothing, else as trained."""
        refuse_saving(self.section.quantise)
        folders.prepare_target(folder, self.source)
        dtypes = {} if self._weights is None else self._weights.dtypes
        lookup = peft.plain_lookup(self.module)
        width = max(self._head.element_size(), *(d.itemsize for d in dtypes.values()), 0)
        sizes = {
            key: width * sum(lookup(p.parameter)[p.index].numel() for p in self._layout[key])
            for key in self._ordered_keys()
        }
        stored = ((key, stored_form(tensor, dtypes.get(key))) for key, tensor in self.published())
        write_weights(
            folder,
            stored,
            sizes,
            files=None if self._weights is None else self._weights.files,
            max_shard_bytes=self.max_shard_bytes,
        )
        if self.source is None:
            folders.write_config(folder, self.published_config)
        else:
            folders.copy_files(self.source, folder, (folders.CONFIG, folders.GENERATION))
        if self._value_head is not None:
            value_head.save(self._value_head, folder)
        tokenizer = self.section.tokenizer or self.source
        if tokenizer is not None:
            folders.copy_files(Path(tokenizer), folder, folders.TOKENIZER_FILES)

    def describe(self) -> dict[str, Any]:
        """See the interface."""
        parameters = list(self.module.parameters())
        return {
            "kind": self.facts.kind,
            "backbone": type(self.module).__name__,
            "attention": self.attention.described,
            "dtype": str(self._head.dtype).removeprefix("torch."),
            "device": str(self._device),
            "quantised": self.section.quantise,
            "parameters": sum(p.numel() for p in parameters),
            "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
            "mask_id": self.facts.mask_id,
            "eos_ids": list(self.facts.eos_ids),
            "pad_id": self.facts.pad_id,
            "extra_ids": dict(self.facts.extra_ids),
            "logits_shift": self.shift,
        }
