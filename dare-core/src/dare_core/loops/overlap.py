"""Rows to evaluate on that are trained on as well."""

from __future__ import annotations

from collections.abc import Sequence

from dare_core.errors import Problem, UserError
from dare_core.types import Prompt


def refuse_overlap(training: Sequence[Prompt], evaluated: Sequence[Prompt], path: str) -> None:
    """Raise where prompts are both trained and evaluated on. Empty prompts say nothing and are passed over.

    Raises:
        UserError: names the first of them and ``path``, the data section to change.
    """
    seen = {_content(prompt) for prompt in training}
    shared = [prompt.id for prompt in evaluated if _content(prompt) in seen and prompt.text != ""]
    if shared:
        raise UserError(
            Problem(
                f"{len(shared)} of {len(evaluated)} prompts are trained on as well: {', '.join(shared[:5])}",
                path=path,
                hint="evaluate on other rows, or set allow_overlap: true",
            )
        )


def _content(prompt: Prompt) -> tuple[object, ...]:
    return (prompt.text, *((message.role, message.content) for message in prompt.messages))
