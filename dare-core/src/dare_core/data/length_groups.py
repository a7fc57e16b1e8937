"""Batches of rows alike in length, without leaving the order's promises.

The batches of one epoch are taken in windows. Within a window rows are sorted by length and cut into batches again,
whose order is drawn anew; a batch that reaches over the end of an epoch stays as it is. So each epoch still holds
every row once, no batch holds a row twice, and a batch is a function of its step alone. What a row teaches does not
change, only in whose company and when.
"""

from __future__ import annotations

from collections.abc import Sequence

from dare_core.data.batches import BatchOrder, placing_number

PURPOSE = "length-groups"


class LengthGroups(BatchOrder):
    """:class:`BatchOrder` with rows of similar length in each batch.

    Args:
        lengths: tokens per row.
        window: batches that are sorted together.
        batch: rows per batch, b.
        seed: the run's seed.
    """

    def __init__(self, lengths: Sequence[int], window: int, batch: int, seed: int) -> None:
        super().__init__(len(lengths), batch, seed)
        self._lengths = lengths
        self._window = window
        self._sorted: tuple[int, list[list[int]]] = (-1, [])

    def batch(self, step: int) -> list[int]:
        """[b] row indices of batch ``step``, counted from 0."""
        first, end = self._window_of(step)
        if self._sorted[0] != first:
            self._sorted = (first, self._batches(first, end))
        return self._sorted[1][step - first]

    def _window_of(self, step: int) -> tuple[int, int]:
        """The batches [first, end) sorted together with ``step``'s."""
        epoch = step * self.batch_size // self.count
        begin = -(-epoch * self.count // self.batch_size)
        end = (epoch + 1) * self.count // self.batch_size
        if not begin <= step < end:
            return step, step + 1
        first = begin + (step - begin) // self._window * self._window
        return first, min(first + self._window, end)

    def _batches(self, first: int, end: int) -> list[list[int]]:
        rows = [row for step in range(first, end) for row in super(LengthGroups, self).batch(step)]
        if end > first + 1:
            # A batch over the end of an epoch stands alone, and keeps the rows of the old one in front.
            rows.sort(key=lambda row: self._lengths[row])
        batches = [rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size)]
        places = sorted(range(len(batches)), key=lambda place: placing_number(self.seed, PURPOSE, first, place))
        return [batches[place] for place in places]
