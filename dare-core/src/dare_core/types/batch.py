"""Batches of token rows: demonstrations, pairs and rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dare_core.types._shapes import expect_dtype, expect_shape

if TYPE_CHECKING:
    from torch import Tensor

Finish = Literal["eos", "length", "aborted"]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Token rows in canonical form: prompt from column 0, then the response, then padding on the right.

    ``response`` is the loss mask. Conversations of which several answers are learnt have several runs of it, with given
    turns between them, which belong to ``prompt``; nothing but an end-token tail follows the last answer.

    Attributes:
        tokens: [B,L] int64 clean tokens; pad id outside ``valid``.
        prompt: [B,L] bool given positions: the prompt, and given turns between responses.
        response: [B,L] bool response positions the method may corrupt and score, including an EOS tail.
        completion: [B,L] bool response positions, of each run up to and including its first end token: what text,
            rewards and completion-masked losses see. A subset of ``response``.
        sample_id: [B] int64 unique id, the same in any batch arrangement; addresses random draws.
        group: [B] int64 rows of one prompt share it.
        example_id: per row, the id of the data row it was made from.
    """

    tokens: Tensor
    prompt: Tensor
    response: Tensor
    completion: Tensor
    sample_id: Tensor
    group: Tensor
    example_id: tuple[str, ...]

    def __post_init__(self) -> None:
        owner = type(self).__name__
        rows, width = self.tokens.shape
        expect_dtype(owner, "tokens", self.tokens, "int64")
        for name in ("prompt", "response", "completion"):
            expect_shape(owner, name, getattr(self, name), (rows, width), "[B,L]")
            expect_dtype(owner, name, getattr(self, name), "bool")
        for name in ("sample_id", "group"):
            expect_shape(owner, name, getattr(self, name), (rows,), "[B]")
            expect_dtype(owner, name, getattr(self, name), "int64")
        if len(self.example_id) != rows:
            raise ValueError(f"{owner}.example_id has {len(self.example_id)} entries for {rows} rows")
        if bool((self.prompt & self.response).any()) or bool((self.completion & ~self.response).any()):
            raise ValueError(f"{owner}: prompt and response must be disjoint and completion inside response")

    @property
    def valid(self) -> Tensor:
        """[B,L] bool positions that are not padding."""
        return self.prompt | self.response

    @property
    def prompt_length(self) -> Tensor:
        """[B] int64 prompt tokens before a row's first response token."""
        return (self.prompt & (self.response.cumsum(dim=1) == 0)).sum(dim=1)

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, kw_only=True)
class PairRows(Rows):
    """Rows of preference pairs: ``group`` names the pair, every group holds one preferred and one other row.

    Attributes:
        preferred: [B] bool True for the chosen answer.
    """

    preferred: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_shape("PairRows", "preferred", self.preferred, (len(self),), "[B]")
        expect_dtype("PairRows", "preferred", self.preferred, "bool")


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """States of single denoising forwards; of rollouts that branch, the segments of their trees.

    A segment's ``inputs`` are the canvas at a branch and its ``predicted`` the canvas at the next one, whose other
    positions are still masked; ``row`` is the first response below it, ``step`` the forwards before it.

    Attributes:
        inputs: [S,L] int64 canvas before the forward.
        predicted: [S,L] int64 the model's guess at every position (the input where nothing was masked).
        confidence: [S,L] probability of the guess; 0 where nothing was masked.
        row: [S] int64 row of the rollout.
        step: [S] int64 denoising forward, from 0.
        parent: [S] int64 index of the parent snapshot, -1 for roots; None where rollouts do not branch.
    """

    inputs: Tensor
    predicted: Tensor
    confidence: Tensor
    row: Tensor
    step: Tensor
    parent: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.inputs.shape
        for name in ("predicted", "confidence"):
            expect_shape("Snapshots", name, getattr(self, name), shape, "[S,L]")
        for name in ("row", "step"):
            expect_shape("Snapshots", name, getattr(self, name), shape[:1], "[S]")


@dataclass(frozen=True, kw_only=True)
class Edits:
    """Committed tokens that a decoder replaced, ordered by row, then step, then column.

    Attributes:
        row: [E] int64 row of the rollout.
        step: [E] int64 denoising forward that replaced the token, from 0.
        column: [E] int64.
        old: [E] int64 token before.
        new: [E] int64 token after.
    """

    row: Tensor
    step: Tensor
    column: Tensor
    old: Tensor
    new: Tensor

    def __post_init__(self) -> None:
        for name in ("step", "column", "old", "new"):
            expect_shape("Edits", name, getattr(self, name), self.row.shape, "[E]")

    def __len__(self) -> int:
        return int(self.row.shape[0])


@dataclass(frozen=True, kw_only=True)
class Trace:
    """How the rows came about.

    Attributes:
        commit_step: [B,L] int64 index of the denoising forward that first committed a token there, global over
            the row, from 0; -1 = prompt, padding or never committed.
        replayable: False if tokens changed after their commit (editing, remasking), so that commit steps
            alone do not give the decoder's inputs back.
        layout_block_length: block length used while decoding.
        snapshots: states of single forwards, if they were asked for.
        edits: replacements of committed tokens, from decoders that edit; None from all others. Commit steps, final
            tokens and edits together give every canvas back.
    """

    commit_step: Tensor
    replayable: bool = True
    layout_block_length: int | None = None
    snapshots: Snapshots | None = None
    edits: Edits | None = None


@dataclass(frozen=True, kw_only=True)
class Rollout(Rows):
    """Sampled responses.

    Attributes:
        finish: per row ``eos``, ``length`` or ``aborted``.
        text: per row the decoded completion, without special tokens.
        policy_version: optimizer steps done by the weights that sampled it.
        logp: [B,L] log-probability of each token when it was committed (temperature 1), 0 elsewhere; or None.
        trace: how the tokens were committed; or None.
        forwards: [B] int64 denoising forwards each row took part in (NFE).
        agreement: share of tokens that the exact decoder gives too, where an approximate backend checked that.
    """

    finish: tuple[Finish, ...]
    text: tuple[str, ...]
    policy_version: int
    forwards: Tensor
    logp: Tensor | None = None
    trace: Trace | None = None
    agreement: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.finish) == len(self.text) == len(self):
            raise ValueError(
                f"Rollout: {len(self)} rows, but {len(self.finish)} finish and {len(self.text)} text entries"
            )
        if self.trace is not None:
            expect_shape("Rollout", "trace.commit_step", self.trace.commit_step, self.tokens.shape, "[B,L]")
        if self.logp is not None:
            expect_shape("Rollout", "logp", self.logp, self.tokens.shape, "[B,L]")


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """How much better a row (or snapshot) was than its baseline.

    Attributes:
        value: [B] or [S] float; 0 for rows whose verdict failed.
        usable: same shape, bool: False for rows whose verdict failed; they carry no loss.
        statistics: what to log, e.g. ``{"zero_variance_share": 0.25}``.
    """

    value: Tensor
    usable: Tensor
    statistics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect_shape("Advantages", "usable", self.usable, self.value.shape, "[B]")
