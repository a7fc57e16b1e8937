"""YAML text -> nodes that remember file and line.

Scalars are read by YAML 1.2's core rules, with numbers as people write them: ``1e-6``, ``1E5`` and ``.5e-3`` are
floats, ``true`` and ``false`` (also capitalised) are the only booleans, so ``on``, ``off``, ``yes`` and ``no`` stay
text, as do dates. Anchors and aliases are allowed; tags and merge keys (``<<``) are refused. Nothing is constructed
beyond text, numbers, booleans, null, lists and mappings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dare_core.errors import Problem
from dare_core.spec.plan import Origin

ScalarValue = str | int | float | bool | None
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_WORDS: dict[str, ScalarValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_MOST_NODES = 50_000
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a spec and what gave it.

    Attributes:
        value: a scalar, a tuple of nodes (list) or a mapping of key -> node.
        origin: source and ``file:line``; a value in a mapping carries the line of its key.
    """

    value: ScalarValue | tuple[Node, ...] | Mapping[str, Node]
    origin: Origin

    @property
    def entries(self) -> Mapping[str, Node]:
        """Keys and nodes of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, Mapping) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """Nodes of a list; empty for anything else."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def where(self) -> str | None:
        """``file:line``, if a person wrote the value."""
        return (self.origin.where or None) if self.origin.by_hand else None

    def plain(self) -> Any:
        """The value as ordinary dicts, lists and scalars."""
        if isinstance(self.value, Mapping):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def get(self, path: Sequence[str | int]) -> Node | None:
        """The node at ``path``, or None."""
        node: Node | None = self
        for part in path:
            if node is None:
                return None
            if isinstance(node.value, tuple):
                index = int(part) if str(part).isdecimal() else -1
                node = node.value[index] if 0 <= index < len(node.value) else None
            else:
                node = node.entries.get(str(part))
        return node


def node_of(value: Any, origin: Origin) -> Node:
    """Plain data as nodes that all carry ``origin``."""
    if isinstance(value, Mapping):
        return Node({str(key): node_of(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, (list, tuple)):
        return Node(tuple(node_of(item, origin) for item in value), origin)
    return Node(value, origin)


def read_file(path: Path, source: str) -> tuple[Node | None, list[Problem]]:
    """The mapping that a spec file holds.

    Args:
        path: the file.
        source: name of the layer, for origins: ``spec`` or ``overlay``.

    Returns:
        The root node, or None where nothing could be read, and every problem found.
    """
    name = str(path)
    if path.is_dir():
        return None, [Problem("is a folder; a spec is a YAML file", where=name)]
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None, [Problem("no such file", where=name, hint=f"looked in {path.parent.absolute()}")]
    except (OSError, ValueError) as error:
        return None, [Problem(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=name)]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return None, [Problem("is not UTF-8 text", where=f"{name}:{line}", hint="save the file as UTF-8")]
    root, problems = read_text(text, name, source)
    if root is None and not problems:
        return None, [Problem("is empty; a spec starts with 'dare: 1'", where=name)]
    if root is not None and not isinstance(root.value, Mapping):
        problems.append(Problem(f"must hold a mapping of sections, not {described(root)}", where=root.where))
        return None, problems
    return root, problems


def read_text(text: str, name: str, source: str, *, lines: bool = True) -> tuple[Node | None, list[Problem]]:
    """The one YAML document in ``text``.

    Args:
        text: YAML.
        name: shown as the file in places (``name:line``).
        source: name of the layer, for origins.
        lines: whether places have line numbers; a value given on the command line has none.

    Returns:
        The root node, or None where the text is empty or broken, and every problem found.
    """
    try:
        composed = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark is not None and lines else name
        reason = error.problem or error.context or "cannot be parsed"
        return None, [Problem(f"not valid YAML: {reason}", where=where, hint=error.note)]
    except yaml.YAMLError as error:
        found = yaml.reader.Reader.NON_PRINTABLE.search(text)
        reason = f"the character {found[0]!r} is not allowed" if found else " ".join(str(error).split())
        where = f"{name}:{text.count(chr(10), 0, found.start()) + 1}" if found and lines else name
        return None, [Problem(f"not valid YAML: {reason}", where=where)]
    except RecursionError:
        return None, [Problem("not valid YAML: nested too deeply", where=name)]
    if composed is None:
        return None, []
    reader = _Reader(name, source, lines)
    root = reader.read(composed, None, 0)
    return (None if reader.stopped else root), reader.problems


def described(node: Node) -> str:
    """What a node holds, for messages."""
    value = node.value
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...") + " (text)"
    return str(value)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Marks scalars as plain or quoted, and keeps explicit tags, instead of YAML 1.1's guesses."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return "collection"
        return "plain" if implicit[0] else "quoted"


class _Reader:
    """Turns PyYAML's nodes into ours, gathering problems."""

    def __init__(self, name: str, source: str, lines: bool) -> None:
        self.name = name
        self.source = source
        self.lines = lines
        self.problems: list[Problem] = []
        self.stopped = False
        self._count = 0

    def read(self, node: yaml.Node, line: int | None, depth: int) -> Node:
        """``line`` is that of the node's key, if it has one."""
        origin = self._origin(node.start_mark.line if line is None else line)
        self._count += 1
        if self._count > _MOST_NODES:
            self._stop(f"more than {_MOST_NODES} values; aliases are copied where they are used", origin)
        if depth > _DEEPEST:
            self._stop(f"nested more than {_DEEPEST} deep, or an alias of itself", origin)
        if self.stopped:
            return Node(None, origin)
        if node.tag not in ("plain", "quoted", "collection"):
            shown = node.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.append(Problem(f"the tag {shown!r} is not allowed", where=origin.where, hint="leave it out"))
        if isinstance(node, yaml.MappingNode):
            return Node(self._entries(node, depth), origin)
        if isinstance(node, yaml.SequenceNode):
            return Node(tuple(self.read(item, None, depth + 1) for item in node.value), origin)
        if not _encodable(node.value):
            self.problems.append(Problem("text holds a lone surrogate, which is no character", where=origin.where))
            return Node("", origin)
        return Node(node.value if node.tag == "quoted" else scalar_of(node.value), origin)

    def _entries(self, node: yaml.MappingNode, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line
            where = self._origin(line).where
            if not isinstance(key, yaml.ScalarNode) or not _encodable(key.value):
                self.problems.append(Problem("a key must be text", where=where))
                continue
            name = key.value
            if key.tag == "plain" and name == "<<":
                hint = "use an alias for a whole value, or an overlay"
                self.problems.append(Problem("merge keys ('<<') are not supported", where=where, hint=hint))
                continue
            if name in entries:
                first = f", first on line {lines[name] + 1}" if self.lines else ""
                self.problems.append(Problem(f"duplicate key {name!r}{first}", where=where, hint="keep one of them"))
                continue
            lines[name] = line
            entries[name] = self.read(value, line, depth + 1)
        return entries

    def _origin(self, line: int) -> Origin:
        return Origin(source=self.source, where=f"{self.name}:{line + 1}" if self.lines else self.name)

    def _stop(self, reason: str, origin: Origin) -> None:
        if not self.stopped:
            self.problems.append(Problem(reason, where=origin.where))
        self.stopped = True


def _encodable(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def scalar_of(text: str) -> ScalarValue:
    """What a plain scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 4000 else text
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _INFINITY.fullmatch(text):
        return float(f"{match[1]}inf")
    return text
