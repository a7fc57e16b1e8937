"""``dare bench``: measure before believing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_core.cli.context import catalog, emit
from dare_core.cli.decoder import check_needs, spec_source
from dare_core.cli.spec_arguments import AsJson, Overlays, Sets, SpecFile, resolved_plan
from dare_core.components import Slot
from dare_core.errors import Problem, UserError

if TYPE_CHECKING:
    from dare_core.cli.sources import Source
    from dare_core.interfaces import ModelAdapter, RolloutBackend, RolloutRequest
    from dare_core.loops.bench import Measurement
    from dare_core.spec.plan import RunPlan
    from dare_core.types import Prompt

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Measure decoders on this machine."
)
Decoders = Annotated[
    list[str],
    typer.Option(
        "--decoder",
        metavar="KIND[,KEY=VALUE...]",
        help="Another decoder to measure, such as fastdllm,cache=dual; it keeps what the spec says about decoding. "
        "May be repeated.",
    ),
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Prompts of the spec's data that are decoded.")]
REFERENCE = "reference"


@app.callback()
def _group() -> None:
    """Measure decoders on this machine."""


@app.command("rollout")
def rollout(
    spec: SpecFile,
    overlay: Overlays = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    decoder: Decoders = [],  # noqa: B006
    rows: Rows = 8,
    as_json: AsJson = False,
) -> int:
    """Compare the spec's decoder, others, and the reference: the native one without cache.

    Each decodes the same prompts twice with the same seed; the first time is a warm-up.
    """
    plan = resolved_plan(spec, overlay, sets)
    source = spec_source(spec, None, overlay, sets)
    sources = {REFERENCE: _reference(source), source.rollout.name: source}
    for text in decoder:
        sources[text] = _other(source, text)
    prompts = _prompts(plan, rows)
    measured = _measured(sources, prompts)
    if as_json:
        emit({"rows": len(prompts), "decoders": {name: asdict(one) for name, one in measured.items()}})
    else:
        sys.stdout.write(_table(measured))
    return 0


def _prompts(plan: RunPlan, rows: int) -> Sequence[Prompt]:
    from dare_core.data.examples import ExampleSet

    data = plan[Slot.DATA].target()(plan[Slot.DATA].config)
    codec = plan[Slot.MODEL].target().load_text(plan[Slot.MODEL].config)
    return ExampleSet.read(data.config, data, codec).prompts[:rows]


def _measured(sources: Mapping[str, Source], prompts: Sequence[Prompt]) -> dict[str, Measurement]:
    from dare_core.loops.bench import measure
    from dare_core.loops.placement import load_model

    first = sources[REFERENCE]
    adapter = load_model(first.model, first.peft, first.seed)
    backends = [_backend(source, adapter) for source in sources.values()]
    requests = [_request(source, prompts) for source in sources.values()]
    try:
        expected = backends[0].generate(requests[0])
        return dict(zip(sources, measure(backends, requests, expected), strict=True))
    finally:
        for backend in backends:
            backend.close()


def _backend(source: Source, adapter: ModelAdapter) -> RolloutBackend:
    backend: RolloutBackend = source.rollout.target()(source.rollout.config, adapter)
    return backend


def _request(source: Source, prompts: Sequence[Prompt]) -> RolloutRequest:
    from dare_core.interfaces import RolloutRequest
    from dare_core.types import Address

    settings = source.decoder.settings(source.facts.layout)
    return RolloutRequest(prompts=prompts, samples=1, settings=settings, address=Address(source.seed, "rollout", 0))


def _reference(source: Source) -> Source:
    """The native backend without cache, by the same protocol."""
    return _with_backend(source, "native", {"cache": "off"}, whole=True)


def _other(source: Source, text: str) -> Source:
    kind, *settings = text.split(",")
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            hint = "write KIND,KEY=VALUE"
            raise UserError(Problem(f"{setting!r} is no setting", path=f"--decoder {text}", hint=hint))
        options[key] = value
    return _with_backend(source, kind, options, whole=False)


def _with_backend(source: Source, kind: str, options: Mapping[str, Any], *, whole: bool) -> Source:
    """The source with another backend.

    Args:
        source: gives what is said about decoding: all of it if ``whole``, else what was chosen by hand, by the model or
            by the algorithm, so that the backend's own defaults count.
        kind: of the backend.
        options: on top, dotted keys with values as on a command line.
        whole: see ``source``.
    """
    from dare_core.spec.merge import with_sets
    from dare_core.spec.nodes import node_of
    from dare_core.spec.options import OptionReader
    from dare_core.spec.plan import Origin

    registered = catalog().find(Slot.ROLLOUT, kind)
    known = catalog().config_class(registered).model_fields
    shared = source.decoder.model_dump(mode="json", exclude_unset=not whole, exclude={"kind", "preset", "cache"})
    section = {"kind": kind} | {name: value for name, value in shared.items() if name in known}
    root = node_of({"rollout": section}, Origin(source="spec"))
    root, problems = with_sets(root, [f"rollout.{key}={value}" for key, value in options.items()])
    reader = OptionReader(catalog(), problems=list(problems))
    chosen = reader.item(Slot.ROLLOUT, root.entries["rollout"], "rollout")
    if reader.problems or chosen is None:
        raise UserError(reader.problems)
    found = replace(source, rollout=chosen)
    check_needs(found)
    return found


_COLUMNS = (
    ("tokens/s", lambda one: f"{one.tokens_per_second:.1f}"),
    ("tokens/forward", lambda one: f"{one.tokens_per_forward:.2f}"),
    ("forwards", lambda one: str(one.forwards)),
    ("matmul share", lambda one: f"{one.matmul_share:.0%}"),
    ("peak memory", lambda one: f"{one.peak_memory_bytes / 2**20:.0f} MiB"),
    ("agreement", lambda one: f"{one.agreement:.3f}"),
    ("exactness", lambda one: one.exactness),
)


def _table(measured: Mapping[str, Measurement]) -> str:
    lines = [["decoder", *(title for title, _ in _COLUMNS)]]
    lines += [[name, *(shown(one) for _, shown in _COLUMNS)] for name, one in measured.items()]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )
