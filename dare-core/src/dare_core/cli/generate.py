"""``dare generate``: sample responses from a model, by the decoder and defaults that training uses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_core.cli.decoder import Adapter, Decoder, Model, Seed, Spec
from dare_core.cli.denoising import Trace, Watching, watching
from dare_core.cli.spec_arguments import Overlays, Sets
from dare_core.errors import Problem, UserError
from dare_core.types.examples import Message, Prompt

if TYPE_CHECKING:
    from dare_core.types import Rollout

Prompts = Annotated[list[str], typer.Argument(help="Prompts; default: lines of standard input.", show_default=False)]
Input = Annotated[
    Path | None,
    typer.Option("--input", "-i", help="Prompts: .jsonl rows with `prompt` or `messages`, or one per line."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File for the JSON lines; default: stdout.")]
Plain = Annotated[bool, typer.Option("--plain", help="Prompts are plain text to continue, not chat turns.")]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Responses per prompt.")]


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
    watch: Watching = False,
    trace: Trace = None,
) -> int:
    """Sample responses as JSON lines. Without a spec, `--set rollout.KEY=VALUE` sets the decoding protocol."""
    decoder = Decoder.choose(model=model, spec=spec, adapter=adapter, overlays=overlay, sets=sets, seed=seed)
    questions = list(_questions(prompts, input_file, plain))
    rows = [(question.id, sample) for question in questions for sample in range(samples)]
    with ExitStack() as stack:
        stack.callback(decoder.close)
        seen = stack.enter_context(watching(decoder.decode, rows, live=watch, trace=trace))
        result = decoder.generate(questions, samples, watch=seen)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in _lines(result, rows))
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
    return 0


def _lines(result: Rollout, rows: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    for row, (name, sample) in enumerate(rows):
        yield {
            "id": name,
            "sample": sample,
            "response": result.text[row],
            "finish": result.finish[row],
            "token_ids": result.tokens[row][result.completion[row]].tolist(),
            "forwards": int(result.forwards[row]),
        }


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
