"""The support matrix: computed from what installed components declare, never written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dare_core.capabilities import provider_of
from dare_core.catalog import Catalog, Registered
from dare_core.components import Slot
from dare_core.errors import UserError

#: words of algorithms that learn from given answers and generate nothing
_OFFLINE = frozenset({"demonstrations", "pairs"})


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One algorithm against one model family or rollout backend.

    Attributes:
        algorithm, other: names, qualified where two distributions share a kind.
        works: None = the algorithm does not use that slot.
        missing: capability words nobody provides, with the slot that should.
    """

    algorithm: str
    other: str
    works: bool | None
    missing: tuple[str, ...] = ()


def support_matrix(catalog: Catalog, slot: Slot) -> list[Cell]:
    """Algorithms x components of ``slot`` (model or rollout), in order of names.

    An algorithm's needs include those of the likelihood estimator it wants by default. Words of ``slot`` must be
    provided by the component itself, words of other slots by any installed component.
    """
    cells = []
    algorithms = catalog.components(Slot.ALGORITHM)
    others = catalog.components(slot)
    for algorithm in algorithms:
        words, absent = _needs(catalog, algorithm)
        offline = slot is Slot.ROLLOUT and bool(algorithm.component.needs & _OFFLINE)
        for other in others:
            missing = [*absent, *_missing(catalog, words, slot, other)]
            cells.append(
                Cell(
                    algorithm=_name(algorithm, algorithms),
                    other=_name(other, others),
                    works=None if offline else not missing,
                    missing=() if offline else tuple(missing),
                )
            )
    return cells


def _name(item: Registered, among: Sequence[Registered]) -> str:
    shared = sum(item.component.kind == other.component.kind for other in among) > 1
    return item.qualified if shared else item.component.kind


def _needs(catalog: Catalog, algorithm: Registered) -> tuple[frozenset[str], list[str]]:
    """Words that the algorithm and its default estimator need; and what to say if there is no such estimator."""
    wanted = algorithm.component.defaults.get("likelihood.kind")
    if wanted is None:
        return algorithm.component.needs, []
    try:
        estimator = catalog.find(Slot.LIKELIHOOD, wanted)
    except UserError:
        return algorithm.component.needs, [f"likelihood estimator '{wanted}'"]
    return algorithm.component.needs | estimator.component.needs, []


def _missing(catalog: Catalog, words: frozenset[str], slot: Slot, other: Registered) -> list[str]:
    missing = []
    for word in sorted(words):
        owner = provider_of(word)
        if owner is slot:
            if word not in other.component.provides:
                missing.append(word)
        elif owner is not Slot.DATA and not any(
            word in item.component.provides for item in catalog.components(owner)
        ):  # what data gives depends on the spec's templates, not on the reader
            missing.append(f"{word} ({owner.noun})")
    return missing
