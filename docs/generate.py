"""Writes the generated parts of the docs from what is installed: ``python docs/generate.py [--check]``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dare_core.capabilities import provider_of
from dare_core.catalog import Catalog
from dare_core.components import Slot

ROOT = Path(__file__).parents[1]


def kinds() -> str:
    """Installed kinds by slot, with what each is."""
    catalog = Catalog.load()
    lines = ["| slot | kind | package | what it is |", "|---|---|---|---|"]
    for slot in Slot:
        for item in catalog.components(slot):
            component = item.component
            lines.append(f"| {slot} | `{component.kind}` | {item.distribution} | {component.summary} |")
    return "\n".join(lines)


def matrix() -> str:
    """The support matrix as ``dare plugins matrix`` prints it."""
    command = [sys.executable, "-m", "dare_core", "plugins", "matrix"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"```\n{printed.strip()}\n```"


def decoders() -> str:
    """Rollout backends: exactness, what they need of a model, which families have it, and what they record."""
    catalog = Catalog.load()
    families = catalog.components(Slot.MODEL)
    lines = [
        "| `rollout.kind` | package | exactness | needs of the model | families | provides |",
        "|---|---|---|---|---|---|",
    ]
    for item in catalog.components(Slot.ROLLOUT):
        component = item.component
        needs = {word for word in component.needs if provider_of(word) is Slot.MODEL}
        served = [f"`{one.component.kind}`" for one in families if needs <= one.component.provides]
        words = [", ".join(f"`{word}`" for word in sorted(group)) for group in (needs, component.provides)]
        exactness = catalog.target_class(item).exactness
        shown = f"{words[0] or 'nothing'} | {'all' if len(served) == len(families) else ', '.join(served)}"
        lines.append(f"| `{component.kind}` | {item.distribution} | {exactness} | {shown} | {words[1]} |")
    return "\n".join(lines)


#: (file, name between the markers) -> what writes it
PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "kinds"): kinds,
    ("docs/algorithms/README.md", "matrix"): matrix,
    ("docs/rollout.md", "decoders"): decoders,
}


def with_part(text: str, name: str, body: str) -> str:
    """``text`` with ``body`` between the markers of ``name``.

    Raises:
        ValueError: the markers are missing.
    """
    start, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
    head, found, rest = text.partition(start)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no markers for generated part {name!r}")
    return f"{head}{start}{body}\n{end}{tail}"


def main() -> int:
    """Write every part, or with ``--check`` only say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a part is stale")
    check = parser.parse_args().check
    stale = []
    for (file, name), write in PARTS.items():
        path = ROOT / file
        text = path.read_text(encoding="utf-8")
        fresh = with_part(text, name, write())
        if fresh != text:
            stale.append(f"{file}: {name}")
            if not check:
                path.write_text(fresh, encoding="utf-8")
    sys.stdout.write("".join(f"{'stale' if check else 'written'}: {part}\n" for part in stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
