"""What a step of capture costs, by the number and by the size of tensors.

    python -m benchmarks.overhead.growth tensors 1000 tdbg statistics [--quick]
    python -m benchmarks.overhead.growth bytes 1048576 tdbg all

The cost is the difference between a watched and a plain step, in processor time of
the training thread, which other processes disturb least, and in wall time, which
includes waiting for the writer.  ``tensors``: layers of 16 units, each with six
tensors a step (two parameters, their gradients, input and output), of at most a KiB.
``bytes``: one parameter of that size, its gradient and an output of its size.
"""

from __future__ import annotations

import argparse

from benchmarks._harness import CONTROL, Curves, Ratio, Report, Samples, Table
from benchmarks.overhead.contenders import Capture
from benchmarks.overhead.run import PACKAGES, Run, new_run, parser
from benchmarks.overhead.sweep import BYTES
from benchmarks.overhead.training import Training

TENSORS_OF_A_LAYER = 6
COLUMNS = ("cost, CPU ms a step", "wall ms", "plain step, ms")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("kind", choices=["tensors", "bytes"])
    arguments.add_argument("size", type=int)
    arguments.add_argument("contender")
    arguments.add_argument("what")
    given = arguments.parse_args()
    model = f"bytes-{given.size}"
    if given.kind == "tensors":
        model = f"layers-{max(1, round(given.size / TENSORS_OF_A_LAYER))}"
    with new_run(model, given.contender, Capture(given.what, 1), given) as run:
        samples = run.measure(given)
        n_bytes = Training(model).distinct_bytes()
        report(run, samples, n_bytes, given).save()


def report(
    run: Run, samples: Samples, n_bytes: int, given: argparse.Namespace
) -> Report:
    """The run's points of table and plot."""
    cost = difference(samples, "thread", run.block)
    waited = difference(samples, "seconds", run.block)
    read = samples.seconds_of("sweep") * n_bytes / BYTES
    what = f"{given.contender} {given.what}"
    if given.kind == "tensors":
        n = max(1, round(given.size / TENSORS_OF_A_LAYER)) * TENSORS_OF_A_LAYER
        table = Table(
            "Growth with the number of tensors",
            ("tensors, what", *COLUMNS, "us a tensor"),
        )
        share = f"{1e6 * cost.median / n:.2f}"
    else:
        n = given.size
        table = Table(
            "Growth with the size of a tensor",
            ("bytes of a tensor, what", *COLUMNS, "times reading it"),
        )
        share = f"{cost.median / read:.2f}"
    low, high = 1e3 * cost.low, 1e3 * cost.high
    plain = 1e3 * samples.seconds_of("plain") / run.block
    table.add(
        f"{n:,}, {what}",
        f"{1e3 * cost.median:.3g} [{low:.3g}-{high:.3g}]",
        f"{1e3 * waited.median:.3g}",
        f"{plain:.3g}",
        share,
    )
    curves = Curves(
        f"growth_{given.kind}",
        table.title,
        "tensors a step" if given.kind == "tensors" else "bytes of a tensor",
        "CPU ms a step, training thread",
        log_x=True,
        log_y=True,
    )
    curves.add(what, n, 1e3 * cost.median, low, high)
    curves.add("reading the memory", n, 1e3 * read)
    return Report(
        f"growth/{given.kind}/{given.contender}-{given.what}-{given.size}",
        given,
        packages=PACKAGES,
        tables=[table],
        plots=[curves],
        data={"samples": samples.to_json(), "block": run.block, "bytes": n_bytes},
    )


def difference(samples: Samples, of: str, block: int) -> Ratio:
    """What a step costs more than the two plain ones; not a ratio for once."""
    names = ("watched", "plain", CONTROL)
    columns = [
        samples.seconds[name] if of == "seconds" else samples.also[name][of]
        for name in names
    ]
    triples = zip(*columns, strict=True)
    return Ratio.of([(a - (b + c) / 2) / block for a, b, c in triples])


if __name__ == "__main__":
    main()
