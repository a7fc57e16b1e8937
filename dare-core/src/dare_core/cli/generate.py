"""``dare generate``: sample responses from a model, by the decoder and defaults that training uses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_core.cli.spec_arguments import Overlays, Sets, resolved_plan
from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.types.examples import Message, Prompt

if TYPE_CHECKING:
    from dare_core.spec.plan import Choice
    from dare_core.spec.sections import PeftSection

Prompts = Annotated[list[str], typer.Argument(help="Prompts; default: lines of standard input.", show_default=False)]
Model = Annotated[Path | None, typer.Option("--model", help="Published model folder.")]
Adapter = Annotated[Path | None, typer.Option("--adapter", help="Adapter folder in peft's format.")]
Spec = Annotated[Path | None, typer.Option("--spec", help="Take model, adapter and rollout sections from this spec.")]
Input = Annotated[
    Path | None,
    typer.Option("--input", "-i", help="Prompts: .jsonl rows with `prompt` or `messages`, or one per line."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File for the JSON lines; default: stdout.")]
Plain = Annotated[bool, typer.Option("--plain", help="Prompts are plain text to continue, not chat turns.")]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Responses per prompt.")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the sampling draws; default: the spec's, or 0.")
]


def generate(
    prompts: Prompts = [],  # noqa: B006
    model: Model = None,
    adapter: Adapter = None,
    spec: Spec = None,
    overlay: Overlays = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    input_file: Input = None,
    output: Output = None,
    plain: Plain = False,
    samples: Samples = 1,
    seed: Seed = None,
) -> int:
    """Sample responses as JSON lines. Without a spec, `--set rollout.KEY=VALUE` sets the decoding protocol."""
    if (model is None) == (spec is None):
        raise UserError(Problem("give either --model, a model folder, or --spec"))
    questions = list(_questions(prompts, input_file, plain))
    if spec is not None:
        plan = resolved_plan(spec, overlay, sets)
        if Slot.ROLLOUT not in plan:
            raise UserError(Problem("this spec has no rollout section, so nothing says how to decode", path="rollout"))
        chosen, rollout, peft, run_seed = plan[Slot.MODEL], plan[Slot.ROLLOUT], plan.peft, plan.run.seed
    else:
        from dare_core.cli.sources import folder_choices

        chosen, rollout = folder_choices(str(model), {}, sets)
        peft, run_seed = None, 0
    lines = _generated(chosen, rollout, peft, adapter, questions, samples, run_seed if seed is None else seed)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
    return 0


def _questions(arguments: Sequence[str], path: Path | None, plain: bool) -> Iterator[Prompt]:
    """Prompts from the arguments, then from a file or standard input."""
    rows: list[tuple[str, Any]] = [(f"argument-{i}", text) for i, text in enumerate(arguments, start=1)]
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(Problem(f"cannot be read: {error.strerror}", where=str(path))) from error
        rows += list(_rows(text, path))
    elif not arguments:
        rows += [(f"line-{i}", line) for i, line in enumerate(sys.stdin.read().splitlines(), start=1) if line]
    if not rows:
        raise UserError(Problem("no prompt was given", hint="as arguments, by --input, or on standard input"))
    for index, (row_id, row) in enumerate(rows):
        yield _question(row_id, index, row, plain)


def _rows(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        row: Any = line
        if path.suffix == ".jsonl":
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(Problem(f"not JSON: {error}", where=f"{path}:{number}")) from error
        yield f"{path}:{number}", row


def _question(row_id: str, index: int, row: Any, plain: bool) -> Prompt:
    if isinstance(row, Mapping) and "messages" in row:
        turns = tuple(Message(turn["role"], turn["content"]) for turn in row["messages"])
        return Prompt(str(row.get("id", row_id)), index, messages=turns)
    text = row.get("prompt") if isinstance(row, Mapping) else row
    if not isinstance(text, str):
        raise UserError(Problem("a row needs 'prompt' (text) or 'messages' (turns)", where=row_id))
    name = str(row.get("id", row_id)) if isinstance(row, Mapping) else row_id
    return Prompt(name, index, text=text) if plain else Prompt(name, index, messages=(Message("user", text),))


def _generated(
    model: Choice,
    rollout: Choice,
    peft: PeftSection | None,
    adapter: Path | None,
    prompts: Sequence[Prompt],
    samples: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    from dare_core.interfaces import RolloutRequest
    from dare_core.loops.placement import load_model, peft_section_of
    from dare_core.spec.sections import RolloutSection
    from dare_core.types import Address

    section = rollout.config
    if not isinstance(section, RolloutSection):
        raise TypeError(f"{rollout.name} is not configured by a rollout section")
    if adapter is not None:
        peft = peft_section_of(adapter)
    elif peft is not None and peft.adapter is None:
        peft = None
    backend = rollout.target()(section, load_model(model, peft, seed))
    # The address of a run's first rollout: a spec's own prompts give the same tokens here as there.
    request = RolloutRequest(
        prompts=prompts,
        samples=samples,
        settings=section.settings(backend.adapter.facts.layout),
        address=Address(seed, "rollout", 0),
    )
    try:
        result = backend.generate(request)
    finally:
        backend.close()
    for row, text in enumerate(result.text):
        prompt = prompts[row // samples]
        kept = result.tokens[row][result.completion[row]]
        yield {
            "id": prompt.id,
            "sample": row % samples,
            "response": text,
            "finish": result.finish[row],
            "token_ids": kept.tolist(),
            "forwards": int(result.forwards[row]),
        }
