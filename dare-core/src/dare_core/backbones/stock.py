"""Families whose published config and weight keys are those of a transformers class.

Such a family names the class, the config keys it takes over and the members of a layer. Mixtures of
experts are published with one matrix per expert and projection; the library stacks them, so an expert is
an indexed part of a stacked parameter. Folders whose experts are stacked on disk already (``mlp.experts.gate_proj``,
``up_proj`` and ``down_proj`` with a leading expert dimension, as some training code writes them) are read too, and
saved with one matrix per expert.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.backbones.attention import ATTENTION
from dare_core.backbones.experts import EXPERTS
from dare_core.backbones.weights import Part, WeightLayout

#: members of a layer with a gated MLP, beside its attention
MLP = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
_EXPERT = re.compile(r"(.+\.experts)\.\d+\.(gate_proj|up_proj|down_proj)\.weight")
#: key within a layer -> its parts within the layer
LayerParts = Mapping[str, Sequence[Part]]


def same_names(names: Iterable[str]) -> LayerParts:
    """Members that are one whole parameter of the published name."""
    return {name: [Part(name)] for name in names}


def expert_parts(experts: int, width: int, prefix: str = "mlp.experts") -> LayerParts:
    """Published per-expert matrices within the library's stacked ones.

    Args:
        experts: number of experts E.
        width: rows F of one gate or up matrix.
        prefix: of both, within a layer; ``gate_up_proj`` is [E,2F,H] with the gate first, ``down_proj`` [E,H,F].
    """
    stacked = f"{prefix}.gate_up_proj"
    parts: dict[str, Sequence[Part]] = {}
    for expert in range(experts):
        parts[f"{prefix}.{expert}.gate_proj.weight"] = [Part(stacked, (expert, slice(0, width)))]
        parts[f"{prefix}.{expert}.up_proj.weight"] = [Part(stacked, (expert, slice(width, 2 * width)))]
        parts[f"{prefix}.{expert}.down_proj.weight"] = [Part(f"{prefix}.down_proj", (expert,))]
    return parts


def decoder_layout(layers: Iterable[LayerParts], *, tied: bool) -> WeightLayout:
    """Embedding, layers, final norm, and the head where it is not tied to the embedding."""
    layout: dict[str, Sequence[Part]] = {"model.embed_tokens.weight": [Part("model.embed_tokens.weight")]}
    for number, layer in enumerate(layers):
        prefix = f"model.layers.{number}."
        for key, parts in layer.items():
            layout[prefix + key] = [Part(prefix + part.parameter, part.index) for part in parts]
    layout["model.norm.weight"] = [Part("model.norm.weight")]
    if not tied:
        layout["lm_head.weight"] = [Part("lm_head.weight")]
    return layout


def stacked_experts(layout: WeightLayout) -> WeightLayout:
    """The layout of a folder whose experts are stacked on disk."""
    stacked: dict[str, Sequence[Part]] = {}
    for key, parts in layout.items():
        match = _EXPERT.fullmatch(key)
        if match is None:
            stacked[key] = parts
        else:
            every = [Part(part.parameter, (slice(None), *part.index[1:])) for part in parts]
            stacked.setdefault(f"{match[1]}.{match[2]}", every)
    return stacked


class StockAdapter(TransformerAdapter):
    """See the module.

    Attributes:
        library: config class and causal-LM class of transformers.
        config_keys: published keys handed to the config class as they are, where present.
        defaults: published key -> value of an absent key in the published code, where the library's differs.
        identity: ``architectures`` and ``model_type`` by which a saved fresh model is recognised.
    """

    library: ClassVar[tuple[Callable[..., Any], Callable[..., nn.Module]]]
    config_keys: ClassVar[tuple[str, ...]]
    defaults: ClassVar[Mapping[str, Any]] = {}
    identity: ClassVar[tuple[str, str]]

    @classmethod
    @abstractmethod
    def layer_parts(cls, published: Mapping[str, Any], layer: int) -> LayerParts:
        """Members of one layer."""

    @classmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """See the base class. No padding id reaches the module: its embedding row must train like any other."""
        known = {**cls.defaults, **{key: value for key, value in published.items() if value is not None}}
        config_class, model_class = cls.library
        config = config_class(
            **{key: known[key] for key in cls.config_keys if key in known},
            rope_parameters={"rope_type": "default", "rope_theta": float(known["rope_theta"])},
            tie_word_embeddings=cls._tied(published),
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            attn_implementation=ATTENTION,
            experts_implementation=EXPERTS,
        )
        # peft rewrites LoRA targets of mixtures of the library's own types; names are mapped here, not there.
        config.model_type = cls.identity[1]
        module: Any = model_class(config)
        for layer in module.model.layers:
            layer.self_attn.is_causal = False
        return module  # type: ignore[no-any-return]

    @classmethod
    def restore_buffers(cls, module: Any, device: torch.device) -> None:
        """Build the rotary module again: its frequencies are computed, and stay in float32."""
        rotary = module.model.rotary_emb
        module.model.rotary_emb = type(rotary)(rotary.config).to(device)

    @classmethod
    def weight_layout(cls, published: Mapping[str, Any]) -> WeightLayout:
        """See the base class."""
        layers = range(int(published["num_hidden_layers"]))
        return decoder_layout((cls.layer_parts(published, n) for n in layers), tied=cls._tied(published))

    @classmethod
    def folder_layout(cls, published: Mapping[str, Any], keys: Collection[str]) -> WeightLayout:
        """See the base class: experts one by one, as published, or stacked."""
        layout = cls.weight_layout(published)
        stacked = stacked_experts(layout)
        return stacked if any(key in stacked and key not in layout for key in keys) else layout

    @classmethod
    def fresh_std(cls, published: Mapping[str, Any], parameter: str) -> float | None:
        """``initializer_range`` for every matrix; biases start at 0 and scales of norms at 1."""
        if "norm" in parameter:
            return None
        return 0.0 if parameter.endswith(".bias") else float(published.get("initializer_range", 0.02))

    @classmethod
    def complete_config(cls, published: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the base class."""
        architecture, model_type = cls.identity
        return {"architectures": [architecture], "model_type": model_type, **published}

    def describe(self) -> dict[str, Any]:
        """See the base class; mixtures name how their experts run."""
        described = super().describe()
        if getattr(self.module.config, "num_experts_per_tok", None):
            described["experts"] = f"{EXPERTS} (tokens grouped by expert; bfloat16 on a GPU: grouped matrix products)"
        return described

    @classmethod
    def _tied(cls, published: Mapping[str, Any]) -> bool:
        return bool(published.get("tie_word_embeddings", False))
