"""The model families that are built: what tests of all adapters need to know of each. A family joins by one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.spec.sections import ModelSection
from dare_diffusion_gemma.adapter import DiffusionGemmaAdapter
from dare_diffusion_gemma.config import DiffusionGemmaSection
from dare_diffusion_gemma.testing import write_diffusion_gemma_checkpoint
from dare_dream.adapter import DreamAdapter
from dare_dream.config import DreamSection
from dare_dream.testing import write_dream_checkpoint
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.moe.adapter import LladaMoeAdapter
from dare_llada.moe.config import LladaMoeSection
from dare_llada.moe.testing import write_llada_moe_checkpoint
from dare_llada.testing import write_llada_checkpoint
from dare_llada2.adapter import Llada2Adapter
from dare_llada2.config import Llada2Section
from dare_llada2.testing import write_llada2_checkpoint
from dare_sdar.adapter import SdarAdapter, SdarMoeAdapter
from dare_sdar.config import SdarMoeSection, SdarSection
from dare_sdar.testing import write_sdar_checkpoint, write_sdar_moe_checkpoint

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Family:
    """One kind.

    Attributes:
        kind: as declared.
        adapter: its class.
        section: its model section.
        write: writes a tiny published folder: ``write(folder, seed=, shards=, dtype=, **config_keys)``.
        spread: config keys that make fresh weights large enough for logits to differ.
        flex: ``attention: flex`` is offered.
        stacked_experts: experts are published stacked, not one by one.
    """

    kind: str
    adapter: type[TransformerAdapter]
    section: type[ModelSection]
    write: Callable[..., Path]
    spread: Mapping[str, Any] = field(default_factory=lambda: {"initializer_range": 0.2})
    flex: bool = True
    stacked_experts: bool = False

    def load(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        seed: int = 0,
        device: torch.device = CPU,
        **section: Any,
    ) -> TransformerAdapter:
        return self.adapter.load(self.section(path=str(folder), **section), device=device, dtype=dtype, seed=seed)


FAMILIES = (
    Family("llada", LladaAdapter, LladaSection, write_llada_checkpoint, {"init_std": 0.2}),
    Family("llada-moe", LladaMoeAdapter, LladaMoeSection, write_llada_moe_checkpoint),
    Family("dream", DreamAdapter, DreamSection, write_dream_checkpoint),
    Family("sdar", SdarAdapter, SdarSection, write_sdar_checkpoint),
    Family("sdar-moe", SdarMoeAdapter, SdarMoeSection, write_sdar_moe_checkpoint),
    Family("llada2", Llada2Adapter, Llada2Section, write_llada2_checkpoint),
    Family(
        "diffusion-gemma",
        DiffusionGemmaAdapter,
        DiffusionGemmaSection,
        write_diffusion_gemma_checkpoint,
        flex=False,
        stacked_experts=True,
    ),
)
BLOCK_FAMILIES = tuple(family for family in FAMILIES if family.kind not in ("llada", "llada-moe", "dream"))
