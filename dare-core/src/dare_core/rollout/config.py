"""Options of the native backend."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dare_core.diffusion.config import DenoisingSection


class NativeSection(DenoisingSection):
    """Decodes with the live model, without approximations."""

    cache: Literal["auto", "off"] = Field(
        "auto",
        description="`auto` = the exact key-value cache of models that have one (`kv-exact`), where guidance is off; "
        "`off` = compute every row afresh.",
    )
