"""The indices in memory: tables by step, and segments of rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tdbg import _core
from tdbg._core import RunReader
from tdbg.trial import row_index
from tdbg.trial.row_index import Growable, RowBlocks, StepOrdered

PAIR = np.dtype([("step", "i8"), ("number", "i8")])
STEPS = st.lists(st.integers(-3, 12), max_size=30)


def pairs(steps: list[int], start: int = 0) -> NDArray[np.void]:
    numbers = range(start, start + len(steps))
    return np.array(list(zip(steps, numbers, strict=True)), PAIR)


def test_a_growable_array_keeps_what_it_was_given() -> None:
    table = Growable(np.int64)
    for i in range(100):
        table.extend(np.arange(i))
    assert len(table) == 4950
    table.truncate(10)
    table.truncate(99)
    table.extend(np.array([7]))
    assert table.data.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 7]


@given(st.lists(STEPS, max_size=5), st.integers(-4, 13), st.integers(-4, 13))
def test_rows_are_found_by_step_in_the_order_of_arrival(
    parts: list[list[int]], start: int, stop: int
) -> None:
    table = StepOrdered(PAIR)
    steps: list[int] = []
    for part in parts:
        table.extend(pairs(part, len(steps)))
        steps += part
        expected = [i for i, step in enumerate(steps) if start <= step < stop]
        assert table.between(start, stop).tolist() == expected
        assert table.at(start).tolist() == [
            i for i, step in enumerate(steps) if step == start
        ]
    assert len(table) == len(steps)
    assert table.data["number"].tolist() == list(range(len(steps)))


# --- Segments -------------------------------------------------------------


class RowsOnly:
    """As much of a reader as segments need."""

    def __init__(self) -> None:
        self.table = np.empty(0, _core.ROW_DTYPE)
        self.found = np.empty(0, _core.SEGMENT_DTYPE)
        self.signatures: list[tuple[int, ...]] = []
        self.columns_read = 0
        self.signatures_read = 0

    def append(self, rows: list[tuple[int, int]]) -> None:
        more = np.zeros(len(rows), _core.ROW_DTYPE)
        for i, (step, definition) in enumerate(rows):
            more[i]["step"], more[i]["definition"] = step, definition
            more[i]["count"] = len(self.table) + i
        first = len(self.table)
        self.table = np.concatenate((self.table, more))
        for step, group in itertools.groupby(rows, key=lambda row: row[0]):
            ids = tuple(definition for _, definition in group)
            if ids not in self.signatures:
                self.signatures.append(ids)
            number = self.signatures.index(ids)
            segment = [(step, first, len(ids), number)]
            self.found = np.append(self.found, np.array(segment, self.found.dtype))
            first += len(ids)

    def segments(self, start: int, stop: int) -> NDArray[np.void]:
        steps = self.found["step"]
        return self.found[(steps >= start) & (steps < stop)]

    def signature(self, number: int) -> NDArray[np.uint32]:
        self.signatures_read += 1
        return np.array(self.signatures[number], np.uint32)

    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[np.void]:
        return self.table[start:stop].copy()

    def column(self, definitions: list[int], start: int, stop: int) -> NDArray[np.void]:
        self.columns_read += 1
        steps = self.table["step"]
        inside = (steps >= start) & (steps < stop)
        return self.table[inside & np.isin(self.table["definition"], definitions)]


def segments_of(reader: Any) -> RowBlocks:
    given_reader: RunReader = reader
    return RowBlocks(given_reader)


ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=40)


@given(st.lists(ROWS, max_size=4), st.sets(st.integers(1, 5)), st.integers(1, 7))
def test_segments_find_the_rows_that_a_scan_finds(
    parts: list[list[tuple[int, int]]], ids: set[int], chunk: int
) -> None:
    reader = RowsOnly()
    segments = segments_of(reader)
    requested = np.array(sorted(ids), np.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "CHUNK_ROWS", chunk)
        for part in parts:
            reader.append(part)
        table = reader.table
        for step in range(6):
            here = table[
                (table["step"] == step) & np.isin(table["definition"], requested)
            ]
            assert segments.rows(step, requested)["count"].tolist() == sorted(
                here["count"].tolist()
            )
        found = segments.between(1, 4)
        inside = (table["step"] >= 1) & (table["step"] < 4)
        assert (
            segments.counts(found, requested).sum()
            == np.isin(table["definition"][inside], requested).sum()
        )
        definitions = np.unique(table["definition"][inside]).tolist()
        assert segments.definitions(found).tolist() == definitions
        read = [
            row for rows in segments.read(found, requested) for row in rows["count"]
        ]
        inside &= np.isin(table["definition"], requested)
        assert sorted(read) == table["count"][inside].tolist()


def test_few_of_many_tensors_are_read_by_their_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = RowsOnly()
    reader.append([(step, i) for step in range(10) for i in range(1, 101)])
    segments = segments_of(reader)
    monkeypatch.setattr(row_index, "CHUNK_ROWS", 8)
    few = np.array([7, 42], np.uint32)
    found = segments.between(3, 6)
    rows = np.concatenate(list(segments.read(found, few)))
    assert reader.columns_read == 1
    assert rows["step"].tolist() == [3, 3, 4, 4, 5, 5]
    many = np.arange(1, 51, dtype=np.uint32)
    assert sum(len(part) for part in segments.read(found, many)) == 150
    assert reader.columns_read == 1


def test_steps_that_are_alike_share_one_signature() -> None:
    reader = RowsOnly()
    reader.append([(step, i) for step in range(1000) for i in range(1, 5)])
    segments = segments_of(reader)
    found = segments.between(0, 1000)
    assert len(found) == 1000
    assert segments.counts(found, np.array([2, 3], np.uint32)).tolist() == [2] * 1000
    assert reader.signatures_read == 1
