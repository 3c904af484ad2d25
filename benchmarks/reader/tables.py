"""A run as tables, and SQL over many: tdbg, and Parquet files of the same rows.

    python -m benchmarks.reader.tables [--quick]

One run of 1,000,000 rows of statistics is read into NumPy, and into pandas, Arrow and
polars.  Then 100 runs with 10,000,000 rows together are asked in SQL, beside DuckDB
over a Parquet file for each run that holds the same rows.  ``--quick``: 100,000 rows,
in 10 runs.  The page cache is warm.  Every answer is compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from benchmarks._harness import Report, Table, check_equal, interleave, options
from benchmarks._harness.intervals import median_interval
from benchmarks.reader.open_run import build
from tdbg.query import Database
from tdbg.trial import create_trial

ENVIRONMENT = "tables"

NUMPY = "NumPy arrays: trial.statistics (baseline)"
PARQUET = "DuckDB over Parquet (baseline)"
TDBG = "tdbg"
#: Questions, as SQL of a table ``statistics`` with the column ``run``.
QUESTIONS = {
    "greatest norm of each run and tensor": (
        "select run, tensor, max(l2) from statistics group by all order by all"
    ),
    "one tensor of all runs": (
        "select run, max(l2) from statistics where tensor = 'layer00003.weight' "
        "group by run order by run"
    ),
    "one run": (
        "select tensor, avg(mean) from statistics where run = 'run003' "
        "group by tensor order by tensor"
    ),
    "one step of all runs": (
        "select run, sum(count) from statistics where step = 50 "
        "group by run order by run"
    ),
}


def main() -> None:
    given = options(__doc__).parse_args()
    rounds = given.rounds or (3 if given.quick else 15)
    table = Table("A run as tables, and SQL over many runs", ("what", "ms", "95 %"))
    data: dict[str, Any] = {}

    def measure(what: str, contenders: Mapping[str, Callable[[], Any]]) -> None:
        first = next(iter(contenders))
        samples = interleave(contenders, baseline=first, rounds=rounds, seed=given.seed)
        data[what] = samples.to_json()
        for name in contenders:
            low, high = (1e3 * x for x in median_interval(samples.seconds[name]))
            ms = 1e3 * samples.seconds_of(name)
            table.add(f"{what}: {name}", f"{ms:.3g}", f"{low:.3g}-{high:.3g}")

    with tempfile.TemporaryDirectory() as folder:
        measure_one(Path(folder) / "run", 100 if given.quick else 1000, measure)
    with tempfile.TemporaryDirectory() as folder:
        sizes = (10, 100, 100) if given.quick else (100, 100, 1000)
        measure_many(Path(folder), *sizes, measure)
    Report("reader/tables", given, tables=[table], data=data).save()


def measure_one(path: Path, n_tensors: int, measure: Callable[..., None]) -> None:
    """Read one run of 1,000 steps into each library."""
    build(path, n_tensors, 1000, close=True)
    trial = create_trial(path)
    expected = float(np.sum(trial.statistics().l2))
    for frame in (trial.to_pandas(), trial.to_polars(), trial.to_arrow().to_pandas()):
        check_equal(len(frame), n_tensors * 1000, "rows")
        np.testing.assert_allclose(float(frame["l2"].sum()), expected, rtol=1e-9)
    measure(
        f"{n_tensors * 1000:,} rows",
        {
            NUMPY: trial.statistics,
            "pandas": trial.to_pandas,
            "pandas, three columns": lambda: trial.to_pandas(
                columns=["tensor", "step", "l2"]
            ),
            "Arrow": trial.to_arrow,
            "polars": trial.to_polars,
        },
    )


def measure_many(
    folder: Path,
    n_runs: int,
    n_tensors: int,
    n_steps: int,
    measure: Callable[..., None],
) -> None:
    """Ask runs, and Parquet files of the same rows."""
    names = [f"run{i:03}" for i in range(n_runs)]
    for name in names:
        build(folder / "runs" / name, n_tensors, n_steps, close=True)
    database = Database(folder / "runs")
    (folder / "parquet").mkdir()
    for name in names:
        query = "select * from statistics where run = $run"
        rows = database.sql(query, {"run": name}).to_arrow()
        pq.write_table(rows, folder / "parquet" / f"{name}.parquet")
    files = f"read_parquet('{folder}/parquet/*.parquet')"
    with duckdb.connect() as connection:
        for what, query in QUESTIONS.items():
            of_files = query.replace("statistics", files)
            expected = connection.execute(of_files).fetchall()
            check_equal(list(database.sql(query)), expected, what)
            measure(
                f"{n_runs * n_tensors * n_steps:,} rows, {what}",
                {
                    PARQUET: lambda sql=of_files: connection.execute(sql).fetchall(),
                    TDBG: lambda sql=query: list(database.sql(sql)),
                },
            )


if __name__ == "__main__":
    main()
