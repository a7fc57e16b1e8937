"""Checks across sections, before anything heavy is imported."""

from __future__ import annotations

from dare_core.catalog import Catalog
from dare_core.errors import Problem
from dare_core.spec.nodes import Node
from dare_core.spec.plan import RunPlan
from dare_core.types.model import ModelFacts


def check_plan(plan: RunPlan, root: Node, catalog: Catalog) -> tuple[ModelFacts | None, list[Problem]]:
    """Facts of the model, if they can be read, and every contradiction between sections."""
    return None, []
