"""Exports rows of a run as a Parquet file: docs/export.md.

    from tdbg.export import export_parquet

    export_parquet("runs/digits", "statistics.parquet", regex="^gradient/")

A part of the rows is in memory at a time.  The file appears whole, or not at all.

Thread safety: functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from tdbg.config.libraries import library
from tdbg.config.messages import nearest
from tdbg.errors import ConfigurationError, QueryError
from tdbg.export.new_files import FilesReport, Progress, in_place, refuse_existing
from tdbg.export.values import chosen_tensors
from tdbg.modes import ModeKeys
from tdbg.trial import (
    TABLES,
    RunTable,
    Scope,
    Trial,
    create_trial,
    record_batch,
    schema_of,
)

__all__ = ["PARQUET_TABLES", "export_parquet"]

#: The tables of a run.
PARQUET_TABLES = tuple(name for name in TABLES if name != "runs")


def export_parquet(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str],
    *,
    table: str = "statistics",
    names: Iterable[str] | None = None,
    regex: str | Iterable[str] | None = None,
    collection: str | None = None,
    start: int | None = None,
    end: int | None = None,
    mode: ModeKeys | str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> FilesReport:
    """Write a table of a run as a Parquet file.

    Its columns are those of ``Trial.to_arrow`` (docs/tables.md).

    Args:
        run: The run, or a trial of it.
        out: The file; by custom it ends with ``.parquet``.
        table: statistics, scalars, steps, findings or events.
        names: Of statistics, these tensors; None: all.
        regex: Only tensors in whose names one of these expressions is found.
        collection: Only members of this collection.
        start: First global step; None: from the beginning.
        end: Global step before which to end; None: to the last one.
        mode: Only steps of this mode.
        force: Replace a file that exists.
        progress: Called with the number of rows that are written, and 0.

    Raises:
        ConfigurationError: If pyarrow is missing, or an argument can never work.
        NotARun: If there is no run.
        QueryError: If there is no such table, tensor or collection.
        StorageError: If the file exists, without *force*, or cannot be written.

    Example:
        report = export_parquet("runs/digits", "losses.parquet", collection="losses")
        print(report.rows)
    """
    parquet = library("pyarrow.parquet", "'tdbg[export]'", "Parquet")
    trial = run if isinstance(run, Trial) else create_trial(run)
    found = _table(trial, table, (names, regex, collection), (start, end), mode)
    path = Path(out).expanduser()
    refuse_existing(path, force)
    n_rows = 0
    with closing(in_place(path)) as file:
        schema = schema_of(found.columns)
        with parquet.ParquetWriter(file.file, schema) as writer:
            for batch in found.batches():
                rows = record_batch(batch, found.columns, schema)
                writer.write_batch(rows)
                n_rows += rows.num_rows
                if progress is not None:
                    progress(n_rows, 0)
        file.publish()
    tensors = len(found.scope.names or ())
    return FilesReport.of(trial, path, steps=[], tensors=tensors, rows=n_rows)


def _table(
    trial: Trial,
    name: str,
    chosen: tuple[Any, Any, Any],
    steps: tuple[int | None, int | None],
    mode: ModeKeys | str | None,
) -> RunTable:
    """Return the rows that are asked for.

    Raises:
        QueryError: If there is no such table, tensor, collection or mode.
        ConfigurationError: If tensors are chosen of a table that has none.
    """
    if name not in PARQUET_TABLES:
        msg = f"a run has no table {name!r}; {nearest(name, PARQUET_TABLES)}"
        raise QueryError(msg)
    names = None
    if any(each is not None for each in chosen):
        if name != "statistics":
            msg = f"table {name!r} is not about tensors: leave names and regex out"
            raise ConfigurationError(msg)
        names = tuple(each.name for each in chosen_tensors(trial, *chosen))
    return trial.table(name, None, Scope(names, *steps, mode_of(mode)))


def mode_of(mode: ModeKeys | str | None) -> ModeKeys:
    """Return the mode of that name; None: GLOBAL, all of them.

    Raises:
        QueryError: If there is none.
    """
    if mode is None or isinstance(mode, ModeKeys):
        return mode or ModeKeys.GLOBAL
    if mode.upper() not in ModeKeys.__members__:
        msg = f"mode must be one of {', '.join(ModeKeys.__members__)}, not {mode!r}"
        raise QueryError(msg)
    return ModeKeys[mode.upper()]
