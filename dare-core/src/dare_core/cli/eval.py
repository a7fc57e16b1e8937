"""``dare eval``: tasks for a model, by the decoder and defaults that training uses; and comparing what came out."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dare_core.cli import eval_published
from dare_core.cli.context import catalog, emit
from dare_core.cli.eval_results import app as results
from dare_core.cli.group import OpenGroup
from dare_core.cli.spec_arguments import AsJson, Sets
from dare_core.components import Slot
from dare_core.errors import PluginError, Problem, UserError

if TYPE_CHECKING:
    from dare_core.interfaces import ItemEvaluator, PublishedRow
    from dare_core.loops.item_evaluation import Progress
    from dare_core.spec.plan import Choice

app = typer.Typer(cls=OpenGroup, add_completion=False, rich_markup_mode=None, invoke_without_command=True)
app.registered_commands += [*results.registered_commands, *eval_published.app.registered_commands]

Model = Annotated[Path | None, typer.Option("--model", help="Model folder, run folder, or a run's checkpoint.")]
Adapter = Annotated[Path | None, typer.Option("--adapter", help="Adapter folder in peft's format.")]
Tasks = Annotated[list[str], typer.Option("--task", help="Task, or yaml file that describes one; may be repeated.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the tasks' files.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Only the first questions.")]
Samples = Annotated[int | None, typer.Option("--samples", min=1, help="Responses per question.")]
Shard = Annotated[str, typer.Option("--shard", metavar="I/N", help="Take every N-th question, from the I-th (0..N-1).")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder; each task gets one below it.")]
Code = Annotated[bool, typer.Option("--allow-code-execution", help="Let tasks run programs that the model wrote.")]
Kind = Annotated[str, typer.Option("--kind", help="Evaluator.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of all draws; default: the run's, or 0.")]
Best = Annotated[bool, typer.Option("--best", help="Of a run, the best checkpoint instead of the last one.")]
Preset = Annotated[str | None, typer.Option("--preset", metavar="NAME[/COLUMN]", help="Run a published table again.")]
#: seconds between lines of progress that go to a file
QUIET = 30.0


@app.callback()
def evaluate(
    context: typer.Context,
    model: Model = None,
    adapter: Adapter = None,
    tasks: Tasks = [],  # noqa: B006
    preset: Preset = None,
    data: Data = None,
    limit: Limit = None,
    samples: Samples = None,
    shard: Shard = "0/1",
    output: Output = None,
    allow_code: Code = False,
    kind: Kind = "task",
    seed: Seed = None,
    best: Best = False,
    sets: Sets = [],  # noqa: B006
    as_json: AsJson = False,
) -> int:
    """Evaluate a model on tasks. Run the same command again to go on; finished items are never done again.

    `--set rollout.KEY=VALUE` changes how responses are decoded, `--set eval.KEY=VALUE` an option of the evaluator.
    """
    if context.invoked_subcommand is not None:
        return 0
    if model is None or not (tasks or preset):
        hint = "dare eval --model FOLDER --task gsm8k --data FOLDER"
        raise UserError(Problem("give --model and at least one --task, or a --preset", hint=hint))
    share = _shard(shard)
    options = {
        "data_folder": None if data is None else str(data),
        "limit": limit,
        "samples": samples,
        "allow_code_execution": allow_code or None,
    }
    table = None if preset is None else eval_published.chosen_column(preset, model)
    rows = None if table is None else eval_published.rows_of(table[1], tasks)
    calls = [_Call(kind, task, None, tuple(sets)) for task in tasks] if rows is None else _calls(rows, sets)
    chosen = [_evaluator(call, options) for call in calls]
    from dare_core.cli.eval_jobs import prepared, run_jobs

    others = [[text for text in call.sets if not _of_evaluator(text)] for call in calls]
    jobs = prepared(list(zip(chosen, others, strict=True)), model, adapter, output, best)
    found = run_jobs(jobs, share, seed, _reporter())
    if table is None or rows is None:
        emit({"results": found}) if as_json else _tell(found)
        return 0
    changed = eval_published.departures(limit, samples, sets, adapter)
    beside = [eval_published.compared(row, one, changed) for row, one in zip(rows, found, strict=True)]
    if as_json:
        emit({"results": found, "preset": table[0].name, "version": table[0].version, "rows": beside})
    else:
        eval_published.tell(*table, beside)
    return 0


class _Call(NamedTuple):
    """An evaluator's kind, its task, the folder's name where it is not the task's, and ``path=value`` settings."""

    kind: str
    task: str
    name: str | None
    sets: tuple[str, ...]


def _calls(rows: Sequence[PublishedRow], sets: Sequence[str]) -> list[_Call]:
    return [_Call(row.kind, row.task, row.name, (*eval_published.as_sets(row.options), *sets)) for row in rows]


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise UserError(Problem(f"'{text}' is no shard: write I/N with I from 0 to N-1", path="--shard"))
    return int(match[1]), int(match[2])


def _of_evaluator(text: str) -> bool:
    return text.strip().startswith("eval.")


def _evaluator(call: _Call, options: Mapping[str, Any]) -> Choice:
    """The evaluator's section from the command line."""
    from dare_core.spec.merge import with_sets
    from dare_core.spec.nodes import node_of
    from dare_core.spec.options import OptionReader
    from dare_core.spec.plan import Origin

    kind, task, given_name, sets = call
    plain = given_name or (Path(task).stem if task.endswith((".yaml", ".yml")) else task)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")
    given = {name: value for name, value in options.items() if value is not None}
    # Temperature comes with the rollout options, which the command line can set.
    section = {"kind": kind, "name": name or "task", "task": task, "temperature": "run", **given}
    root = node_of({"eval": section}, Origin(source="command line"))
    root, problems = with_sets(root, [text for text in sets if _of_evaluator(text)])
    reader = OptionReader(catalog(), problems=problems)
    choice = reader.item(Slot.EVALUATOR, root.entries["eval"], "eval")
    if reader.problems or choice is None:
        raise UserError(reader.problems)
    return choice


def _reporter() -> Any:
    """Shows progress: one line that changes on a terminal, a line now and then elsewhere."""
    last = [time.monotonic()]
    live = sys.stderr.isatty()

    def report(progress: Progress) -> None:
        now, ended = time.monotonic(), progress.done == progress.total
        if not live and not ended and now - last[0] < QUIET:
            return
        last[0] = now
        left = progress.seconds_left
        parts = [f"{progress.name}  {progress.done}/{progress.total}"]
        if progress.tokens:
            parts.append(f"{progress.tokens_per_second:.1f} tokens/s")
        if left is not None and not ended:
            parts.append(f"{_clock(left)} left")
        line = "  ".join(parts)
        sys.stderr.write(f"\r{line}\x1b[K" + "\n" * ended if live else f"{line}\n")
        sys.stderr.flush()

    return report


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _tell(results: Sequence[Mapping[str, Any]]) -> None:
    for found in results:
        if found["result"] is None:
            sys.stdout.write(f"{found['task']}: this shard is done; others are not\n")
            continue
        result = found["result"]
        low, high = result["interval"]
        interval = "" if low is None else f"  [{100 * low:.1f}, {100 * high:.1f}]"
        line = f"{found['task']}  {result['metric']} {100 * result['value']:.2f} %{interval}  n {result['n']}"
        sys.stdout.write(f"{line}  {found['folder']}\n")


def item_evaluator(choice: Choice) -> ItemEvaluator:
    """The evaluator behind a section.

    Raises:
        UserError: it only works inside runs.
        PluginError: its section is no evaluator's.
    """
    from dare_core.interfaces import ItemEvaluator
    from dare_core.spec.sections import EvaluatorSection

    target, section = choice.target(), choice.config
    if not isinstance(section, EvaluatorSection):
        raise PluginError(f"evaluator '{choice.name}' is configured by {type(section).__name__}")
    if not issubclass(target, ItemEvaluator):
        raise UserError(Problem(f"evaluator '{choice.name}' works inside runs only", path="--kind"))
    evaluator: ItemEvaluator = target(section)
    return evaluator
