"""What this package offers. Defaults are those of the authors' released configurations, as far as they are public."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dare_algos_elbo.presets import (
    BGPO,
    DPO,
    EBPO,
    ESPO,
    SFT,
    SFT_PRESETS,
    SPG,
    UNIFIED_BGPO,
    UNIFIED_EBPO,
    UNIFIED_ESPO,
    UNIFIED_SPG,
    UNIFIED_VRPO,
    VRPO,
)
from dare_core.api import Component, Problem, Slot, hookimpl

if TYPE_CHECKING:
    from dare_core.spec.plan import RunPlan

_EITHER = frozenset({"row-estimate", "view-estimate"})


@hookimpl
def dare_algorithms() -> Iterable[Component]:
    """Training on likelihood estimates: supervised, on preferences, on rewards."""
    return [
        Component(
            kind="sft",
            target="dare_algos_elbo.sft:Sft",
            config="dare_algos_elbo.config:SftSection",
            summary="supervised fine-tuning on the masked-diffusion ELBO; with empty prompts, continued pre-training",
            requires=("torch",),
            needs=frozenset({"demonstrations", "row-estimate"}),
            defaults=SFT,
            presets=SFT_PRESETS,
            paper="arXiv:2502.09992",
        ),
        _preference("dpo", "DpoSection", "DPO on ELBO estimates", DPO, {}, "arXiv:2305.18290"),
        _preference(
            "vrpo",
            "VrpoSection",
            "VRPO: DPO on stratified estimates that both policies share",
            VRPO,
            {"dare-2604": UNIFIED_VRPO},
            "arXiv:2505.19223",
        ),
        _on_rewards(
            "bgpo", "BGPO: one linear lower bound per draw", "view-estimate", BGPO, UNIFIED_BGPO, "arXiv:2510.11683"
        ),
        _on_rewards(
            "espo",
            "ESPO: one normalised ratio per sequence, coupled estimates",
            "row-estimate",
            ESPO,
            UNIFIED_ESPO,
            "arXiv:2512.03759",
        ),
        _on_rewards(
            "ebpo", "EBPO: one ratio on the sum of block ELBOs", "row-estimate", EBPO, UNIFIED_EBPO, "arXiv:2602.08676"
        ),
        _on_rewards(
            "spg",
            "SPG: lower bounds for good responses, upper ones for bad ones",
            "upper-bound",
            SPG,
            UNIFIED_SPG,
            "arXiv:2510.09541",
        ),
    ]


def _preference(
    kind: str, config: str, summary: str, defaults: Mapping[str, Any], presets: Mapping[str, Any], paper: str
) -> Component:
    return Component(
        kind=kind,
        target="dare_algos_elbo.dpo:Dpo",
        config=f"dare_algos_elbo.config:{config}",
        summary=summary,
        requires=("torch",),
        needs=frozenset({"pairs", "row-estimate"}),
        defaults=defaults,
        presets=presets,
        paper=paper,
    )


def _on_rewards(
    kind: str, summary: str, estimate: str, defaults: Mapping[str, Any], unified: Mapping[str, Any], paper: str
) -> Component:
    return Component(
        kind=kind,
        target=f"dare_algos_elbo.{kind}:{kind.capitalize()}",
        config=f"dare_algos_elbo.config:{kind.capitalize()}Section",
        summary=summary,
        requires=("torch",),
        needs=frozenset({"prompts", "sampling", estimate}),
        defaults=defaults,
        presets={"dare-2604": unified},
        paper=paper,
    )


@hookimpl
def dare_likelihood_estimators() -> Iterable[Component]:
    """ELBO estimates, per row or per view as their options say."""
    return [
        _estimator(
            "bernoulli", "ELBO from independently hidden tokens at random times", "arXiv:2502.09992", mask=False
        ),
        _estimator(
            "count-stratified", "ELBO from exact numbers of masked tokens, one to all, stratified", "arXiv:2502.09992"
        ),
        _estimator("espo", "ELBO from exact numbers of masked tokens, none to all, in pairs", "arXiv:2512.03759"),
        _estimator("block-stratified", "block ELBO with masked tokens in every block of a view", "arXiv:2602.08676"),
        _estimator(
            "spg",
            "lower and upper estimate per token from block-wise masks",
            "arXiv:2510.09541",
            frozenset({"upper-bound"}),
        ),
    ]


@hookimpl
def dare_check_run(plan: RunPlan) -> Iterable[Problem]:
    """An estimator that can do both gives what the algorithm takes, and draws that stay fixed are each row's own."""
    if Slot.LIKELIHOOD not in plan or Slot.ALGORITHM not in plan:
        return []
    return [*_estimates_as_taken(plan), *_rows_fix_their_draws(plan)]


def _rows_fix_their_draws(plan: RunPlan) -> Iterable[Problem]:
    if getattr(plan[Slot.ALGORITHM].config, "views", None) != "fixed":
        return
    options = plan[Slot.LIKELIHOOD].config
    for name, value in (("systematic", "rows"), ("crop", "batch"), ("crop", "length")):
        if getattr(options, name, None) == value:
            message = f"'{value}' makes a row's draws depend on its batch, so 'algorithm.views: fixed' cannot hold"
            yield Problem(message, f"likelihood.{name}", hint="use another value, or 'algorithm.views: fresh'")


def _estimates_as_taken(plan: RunPlan) -> Iterable[Problem]:
    per = getattr(plan[Slot.LIKELIHOOD].config, "per", None)
    algorithm = plan[Slot.ALGORITHM]
    wanted = [word.removesuffix("-estimate") for word in _EITHER & algorithm.component.needs]
    if per is None or not wanted or per in wanted:
        return []
    message = f"algorithm '{algorithm.name}' takes one estimate per {wanted[0]}, and this is one per {per}"
    return [Problem(message, "likelihood.per", hint=f"set it to '{wanted[0]}'")]


def _estimator(
    kind: str, summary: str, paper: str, provides: frozenset[str] = _EITHER, *, mask: bool = True
) -> Component:
    name = "".join(part.capitalize() for part in kind.split("-"))
    config = f"{name}EstimatorSection" if kind in ("espo", "spg") else f"{name}Section"
    return Component(
        kind=kind,
        target=f"dare_algos_elbo.estimators.{kind.replace('-', '_')}:{name}",
        config=f"dare_algos_elbo.estimators.config:{config}",
        summary=summary,
        requires=("torch",),
        provides=provides,
        needs=frozenset({"token-logp", "mask-token"} if mask else {"token-logp"}),
        paper=paper,
    )
