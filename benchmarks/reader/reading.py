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
import tempfile
import time
from collections.abc import Callable, Iterator
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
QUICK = {"small": (100, 200, 256), "large": (8, 5, 1 << 20)}
#: These look at every record for each answer, or open a file for each chunk.
SLOW = {"TensorBoard", "zarr"}


def main() -> None:
    arguments = options(__doc__)
    arguments.add_argument("what", nargs="*", default=["small", "large"])
    arguments.add_argument("--without", default="", help="contenders, with commas")
    given = arguments.parse_args()
    for what in given.what:
        folder = results_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="reading-") as below:
            measure(what, Path(below), given)


def array_of(number: int, step: int, n: int) -> Array:
    """Values like those of weights, the same for the same numbers."""
    dice = np.random.default_rng((number, step))
    return dice.standard_normal(n, dtype=np.float32) * np.float32(0.02)


def steps_of(size: tuple[int, int, int]) -> Iterator[Arrays]:
    n_tensors, n_steps, n = size
    for step in range(n_steps):
        yield {f"t{i:03}": array_of(i, step, n) for i in range(n_tensors)}


def questions(
    what: Format, size: tuple[int, int, int]
) -> dict[str, Callable[[], float]]:
    """What is timed; each returns the seconds that the answer took."""
    n_tensors, n_steps, n = size
    number, step = n_tensors // 2, n_steps // 2
    name = f"t{number:03}"

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
        check_equal(found, array_of(number, step, n), "one tensor")
        return seconds

    def column() -> float:
        start = time.perf_counter()
        found = what.column(name)
        seconds = time.perf_counter() - start
        check(len(found) == n_steps, "steps of a column")
        for at in (0, step, n_steps - 1):
            check_equal(found[at], array_of(number, at, n), "column")
        return seconds

    def everything() -> float:
        start = time.perf_counter()
        # One element of each page is touched: a mapping alone is no reading.
        total = sum(float(array[::1024].sum()) for array in what.everything())
        seconds = time.perf_counter() - start
        check(np.isclose(total, expected, rtol=0, atol=1e-2), "everything")
        return seconds

    expected = sum(
        float(array[::1024].sum()) for step in steps_of(size) for array in step.values()
    )
    return {
        "open, names": names,
        "open, one tensor": one,
        "one tensor, all steps": column,
        "everything": everything,
    }


def measure(what: str, folder: Path, given: argparse.Namespace) -> None:
    size = (QUICK if given.quick else SIZES)[what]
    without = set(filter(None, given.without.split(",")))
    contenders: dict[str, Format] = {}
    for name in CONTENDERS:
        if name in without:
            continue
        home = folder / name.replace(" ", "-")
        home.mkdir()
        contenders[name] = make(name, home)
        contenders[name].write(steps_of(size))
    tables = []
    data = {}
    asked = {name: questions(format_, size) for name, format_ in contenders.items()}
    n_tensors, n_steps, n = size
    for question in next(iter(asked.values())):
        heavy = question == "everything"
        rounds = given.rounds or (5 if heavy else 15 if given.quick else 40)
        runs = {
            name: measured(of_one[question])
            for name, of_one in asked.items()
            if not (heavy and name in SLOW and not given.quick)
        }
        samples = interleave(
            runs, baseline="safetensors", rounds=rounds, warmup=1, seed=given.seed
        )
        table = Table(
            f"Reading, {what}: {question}", ("how", "ms", "time / safetensors'")
        )
        for name in samples.seconds:
            ms = 1e3 * samples.seconds_of(name)
            table.add(name, f"{ms:.3g}", samples.text(name))
        if heavy:
            table.note = f"{4 * n * n_steps * n_tensors / 1e6:.0f} MB."
        tables.append(table)
        data[question] = samples.to_json()
    packages = ("numpy", *(p for _, names in CONTENDERS.values() for p in names))
    Report(
        f"reader/reading-{what}",
        given,
        packages=tuple(dict.fromkeys(packages)),
        tables=tables,
        plots=[],
        data=data,
    ).save()


def measured(ask: Callable[[], float]) -> Callable[[], Measured]:
    return lambda: Measured(ask(), None, {})


if __name__ == "__main__":
    main()
