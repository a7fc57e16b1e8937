"""``dare chat``: talk to a model, by the decoder and defaults that training uses."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dare_core.cli.decoder import Adapter, Decoder, Model, Seed, Spec
from dare_core.cli.denoising import Trace, watching
from dare_core.cli.spec_arguments import Overlays, Sets
from dare_core.types.examples import Message, Prompt

System = Annotated[str | None, typer.Option("--system", help="System turn before the first one.")]
Watching = Annotated[
    bool | None,
    typer.Option("--watch/--no-watch", help="Show the denoising; default: where standard error is a terminal."),
]
_HELP = "/reset forgets the conversation, /quit ends it\n"


def chat(
    model: Model = None,
    adapter: Adapter = None,
    spec: Spec = None,
    overlay: Overlays = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    system: System = None,
    seed: Seed = None,
    watch: Watching = None,
    trace: Trace = None,
) -> int:
    """Talk to a model: a line is a turn, its answer follows. `/reset` forgets, `/quit` or the end of input ends."""
    decoder = Decoder.choose(model=model, spec=spec, adapter=adapter, overlays=overlay, sets=sets, seed=seed)
    opening = [] if system is None else [Message("system", system)]
    asking = sys.stdin.isatty()
    live = sys.stderr.isatty() if watch is None else watch
    turns, number = list(opening), 0
    if asking:
        sys.stderr.write(_HELP)
    try:
        with watching(decoder.decode, [("answer", 0)], live=live, trace=trace) as seen:
            while (line := _next(asking)) is not None:
                if line == "/reset":
                    turns = list(opening)
                elif line:
                    turns.append(Message("user", line))
                    prompt = Prompt(f"turn {number + 1}", 0, messages=tuple(turns))
                    answer = decoder.generate([prompt], turn=number, watch=seen).text[0]
                    turns.append(Message("assistant", answer))
                    sys.stdout.write(answer + "\n")
                    sys.stdout.flush()
                    number += 1
    finally:
        decoder.close()
    return 0


def _next(asking: bool) -> str | None:
    """The next line, stripped; None at the end."""
    if asking:
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    return None if not line or line.strip() == "/quit" else line.strip()
