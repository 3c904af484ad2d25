"""Reading back the tensors of many steps: tdbg and peers.

    python -m benchmarks.reader.reading [small] [large] [--quick]

``small``: 100 tensors of 1 KiB at each of 1,000 steps (200 with ``--quick``).
``large``: 8 tensors of 4 MiB at each of 10 steps.  Every contender writes the same
arrays, then they take turns: opening and listing the names, opening and reading one
tensor, one tensor at all steps, and everything once, each from nothing.  Every answer
is compared with what was written.  What counts is the time over that of safetensors,
with everything in the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks._harness import (
    Measured,
    Report,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from benchmarks._harness.report import results_folder
from benchmarks.reader.contenders import CONTENDERS, Array, Arrays, Format, make

ENVIRONMENT = "storage"

#: Tensors, steps, elements of a tensor.
SIZES = {"small": (100, 1000, 256), "large": (8, 10, 1 << 20)}
QUICK = {"small": (100, 30, 256), "large": (4, 2, 1 << 20)}
#: These look at every record for each answer, or open a file for each chunk.
SLOW = {"TensorBoard", "zarr", "smdebug", "wandb"}
#: Its values are text: 1.8 GB of the large ones, which are 336 MB.
SMALL_ONLY = {"wandb"}


def main() -> None:
    names = [name for name in CONTENDERS if "smdebug" not in name]
    run(options(__doc__), names, "reading")


def run(arguments: argparse.ArgumentParser, names: Sequence[str], report: str) -> None:
    """Measure the contenders of these names, safetensors among them."""
    arguments.add_argument("what", nargs="*", default=["small", "large"])
    arguments.add_argument("--without", default="", help="contenders, with commas")
    given = arguments.parse_args()
    for what in given.what:
        folder = results_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="reading-") as below:
            measure(what, Path(below), given, names, report)


def steps_of(size: tuple[int, int, int]) -> list[Arrays]:
    """Values like those of weights, the same for the same size."""
    n_tensors, n_steps, n = size
    dice = np.random.default_rng(0)
    return [
        {
            f"t{i:03}": dice.standard_normal(n, dtype=np.float32) * np.float32(0.02)
            for i in range(n_tensors)
        }
        for _ in range(n_steps)
    ]


def sum_of(arrays: Iterable[Array]) -> float:
    """The sum of one element of each page: a mapping alone is no reading."""
    return sum(float(array[::1024].sum()) for array in arrays)


def questions(what: Format, steps: list[Arrays]) -> dict[str, Callable[[], float]]:
    """What is timed; each returns the seconds that the answer took."""
    n_tensors, n_steps = len(steps[0]), len(steps)
    step = n_steps // 2
    name = f"t{n_tensors // 2:03}"
    expected = sum_of(array for arrays in steps for array in arrays.values())

    def names() -> float:
        start = time.perf_counter()
        found = what.names()
        seconds = time.perf_counter() - start
        check(len(found) == n_tensors, "names")
        return seconds

    def one() -> float:
        start = time.perf_counter()
        found = what.one(step, name)
        seconds = time.perf_counter() - start
        check_equal(found, steps[step][name], "one tensor")
        return seconds

    def column() -> float:
        start = time.perf_counter()
        found = what.column(name)
        seconds = time.perf_counter() - start
        check(len(found) == n_steps, "steps of a column")
        for at in (0, step, n_steps - 1):
            check_equal(found[at], steps[at][name], "column")
        return seconds

    def everything() -> float:
        start = time.perf_counter()
        total = sum_of(what.everything())
        seconds = time.perf_counter() - start
        check(np.isclose(total, expected, rtol=0, atol=1e-2), "everything")
        return seconds

    return {
        "open, names": names,
        "open, one tensor": one,
        "one tensor, all steps": column,
        "everything": everything,
    }


def measure(
    what: str,
    folder: Path,
    given: argparse.Namespace,
    names: Sequence[str],
    report: str,
) -> None:
    """Write the files of all once, then ask."""
    size = (QUICK if given.quick else SIZES)[what]
    without = set(filter(None, given.without.split(",")))
    contenders: dict[str, Format] = {}
    steps = steps_of(size)
    for name in names:
        if name in without or (what == "large" and name in SMALL_ONLY):
            continue
        home = folder / name.replace(" ", "-")
        home.mkdir()
        contenders[name] = make(name, home)
        contenders[name].write(iter(steps))
    tables = []
    data = {}
    asked = {name: questions(format_, steps) for name, format_ in contenders.items()}
    n_tensors, n_steps, n = size
    for question in next(iter(asked.values())):
        heavy = question == "everything"
        rounds = given.rounds or (3 if given.quick else 5 if heavy else 40)
        runs = {
            name: measured(of_one[question])
            for name, of_one in asked.items()
            if not (heavy and name in SLOW and not given.quick)
        }
        samples = interleave(
            runs, baseline="safetensors", rounds=rounds, warmup=1, seed=given.seed
        )
        columns = ["how", "ms", "time / safetensors'"]
        if heavy:
            columns.append("GB/s of a core")
        table = Table(f"Reading, {what}: {question}", tuple(columns))
        n_bytes = 4 * n * n_steps * n_tensors
        for name in samples.seconds:
            row = [name, f"{1e3 * samples.seconds_of(name):.3g}", samples.text(name)]
            if heavy:
                seconds = statistics.median(samples.also[name]["processor"])
                row.append(f"{n_bytes / 1e9 / seconds:.2f}")
            table.add(*row)
        if heavy:
            table.note = f"{n_bytes / 1e6:.0f} MB; processor time of all threads."
        tables.append(table)
        data[question] = samples.to_json()
    packages = ("numpy", *(p for name in contenders for p in CONTENDERS[name][1]))
    Report(
        f"reader/{report}-{what}",
        given,
        packages=tuple(dict.fromkeys(packages)),
        tables=tables,
        plots=[],
        data=data,
    ).save()


def measured(ask: Callable[[], float]) -> Callable[[], Measured]:
    def run() -> Measured:
        before = time.process_time()
        seconds = ask()
        return Measured(seconds, None, {"processor": time.process_time() - before})

    return run


if __name__ == "__main__":
    main()
