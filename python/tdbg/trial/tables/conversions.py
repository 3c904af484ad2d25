"""The questions to a ``Trial`` whose answers are tables of other libraries.

Thread safety: may be used from any thread; the trial's lock is held inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import DTypeLike

from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.trial.run import RunState
from tdbg.trial.selection import mode_key
from tdbg.trial.tables import arrow, frames
from tdbg.trial.tables.batch import Batch, Scope
from tdbg.trial.tables.columns import TABLES, Column
from tdbg.trial.tables.step_numbers import STEP_COLUMNS
from tdbg.trial.tables.table import RunTable, table_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import xarray as xr

__all__ = ["Conversions"]


class Conversions:
    """A run as tables of pandas, Arrow, polars and xarray: docs/tables.md."""

    _run: RunState

    def table(
        self,
        name: str,
        columns: str | Sequence[str] | None = None,
        scope: Scope | None = None,
    ) -> RunTable:
        """Return a table of the run, to be read in batches of NumPy arrays.

        Args:
            name: As of ``to_pandas``.
            columns: Its columns; None: all.
            scope: Its rows; None: all.

        Raises:
            QueryError: If there is no such table or column.
            TensorUnavailable: If there is no such tensor.
        """
        with self._run.fresh() as run:
            return table_of(run, name, columns, scope or Scope())

    def to_pandas(
        self,
        table: str = "statistics",
        names: str | Sequence[str] | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        end: int | None = None,
        wide: bool = False,
    ) -> pd.DataFrame:
        """Return a table of the run as a frame of pandas.

        Args:
            table: statistics, scalars, steps, findings or events.
            names: Tensors, or scalars; None: all.
            columns: Columns of the table, which alone are read; None: all.  Of a wide
                table, what is spread: by default ``l2``, or ``value`` of scalars.
            mode: Only steps of this mode.
            start: First global step.
            end: Global step before which to end.
            wide: Whether each tensor or scalar is a column, and each step a row.

        Returns:
            Text of few values is categorical, times are in UTC.  A wide frame is
            float64, with mode and step as its index; of several columns its columns are
            pairs of column and name.

        Raises:
            ConfigurationError: If pandas is not installed.
            QueryError: If there is no such table, column or scalar.
            TensorUnavailable: If there is no such tensor.

        Example:
            trial.to_pandas(names="gradient/fc.weight", columns=["step", "l2"])
            trial.to_pandas(wide=True).loc["TRAIN"].plot(logy=True)
        """
        scope = _scope(names, mode, start, end)
        if not wide:
            asked = self.table(table, columns, scope)
            return frames.data_frame(asked.batches(), asked.columns)
        batch, spread, _ = self._spread(table, columns, scope)
        return frames.wide_frame(batch, spread)

    def to_arrow(
        self,
        table: str = "statistics",
        names: str | Sequence[str] | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        end: int | None = None,
        wide: bool = False,
    ) -> pa.RunTable:
        """Return a table of the run as a table of Arrow.

        A field's metadata has its unit and meaning.

        Args:
            table: As of ``to_pandas``, like all that follow.
            names: Tensors, or scalars.
            columns: Columns of the table.
            mode: The mode.
            start: First global step.
            end: Global step before which to end.
            wide: Whether each tensor is a column; columns are then called by the
                tensor, or ``column/tensor`` if several are spread.

        Raises:
            ConfigurationError: If pyarrow is not installed.
            QueryError: As of ``to_pandas``.
            TensorUnavailable: Likewise.

        Example:
            pyarrow.parquet.write_table(trial.to_arrow(), "statistics.parquet")
        """
        scope = _scope(names, mode, start, end)
        if not wide:
            asked = self.table(table, columns, scope)
            return arrow.arrow_table(asked.batches(), asked.columns)
        batch, _, types = self._spread(table, columns, scope)
        return arrow.arrow_table([batch], types)

    def to_arrow_reader(
        self,
        table: str = "statistics",
        names: str | Sequence[str] | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of a table, which reads a part whenever it is asked for one.

        Args:
            table: As of ``to_pandas``, like all that follow.
            names: Tensors, or scalars.
            columns: Columns of the table.
            mode: The mode.
            start: First global step.
            end: Global step before which to end.

        Raises:
            ConfigurationError: If pyarrow is not installed.
            QueryError: As of ``to_pandas``.
            TensorUnavailable: Likewise.

        Example:
            for batch in trial.to_arrow_reader(columns=["tensor", "l2"]):
                print(batch.num_rows)
        """
        asked = self.table(table, columns, _scope(names, mode, start, end))
        return arrow.batch_reader(asked.batches(), asked.columns)

    def to_polars(
        self,
        table: str = "statistics",
        names: str | Sequence[str] | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        end: int | None = None,
        wide: bool = False,
        lazy: bool = False,
    ) -> pl.DataFrame | pl.LazyFrame:
        """Return a table of the run as a frame of polars.

        Args:
            table: As of ``to_pandas``, like all that follow.
            names: Tensors, or scalars.
            columns: Columns of the table.
            mode: The mode.
            start: First global step.
            end: Global step before which to end.
            wide: As of ``to_arrow``.
            lazy: Whether to return a lazy frame, which reads the columns that its query
                needs when it is collected.

        Raises:
            ConfigurationError: If polars is not installed, or a wide table is to be
                lazy.
            QueryError: As of ``to_pandas``.
            TensorUnavailable: Likewise.

        Example:
            rows = trial.to_polars(lazy=True)
            rows.group_by("tensor").agg(polars.col("l2").max()).collect()
        """
        scope = _scope(names, mode, start, end)
        if lazy and wide:
            msg = "a wide table is made of all its rows: lazy=True cannot be met"
            raise ConfigurationError(msg)
        if wide:
            batch, _, types = self._spread(table, columns, scope)
            return frames.polars_frame([batch], types)
        asked = self.table(table, columns, scope)
        if lazy:
            return frames.polars_lazily(asked)
        return frames.polars_frame(asked.batches(), asked.columns)

    def to_xarray(
        self,
        names: str | Sequence[str],
        steps: Sequence[int] | None = None,
        *,
        mode: ModeKeys | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> xr.Dataset:
        """Return the values of tensors over steps as a dataset of xarray.

        Values are read when you look at them, a step at a time.

        Args:
            names: Tensors.
            steps: Steps, in the count of *mode*; None: those at which all of them
                have a value.
            mode: As of ``tensor(...).steps``.
            dtype: What values are converted to, such as float32 for bfloat16; None:
                they stay as they were saved.

        Returns:
            A variable for each tensor, with ``step`` as its first dimension; the steps
            have ``global_step`` and ``mode`` as coordinates.

        Raises:
            ConfigurationError: If xarray is not installed.
            TensorUnavailable: If there is no such tensor.
            QueryError: If there is no such step.
            ShapeUnavailableForStep: If the shape of a tensor changes.

        Example:
            values = trial.to_xarray(["fc.weight"], dtype="float32")
            values["fc.weight"].std("step")
        """
        chosen = [names] if isinstance(names, str) else list(names)
        target = None if dtype is None else np.dtype(dtype)
        return frames.dataset_of(
            cast("frames.RunOfValues", self), chosen, steps, mode, target
        )

    def _spread(
        self, table: str, columns: str | Sequence[str] | None, scope: Scope
    ) -> tuple[Batch, list[tuple[str, str]], list[Column]]:
        """Return a wide table: as a batch, what its columns hold, and their types."""
        names, fields = frames.long_columns(table, columns)
        needed = [*STEP_COLUMNS, names, *fields]
        asked = self.table(table, needed, scope)
        batch, spread = frames.wide_rows(asked.batches(), names, asked.columns)
        types = TABLES[table].named(STEP_COLUMNS)
        types += [
            Column(each, "float64", "", f"{field} of {name}")
            for each, (field, name) in zip(
                list(batch)[len(types) :], spread, strict=True
            )
        ]
        return batch, spread, types


def _scope(
    names: str | Sequence[str] | None,
    mode: ModeKeys | str | None,
    start: int | None,
    end: int | None,
) -> Scope:
    chosen = [names] if isinstance(names, str) else names
    asked = None if chosen is None else tuple(chosen)
    return Scope(asked, start, end, mode_key(mode))
