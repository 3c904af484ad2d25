"""Growth with the number of rows: opening a finished run and the first answers.

    python -m benchmarks.reader.rows [--quick]

Runs of 100 tensors at 10 to 10,000 steps, 1,000 to 1,000,000 rows of statistics (with
``--quick``: to 100,000), page cache warm.  Answers are checked, by ``open_run``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks._harness import Curves, Report, Table, interleave, options
from benchmarks._harness.intervals import median_interval
from benchmarks.reader.open_run import build, questions

N_TENSORS = 100
STEPS = (10, 100, 1000, 10_000)
READ = "read the bytes (baseline)"
#: All rows in one table grow with the rows; these should not.
ASKED = (
    "open",
    "open, mean of one tensor at one step",
    "open, history of one tensor",
)


def main() -> None:
    given = options(__doc__).parse_args()
    table = Table("Growth with the number of rows", ("rows, what", "ms", "95 %"))
    curves = Curves(
        "growth_rows", table.title, "rows of a run", "ms", log_x=True, log_y=True
    )
    data = {}
    for n_steps in STEPS[:-1] if given.quick else STEPS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            build(path, N_TENSORS, n_steps, close=True)
            asked = questions(path, N_TENSORS, n_steps)
            samples = interleave(
                {name: asked[name] for name in (READ, *ASKED)},
                baseline=READ,
                rounds=given.rounds or (6 if given.quick else 40),
                seed=given.seed,
            )
        n_rows = N_TENSORS * n_steps
        data[n_rows] = samples.to_json()
        for name in ASKED:
            low, high = (1e3 * x for x in median_interval(samples.seconds[name]))
            ms = 1e3 * samples.seconds_of(name)
            table.add(f"{n_rows:,}, tdbg {name}", f"{ms:.3g}", f"{low:.3g}-{high:.3g}")
            curves.add(f"tdbg: {name}", n_rows, ms, low, high)
    found = {"tables": [table], "plots": [curves], "data": data}
    Report("reader/rows", given, **found).save()  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
