"""The backbone: the library's decoder stack over one packed row that holds finished and noisy tokens.

Encoder and decoder of the published model share all weights but one number per layer, so one stack computes both:
which of the two a token belongs to decides what it sees (the attention plan), how it is embedded, and by which number a
layer's output is scaled. The published vision part is carried along, not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, DiffusionGemmaConfig
from transformers.models.diffusion_gemma.modeling_diffusion_gemma import (
    DiffusionGemmaDecoderModel,
    DiffusionGemmaMultimodalEmbedder,
)

from dare_core.backbones.attention import ATTENTION, AttentionPlan
from dare_core.backbones.experts import EXPERTS


def library_config(published: Mapping[str, Any]) -> Any:
    """The library's config. No padding id reaches the module: its embedding row must train like any other."""
    text = {**published["text_config"], "pad_token_id": None, "use_cache": False}
    known = {key: published[key] for key in ("vision_config", "canvas_length") if published.get(key) is not None}
    config = DiffusionGemmaConfig(text_config=text, **known)
    config.text_config._attn_implementation = ATTENTION
    config.text_config._experts_implementation = EXPERTS
    return config


def vision_shapes(published: Mapping[str, Any]) -> dict[str, torch.Size]:
    """Published key -> shape of every tensor of the vision part; none where the config has no such part."""
    if published.get("vision_config") is None:
        return {}
    config = library_config(published)
    with torch.device("meta"):
        parts = {
            "vision_tower": AutoModel.from_config(config.vision_config),
            "embed_vision": DiffusionGemmaMultimodalEmbedder(config.vision_config, config.text_config),
        }
    return {
        f"model.encoder.{name}.{key}": tensor.shape
        for name, part in parts.items()
        for key, tensor in part.state_dict().items()
    }


class Held(nn.Module):
    """Tensors that are kept in the dtype they are stored in, under names without dots."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))

    def __iter__(self) -> Iterator[Tensor]:
        return self.buffers()


class Backbone(DiffusionGemmaDecoderModel):  # type: ignore[misc]
    """The library's layers, norm, embedding, rotary frequencies and self-conditioning.

    Attributes:
        scales: the published ``layer_scalar`` of each layer: ``noisy<i>`` for the block that is denoised, ``clean<i>``
            for finished tokens. The layers' own stay 1.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        one = torch.Size([1])
        self.scales = Held({f"{copy}{n}": one for n in range(len(self.layers)) for copy in ("noisy", "clean")})

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_plan: AttentionPlan,
        noisy: Tensor | None = None,
        read: Tensor | None = None,
        condition: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """States [1,T,H] of a packed row.

        Args:
            input_ids: [1,T].
            position_ids: [1,T].
            attention_plan: who sees whom.
            noisy: [T] bool tokens of the blocks that are denoised; None = none.
            read: [M] places that ``condition`` belongs to.
            condition: [M,H] what the model sees of its last guess there; None = there is none yet.
        """
        noisy = torch.zeros_like(input_ids[0], dtype=torch.bool) if noisy is None else noisy
        hidden = self.embed_tokens(input_ids)
        signal = torch.zeros_like(hidden)
        if condition is not None:
            signal[0, read] = condition.to(hidden.dtype)
        # Without a guess the signal is zero, and the norm behind it acts all the same.
        conditioned = self.self_conditioning(hidden[:, noisy], signal[:, noisy])
        hidden = hidden.masked_scatter(noisy[None, :, None], conditioned)
        rotary = {kind: self.rotary_emb(hidden, position_ids, kind) for kind in self.unique_layer_types}
        for number, layer in enumerate(self.layers):
            hidden = layer(
                hidden,
                position_embeddings=rotary[self.text_config.layer_types[number]],
                attention_mask=None,
                position_ids=position_ids,
                cache=None,
                attention_plan=attention_plan,
            )
            own, finished = (getattr(self.scales, f"{copy}{number}").to(hidden.dtype) for copy in ("noisy", "clean"))
            hidden = hidden * torch.where(noisy[None, :, None], own, finished)
        return SimpleNamespace(last_hidden_state=self.norm(hidden))


class DiffusionGemmaModule(nn.Module):
    """Backbone, tied head, and the vision part as stored.

    Attributes:
        config: of the text model.
    """

    def __init__(self, published: Mapping[str, Any]) -> None:
        super().__init__()
        config = library_config(published)
        self.config = config.text_config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        self.vision = Held({held_name(key): shape for key, shape in vision_shapes(published).items()})
        self.tie_weights()

    def tie_weights(self) -> None:
        """The head is the embedding."""
        self.lm_head.weight = self.model.embed_tokens.weight


def held_name(key: str) -> str:
    """A published key as a buffer's name."""
    return key.replace(".", "/")
