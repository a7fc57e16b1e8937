"""The order in which rows are trained on: a pure function of seed and step, so that resuming is trivial."""

from __future__ import annotations

import hashlib

from dare_core.errors import Problem, UserError

PURPOSE = "data-order"


class BatchOrder:
    """Endless epochs over ``count`` rows, cut into batches.

    Each epoch is one permutation of all rows: nothing is repeated or left out within it. A batch may reach over the
    end of an epoch; rows it has from the old epoch then come later in the new one, so that no batch holds a row
    twice. Row ``i`` of epoch ``e`` is placed by a number addressed by (seed, "data-order", e, i), so neither
    earlier batches nor other draws matter.

    Args:
        count: rows.
        batch: rows per batch, b.
        seed: the run's seed.
        shuffle: a new order each epoch; False keeps file order.

    Raises:
        UserError: a batch is larger than the data.
    """

    def __init__(self, count: int, batch: int, seed: int, shuffle: bool = True) -> None:
        if batch < 1:
            raise ValueError(f"a batch holds at least one row, not {batch}")
        if batch > count:
            message = f"a batch of {batch} different rows cannot be made from {count}"
            raise UserError(Problem(message, path="optim.batch_size", hint="give more rows, or make it smaller"))
        self.count = count
        self.batch_size = batch
        self.seed = seed
        self._shuffle = shuffle
        self._cache: dict[int, list[int]] = {}

    def batch(self, step: int) -> list[int]:
        """[b] row indices of batch ``step``, counted from 0."""
        epoch, begin = divmod(step * self.batch_size, self.count)
        picked = self._epoch(epoch)[begin : begin + self.batch_size]
        missing = self.batch_size - len(picked)
        return picked + self._epoch(epoch + 1)[:missing] if missing else picked

    def epoch(self, step: int) -> float:
        """Epochs done before batch ``step``."""
        return step * self.batch_size / self.count

    def _epoch(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(self.count))
        if epoch not in self._cache:
            # From two batches per epoch on, only the head of an epoch depends on the one before, never the tail, so
            # one raw permutation suffices; below that the chain is followed from its beginning.
            first = epoch if self.count >= 2 * self.batch_size else self._last_known_before(epoch) + 1
            for current in range(first, epoch + 1):
                self._cache[current] = self._joined(current)
                self._cache.pop(current - 3, None)
        return self._cache[epoch]

    def _last_known_before(self, epoch: int) -> int:
        return max((known for known in self._cache if known < epoch), default=-1)

    def _joined(self, epoch: int) -> list[int]:
        """The permutation of an epoch, with rows of the batch that reaches into it moved behind that batch."""
        order = self._permutation(epoch)
        carried = epoch * self.count % self.batch_size
        if not carried:
            return order
        before = self._cache.get(epoch - 1) or self._permutation(epoch - 1)
        tail = set(before[-carried:])
        wanted = self.batch_size - carried
        head: list[int] = []
        behind: list[int] = []
        for row in order:
            (head if len(head) < wanted and row not in tail else behind).append(row)
        return head + behind

    def _permutation(self, epoch: int) -> list[int]:
        return sorted(range(self.count), key=lambda row: (placing_number(self.seed, PURPOSE, epoch, row), row))


def refill_order(count: int, seed: int, step: int) -> list[int]:
    """All ``count`` rows in the order in which training step ``step`` takes further ones, if it wants some.

    A function of seed and step alone, so that neither earlier steps nor a resume change it, and it changes no batch.
    """
    return sorted(range(count), key=lambda row: (placing_number(seed, "refill-order", step, row), row))


def placing_number(seed: int, purpose: str, part: int, item: int) -> bytes:
    """What an item of a part (a row of an epoch) is sorted by; addressed by its arguments."""
    text = f"{seed}\x1f{purpose}\x1f{part}\x1f{item}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
