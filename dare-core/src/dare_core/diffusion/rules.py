"""The table of selection rules, as far as it can be read without torch: names, options, confidences.

A rule says how sure a position is (``confidence`` of which ``distribution``) and, by a function of one signature in
:mod:`dare_core.diffusion.selection`, which masked positions commit at a step. How many that should be is the
protocol's schedule, unless the rule has a ``pace`` of its own. A rule with an ``edit_threshold`` replaces committed
tokens as well.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from dare_core.errors import Problem, UserError
from dare_core.types import SelectionRule
from dare_core.types.model import Noise

Confidence = Literal["token", "margin", "entropy", "random", "position"]
Distribution = Literal["model", "sampling"]
Selector = Literal[
    "most-confident",
    "threshold",
    "threshold-or-quota",
    "threshold-within-quota",
    "factor",
    "runs",
    "entropy-bounded",
    "independent",
    "within-bound",
]
LastRank = Literal["ignored", "tested"]
Pace = Literal["schedule", "carry", "fixed"]


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
        pace: where the quota comes from: ``schedule`` = the protocol's; ``carry`` = the even schedule's, plus what
            earlier steps of the block left of theirs; ``fixed`` = ``at_least`` tokens.
        threshold: probability bound of the ``threshold`` selectors.
        low_threshold: probability that the best position of a run of masks must exceed to commit.
        factor: f of the test c_n >= 1 - f / (n + 1) on the n-th largest probability.
        last_rank: whether that test counts for the last masked position too.
        bound: entropy (nats) that the positions committed at a step stay below, in sum.
        order_temperature: 0 = the surest positions; above 0 = positions are drawn without replacement with
            probabilities softmax(confidence / order_temperature).
        at_least: tokens that commit at a step of a rule with fixed pace.
        edit_threshold: committed tokens of the block are replaced by proposals more probable than this; None = never.
        end_floor: factor on the probability of proposed end tokens at the first forward, growing to 1; 1 = none.
        max_post_steps: forwards that may follow in a block without masks, while they still edit something.
        noise: what undecided positions hold under this rule: the mask token, or random tokens
            (:mod:`dare_core.diffusion.renoise`).
        hot, cold: temperature of a uniform block's distributions before its first step and after its last one.
        stable_steps: forwards with the same likeliest tokens after which such a block may end early.
        stop_entropy: mean entropy (nats) below which it then does.
        options: option names that specs may set.
    """

    kind: str
    summary: str
    confidence: Confidence
    distribution: Distribution = "model"
    selector: Selector = "most-confident"
    pace: Pace = "schedule"
    threshold: float = 1.0
    low_threshold: float = 0.0
    factor: float = 1.0
    last_rank: LastRank = "ignored"
    bound: float = 0.0
    order_temperature: float = 0.0
    at_least: int = 1
    edit_threshold: float | None = None
    end_floor: float = 1.0
    max_post_steps: int = 0
    noise: Noise = "mask"
    hot: float = 1.0
    cold: float = 1.0
    stable_steps: int = 1
    stop_entropy: float = 0.0
    options: frozenset[str] = field(default_factory=frozenset)

    @property
    def edits(self) -> bool:
        """Whether committed tokens may change, so that commit steps alone do not replay."""
        return self.edit_threshold is not None

    @property
    def replays(self) -> bool:
        """Whether what a forward saw follows from tokens and commit steps."""
        return not self.edits and self.noise == "mask"


_TABLE = (
    Rule(
        kind="low-confidence",
        summary="the quota's most probable proposals (LLaDA low_confidence; SDAR low_confidence_static)",
        confidence="token",
        options=frozenset({"distribution", "end_floor"}),
    ),
    Rule(kind="random", summary="a random quota of positions (LLaDA random)", confidence="random"),
    Rule(
        kind="maskgit-plus",
        summary="as low-confidence, on the distribution that is sampled from (Dream maskgit_plus)",
        confidence="token",
        distribution="sampling",
        options=frozenset({"distribution", "order_temperature"}),
    ),
    Rule(
        kind="topk-margin",
        summary="largest gap between the two likeliest tokens first (Dream topk_margin)",
        confidence="margin",
        distribution="sampling",
        options=frozenset({"distribution", "order_temperature"}),
    ),
    Rule(
        kind="entropy",
        summary="lowest entropy first (Dream entropy)",
        confidence="entropy",
        distribution="sampling",
        options=frozenset({"distribution", "order_temperature"}),
    ),
    Rule(
        kind="independent",
        summary="every masked position by itself, with the probability that makes the quota on average (Dream origin)",
        confidence="random",
        selector="independent",
    ),
    Rule(kind="left-to-right", summary="leftmost masked positions first (SDAR sequential)", confidence="position"),
    Rule(
        kind="confidence-threshold",
        summary="every proposal at least as probable as the threshold, and always the best one",
        confidence="token",
        selector="threshold",
        threshold=0.9,
        options=frozenset({"distribution", "threshold"}),
    ),
    Rule(
        kind="factor",
        summary="the best proposal, and the n-th best while its probability is at least 1 - factor / (n + 1) "
        "(Fast-dLLM factor)",
        confidence="token",
        selector="factor",
        options=frozenset({"distribution", "factor", "last_rank"}),
    ),
    Rule(
        kind="hierarchical",
        summary="the best position of every run of masks if more probable than the low threshold, every proposal more "
        "probable than the threshold, and always the best one (dInfer hierarchical)",
        confidence="token",
        selector="runs",
        threshold=0.9,
        low_threshold=0.4,
        options=frozenset({"distribution", "threshold", "low_threshold"}),
    ),
    Rule(
        kind="budgeted-threshold",
        summary="of the quota's best, those at least as probable as the threshold and always the best one; what is "
        "left of the quota is carried over (Dream confidence_threshold)",
        confidence="token",
        distribution="sampling",
        selector="threshold-within-quota",
        pace="carry",
        threshold=0.9,
        options=frozenset({"distribution", "threshold"}),
    ),
    Rule(
        kind="dynamic-threshold",
        summary="every proposal more probable than the threshold if they fill the quota, else the quota's best (SDAR "
        "low_confidence_dynamic, LLaDA2.0)",
        confidence="token",
        distribution="sampling",
        selector="threshold-or-quota",
        threshold=0.85,
        options=frozenset({"distribution", "threshold"}),
    ),
    Rule(
        kind="entropy-bounded",
        summary="lowest entropy first while the sum of entropies stays below the bound, and always one (SDAR "
        "entropy_bounded)",
        confidence="entropy",
        distribution="sampling",
        selector="entropy-bounded",
        bound=0.35,
        options=frozenset({"distribution", "bound"}),
    ),
    Rule(
        kind="joint-threshold",
        summary="as dynamic-threshold with a fixed quota, and committed tokens of the block are edited (LLaDA2.1)",
        confidence="token",
        distribution="sampling",
        selector="threshold-or-quota",
        pace="fixed",
        threshold=0.95,
        edit_threshold=0.9,
        max_post_steps=16,
        options=frozenset({"distribution", "threshold", "at_least", "edit_threshold", "max_post_steps"}),
    ),
    Rule(
        kind="entropy-renoise",
        summary="uniform noise: lowest entropy first while the entropies before sum to at most the bound, all other "
        "positions drawn anew, every step again (DiffusionGemma)",
        confidence="entropy",
        distribution="sampling",
        selector="within-bound",
        bound=0.1,
        noise="uniform",
        hot=0.8,
        cold=0.4,
        stop_entropy=0.005,
        options=frozenset({"bound", "hot", "cold", "stable_steps", "stop_entropy"}),
    ),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.kind: rule for rule in _TABLE})


def _number(low: float, high: float, *, whole: bool = False, above: bool = False) -> Callable[[Any], bool]:
    def allowed(value: Any) -> bool:
        kinds = (int,) if whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return False
        return (low < value if above else low <= value) and value <= high and math.isfinite(value)

    return allowed


#: option -> (what is allowed, in words; whether a value is; what it does)
OPTIONS: Mapping[str, tuple[str, Callable[[Any], bool], str]] = MappingProxyType(
    {
        "distribution": (
            "'model' or 'sampling'",
            lambda value: value in ("model", "sampling"),
            "whether confidences are those of the model (temperature 1) or of the distribution sampled from",
        ),
        "threshold": ("a number above 0 and at most 1", _number(0, 1, above=True), "probability that commits"),
        "low_threshold": ("a number from 0 to 1", _number(0, 1), "probability that commits the best of a run of masks"),
        "factor": ("a number above 0", _number(0, math.inf, above=True), "larger = more tokens per step"),
        "last_rank": (
            "'ignored' or 'tested'",
            lambda value: value in ("ignored", "tested"),
            "whether the last masked position commits with all others before it (published) or is tested as well",
        ),
        "edit_threshold": ("a number from 0 to 1", _number(0, 1), "probability that replaces a committed token"),
        "bound": ("a number above 0", _number(0, math.inf, above=True), "sum of entropies (nats) per step"),
        "hot": ("a number above 0", _number(0, math.inf, above=True), "temperature before a block's first step"),
        "cold": ("a number above 0", _number(0, math.inf, above=True), "temperature after a block's last step"),
        "stable_steps": (
            "a whole number of 0 or more",
            _number(0, math.inf, whole=True),
            "forwards with the same likeliest tokens before a block may end early",
        ),
        "stop_entropy": ("a number of 0 or more", _number(0, math.inf), "mean entropy (nats) below which it then ends"),
        "order_temperature": (
            "a number of 0 or more",
            _number(0, math.inf),
            "above 0 the order is drawn: softmax(confidence / order_temperature) without replacement",
        ),
        "at_least": ("a whole number of 1 or more", _number(1, math.inf, whole=True), "tokens committed per step"),
        "end_floor": (
            "a number from 0 to 1",
            _number(0, 1),
            "factor on the probability of proposed end tokens at the first forward, growing to 1 (CJ-GRPO's EOSER)",
        ),
        "max_post_steps": (
            "a whole number of 0 or more",
            _number(0, math.inf, whole=True),
            "forwards that may still edit a block without masks",
        ),
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
            continue
        words, allowed, _ = OPTIONS[name]
        if not allowed(value):
            problems.append(Problem(f"{value!r} given; allowed: {words}", path))
    if problems:
        raise UserError(problems)
    return replace(rule, **dict(selection.options))


def _unknown(what: str, name: str, known: Any, path: str) -> Problem:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    allowed = ", ".join(known) or "none"
    return Problem(
        f"unknown {what} {name!r}; allowed: {allowed}",
        path,
        hint=f"did you mean {' or '.join(near)}?" if near else None,
    )
