"""DiffusionGemma on the library's decoder layers: causal prefix, bidirectional canvas, self-conditioning.

The published code is transformers' own (``DiffusionGemmaForBlockDiffusion``); there is no paper. A token that is
finished sees itself and what is left of it; the block that is denoised sees all of itself and everything before it,
in layers with a sliding window W the last W - 1 tokens before it. Logits at a position predict the token at that
position and are capped softly. Embedding, layers, head and norms are shared by both roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dare_core.api import Problem, UserError
from dare_core.backbones.adapter import TransformerAdapter
from dare_core.backbones.attention import windowed_segment_plan
from dare_core.backbones.experts import EXPERTS
from dare_core.backbones.implementations import Attention
from dare_core.backbones.packing import Packed
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.backbones.weights import WeightLayout
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_diffusion_gemma.module import DiffusionGemmaModule, library_config
from dare_diffusion_gemma.weights import published_layout

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class DiffusionGemmaAdapter(TransformerAdapter):
    """See :class:`dare_core.backbones.adapter.TransformerAdapter`. Likelihoods see no earlier guess."""

    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {
        "default": (*_ATTENTION, *_MLP),
        "attention": _ATTENTION,
        "mlp": _MLP,
        "experts": ("experts.gate_up_proj", "experts.down_proj"),
    }
    wrap_units: ClassVar[tuple[str, ...]] = ("DiffusionGemmaDecoderTextLayer",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.softcap = self.module.config.final_logit_softcapping
        self.window = self.module.config.sliding_window

    @classmethod
    def choose_attention(cls, section: ModelSection, published: Mapping[str, Any], device: torch.device) -> Attention:
        """Only ``sdpa``: heads of full layers are wider than flash kernels take, and windows need a mask per layer."""
        if section.attention not in ("auto", "sdpa"):
            message = f"attention {section.attention!r} is not available for this family"
            raise UserError(Problem(message, path="model.attention", hint="take 'sdpa' or 'auto'"))
        window = library_config(published).text_config.sliding_window
        described = "sdpa (torch scaled_dot_product_attention, segment by segment; windows by masks)"
        return Attention("sdpa", partial(windowed_segment_plan, window=window), described)

    @classmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """See the base class."""
        return DiffusionGemmaModule(published)

    @classmethod
    def restore_buffers(cls, module: Any, device: torch.device) -> None:
        """Rotary frequencies and the embedding's factor are computed; scales start at 1, the vision part at 0."""
        model = module.model
        model.rotary_emb = type(model.rotary_emb)(model.rotary_emb.config).to(device)
        model.embed_tokens.embed_scale = torch.tensor(model.embed_tokens.scalar_embed_scale, device=device)
        for layer in model.layers:
            layer.layer_scalar.fill_(1.0)
        for scale in model.scales:
            scale.fill_(1.0)
        for tensor in module.vision:
            tensor.zero_()

    @classmethod
    def weight_layout(cls, published: Mapping[str, Any]) -> WeightLayout:
        """See the base class."""
        return published_layout(published)

    @classmethod
    def fresh_std(cls, published: Mapping[str, Any], parameter: str) -> float | None:
        """``initializer_range`` for every matrix; norms and the router's factors start at 1."""
        if "norm" in parameter or parameter.endswith("scale"):
            return None
        return float(published["text_config"].get("initializer_range", 0.02))

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """The folder's tokenizer and chat template; there is no template of our own."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""))
        return TokenizerCodec(tokenizer, facts, end_id=facts.extra_ids.get("eot", facts.eos_ids[0]))

    @classmethod
    def complete_config(cls, published: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the base class."""
        return {"architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", **published}

    def condition_on(self, logits: Tensor) -> Tensor:
        """The expected embedding under the guess; dtypes as published."""
        weight = self._head
        share = logits.to(weight.dtype).softmax(dim=-1, dtype=torch.float32).to(weight.dtype)
        return share @ weight * self.module.model.embed_tokens.embed_scale.to(weight.dtype)

    def _states(self, packed: Packed) -> Tensor:
        states: Tensor = self.module.model(
            input_ids=packed.tokens[None],
            position_ids=packed.positions[None],
            attention_plan=packed.plan,
            noisy=packed.noisy,
            read=packed.read,
            condition=packed.condition,
        ).last_hidden_state[0]
        return states

    def _decoded_states(self, packed: Packed) -> Tensor:
        return self._states(packed)[packed.read]

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        experts = f"{EXPERTS} (tokens grouped by expert; bfloat16 on a GPU: grouped matrix products)"
        return super().describe() | {"noise": self.facts.noise, "experts": experts}
