"""Speed of the statistics pass against NumPy computing the same statistics.

    python benchmarks/reducers/statistics_pass.py [--elements N] [--rounds N]

Each round measures a plain read of the array, tdbg and NumPy one after the other, so
that ratios are of neighbours in time; medians and quartiles of the ratios are
reported.  Answers are checked against the reference first.  The plain read is
NumPy's sum of the array as int64, one addition for 8 bytes: about what one thread
can take from memory.

Exits with 1 when an answer is wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg.reference import row

FIELDS = ("mean", "m2", "l1", "l2")


def numpy_row(x: NDArray[Any]) -> dict[str, float]:
    """The row as one writes it in NumPy: in the array's own type where that works."""
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)  # NumPy's sums of 16-bit floats overflow.
    finite = np.isfinite(x)
    magnitude = np.abs(x)
    mean = x.mean(dtype=np.float64)
    return {
        "nan": float(np.isnan(x).sum()),
        "positive_infinity": float(np.isposinf(x).sum()),
        "negative_infinity": float(np.isneginf(x).sum()),
        "finite": float(finite.sum()),
        "zero": float((x == 0).sum()),
        "min": float(x.min()),
        "max": float(x.max()),
        "abs_min": float(magnitude.min()),
        "mean": float(mean),
        "m2": float(x.var() * x.size),
        "l1": float(magnitude.sum()),
        "l2": float(np.linalg.norm(x)),
    }


def check(x: NDArray[Any]) -> bool:
    """Whether tdbg's answer is the reference's; prints how far off both are."""
    expected = row(x)
    # What the error of a mean is measured by, which may itself be near zero.
    scales = {name: getattr(expected, name) for name in FIELDS}
    scales["mean"] = expected.l1 / x.size
    bound = 1e-12 if x.dtype == np.float64 else 1e-7
    right = True
    ours, theirs = _core.reduce(x), numpy_row(x)
    for name, scale in scales.items():
        ours_off, theirs_off = (
            abs(float(answer[name]) - getattr(expected, name)) / scale
            for answer in (ours, theirs)
        )
        print(f"    error of {name:4}  tdbg {ours_off:.1e}  numpy {theirs_off:.1e}")
        right &= ours_off <= (2 * bound if name == "m2" else bound)
    return right


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def spread(values: list[float]) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def measure(x: NDArray[Any], rounds: int) -> None:
    """Print rates and ratios for one array."""
    words = x.view(np.int64)
    contenders: dict[str, Callable[[], object]] = {
        "read": words.sum,
        "tdbg": lambda: _core.reduce(x),
        "numpy": lambda: numpy_row(x),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for function in contenders.values():  # Warm.
        function()
    for _ in range(rounds):
        for name, function in contenders.items():
            times[name].append(seconds(function))
    for name, taken in times.items():
        rates = [x.nbytes / t / 1e9 for t in taken]
        print(f"    {name:6} {spread(rates)} GB/s")
    for other in ("numpy", "read"):
        ratios = [a / b for a, b in zip(times[other], times["tdbg"], strict=True)]
        print(f"    tdbg is {spread(ratios)} times as fast as {other}")


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{processor()}, {os.cpu_count()} processors, load {load:.1f}")
    print(f"NumPy {np.__version__}, Python {platform.python_version()}")
    print(f"implementation: {_core.implementation()} of {_core.implementations()}")
    print(f"{options.elements} elements, {options.rounds} rounds: median (quartiles)")
    elements = options.elements - options.elements % 4  # Whole words.
    values = np.random.default_rng(0).normal(0, 0.02, elements)
    right = True
    for dtype in (np.float32, np.dtype(ml_dtypes.bfloat16), np.float16, np.float64):
        x = values.astype(dtype)
        print(f"{x.dtype}:")
        right &= check(x)
        measure(x, options.rounds)
    if not right:
        print("WRONG ANSWERS", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
