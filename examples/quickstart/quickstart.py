"""Teach a small diffusion language model 4x4 Sudoku: fine-tuning, then reinforcement learning.

Runs the two specs beside this file with ``dare run`` and shows what each stage brought on held-out puzzles. A stage
that was interrupted is resumed; one that is finished is only shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
STAGES = ("sft", "rl")
BARS = "▁▂▃▄▅▆▇█"


def folder_of(stage: str, seed: int, parent: Path) -> Path:
    return parent / (f"quickstart-{stage}" + (f"-seed{seed}" if seed else ""))


def train(stage: str, seed: int, parent: Path) -> None:
    """Run or resume one stage; its checkpoints and metrics are in its folder afterwards."""
    folder = folder_of(stage, seed, parent)
    state = folder / "state.json"
    if state.exists():
        if json.loads(state.read_text())["status"] != "finished":
            dare("resume", str(folder))
        return
    changes = [f"run.name={folder.name}", f"run.folder={parent}", f"run.seed={seed}"]
    if stage == "rl":
        changes.append(f"model.path={newest_model(folder_of('sft', seed, parent))}")
    dare("run", str(HERE / f"{stage}.yaml"), *(word for change in changes for word in ("--set", change)))


def dare(*arguments: str) -> None:
    code = subprocess.run([sys.executable, "-m", "dare_core", *arguments], check=False).returncode
    if code:
        raise SystemExit(code)


def newest_model(folder: Path) -> Path:
    steps = sorted((folder / "checkpoints").glob("step_*"), key=lambda path: int(path.name.split("_")[1]))
    return steps[-1] / "model"


def evaluations(folder: Path) -> list[dict[str, float]]:
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "sampled/reward" in line]


def curve(values: list[float]) -> str:
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)


def show(seed: int, parent: Path) -> None:
    """The table, the curves and where everything is."""
    console = Console()
    sft, rl = (evaluations(folder_of(stage, seed, parent)) for stage in STAGES)
    table = Table(title="128 held-out puzzles")
    for column in ("", "reward, sampled", "valid, sampled", "reward, greedy", "valid, greedy"):
        table.add_column(column, justify="right" if column else "left")
    for name, line in (("before", sft[0]), ("after SFT", rl[0]), ("after RL", rl[-1])):
        cells = [
            f"{line[f'{how}/reward']:.3f}" if what == "reward" else f"{line[f'{how}/correct_rate']:.1%}"
            for how in ("sampled", "greedy")
            for what in ("reward", "valid")
        ]
        table.add_row(name, *cells)
    console.print(table)
    console.print("reward: share of right rows, columns and boxes; sampled: 4 responses per puzzle at temperature 1\n")
    for title, lines in (("SFT", sft), ("RL", rl)):
        rewards = [line["sampled/reward"] for line in lines]
        steps = f"steps {int(lines[0]['step'])} to {int(lines[-1]['step'])}"
        console.print(f"{title:>4} {curve(rewards)}  sampled reward {rewards[0]:.3f} -> {rewards[-1]:.3f}, {steps}")
    final = folder_of("rl", seed, parent)
    console.print(f"\nThe run: {final}  (metrics.jsonl, samples/, eval/, checkpoints/ in the published layout)")
    spec, model = HERE / "rl.yaml", newest_model(final)
    console.print(f"Try it:  dare generate --spec {spec} --model {model} --plain 0310200404001043", soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of both runs")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="parent folder of the runs")
    given = parser.parse_args()
    for stage in STAGES:
        train(stage, given.seed, given.folder)
    show(given.seed, given.folder)


if __name__ == "__main__":
    main()
