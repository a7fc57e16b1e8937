"""docs/rollout.md says what the declarations say."""

from __future__ import annotations

from pathlib import Path

from dare_core.diffusion.rules import OPTIONS, RULES, Rule
from dare_core.spec.sections import RolloutSection
from dare_core.types import EosRule

PAGE = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text(encoding="utf-8")


def between(name: str) -> list[str]:
    return PAGE.split(f"<!-- {name}: begin -->\n")[1].split(f"<!-- {name}: end -->")[0].strip().splitlines()


def order(rule: Rule) -> str:
    words = {"token": "probability", "random": "chance"}
    name = words.get(rule.confidence, rule.confidence)
    return name if rule.confidence in ("random", "position") else f"{name} ({rule.distribution})"


def options(rule: Rule) -> str:
    return ", ".join(f"`{name}` {getattr(rule, name)}" for name in sorted(rule.options - {"distribution"}))


def rule_table() -> list[str]:
    rows = [f"| `{rule.kind}` | {rule.summary} | {order(rule)} | {options(rule)} |" for rule in RULES.values()]
    return ["| `kind` | which positions commit | order | options and defaults |", "|---|---|---|---|", *rows]


def test_the_table_of_rules_is_the_declared_one():
    assert between("selection rules") == rule_table()


def test_the_table_of_options_is_the_declared_one():
    rows = [f"| `{name}` | {allowed} | {meaning} |" for name, (allowed, _, meaning) in OPTIONS.items()]
    assert between("options") == ["| option | allowed | meaning |", "|---|---|---|", *rows]


def test_every_end_rule_and_every_key_is_explained():
    for rule in EosRule:
        assert f"| `{rule}` |" in PAGE
    for key in set(RolloutSection.model_fields) - {"kind", "rows_per_batch"}:
        assert f"`{key}`" in PAGE, key
