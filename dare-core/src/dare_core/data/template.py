"""Text with ``{field}`` places, filled from one row.

``{answer}`` is the row's field, ``{metadata.puzzle}`` a nested one; ``{{`` and ``}}`` are braces. There are no
format specs, conversions, indices or attributes: a template can only read fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dare_core.data.fields import field_text

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_FIELD = re.compile(r"[^\s.:!\[\]][^:!\[\]]*")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template.

    Attributes:
        text: the template as written.
        pieces: (literal text, field that follows it or None).
    """

    text: str
    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse ``text``.

        Raises:
            ValueError: a brace stands alone, or a place holds something else than a field name.
        """
        pieces: list[tuple[str, str | None]] = []
        literal, end = "", 0
        for match in _TOKEN.finditer(text):
            literal += text[end : match.start()]
            end = match.end()
            token, name = match[0], match[1]
            if token in ("{{", "}}"):
                literal += token[0]
            elif name is None:
                raise ValueError(f"a single '{token}' in template {text!r}; write '{token * 2}' for a brace")
            else:
                pieces.append((literal, _checked(name, text)))
                literal = ""
        pieces.append((literal + text[end:], None))
        return cls(text, tuple(pieces))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the places, in order."""
        return tuple(name for _, name in self.pieces if name is not None)

    @property
    def only_field(self) -> str | None:
        """The field, if the template is that one place and nothing else."""
        return self.fields[0] if self.text == "{" + "".join(self.fields[:1]) + "}" and self.fields else None

    def render(self, row: Mapping[str, Any]) -> str:
        """The text for one row.

        Raises:
            FieldError: a field is missing or has no text.
        """
        return "".join(literal + ("" if name is None else field_text(row, name)) for literal, name in self.pieces)


def _checked(name: str, text: str) -> str:
    if not _FIELD.fullmatch(name) or name != name.strip() or "" in name.split("."):
        raise ValueError(
            f"{{{name}}} in template {text!r} is not a field name; places are {{field}} or {{outer.inner}}, "
            "without format specs, conversions or indices; write '{{' and '}}' for braces"
        )
    return name
