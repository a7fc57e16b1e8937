"""Rows -> prompts, demonstrations and pairs, with every row accounted for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from dare_core.data.build import Example, ExampleBuilder
from dare_core.data.tokens import example_length
from dare_core.errors import Problem, UserError
from dare_core.interfaces.data import DataSource
from dare_core.interfaces.model import TextCodec
from dare_core.spec.sections import DataSection
from dare_core.types.examples import Demonstration, Pair, Prompt

SHOWN_PROBLEMS = 20
MALFORMED = "malformed"
LONG_PROMPT = "prompt over max_prompt_tokens"
LONG_ROW = "row over max_tokens"


@dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """What a data section gave.

    Attributes:
        prompts: one per kept row, in file order. ``prompts[i]`` belongs to ``demonstrations[i]`` or ``pairs[i]``;
            ``prompts[i].index`` is the row's position in the files, so it does not move when other rows drop.
        places: where each kept row stands, as ``file:line``.
        demonstrations: one per kept row where the section has ``completion``, else empty.
        pairs: one per kept row where the section has ``chosen`` and ``rejected``, else empty.
        dropped: reason -> ids of the rows left out for it.
        fingerprint: hash of the source and of the examples made from it.
    """

    prompts: tuple[Prompt, ...]
    places: tuple[str, ...]
    demonstrations: tuple[Demonstration, ...] = ()
    pairs: tuple[Pair, ...] = ()
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def read(cls, config: DataSection, source: DataSource, codec: TextCodec | None = None) -> ExampleSet:
        """Read all rows of ``source``.

        Args:
            config: the data section.
            source: the reader built from it.
            codec: counts tokens for ``max_prompt_tokens`` and ``max_tokens``; without it lengths are not checked.

        Raises:
            UserError: malformed or over-long rows where the section refuses them (the first ones are listed, the
                others counted), two rows with one id, a malformed template, or no row left.
        """
        try:
            builder = ExampleBuilder(config)
        except ValueError as error:
            raise UserError(Problem(str(error), path="data")) from error
        reading = _Reading(config, codec)
        for index, (where, row) in enumerate(islice(source.rows(), config.limit)):
            reading.take(builder, index, where, row)
        return reading.result(source.fingerprint())


class _Reading:
    def __init__(self, config: DataSection, codec: TextCodec | None) -> None:
        self._config = config
        self._codec = codec
        self._kept: list[Example] = []
        self._places: list[str] = []
        self._dropped: dict[str, list[str]] = {}
        self._problems: list[Problem] = []
        self._first_seen: dict[str, str] = {}
        self._rows = 0

    def take(self, builder: ExampleBuilder, index: int, where: str, row: Mapping[str, Any] | Problem) -> None:
        self._rows += 1
        if isinstance(row, Problem):
            self._malformed(where, where, row)
            return
        row_id = where
        try:
            row_id = builder.row_id(row, where, index)
            if row_id in self._first_seen:
                message = f"id '{row_id}' was used before, at {self._first_seen[row_id]}; ids must differ"
                self._problems.append(Problem(message, where=where))
                return
            self._first_seen[row_id] = where
            example = builder.build(row, row_id, index)
            too_long = self._too_long(example)
        except UserError as error:
            self._malformed(row_id, where, *error.problems)
        except ValueError as error:
            self._malformed(row_id, where, Problem(str(error)))
        else:
            if too_long is None:
                self._kept.append(example)
                self._places.append(where)
            elif self._config.on_long_row == "drop":
                self._drop(too_long[0], row_id)
            else:
                self._problems.append(Problem(f"row '{row_id}': {too_long[1]}", where=where))

    def _malformed(self, row_id: str, where: str, *problems: Problem) -> None:
        if self._config.on_bad_row == "drop":
            self._drop(MALFORMED, row_id)
            return
        name = "" if row_id == where else f"row '{row_id}': "
        self._problems.extend(Problem(f"{name}{p.message}", where=where, hint=p.hint) for p in problems)

    def _drop(self, reason: str, row_id: str) -> None:
        self._dropped.setdefault(reason, []).append(row_id)

    def _too_long(self, example: Example) -> tuple[str, str] | None:
        prompt_limit, limit = self._config.max_prompt_tokens, self._config.max_tokens
        if self._codec is None or (prompt_limit is None and limit is None):
            return None
        length = len(self._codec.encode_prompt(_prompt(example)))
        if prompt_limit is not None and length > prompt_limit:
            return LONG_PROMPT, f"the prompt has {length} tokens; max_prompt_tokens is {prompt_limit}"
        if limit is None:
            return None
        length = example_length(example, self._codec)
        if length > limit:
            return LONG_ROW, f"prompt and answer have {length} tokens; max_tokens is {limit}"
        return None

    def result(self, source_fingerprint: str) -> ExampleSet:
        if self._problems:
            raise UserError(list(self._shown()))
        if not self._kept:
            counts = ", ".join(f"{len(ids)} {reason}" for reason, ids in self._dropped.items())
            message = f"no row is left of {self._rows} ({counts})" if self._rows else "there are no rows in it"
            raise UserError(Problem(message, path="data.path", where=self._config.path))
        return ExampleSet(
            prompts=tuple(_prompt(example) for example in self._kept),
            places=tuple(self._places),
            demonstrations=tuple(e for e in self._kept if isinstance(e, Demonstration)),
            pairs=tuple(e for e in self._kept if isinstance(e, Pair)),
            dropped={reason: tuple(ids) for reason, ids in self._dropped.items()},
            fingerprint=_fingerprint(source_fingerprint, self._kept),
        )

    def _shown(self) -> Iterator[Problem]:
        yield from self._problems[:SHOWN_PROBLEMS]
        hidden = len(self._problems) - SHOWN_PROBLEMS
        if hidden > 0:
            yield Problem(f"and {hidden} more problems like these", where=self._config.path)
        yield Problem(
            f"{len(self._problems)} problems in {self._rows} rows",
            where=self._config.path,
            hint="mend the rows, or leave them out with 'on_bad_row: drop' (malformed) or 'on_long_row: drop' (over a "
            "limit); two rows with one id are always refused",
        )


def _prompt(example: Example) -> Prompt:
    return example if isinstance(example, Prompt) else example.prompt


def _fingerprint(source: str, examples: list[Example]) -> str:
    digest = hashlib.sha256(source.encode())
    for example in examples:
        digest.update(json.dumps(asdict(example), sort_keys=True, default=str).encode())
    return digest.hexdigest()
