"""The tables of a profile: their text on disk, their sizes, their phases."""

from __future__ import annotations

import numpy as np
import pytest

from tdbg.run.profile_tables import (
    PHASE_COLUMNS,
    STEP,
    TABLES,
    Phase,
    core_shares,
    core_type,
    measured,
    parse_columns,
    written_columns,
)


@pytest.mark.parametrize("name", TABLES)
def test_the_stored_columns_of_a_table_give_its_type(name: str) -> None:
    table = TABLES[name]
    assert parse_columns(written_columns(table)) == table
    assert table.names is not None
    assert table.names[0] == "time"
    assert table.itemsize % 8 == 0, "rows of a mapped file stay aligned"


def test_a_table_of_cores_has_a_column_for_all_of_them() -> None:
    table = core_type(192)
    assert parse_columns(written_columns(table)) == table
    assert table.itemsize == 200


@pytest.mark.parametrize(
    "text",
    ["", "time", "time:i8", "time:<i8*", "time:O", "a b:<i8", "time:<i8,", "t:<i8*-1"],
)
def test_a_text_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_columns(text)


def test_every_phase_has_a_column_of_a_step() -> None:
    assert set(PHASE_COLUMNS) == set(Phase)
    assert all(STEP[column] == np.int64 for column in PHASE_COLUMNS.values())


@pytest.mark.parametrize("kind", ["<u8", "<u4", "|u1"])
def test_the_largest_unsigned_number_was_not_measured(kind: str) -> None:
    column = np.array([0, 7, np.iinfo(kind).max], kind)
    np.testing.assert_array_equal(measured(column), [0.0, 7.0, np.nan])


def test_floats_and_signed_numbers_stay_as_they_are() -> None:
    floats = np.array([0.5, np.nan], np.float32)
    np.testing.assert_array_equal(measured(floats), [0.5, np.nan])
    assert measured(np.array([-1, 3], np.int64)).tolist() == [-1.0, 3.0]


def test_cores_are_half_per_cents_and_those_that_are_offline_unknown() -> None:
    rows = np.zeros(2, core_type(3))
    rows["busy"] = [[0, 100, 200], [255, 50, 255]]
    expected = [[0.0, 0.5, 1.0], [np.nan, 0.25, np.nan]]
    np.testing.assert_array_equal(core_shares(rows), expected)
