"""The table of selection rules, as far as it can be read without torch: names, options, confidences.

A rule says how sure a masked position is (``confidence`` of which ``distribution``) and, by a function of one
signature in :mod:`dare_core.diffusion.selection`, which positions commit at a step.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from dare_core.errors import Problem, UserError
from dare_core.types import SelectionRule

Confidence = Literal["token", "margin", "entropy", "random", "position"]
Distribution = Literal["model", "sampling"]
Selector = Literal["most-confident", "threshold"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One selection rule.

    Attributes:
        kind: name in specs.
        summary: one line.
        confidence: ``token`` = probability of the proposed token, ``margin`` = p1 - p2, ``entropy`` = negative
            entropy, ``random`` = a uniform number, ``position`` = further left is surer.
        distribution: ``model`` = logits at temperature 1 after guidance and suppression; ``sampling`` = after
            temperature and filters as well. Without meaning for ``random`` and ``position``.
        selector: the function that picks positions.
        threshold: probability bound of the ``threshold`` selector.
        options: option names that specs may set.
    """

    kind: str
    summary: str
    confidence: Confidence
    distribution: Distribution = "model"
    selector: Selector = "most-confident"
    threshold: float = 1.0
    options: frozenset[str] = field(default_factory=frozenset)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.kind: rule
        for rule in (
            Rule(
                kind="low-confidence",
                summary="the quota's most probable proposals commit, the others stay masked (LLaDA low_confidence)",
                confidence="token",
                options=frozenset({"distribution"}),
            ),
            Rule(kind="random", summary="a random quota of positions commits (LLaDA random)", confidence="random"),
            Rule(
                kind="topk-margin",
                summary="largest gap between the two likeliest tokens first (Dream topk_margin)",
                confidence="margin",
                distribution="sampling",
                options=frozenset({"distribution"}),
            ),
            Rule(
                kind="entropy",
                summary="lowest entropy first (Dream entropy)",
                confidence="entropy",
                distribution="sampling",
                options=frozenset({"distribution"}),
            ),
            Rule(kind="left-to-right", summary="leftmost masked positions first", confidence="position"),
            Rule(
                kind="confidence-threshold",
                summary="every proposal at least as probable as the threshold, and always the best one",
                confidence="token",
                selector="threshold",
                threshold=0.9,
                options=frozenset({"distribution", "threshold"}),
            ),
        )
    }
)


def find_rule(selection: SelectionRule) -> Rule:
    """The rule of the table with its options applied.

    Raises:
        UserError: unknown rule or option, or an option's value is not allowed.
    """
    rule = RULES.get(selection.kind)
    if rule is None:
        raise UserError(_unknown("selection rule", selection.kind, RULES, "rollout.selection.kind"))
    problems = []
    for name, value in selection.options.items():
        path = f"rollout.selection.options.{name}"
        if name not in rule.options:
            problems.append(_unknown(f"option of {rule.kind!r}", name, sorted(rule.options), path))
        elif not _allowed(name, value):
            allowed = "'model' or 'sampling'" if name == "distribution" else "a number above 0 and at most 1"
            problems.append(Problem(f"{value!r} given; allowed: {allowed}", path))
    if problems:
        raise UserError(problems)
    return replace(rule, **dict(selection.options))


def _allowed(name: str, value: Any) -> bool:
    if name == "distribution":
        return value in ("model", "sampling")
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1


def _unknown(what: str, name: str, known: Any, path: str) -> Problem:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    allowed = ", ".join(known) or "none"
    return Problem(
        f"unknown {what} {name!r}; allowed: {allowed}",
        path,
        hint=f"did you mean {' or '.join(near)}?" if near else None,
    )
