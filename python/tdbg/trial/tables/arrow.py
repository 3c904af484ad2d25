"""Batches as Arrow has them: without a copy where Arrow's layout is NumPy's.

Thread safety: functions over values.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdbg.config.libraries import library
from tdbg.stats.row_fields import FIELDS
from tdbg.trial.tables.batch import Batch, Values, Words
from tdbg.trial.tables.columns import TABLES, Column, Kind
from tdbg.trial.tables.derived_fields import DERIVED, derived

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "arrow_table",
    "arrow_type",
    "batch_reader",
    "record_batch",
    "rows_of_arrays",
    "schema_of",
    "stream_of_arrays",
]


class Arrays(Protocol):
    """Names, steps and presence of ``Statistics``, whose fields are needed, too."""

    @property
    def names(self) -> list[str]:
        """The tensors."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """The global steps."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """Where there is a row."""


def arrow() -> Any:
    """Return pyarrow.

    Raises:
        ConfigurationError: If it is not installed.
    """
    return library("pyarrow", "'tdbg[tables]'")


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Return the schema of a table."""
    return arrow().schema([field_of(each) for each in columns])


def field_of(column: Column) -> pa.Field:
    """Return a column's field, with its unit and meaning as metadata."""
    told = {"unit": column.unit, "meaning": column.meaning}
    kept = {key: text for key, text in told.items() if text}
    return arrow().field(
        column.name, arrow_type(column.kind), column.nullable, metadata=kept
    )


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the type of a column of this kind."""
    pa = arrow()
    types = {
        "word": lambda: pa.dictionary(pa.int32(), pa.string()),
        "text": pa.string,
        "time": lambda: pa.timestamp("ns", tz="UTC"),
        "int64": pa.int64,
        "uint64": pa.uint64,
        "float64": pa.float64,
        "bool": pa.bool_,
    }
    return types[kind]()


def record_batch(
    batch: Batch, columns: Sequence[Column], schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch with these columns."""
    arrays = [
        array_of(batch[column.name], field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return arrow().RecordBatch.from_arrays(arrays, schema=schema)


def array_of(values: Values, type_: pa.DataType) -> pa.Array:
    """Return the values of a column."""
    pa = arrow()
    if isinstance(values, Words):
        lacks = values.codes < 0
        codes = pa.array(values.codes, mask=lacks if lacks.any() else None)
        words = pa.array(values.words, pa.string())
        # Numbers of words are not checked: they were made beside these words.
        return pa.DictionaryArray.from_arrays(codes, words, safe=False)
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, type_, mask=np.ma.getmaskarray(values))
    if values.dtype == object:
        return pa.array(values.tolist(), type_)
    return pa.array(values, type_)


def arrow_table(batches: Iterable[Batch], columns: Sequence[Column]) -> pa.Table:
    """Return all rows as one table, with one dictionary for each column of words."""
    schema = schema_of(columns)
    found = [record_batch(each, columns, schema) for each in batches]
    return arrow().Table.from_batches(found, schema).unify_dictionaries()


def batch_reader(
    batches: Iterable[Batch], columns: Sequence[Column]
) -> pa.RecordBatchReader:
    """Return a reader of the rows, which reads a part when somebody asks for it."""
    schema = schema_of(columns)
    found = (record_batch(each, columns, schema) for each in batches)
    return arrow().RecordBatchReader.from_batches(schema, found)


# What arrays of statistics know of a row: neither its role nor its mode.
_OF_ARRAYS = TABLES["statistics"].named(["tensor", "global_step", *FIELDS, *DERIVED])
_Row: Any = namedtuple("Row", [c.name for c in _OF_ARRAYS])  # type: ignore[misc]  # noqa: PYI024


def _of_arrays(arrays: Arrays) -> Batch:
    tensors, steps = np.nonzero(arrays.present)
    fields = {name: getattr(arrays, name)[tensors, steps] for name in FIELDS}
    return {
        "tensor": Words(tensors.astype(np.int32), arrays.names),
        "global_step": arrays.steps[steps],
        **fields,
        **{name: derived(name, fields) for name in DERIVED},
    }


def rows_of_arrays(arrays: Arrays) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``Statistics`` as named tuples, tensor by tensor."""
    values = [
        [each.words[i] for i in each.codes.tolist()]
        if isinstance(each, Words)
        else each.tolist()
        for each in _of_arrays(arrays).values()
    ]
    return map(_Row._make, zip(*values, strict=True))


def stream_of_arrays(arrays: Arrays, requested_schema: Any) -> Any:
    """Return the rows of ``Statistics`` as a stream of Arrow's C interface.

    Raises:
        ConfigurationError: If pyarrow is not installed.
    """
    table = arrow_table([_of_arrays(arrays)], _OF_ARRAYS)
    return table.__arrow_c_stream__(requested_schema)
