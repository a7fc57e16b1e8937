"""4x4 Sudoku: fill the empty cells so that each row, column and 2x2 box holds 1 to 4.

Reads ``meta.puzzle`` (16 digits, row by row, 0 = empty) and, for ``d1``, the reference (the stored solution). Rules:

* ``solved``: 1 for any valid grid that keeps the givens; a puzzle may have several. The grid is what the response marks
  (last box, else last answer tag), else the last line that is nothing but 16 digits.
* ``units``: share of the 12 rows, columns and boxes that hold 1 to 4 once and keep the givens in them; a denser signal
  with the same full score.
* ``d1`` (d1, arXiv 2504.12216; also the unified framework's): digits of the last closed answer tag, padded with 0 or
  cut to 16; share of the empty cells that equal the stored solution, so a valid other solution loses points.
"""

from __future__ import annotations

import re

from dare_core.types import Prompt, Verdict, VerdictStatus
from dare_eval.answers import last_answer_block, marked_answer, one_line
from dare_eval.config import SudokuSection
from dare_eval.judging import ItemReward, meta_value

CELLS = 16
_GRID = re.compile(r"[0-9]{16}")
_FILLING = re.compile(r"[\s|,;\[\](){}+\-_=]|\\\\|&|\\hline|```")
#: the cells of each row, column and box
UNITS = tuple(
    [[4 * row + column for column in range(4)] for row in range(4)]
    + [[4 * row + column for row in range(4)] for column in range(4)]
    + [[4 * row + column for row in (top, top + 1) for column in (left, left + 1)] for top in (0, 2) for left in (0, 2)]
)


class SudokuReward(ItemReward):
    """``reward: {kind: sudoku}``."""

    config: SudokuSection

    def lacks(self, prompt: Prompt) -> str | None:
        """Puzzle or stored solution, if missing."""
        puzzle = meta_value(prompt, "puzzle")
        if not isinstance(puzzle, str) or not _GRID.fullmatch(puzzle):
            return "sudoku reads the puzzle, 16 digits with 0 for empty, from meta field 'puzzle'; name it in data.meta"
        if self.config.score == "d1" and not _GRID.fullmatch(prompt.reference or ""):
            return "sudoku with score 'd1' needs the solution, 16 digits, as the reference"
        return None

    def judge_one(self, prompt: Prompt, response: str) -> Verdict:
        """See the module's head."""
        missing = self.lacks(prompt)
        if missing:
            raise ValueError(missing)
        puzzle = meta_value(prompt, "puzzle")
        if not response.strip():
            return Verdict(0.0, VerdictStatus.EMPTY)
        if self.config.score == "d1":
            return cell_score(response, puzzle, prompt.reference or "")
        return _graded(response, puzzle, partial=self.config.score == "units")


def cell_score(response: str, puzzle: str, solution: str) -> Verdict:
    """Share of the empty cells that equal ``solution``; ``correct`` only if all do."""
    answer = last_answer_block(response)
    digits = "".join(character for character in answer or "" if character.isdigit())
    if not digits:
        return Verdict(0.0, VerdictStatus.UNPARSED, "no digits in a closed answer tag")
    grid = digits.ljust(CELLS, "0")[:CELLS]
    empty = [cell for cell in range(CELLS) if puzzle[cell] == "0"]
    right = sum(grid[cell] == solution[cell] for cell in empty)
    status = VerdictStatus.CORRECT if empty and right == len(empty) else VerdictStatus.WRONG
    return Verdict(right / len(empty) if empty else 0.0, status, f"{grid}: {right} of {len(empty)} cells")


def unit_share(grid: str, puzzle: str) -> float:
    """Share of the 12 units of ``grid`` (16 digits) that hold 1 to 4 once and keep the givens of ``puzzle``."""
    kept = [given in ("0", cell) for given, cell in zip(puzzle, grid, strict=True)]
    right = sum({grid[cell] for cell in unit} == set("1234") and all(kept[cell] for cell in unit) for unit in UNITS)
    return right / len(UNITS)


def _graded(response: str, puzzle: str, *, partial: bool) -> Verdict:
    grid = _grid(response)
    if grid is None:
        return Verdict(0.0, VerdictStatus.UNPARSED, "no grid of 16 digits in a box, an answer tag or a line")
    share = unit_share(grid, puzzle)
    status = VerdictStatus.CORRECT if share == 1 else VerdictStatus.WRONG
    return Verdict(share if partial else float(share == 1), status, one_line(grid))


def _grid(response: str) -> str | None:
    marked = marked_answer(response)
    candidates = reversed(response.split("\n")) if marked is None else [marked]
    for candidate in candidates:
        if len(candidate) > 40 * CELLS:
            continue
        digits = _FILLING.sub("", candidate)
        if _GRID.fullmatch(digits):
            return digits
    return None
