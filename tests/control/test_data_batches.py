"""The order of batches: pure, complete, without repeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_core.data.batches import BatchOrder
from dare_core.data.config import JsonLinesSection
from dare_core.data.length_groups import LengthGroups
from dare_core.errors import UserError


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    count = draw(st.integers(1, 23))
    return count, draw(st.integers(1, count))


@given(sizes(), st.integers(0, 5), st.booleans())
def test_every_epoch_holds_every_row_once_and_no_batch_holds_a_row_twice(
    size: tuple[int, int], seed: int, shuffle: bool
) -> None:
    count, batch = size
    order = BatchOrder(count, batch, seed, shuffle)
    epochs = 7
    batches = [order.batch(step) for step in range(-(-epochs * count // batch))]
    assert all(len(set(rows)) == len(rows) == batch for rows in batches)
    stream = [row for rows in batches for row in rows]
    for epoch in range(epochs):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(sizes(), st.lists(st.integers(0, 40), max_size=8))
def test_a_batch_depends_on_its_step_only(size: tuple[int, int], steps: list[int]) -> None:
    used = BatchOrder(*size, seed=3)
    for step in steps:
        assert used.batch(step) == BatchOrder(*size, seed=3).batch(step)


def test_epochs_and_seeds_differ_in_order() -> None:
    first, other = BatchOrder(50, 50, seed=0), BatchOrder(50, 50, seed=1)
    assert len({tuple(rows) for rows in (first.batch(0), first.batch(1), other.batch(0))}) == 3


def test_without_shuffle_rows_come_in_file_order() -> None:
    order = BatchOrder(5, 2, seed=9, shuffle=False)
    assert [order.batch(step) for step in range(3)] == [[0, 1], [2, 3], [4, 0]]


def test_the_order_is_the_same_everywhere() -> None:
    assert BatchOrder(8, 8, seed=0).batch(0) == [3, 5, 2, 4, 0, 1, 7, 6]


def test_each_row_is_equally_likely_to_come_first() -> None:
    firsts = [BatchOrder(4, 1, seed).batch(0)[0] for seed in range(400)]
    assert all(70 <= firsts.count(row) <= 130 for row in range(4))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(UserError, match="batch of 5 different rows cannot be made from 4"):
        BatchOrder(4, 5, seed=0)


def test_epochs_done_are_counted() -> None:
    assert BatchOrder(8, 2, seed=0).epoch(6) == 1.5


def grouped(count: int, batch: int, window: int, seed: int = 0) -> LengthGroups:
    return LengthGroups([(7 * row) % 11 for row in range(count)], window, batch, seed)


@given(sizes(), st.integers(1, 6), st.integers(0, 5))
def test_groups_by_length_keep_what_the_order_promises(size: tuple[int, int], window: int, seed: int) -> None:
    count, batch = size
    order, epochs = grouped(count, batch, window, seed), 5
    batches = [order.batch(step) for step in range(-(-epochs * count // batch))]
    assert all(len(set(rows)) == len(rows) == batch for rows in batches)
    stream = [row for rows in batches for row in rows]
    for epoch in range(epochs):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(sizes(), st.integers(1, 6), st.lists(st.integers(0, 40), max_size=8))
def test_a_grouped_batch_depends_on_its_step_only(size: tuple[int, int], window: int, steps: list[int]) -> None:
    used = grouped(*size, window)
    for step in steps:
        assert used.batch(step) == grouped(*size, window).batch(step)


def test_grouped_batches_are_alike_in_length_and_not_sorted_among_themselves() -> None:
    lengths = [(37 * row) % 101 for row in range(96)]
    order = LengthGroups(lengths, window=12, batch=8, seed=1)
    spread = [
        max(lengths[row] for row in rows) - min(lengths[row] for row in rows) for rows in map(order.batch, range(12))
    ]
    assert max(spread) < 15
    shortest = [min(lengths[row] for row in order.batch(step)) for step in range(12)]
    assert shortest != sorted(shortest)
    assert [order.batch(step) for step in range(12)] != [order.batch(step) for step in range(12, 24)]


def test_grouping_and_file_order_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="'shuffle: false' keeps that of the files"):
        JsonLinesSection(path="rows.jsonl", prompt="{q}", group_by_length=8, shuffle=False)
