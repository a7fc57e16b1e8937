"""d1's published rule for 4x4 Sudoku (arXiv 2504.12216). Countdown's stand with its reward."""

from __future__ import annotations

import re

CELLS = 16
_FENCED = re.compile(r"```([\d\s]+)```")
_TO_END = re.compile(r"<\|eot_id\|>|<\|endoftext\|>|</answer>")
_AFTER_END = re.compile(r"<\|eot_id\|>|<\|endoftext\|>")
_BEFORE_CLOSE = re.compile(r"(\d{16})\s*</answer>")
_ALONE = re.compile(r"\b(\d{16})\b")
_LABELLED = re.compile(r"puzzle:\s*(\d{16})", re.IGNORECASE)


def d1_grid(response: str) -> str:
    """The grid that d1's evaluation reads, padded with 0 or cut to 16 characters; empty if it reads nothing."""
    found = next((text for text in _candidates(response) if text.strip()), "")
    grid = "".join(found.split())
    return grid.ljust(CELLS, "0")[:CELLS] if grid else ""


def _candidates(response: str) -> list[str]:
    opening = response.find("<answer>")
    inside = response[opening + len("<answer>") :] if opening >= 0 else ""
    fenced = _FENCED.search(inside)
    end = _TO_END.search(inside)
    closing = response.find("</answer>")
    after = response[closing + len("</answer>") :] if closing >= 0 else ""
    before, alone = _BEFORE_CLOSE.search(response), _ALONE.search(response)
    return [
        fenced[1] if fenced else "",
        inside[: end.start()] if end else "",
        _AFTER_END.split(after.lstrip(), maxsplit=1)[0],
        before[1] if before else "",
        alone[1] if alone else "",
    ]


def right_cells(grid: str, puzzle: str, solution: str) -> tuple[int, int]:
    """Empty cells of ``puzzle`` that ``grid`` fills as ``solution`` does, and empty cells in all."""
    empty = [cell for cell, given in enumerate(puzzle) if given == "0"]
    right = sum(grid[cell] == solution[cell] for cell in empty) if grid else 0
    return right, len(empty)


def puzzle_of(question: str) -> str | None:
    """The puzzle in d1's question: its first 16 characters if they are digits, else what follows "puzzle:"."""
    if len(question) >= CELLS and question[:CELLS].isdigit():
        return question[:CELLS]
    found = _LABELLED.search(question)
    return found[1] if found else None
