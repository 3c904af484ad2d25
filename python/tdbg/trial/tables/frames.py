"""Batches as frames of pandas and polars, and values as datasets of xarray.

Thread safety: functions over values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from tdbg.config.libraries import library
from tdbg.errors import QueryError, ShapeUnavailableForStep, StepUnavailable
from tdbg.modes import ModeKeys
from tdbg.trial.tables.arrow import arrow_table, record_batch, schema_of
from tdbg.trial.tables.batch import Batch, Values, Words, joined
from tdbg.trial.tables.columns import TABLES, Column
from tdbg.trial.tables.step_numbers import STEP_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import xarray as xr

    from tdbg.trial.tables.table import RunTable
    from tdbg.trial.tensor import TensorHandle

__all__ = [
    "RunOfValues",
    "data_frame",
    "dataset_of",
    "long_columns",
    "polars_frame",
    "polars_lazily",
    "wide_frame",
    "wide_rows",
]

_TABLES = "'tdbg[tables]'"


def data_frame(batches: Iterable[Batch], columns: Sequence[Column]) -> pd.DataFrame:
    """Return the rows as a frame of pandas, of which NumPy's arrays are the columns."""
    pd = library("pandas", _TABLES)
    rows = joined(batches, columns)
    found = {each.name: _column(pd, rows[each.name]) for each in columns}
    return pd.DataFrame(found, copy=False)


def wide_frame(batch: Batch, spread: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return a wide batch as a frame, with mode and step as its index."""
    pd = library("pandas", _TABLES)
    n_steps = len(batch["step"])
    index = pd.MultiIndex.from_arrays(
        [_column(pd, batch["mode"]), batch["step"]], names=["mode", "step"]
    )
    several = len({field for field, _ in spread}) > 1
    labels: Any = pd.Index([name for _, name in spread], name="name", dtype="str")
    if several:
        labels = pd.MultiIndex.from_tuples(spread, names=["column", "name"])
    whole = np.empty((n_steps, len(spread)), order="F")
    for i, values in enumerate(list(batch.values())[len(batch) - len(spread) :]):
        whole[:, i] = np.asarray(values)
    return pd.DataFrame(whole, index=index, columns=labels, copy=False)


def _column(pd: Any, values: Values) -> Any:
    if isinstance(values, Words):
        return pd.Categorical.from_codes(
            values.codes, pd.Index(values.words, dtype="str")
        )
    if isinstance(values, np.ma.MaskedArray):
        if values.dtype.kind == "f":
            return values.filled(np.nan)
        return pd.arrays.IntegerArray(values.data, np.ma.getmaskarray(values))
    if values.dtype.kind == "M":
        return pd.DatetimeIndex(values).tz_localize("UTC")
    return pd.array(values, dtype="str") if values.dtype == object else values


def polars_frame(batches: Iterable[Batch], columns: Sequence[Column]) -> pl.DataFrame:
    """Return the rows as a frame of polars."""
    return _polars().from_arrow(arrow_table(batches, columns))


def _polars() -> Any:
    return library("polars", "polars")


def polars_lazily(table: RunTable) -> pl.LazyFrame:
    """Return a frame that reads the columns that a query needs, when it runs."""
    polars = _polars()
    from polars.io.plugins import register_io_source

    schema = polars.from_arrow(schema_of(table.columns).empty_table()).schema

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        del batch_size
        # Polars applies a filter to the columns that it asks for.
        asked = table.only(with_columns)
        types, left = schema_of(asked.columns), n_rows
        for batch in asked.batches():
            frame = polars.from_arrow(record_batch(batch, asked.columns, types))
            frame = frame if predicate is None else frame.filter(predicate)
            frame = frame if left is None else frame.head(left)
            yield frame
            if left is not None:
                left -= len(frame)
                if left <= 0:
                    return

    return register_io_source(source, schema=schema)


# --- Wide tables: a row for each step, a column for each name -----------------

# The column of names, and what is spread where nothing is said.
_OF_TABLE = {"statistics": ("tensor", ("l2",)), "scalars": ("name", ("value",))}


def long_columns(table: str, fields: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return what a wide table needs of its long one.

    Args:
        table: Name of the table.
        fields: The columns to spread; None: l2 of statistics, value of scalars.

    Returns:
        The column of names, and the columns of numbers.

    Raises:
        QueryError: If the table cannot be wide, or a column has no numbers.
    """
    if table not in _OF_TABLE:
        msg = f"table {table!r} cannot be wide; statistics and scalars can"
        raise QueryError(msg)
    names, usual = _OF_TABLE[table]
    columns = TABLES[table].named(usual if fields is None else fields)
    for each in columns:
        if each.kind not in ("float64", "uint64") or each.name in STEP_COLUMNS:
            msg = f"column {each.name!r} cannot be spread: it has no measured numbers"
            raise QueryError(msg)
    return names, [each.name for each in columns]


def wide_rows(
    batches: Iterable[Batch], names: str, columns: Sequence[Column]
) -> tuple[Batch, list[tuple[str, str]]]:
    """Spread rows.

    Args:
        batches: Rows with the columns of ``STEP_COLUMNS``, *names* and others.
        names: The column of names.
        columns: All their columns.

    Returns:
        The numbers of the steps, in the order of global steps, and a column for each
        name, NaN where there is no row: called by it, or ``field/name`` if several
        fields are spread.  And field and name of each of these columns.
    """
    rows = joined(batches, columns)
    of_names = cast("Words", rows[names])
    steps, first, at = np.unique(
        np.asarray(rows["global_step"]), return_index=True, return_inverse=True
    )
    found: dict[str, Values] = {}
    for name in STEP_COLUMNS:
        values = rows[name]
        if isinstance(values, Words):
            found[name] = Words(values.codes[first], values.words)
        else:
            found[name] = values[first]
    fields = [c for c in columns if c.name not in (*STEP_COLUMNS, names)]
    spread = []
    for column in fields:
        values = np.full((len(of_names.words), len(steps)), np.nan)
        values[of_names.codes, at] = rows[column.name]
        for i, name in enumerate(of_names.words):
            spread.append((column.name, name))
            found[name if len(fields) == 1 else f"{column.name}/{name}"] = values[i]
    return found, spread


# --- Values over steps --------------------------------------------------------


class RunOfValues(Protocol):
    """The part of a ``Trial`` that datasets are made of."""

    @property
    def path(self) -> str:
        """Its directory."""

    def tensor(self, name: str) -> TensorHandle:
        """Return a tensor."""

    def step_numbers(self, global_step: int) -> dict[str, Any]:
        """Return all numbers of a step."""


def dataset_of(
    trial: RunOfValues,
    names: Sequence[str],
    steps: Sequence[int] | None,
    mode: ModeKeys | str | None,
    dtype: np.dtype[Any] | None,
) -> xr.Dataset:
    """Return the values of tensors over steps; see ``Trial.to_xarray``."""
    xr = library("xarray", "xarray")
    found = [trial.tensor(name) for name in names]
    asked = _steps(found, steps, mode)
    numbers = [_global_step(each, step, mode) for each in found[:1] for step in asked]
    variables = {each.name: _variable(xr, each, numbers, dtype) for each in found}
    told = [trial.step_numbers(each) for each in numbers]
    coordinates = {
        "step": np.array([each["step"] for each in told], np.int64),
        "global_step": ("step", np.array(numbers, np.int64)),
        "mode": ("step", np.array([each["mode"] for each in told], str)),
    }
    return xr.Dataset(variables, coordinates, {"run": trial.path})


def _steps(
    tensors: Sequence[TensorHandle],
    steps: Sequence[int] | None,
    mode: ModeKeys | str | None,
) -> list[int]:
    """Return the steps that are asked for; None: those at which all have a value."""
    if steps is not None:
        return list(steps)
    of_each = [set(each.steps(mode, what="values")) for each in tensors]
    return sorted(set.intersection(*of_each)) if of_each else []


def _global_step(tensor: TensorHandle, step: int, mode: ModeKeys | str | None) -> int:
    found = tensor.global_step(step, mode)
    if found is None:
        tensor.value(step, mode)  # Raises, and says which steps there are.
        msg = f"step {step} was not saved"
        raise StepUnavailable(msg)
    return found


def _variable(
    xr: Any, tensor: TensorHandle, steps: Sequence[int], dtype: np.dtype[Any] | None
) -> Any:
    shapes = {step: tensor.shape(step, ModeKeys.GLOBAL) for step in steps}
    first = next(iter(shapes.values()), ())
    for step, shape in shapes.items():
        if shape != first:
            msg = (
                f"{tensor.name} has shape {shape} at global step {step}, and {first} "
                f"at {steps[0]}: choose steps at which its shape is the same"
            )
            raise ShapeUnavailableForStep(msg)
    dimensions = ["step", *(f"{tensor.name}_{i}" for i in range(len(first)))]
    array = _lazy(tensor, steps, first, dtype)
    return xr.Variable(dimensions, xr.core.indexing.LazilyIndexedArray(array))


def _lazy(
    tensor: TensorHandle,
    steps: Sequence[int],
    shape: tuple[int, ...],
    dtype: np.dtype[Any] | None,
) -> Any:
    """Return an array of xarray's backends, of which a step is read when indexed."""
    backends = library("xarray.backends", "xarray")
    indexing = library("xarray.core.indexing", "xarray")
    library("ml_dtypes", "ml_dtypes")  # Makes bfloat16 and others known to NumPy.
    stored = np.dtype(tensor.dtype)

    class Values(backends.BackendArray):  # type: ignore[misc,name-defined]
        """The values of a tensor, with the steps as the first dimension."""

        def __init__(self) -> None:
            self.shape = (len(steps), *shape)
            self.dtype = dtype or stored

        def __getitem__(self, key: Any) -> Any:
            return indexing.explicit_indexing_adapter(
                key, self.shape, indexing.IndexingSupport.BASIC, self._read
            )

        def _read(self, key: tuple[Any, ...]) -> Any:
            at, rest = key[0], key[1:]
            if isinstance(at, slice):
                chosen = range(len(steps))[at]
                empty = np.empty((0, *shape), self.dtype)[(slice(None), *rest)]
                found = [self._value(i)[rest] for i in chosen]
                return np.stack(found) if found else empty
            return self._value(int(at))[rest]

        def _value(self, i: int) -> Any:
            value = tensor.value(steps[i], ModeKeys.GLOBAL)
            return np.asarray(value).astype(self.dtype, copy=False)

    return Values()
