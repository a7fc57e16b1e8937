"""What the runs of this package brought, as tables in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.learning.runs import PAIRED, Run

BARS = "▁▂▃▄▅▆▇█"


def print_tables(runs: Iterable[Run]) -> None:
    """Print one table per task and kind of learning, of finished runs only."""
    finished = [run for run in runs if run.status == "finished"]
    for task in dict.fromkeys(run.task for run in finished):
        own = [run for run in finished if run.task == task]
        tables = {
            "demonstrations": nelbo_table([run for run in own if run.algorithm == "sft"]),
            "pairs": pair_table([run for run in own if run.algorithm in PAIRED]),
            "rewards": reward_table([run for run in own if run.algorithm not in ("sft", *PAIRED)]),
        }
        for source, (header, rule, *rows) in tables.items():
            if rows:
                print("\n".join(["", f"{task.capitalize()}, from {source}:", "", header, rule, *rows]))


def reward_table(runs: Sequence[Run]) -> list[str]:
    """Reward and share of right responses at the start and at the end, seed by seed, and the means' curve."""
    lines = [
        "| algorithm | rate | reward, start -> end, by seed | mean | right | curve |",
        "|---|---|---|---|---|---|",
    ]
    for algorithm, own in by_algorithm(runs):
        curves = [evaluations(run.folder, "sampled/reward") for run in own]
        right = [evaluations(run.folder, "sampled/correct_rate") for run in own]
        middle = [mean(values) for values in zip(*curves, strict=True)]
        seeds = ", ".join(f"{values[0]:.3f} -> {values[-1]:.3f}" for values in curves)
        shares = " -> ".join(f"{100 * mean(values[place] for values in right):.1f} %" for place in (0, -1))
        lines.append(
            f"| `{algorithm}` | {rate(own[0].folder)} | {seeds} | {middle[-1] - middle[0]:+.3f} | {shares} "
            f"| {' '.join(f'{value:.3f}' for value in middle)} {spark(middle)} |"
        )
    return lines


def nelbo_table(runs: Sequence[Run]) -> list[str]:
    """Negative ELBO per held-out token."""
    lines = ["| algorithm | rate | held-out NELBO per token, by seed | right, at the end |", "|---|---|---|---|"]
    for algorithm, own in by_algorithm(runs):
        curves = [evaluations(run.folder, "nelbo/nelbo_per_token") for run in own]
        seeds = ", ".join(" -> ".join(f"{value:.2f}" for value in values) for values in curves)
        right = ", ".join(f"{100 * evaluations(run.folder, 'sampled/correct_rate')[-1]:.1f} %" for run in own)
        lines.append(f"| `{algorithm}` | {rate(own[0].folder)} | {seeds} | {right} |")
    return lines


def pair_table(runs: Sequence[Run]) -> list[str]:
    """Held-out pairs: how often and by how much the right side is the likelier one."""
    lines = [
        "| algorithm | rate | pairs ordered rightly, by seed | margin in nats, by seed | reward, by seed |",
        "|---|---|---|---|---|",
    ]
    for algorithm, own in by_algorithm(runs):
        margins = [[pair_margins(run.folder, step) for step in pair_steps(run.folder)] for run in own]
        order = ", ".join(
            " -> ".join(f"{100 * mean(float(value > 0) for value in values):.0f} %" for values in steps)
            for steps in margins
        )
        size = ", ".join(" -> ".join(f"{mean(values):.2f}" for values in steps) for steps in margins)
        rewards = [evaluations(run.folder, "sampled/reward") for run in own]
        seeds = ", ".join(f"{values[0]:.3f} -> {values[-1]:.3f}" for values in rewards)
        lines.append(f"| `{algorithm}` | {rate(own[0].folder)} | {order} | {size} | {seeds} |")
    return lines


def by_algorithm(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Runs of each algorithm, in the order of their first."""
    names = dict.fromkeys(run.algorithm for run in runs)
    return [(name, [run for run in runs if run.algorithm == name]) for name in names]


def evaluations(folder: Path, metric: str) -> list[float]:
    """The metric wherever it was measured, step by step."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [line[metric] for line in lines if metric in line]


def pair_steps(folder: Path) -> list[int]:
    """Steps after which pairs were scored."""
    return sorted(int(path.name.split("_")[1].split("-")[0]) for path in (folder / "eval").glob("step_*-chosen"))


def pair_margins(folder: Path, step: int) -> list[float]:
    """Per held-out pair: ELBO of the right side minus that of the wrong one."""
    sides = []
    for side in ("chosen", "rejected"):
        text = (folder / "eval" / f"step_{step}-{side}" / "items.jsonl").read_text()
        sides.append({item["id"]: item["nelbo"] for item in map(json.loads, text.splitlines())})
    return [sides[1][name] - value for name, value in sides[0].items()]


def rate(folder: Path) -> str:
    """The learning rate of a run, from its resolved spec."""
    for line in (folder / "spec" / "resolved.yaml").read_text().splitlines():
        if line.strip().startswith("lr:"):
            return f"{float(line.split(':')[1]):.0e}".replace("e-0", "e-")
    raise ValueError(f"{folder} has no learning rate")


def spark(values: Sequence[float]) -> str:
    """A curve of bars between its own least and largest value."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)
