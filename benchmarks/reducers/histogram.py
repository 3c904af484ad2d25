"""The histogram against the statistics pass and against peers.

    python -m benchmarks.reducers.histogram [--quick] [--rounds N]

How much longer a histogram takes than the row of the same tensor, in time of the
processor, over types, kinds of values and sizes; and how it compares with
np.histogram, np.quantile and torch.histc (64 bins each, which need the range and
answer less).  Counts are checked against the reference, quantiles against NumPy's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import (
    Report,
    Samples,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from tdbg import _core
from tdbg.stats import reference
from tdbg.stats.histogram import Histogram

Array = NDArray[Any]
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
# Below this many elements a contender is called as often as makes as many.
ENOUGH = 200_000


def tensors(n: int) -> Iterator[tuple[str, Array]]:
    """What is counted: normal values of each type, and kinds of float32."""
    rng = np.random.default_rng(0)
    normal = rng.normal(0, 0.02, n)
    for dtype in (np.float32, np.float16, np.float64):
        yield f"normal {np.dtype(dtype).name}", normal.astype(dtype)
    for name in ("bfloat16", "float8_e4m3fn"):
        yield f"normal {name}", normal.astype(getattr(ml_dtypes, name))
    x = normal.astype(np.float32)
    yield "half zeros", np.maximum(x, 0)
    yield "95 % zeros", np.where(rng.random(n) < 0.05, x, np.float32(0))
    yield "all equal", np.ones(n, np.float32)
    yield "1 and -1", np.sign(x)
    yield "60 powers of two", np.exp(normal * 400).astype(np.float32)
    yield "1 % NaN", np.where(rng.random(n) < 0.01, np.float32(np.nan), x)
    yield "transposed", x[: n // 100 * 100].reshape(-1, 100).T


def verify(x: Array) -> None:
    """Fail unless the counts are the reference's and quantiles near NumPy's."""
    keys, counts = _core.count_bins(x)
    expected_keys, expected_counts = reference.histogram(x)
    check_equal(keys, expected_keys, "keys")
    check_equal(counts, expected_counts, "counts")
    values = x.astype(np.float64).reshape(-1)
    if np.isnan(values).any():
        return
    found = Histogram.of(x).quantile(QUANTILES)
    for q, actual in zip(QUANTILES, found, strict=True):
        low, high = (np.quantile(values, q, method=m) for m in ("lower", "higher"))
        bound = 2.0**-8 * max(abs(low), abs(high))
        check(low - bound <= actual <= high + bound, f"quantile {q}: {actual}")


def repeated(function: Callable[[], object], n: int) -> Callable[[], object]:
    times = max(1, ENOUGH // max(1, n))

    def run() -> object:
        for _ in range(times - 1):
            function()
        return function()

    return run


def against_rows(x: Array, rounds: int, seed: int | None) -> Samples:
    verify(x)
    contenders: dict[str, Callable[[], object]] = {
        "row": repeated(lambda: _core.reduce(x), x.size),
        "histogram": repeated(lambda: _core.count_bins(x), x.size),
    }
    return interleave(
        contenders, baseline="row", rounds=rounds, seed=seed, clock=time.thread_time
    )


def against_peers(x: Array, rounds: int, seed: int | None) -> Samples:
    low, high = float(x.min()), float(x.max())
    contenders: dict[str, Callable[[], object]] = {
        "histogram": lambda: _core.count_bins(x),
        "histogram and 5 quantiles": lambda: Histogram.of(x).quantile(QUANTILES),
        "np.histogram, 64 bins": lambda: np.histogram(x, 64, (low, high))[0],
        "np.quantile, 5": lambda: np.quantile(x, QUANTILES),
    }
    try:
        import torch
    except ImportError:
        print("no torch here")
    else:
        torch.set_num_threads(1)
        t = torch.from_numpy(x)
        contenders["torch.histc, 64 bins"] = lambda: torch.histc(t, 64, low, high)
    return interleave(
        contenders,
        baseline="histogram",
        rounds=rounds,
        seed=seed,
        clock=time.thread_time,
        verify=lambda answers: check_total(answers, x.size),
    )


def check_total(answers: Any, n: int) -> None:
    check(int(answers["histogram"][1].sum()) == n, "elements counted")
    check(int(answers["np.histogram, 64 bins"].sum()) == n, "elements of NumPy")


def main() -> None:
    given = options(__doc__).parse_args()
    n = 1_000_000 if given.quick else 10_000_000
    rounds = given.rounds or (3 if given.quick else 21)
    data: dict[str, Any] = {"implementation": _core.implementation(), "elements": n}
    rows = Table("histogram, time / statistics row", ("values", "GB/s", "ratio"))
    for name, x in tensors(n):
        samples = against_rows(x, rounds, given.seed)
        rate = x.nbytes / samples.seconds_of("histogram") / 1e9
        rows.add(name, f"{rate:.1f}", samples.text("histogram"))
        data[name] = samples.to_json()
    sizes = Table("by size, float32", ("elements", "us", "time / row"))
    values = np.random.default_rng(1).normal(0, 0.02, 100_000).astype(np.float32)
    for size in (1, 16, 256, 4096, 16384, 100_000):
        samples = against_rows(values[:size], rounds, given.seed)
        seconds = samples.seconds_of("histogram") / max(1, ENOUGH // size)
        sizes.add(str(size), f"{seconds * 1e6:.1f}", samples.text("histogram"))
        data[f"{size} elements"] = samples.to_json()
    peers = Table("time / histogram, float32", ("what", "ratio"))
    x = np.random.default_rng(0).normal(0, 0.02, n).astype(np.float32)
    samples = against_peers(x, max(3, rounds // 3), given.seed)
    for name in samples.seconds:
        peers.add(name, samples.text(name))
    data["peers"] = samples.to_json()
    tables = [rows, sizes, peers]
    packages = ("numpy", "torch", "tdbg")
    Report("reducers/histogram", given, packages, tables, data=data).save()


if __name__ == "__main__":
    main()
