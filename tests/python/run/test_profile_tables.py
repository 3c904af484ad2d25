"""The tables of a profile: their text on disk, their sizes, their phases."""

from __future__ import annotations

import numpy as np
import pytest

from tdbg.run.profile_tables import (
    PHASE_COLUMNS,
    STEP,
    TABLES,
    Phase,
    core_type,
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
