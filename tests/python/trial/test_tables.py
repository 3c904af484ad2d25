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
from tdbg.trial import compact_table, row_index
from tdbg.trial.compact_table import CompactTable
from tdbg.trial.row_index import Growable, RowBlocks
from tdbg.trial.steps import STEP_TABLE_DTYPE


def test_a_growable_array_keeps_what_it_was_given() -> None:
    table = Growable(np.int64)
    for i in range(100):
        table.extend(np.arange(i))
    assert len(table) == 4950
    table.truncate(10)
    table.truncate(99)
    table.extend(np.array([7]))
    assert table.data.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 7]


NARROW = np.dtype([("step", "i8"), ("u", "u8"), ("u4", "u4"), ("flag", "?")])
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def narrow_rows(draw: st.DrawFn) -> NDArray[np.void]:
    """Rows whose columns count up, stay, or are anything."""
    n = draw(st.integers(0, 40))
    rows = np.zeros(n, NARROW)
    start, rise = draw(NUMBERS), draw(st.integers(-(1 << 40), 1 << 40))
    line = (start + rise * i for i in range(n))
    rows["step"] = [(x + (1 << 63)) % (1 << 64) - (1 << 63) for x in line]
    rows["u"] = draw(st.lists(NUMBERS.map(abs), min_size=n, max_size=n))
    rows["u4"] = draw(st.integers(0, (1 << 32) - 1))
    rows["flag"] = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return rows


@given(
    st.lists(st.tuples(narrow_rows(), st.integers(0, 90)), max_size=5),
    st.integers(0, 90),
    st.integers(0, 90),
)
def test_a_compact_table_has_the_rows_that_it_was_given(
    parts: list[tuple[NDArray[np.void], int]], start: int, stop: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact_table, "PAGE_ROWS", 8)
        table = CompactTable(NARROW)
        expected = np.empty(0, NARROW)
        for rows, length in parts:
            table.extend(rows)
            expected = np.concatenate((expected, rows))
            assert np.array_equal(table.rows(), expected)
            table.truncate(length)
            expected = expected[:length]
            assert len(table) == len(expected)
            assert np.array_equal(table.rows(start, stop), expected[start:stop])
            for name in NARROW.names or ():
                found = table.column(name, start, stop)
                assert found.dtype == NARROW[name]
                assert np.array_equal(found, expected[name][start:stop])


def test_a_compact_table_of_steps_that_are_alike_takes_few_bytes_of_each() -> None:
    rows = np.zeros(100_000, STEP_TABLE_DTYPE)
    rows["step"] = rows["mode_step"] = np.arange(len(rows))
    jitter = np.random.default_rng(0).integers(0, 10**6, len(rows))
    rows["wall_ns"] = 1_700_000_000_000_000_000 + 10**7 * rows["step"] + jitter
    rows["duration_ns"] = 10**7 + jitter
    rows["complete"] = True
    table = CompactTable(STEP_TABLE_DTYPE)
    table.extend(rows)
    assert table.nbytes < 20 * len(rows)


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
