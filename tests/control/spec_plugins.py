"""A pretend distribution with a component for every slot, so that specs can be tested without any real plugin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.architecture.project import plugin_packages

from dare_core.catalog import Catalog
from dare_core.errors import Problem, UserError
from dare_core.plugins.report import MissingImport
from dare_core.plugins.requirements import missing_imports
from dare_core.spec.plan import RunPlan
from dare_core.spec.resolve import resolve_spec
from dare_core.testing.fake_distributions import FakeDistribution, installed

_PLUGIN = """
from dare_core.api import Component, Problem, hookimpl

def component(kind, config, **more):
    return Component(kind=kind, target="dare_pretend.plugin:none", config=f"dare_pretend.config:{config}",
                     summary=f"{kind} for tests", **more)

@hookimpl
def dare_model_adapters():
    return [component("toy", "Toy", provides={"masked", "token-logp"}),
            component("toy-block", "Toy", provides={"block"})]

@hookimpl
def dare_detect_model(config):
    return "toy" if config.get("model_type") == "toy" else None

@hookimpl
def dare_algorithms():
    return [
        component(
            "group-pg", "GroupPg", needs={"prompts", "sampling", "token-estimate"},
            defaults={"likelihood.kind": "one-step-x", "likelihood.draws": 2, "optim.lr": 3e-6, "optim.batch_size": 24,
                      "rollout.new_tokens": 64, "rollout.temperature": 0.9, "rollout.steps_total": 32,
                      "rollout.block_length": 32, "rollout.no_such_option": 1, "peft.r": 128, "algorithm.beta": 0.5},
            presets={"full": {"algorithm.clip_range": 0.3, "optim.lr": 5e-7, "peft": None, "rollout.top_p": 0.7},
                     "odd": {"rollout.no_such_option": 1}, "far": {"eval.every": 3}},
        ),
        component("replay", "GroupPg", needs={"prompts", "commit-step"},
                  defaults={"likelihood.kind": "one-step-x", "rollout.new_tokens": 64, "rollout.temperature": 1.0}),
        component("imitate", "Imitate", needs={"demonstrations", "row-estimate"},
                  defaults={"likelihood.kind": "elbo-x"}),
        component("prefer", "Imitate", needs={"pairs", "row-estimate"}, defaults={"likelihood.kind": "elbo-x"}),
    ]

@hookimpl
def dare_likelihood_estimators():
    return [
        component("one-step-x", "Draws", provides={"token-estimate"}, needs={"token-logp"},
                  defaults={"rollout.top_k": 7, "rollout.temperature": 0.1},
                  presets={"many": {"likelihood.draws": 64}}),
        component("elbo-x", "Draws", provides={"row-estimate"}, needs={"masked"}),
    ]

@hookimpl
def dare_rollout_backends():
    return [component("quick", "Quick", provides={"sampling"}),
            component("heavy", "Quick", requires=("no_such_package_x",), provides={"sampling", "commit-step"})]

@hookimpl
def dare_evaluators():
    return [component("quiz", "Quiz"), component("needy", "Quiz", needs={"sampling"})]

@hookimpl
def dare_check_run(plan):
    if plan.run.name == "forbidden":
        return [Problem("this name is taken", path="run.name")]
    return []
"""

_CONFIG = """
from typing import Annotated, Literal, Mapping
from pydantic import Field
from dare_core.api import SectionConfig, Slot
from dare_core.spec.plan import Choice
from dare_core.spec.sections import *
from dare_core.spec.slots import SlotOptions
from dare_core.types.model import ModelFacts

class Toy(ModelSection):
    def facts(self, published):
        if "positions" not in published:
            raise ValueError("config has no 'positions'")
        return ModelFacts(kind="toy", diffusion="masked", vocab_size=9, mask_id=8, eos_ids=(7,), pad_id=7,
                          max_positions=published["positions"])

class GroupPg(GroupAlgorithmSection):
    group_size: int = Field(6, ge=2, description="Responses per prompt.")
    clip_range: float = Field(0.2, gt=0, description="Clip.")
    beta: float = Field(0.0, description="KL weight.")
    mode: Literal["token", "sequence"] = Field("token", description="Ratio.")
    bound: float | None = Field(1.5, description="Null = off.")

class Imitate(AlgorithmSection):
    temperature_of_loss: float = Field(1.0, description="x")

class Draws(SectionConfig):
    draws: int = Field(1, ge=1, description="Draws.")

class Quick(RolloutSection):
    threshold: float = Field(0.9, description="Confidence.")

class Quiz(EvaluatorSection):
    data: Annotated[Choice | None, SlotOptions(Slot.DATA)] = Field(None, description="Rows.")
    reward: Annotated[Choice | None, SlotOptions(Slot.REWARD)] = Field(None, description="Judge.")
    limit: int | None = Field(None, description="Rows used.")
"""

PRETEND = FakeDistribution(name="dare-pretend", source=_PLUGIN, files={"config.py": _CONFIG})

SPEC = """\
dare: 1
run: {name: t, steps: 5}
model: {path: toy}
data: {path: rows.jsonl, prompt: "{q}", reference: "{a}"}
reward: match
algorithm: group-pg
"""


@contextmanager
def pretend_catalog(folder: Path) -> Iterator[Catalog]:
    """Core's components and the pretend ones, whatever else is installed; core's extras count as installed."""
    with installed(folder, PRETEND):
        points = [point for found in distributions(path=[str(folder)]) for point in found.entry_points]
        with patch("dare_core.plugins.loading.missing_imports", _missing_of_plugins):
            catalog = Catalog.load(entry_points=points)
        yield catalog


def _missing_of_plugins(names: Iterable[str], distribution: str, requires: Iterable[str]) -> tuple[MissingImport, ...]:
    return () if distribution == "dare-core" else missing_imports(names, distribution, requires)


def needs_official_plugins() -> None:
    """Skip the module that calls this where core is installed alone."""
    for package in (*(folder.name for folder in plugin_packages()), "torch"):
        pytest.importorskip(package, reason="about the official packages")


@contextmanager
def pretend_site(folder: Path) -> Iterator[Path]:
    """The pretend distribution beside whatever is installed; and where torch is not, a package of that name."""
    if find_spec("torch") is None:
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "__init__.py").write_text("raise ImportError('only its name is here')\n")
    with installed(folder, PRETEND):
        yield folder


def write_world(folder: Path, *, positions: int = 4096) -> None:
    """The model folder and the rows that :data:`SPEC` names."""
    model = folder / "toy"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"model_type": "toy", "positions": positions}))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    (folder / "rows.jsonl").write_text('{"q": "1+1", "a": "2"}\n')


class Specs:
    """Writes spec files into the working directory and resolves them."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def plan(self, text: str = SPEC, *overlays: str, sets: tuple[str, ...] = ()) -> RunPlan:
        paths = [Path("spec.yaml"), *(Path(f"over{index}.yaml") for index in range(len(overlays)))]
        for path, content in zip(paths, (text, *overlays), strict=True):
            path.write_text(content)
        return resolve_spec(paths, sets, self.catalog)

    def problems(self, text: str, *overlays: str, sets: tuple[str, ...] = ()) -> list[Problem]:
        with pytest.raises(UserError) as caught:
            self.plan(text, *overlays, sets=sets)
        assert caught.value.exit_code == 2
        return list(caught.value.problems)

    def lines(self, text: str, *overlays: str, sets: tuple[str, ...] = ()) -> list[str]:
        return [str(problem) for problem in self.problems(text, *overlays, sets=sets)]
