"""Slowdown of one training by one contender, in the environment it runs in.

    python -m benchmarks.overhead.slowdown resnet tdbg statistics 1 [--quick]

``make bench ONLY=overhead`` runs all of ``benchmarks/overhead/matrix.py``.  Each run
adds a row to its model's table, a bar to its plot, and points to its model's curve
of the slowdown over the save interval.
"""

from __future__ import annotations

import argparse

from benchmarks._harness import Bars, Curves, Ratio, Report, Samples, Table
from benchmarks.overhead.contenders import Capture
from benchmarks.overhead.models import MODELS
from benchmarks.overhead.run import PACKAGES, Run, longer_intervals, new_run, parser
from benchmarks.overhead.sweep import BYTES, predicted
from benchmarks.overhead.training import Training

COLUMNS = (
    "what is captured",
    "slowdown",
    "plain, ms a step",
    "MB a save",
    "close, ms",
    "plain / plain",
)
CURVED = {"all", "weights", "statistics"}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("model", choices=MODELS)
    arguments.add_argument("contender")
    arguments.add_argument("what")
    arguments.add_argument("interval", type=int)
    given = arguments.parse_args()
    capture = Capture(given.what, given.interval)
    with new_run(given.model, given.contender, capture, given) as run:
        samples = run.measure(given)
        report(run, samples, given).save()


def report(run: Run, samples: Samples, given: argparse.Namespace) -> Report:
    """The run's part of tables and plots, and all that was measured."""
    title = MODELS[given.model].title
    step = samples.seconds_of("plain") / run.block
    n_bytes = Training(given.model).distinct_bytes()
    target = predicted(n_bytes, samples.seconds_of("sweep"), step)
    label = f"{given.contender} {run.capture}"
    table = Table(f"Slowdown: {title}", COLUMNS)
    table.add(
        label,
        samples.text("watched"),
        f"{1e3 * step:.1f}",
        f"{run.megabytes_a_save():.3g}",
        f"{1e3 * run.close_seconds:.0f}",
        samples.control(),
    )
    table.note = (
        f"All tensors of a step: {n_bytes / 1e6:.0f} MB, for which the target of "
        f"every statistic at every step is {target:.3f}."
    )
    bars = Bars(f"slowdown_{given.model}", f"Slowdown: {title}", "step / plain step")
    ratio = samples.ratio("watched")
    bars.add(label, ratio.median, ratio.low, ratio.high)
    result = Report(
        f"overhead/{given.model}/{given.contender}-{run.capture}",
        given,
        packages=PACKAGES,
        tables=[table],
        plots=[bars],
        data={
            "samples": samples.to_json(),
            "block": run.block,
            "step_seconds": step,
            "distinct_bytes": n_bytes,
            "sweep_bytes_per_second": BYTES / samples.seconds_of("sweep"),
            "target_of_statistics": target,
            "megabytes_a_save": run.megabytes_a_save(),
            "attach_seconds": run.attach_seconds,
            "close_seconds": run.close_seconds,
            "thread_time": vars(samples.ratio("watched", of="thread")),
            "process_time": vars(samples.ratio("watched", of="process")),
        },
    )
    if run.capture.what in CURVED:
        add_curve(result, run, samples, given)
    return result


def add_curve(
    result: Report, run: Run, samples: Samples, given: argparse.Namespace
) -> None:
    """The slowdown over the save interval, as far as this run says something of it."""
    title = f"Slowdown over the save interval: {MODELS[given.model].title}"
    curves = Curves(
        f"save_interval_{given.model}",
        title,
        "steps from save to save",
        "step / plain step",
        log_x=True,
        log_y=True,
    )
    table = Table(title, ("what is captured", "slowdown", "how"))
    points: dict[int, tuple[Ratio, str]] = {
        run.capture.interval: (samples.ratio("watched"), "measured")
    }
    for interval, ratio in longer_intervals(samples, run).items():
        points[interval] = (ratio, "from blocks with and without a save")
    line = f"{given.contender} {run.capture.what}"
    doubt = "" if samples.resolved else ", not resolved"
    for interval, (ratio, how) in points.items():
        curves.add(line, interval, ratio.median, ratio.low, ratio.high)
        table.add(f"{line}@{interval}", f"{ratio}{doubt}", how)
    result.tables.append(table)
    result.plots.append(curves)


if __name__ == "__main__":
    main()
