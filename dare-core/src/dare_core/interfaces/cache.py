"""Key-value caches: exact ones of block models, approximate ones of models that see whole rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dare_core.types import AttentionLayout

if TYPE_CHECKING:
    from torch import Tensor


class KeyValueCache(ABC):
    """Keys and values of the finished blocks of several rows, each in a slot of its own.

    Exact for block layouts: no later block changes an earlier one's states, and only blocks without a mask are kept.
    A forward computes what is not cached yet, up to the block that is being denoised; tokens before ``keep`` stay.
    So the first forward of a block passes the finished one once more in its clean form.
    """

    @property
    @abstractmethod
    def lengths(self) -> Sequence[int]:
        """Tokens cached per slot."""

    @abstractmethod
    def logits(
        self,
        tokens: Tensor,
        valid: Tensor,
        where: Tensor,
        *,
        layout: AttentionLayout,
        prompt_length: Tensor,
        slots: Tensor,
        keep: Tensor,
        condition: Tensor | None = None,
    ) -> Tensor:
        """As :meth:`dare_core.interfaces.ModelAdapter.logits`, with the cached tokens' states read instead of computed.

        Args:
            tokens: [R,L] int64 rows, equal to what was cached of them where they are cached.
            valid: [R,L] bool from column 0 to the end of the block that is being denoised.
            where: [R,L] bool positions to score, none of them cached; none at all = fill the cache.
            layout: a block layout.
            prompt_length: [R] int64.
            slots: [R] int64, each once.
            keep: [R] int64 tokens that are final: complete blocks, without masks.
            condition: as of :meth:`dare_core.interfaces.ModelAdapter.logits`.

        Returns:
            [M,V] logits.
        """

    @abstractmethod
    def copy(self, source: int, targets: Sequence[int]) -> None:
        """Give ``targets`` what ``source`` has cached, as rows with the same beginning."""

    @abstractmethod
    def clear(self, slots: Sequence[int], length: int = 0) -> None:
        """Forget all but the first ``length`` tokens of ``slots``."""


class WindowCache(ABC):
    """Keys and values of whole rows as earlier forwards computed them, each row in a slot of its own.

    An approximation: where every token sees the whole row, each change of the row changes all states. A forward
    computes the columns it is asked to and reads all others as they were computed last.
    """

    @property
    @abstractmethod
    def reach(self) -> int:
        """How many columns before a scored one its logits are read from: 1 where logits are shifted, else 0."""

    @abstractmethod
    def logits(self, tokens: Tensor, valid: Tensor, computed: Tensor, where: Tensor, *, slots: Tensor) -> Tensor:
        """As :meth:`dare_core.interfaces.ModelAdapter.logits`, with the states of other columns as they were.

        Args:
            tokens: [R,L] int64 rows from column 0.
            valid: [R,L] bool.
            computed: [R,L] bool columns to compute; all valid ones in a row's first forward.
            where: [R,L] bool positions to score; the columns that their logits are read from are computed.
            slots: [R] int64, each once.

        Returns:
            [M,V] logits.

        Raises:
            ValueError: a row has columns that were never computed, or logits are read from one that is not.
        """
