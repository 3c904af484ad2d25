"""What all benchmarks share: how to time, verify, say where, and report.

A whole benchmark, with a verified answer and a null control:

    from benchmarks._harness import Report, Table, check_equal, interleave, options

    given = options(__doc__).parse_args()
    samples = interleave(
        {"numpy": lambda: x.sum(), "ours": lambda: fast_sum(x)},
        baseline="numpy",
        rounds=given.rounds or 30,
        seed=given.seed,
        verify=lambda answers: check_equal(answers["ours"], answers["numpy"], "sum"),
    )
    table = Table("sums", ("what", "time / NumPy's"))
    table.add("ours", samples.text("ours"))
    Report("reducers/sums", given, tables=[table]).save()

No module here imports a framework, tdbg or anything beyond NumPy, so that the same
code times every contender in the environment of that contender.
"""

from __future__ import annotations

from benchmarks._harness.intervals import TOLERANCE, Ratio, median_interval
from benchmarks._harness.machine import machine, machine_line
from benchmarks._harness.pairs import CONTROL, Measured, Samples, interleave
from benchmarks._harness.plots import Bars, Curves
from benchmarks._harness.report import Report, options
from benchmarks._harness.tables import Table
from benchmarks._harness.verify import (
    WrongAnswer,
    check,
    check_close,
    check_closed,
    check_equal,
)

__all__ = [
    "CONTROL",
    "TOLERANCE",
    "Bars",
    "Curves",
    "Measured",
    "Ratio",
    "Report",
    "Samples",
    "Table",
    "WrongAnswer",
    "check",
    "check_close",
    "check_closed",
    "check_equal",
    "interleave",
    "machine",
    "machine_line",
    "median_interval",
    "options",
]
