"""A published config.json, read without torch: which keys are supported, and which ids a checkpoint uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dare_core.spec.sections import ModelSection

#: key -> (value of an absent key in the published code, supported values, what they mean)
Supported = Mapping[str, tuple[Any, tuple[Any, ...], str]]


def check_published(published: Mapping[str, Any], *, supported: Supported, required: Iterable[str]) -> None:
    """Refuse what a backbone does not compute.

    Args:
        published: parsed config.json.
        supported: keys whose value decides what is computed.
        required: keys without a default.

    Raises:
        ValueError: names every unsupported key with its value and what is supported, and every missing key.
    """
    problems = []
    for key, (default, allowed, meaning) in supported.items():
        value = published.get(key, default)
        if value not in allowed:
            absent = " (the default of an absent key)" if key not in published else ""
            problems.append(f"{key}={value!r}{absent} is not supported; supported: {allowed[0]!r} ({meaning})")
    problems += [f"config has no {key!r}" for key in required if published.get(key) is None]
    if problems:
        raise ValueError("; ".join(problems))


def value_of(published: Mapping[str, Any], key: str, default: Any) -> Any:
    """The key's value; null and absent keys have the default."""
    value = published.get(key)
    return default if value is None else value


@dataclass(frozen=True, slots=True)
class FamilyIds:
    """Ids of a family's released tokenizer: what counts where neither the section nor config.json says.

    Attributes:
        mask: mask token.
        end: end of text; also padding.
        end_of_turn: ends a chat answer; None = there is none, or its id is not known.
        rows: head rows of the released checkpoints.
        tokens: ids that the released tokenizer knows, from 0; the head rows beyond are never sampled.
    """

    mask: int
    end: int
    end_of_turn: int | None = None
    rows: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChosenIds:
    """Ids of one checkpoint, named as in :class:`dare_core.types.ModelFacts`."""

    mask_id: int
    eos_ids: tuple[int, ...]
    pad_id: int
    extra_ids: dict[str, int]
    head_rows_unused: int | None


def choose_ids(section: ModelSection, eot_id: int | None, published: Mapping[str, Any], family: FamilyIds) -> ChosenIds:
    """The section's ids, else the config's, else the family's as far as the vocabulary holds them.

    A response ends at the first end of text or end of turn. ``eot_token_id`` is no published key; it is
    understood so that small models can say where their end-of-turn token is.

    Args:
        section: ``mask_id``, ``eos_ids`` and ``pad_id`` win.
        eot_id: the section's end-of-turn id.
        published: parsed config.json with ``vocab_size``.
        family: defaults.

    Raises:
        ValueError: an id is missing; the message says what to give.
    """
    rows = int(published["vocab_size"])

    def choose(given: int | None, key: str, default: int | None) -> int | None:
        value = given if given is not None else published.get(key)
        if value is not None:
            return int(value)
        return default if default is not None and default < rows else None

    mask = choose(section.mask_id, "mask_token_id", family.mask)
    if mask is None:
        raise ValueError("config has no 'mask_token_id'; give 'mask_id' in the model section")
    turn = choose(eot_id, "eot_token_id", family.end_of_turn)
    ends = section.eos_ids or _end_ids(published, family, rows)
    if section.eos_ids is None and turn is not None and turn not in ends:
        ends = (*ends, turn)
    if not ends:
        raise ValueError("config has no 'eos_token_id'; give 'eos_ids' in the model section")
    pad = choose(section.pad_id, "pad_token_id", ends[0])
    return ChosenIds(
        mask_id=mask,
        eos_ids=ends,
        pad_id=ends[0] if pad is None else pad,
        extra_ids={} if turn is None else {"eot": turn},
        head_rows_unused=family.tokens if rows == family.rows else None,
    )


def _end_ids(published: Mapping[str, Any], family: FamilyIds, rows: int) -> tuple[int, ...]:
    value = published.get("eos_token_id")
    if value is None:
        return (family.end,) if family.end < rows else ()
    return tuple(int(one) for one in value) if isinstance(value, list | tuple) else (int(value),)
