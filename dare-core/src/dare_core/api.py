"""What a plugin's declaring module imports: records, hooks and the section base. No heavy imports."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from dare_core.components import Component, Slot
from dare_core.errors import DareError, NonFiniteError, PluginError, Problem, UserError
from dare_core.hookspecs import hookimpl

API_MAJOR = 1


class SectionConfig(BaseModel):
    """Base of every section's options: unknown keys are errors, values never change after validation.

    Field descriptions are shown by ``dare show`` and written into the JSON schema, so every field has one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


__all__ = [
    "API_MAJOR",
    "Component",
    "DareError",
    "NonFiniteError",
    "PluginError",
    "Problem",
    "SectionConfig",
    "Slot",
    "UserError",
    "hookimpl",
]
