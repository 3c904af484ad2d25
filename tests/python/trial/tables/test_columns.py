"""The lists of columns agree with what they are lists of."""

from __future__ import annotations

import pytest

from tdbg.errors import QueryError
from tdbg.stats.row_fields import FIELDS
from tdbg.trial import TABLES


def test_statistics_have_the_fields_of_a_row_in_their_order() -> None:
    names = TABLES["statistics"].names
    assert [name for name in names if name in FIELDS] == list(FIELDS)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_says_what_it_means(table: str) -> None:
    columns = TABLES[table]
    assert len(set(columns.names)) == len(columns)
    for column in columns:
        assert column.meaning
        assert not column.meaning.endswith(".")


def test_columns_are_chosen_in_the_order_given() -> None:
    chosen = TABLES["statistics"].named(["l2", "tensor"])
    assert [each.name for each in chosen] == ["l2", "tensor"]
    assert [each.name for each in TABLES["statistics"].named("l2")] == ["l2"]


def test_an_unknown_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(QueryError, match="'steps' has no column 'duratoin'; did you"):
        TABLES["steps"].named(["step", "duratoin"])
