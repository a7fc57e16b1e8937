"""Readers of data rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dare_core.errors import Problem

if TYPE_CHECKING:
    from dare_core.spec.sections import DataSection


class DataSource(ABC):
    """Reads rows of fields. Built as ``Source(config)``. Prompt templates are applied by ``dare_core.data``."""

    def __init__(self, config: DataSection) -> None:
        self.config = config

    @abstractmethod
    def rows(self) -> Iterator[tuple[str, Mapping[str, Any] | Problem]]:
        """(where, fields) of every row in file order; ``where`` is ``file:line`` or ``file[row]``.

        A row that has no fields (a line that is not JSON, say) is given as a problem, so that the section decides
        whether to refuse or drop it, and all of them are seen at once.

        Raises:
            UserError: the file is missing or unreadable; says where it looked.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the content, for manifests and resume."""
