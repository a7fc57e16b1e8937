"""Where the answer stands in a response. All searches are linear in the length of the text."""

from __future__ import annotations

OPEN = "<answer>"
CLOSE = "</answer>"


def last_answer_block(text: str) -> str | None:
    """Content of the last closed ``<answer>...</answer>``, stripped; None without one.

    Blocks are read from the left and do not overlap, so a second opening tag inside a block belongs to it.
    """
    found, position = None, 0
    while (start := text.find(OPEN, position)) >= 0:
        end = text.find(CLOSE, start + len(OPEN))
        if end < 0:
            break
        found = text[start + len(OPEN) : end]
        position = end + len(CLOSE)
    return None if found is None else found.strip()


def first_answer_block(text: str) -> str | None:
    """Content of the first closed ``<answer>...</answer>``, stripped; None without one."""
    start = text.find(OPEN)
    end = text.find(CLOSE, start + len(OPEN)) if start >= 0 else -1
    return None if end < 0 else text[start + len(OPEN) : end].strip()


def after_last_answer_tag(text: str) -> str:
    """Text after the last ``<answer>`` up to the next ``</answer>``, stripped; missing tags cut nothing (d1)."""
    return text.split(OPEN)[-1].split(CLOSE)[0].strip()


def last_box(text: str, command: str = "\\boxed") -> str | None:
    """Content of the last ``\\boxed{...}`` with balanced braces, as written; None without one or if never closed."""
    start = text.rfind(command)
    if start < 0 or not text.startswith("{", start + len(command)):
        return None
    opening = start + len(command)
    end = closing_brace(text, opening)
    return None if end is None else text[opening + 1 : end]


def closing_brace(text: str, opening: int) -> int | None:
    """Position of the brace that closes the one at ``opening``; None if it stays open."""
    depth = 0
    for position in range(opening, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return None


def marked_answer(text: str) -> str | None:
    """What the response marks as its answer: the last box, else the last closed answer block; None without either."""
    box = last_box(text)
    return last_answer_block(text) if box is None else box.strip()


def one_line(text: str, limit: int = 120) -> str:
    """``text`` for a verdict's detail: on one line, cut to ``limit`` characters."""
    flat = " ".join(text[: 4 * limit].split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
