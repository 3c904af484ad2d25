"""Speed of the statistics pass, per implementation, against reading and peers.

    python -m benchmarks.reducers.statistics_pass [--elements 1e3,1e5,1e7,1e8]
        [--dtypes float32,bfloat16] [--rounds N] [--threads 2] [--quick]

Contenders alternate within a round and are timed by the thread's processor time: a
plain read of the same memory, tdbg by each implementation (and in precise mode), NumPy
computing the same row, and smdebug's six reductions by NumPy and torch on one thread.
All of tdbg's answers are checked against the reference before they are timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import (
    Curves,
    Measured,
    Report,
    Samples,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from benchmarks.reducers import _peers
from benchmarks.reducers._read import reader
from tdbg import _core
from tdbg.stats.reference import row

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float64": np.float64,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
}
#: Peers take seconds for more.
MOST_FOR_PEERS = 10_000_000
#: Bytes that a contender goes over in a round, so that short ones can be timed.
LEAST_BYTES = 2_000_000


def values(name: str, elements: int) -> NDArray[Any]:
    """Elements such as trainings have: weights, or integers around zero."""
    drawn = np.random.default_rng(0).normal(0, 0.02, min(elements, 1 << 20))
    if name.startswith("float8"):
        drawn *= 50  # As scaled tensors are.
    elif "int" in name:
        drawn *= 1000
    few = (drawn > 0) if name == "bool" else drawn.astype(np.int64).astype(
        DTYPES[name]
    ) if "int" in name else drawn.astype(DTYPES[name])  # fmt: skip
    return np.resize(few, elements)


def verify(x: NDArray[Any]) -> None:
    """Every implementation's answer is the reference's, within the bounds."""
    expected = row(x)
    narrow = x.dtype.kind not in "biu" and x.dtype != np.float64
    scales = {name: getattr(expected, name) for name in _peers.FIELDS}
    scales["mean"] = expected.l1 / x.size
    for implementation in _core.implementations():
        for precise in (False, True):
            got = _core.reduce(x, precise=precise, implementation=implementation)
            for name in ("count", "nan", "zero", "abs_min"):
                check_equal(got[name], getattr(expected, name), name)
            bound = 1e-7 if narrow and not precise else 1e-12
            for name, scale in scales.items():
                off = abs(float(got[name]) - getattr(expected, name))
                most = (2 if name == "m2" else 1) * bound * scale
                check(off <= most, f"{implementation} {x.dtype} {name}: off {off:.2e}")


def contenders(
    x: NDArray[Any], read: Callable[[Any], int], threads: int
) -> dict[str, Callable[[], object]]:
    def tdbg(**how: Any) -> Callable[[], object]:
        return lambda: _core.reduce(x, **how)

    runs: dict[str, Callable[[], object]] = {"read": lambda: read(x)}
    for name in _core.implementations():
        runs[f"tdbg {name}"] = tdbg(implementation=name)
    if x.dtype.kind not in "biu" and x.dtype != np.float64:
        runs["tdbg precise"] = tdbg(precise=True)
    if threads > 1:
        runs[f"tdbg {threads} threads"] = tdbg(threads=threads)
    if x.size > MOST_FOR_PEERS or x.dtype.name.startswith("float8"):
        return runs
    runs["numpy"] = lambda: _peers.numpy_row(x)
    if x.dtype.kind in "fV":
        runs["smdebug numpy"] = lambda: _peers.smdebug_numpy(x)
        tensor = _peers.torch_view(x)
        if tensor is not None:
            runs["smdebug torch"] = lambda: _peers.smdebug_torch(tensor)
    return runs


def repeated(run: Callable[[], object], times: int) -> Callable[[], Measured]:
    def timed() -> Measured:
        start = time.thread_time()
        wall = time.perf_counter()
        for _ in range(times):
            run()
        return Measured(
            (time.thread_time() - start) / times,
            also={"wall": (time.perf_counter() - wall) / times},
        )

    return timed


def measure(x: NDArray[Any], given: argparse.Namespace, read: Any) -> Samples:
    times = max(1, LEAST_BYTES // x.nbytes)
    runs = contenders(x, read, given.threads)
    return interleave(
        # A slow peer need not be repeated to be timed.
        {k: repeated(f, times if k[:4] in ("read", "tdbg") else 1)
         for k, f in runs.items()},
        baseline="read",
        rounds=given.rounds or (3 if given.quick else 15),
        seed=given.seed,
        clock=time.thread_time,
    )  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--elements", default="1e3,1e5,1e7,1e8")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    sizes = [int(float(size)) // 8 * 8 for size in given.elements.split(",")]
    if given.quick:
        sizes = [size for size in sizes if size <= 100_000]
    how, read = reader()
    table = Table(
        "the statistics pass",
        ("dtype", "elements", "contender", "GB/s", "share of the read", "(quartiles)"),
        note=f"Processor time of one thread; the read is {how}.",
    )
    curves = Curves(
        "statistics_pass", "Share of a plain read of memory, float32", "elements",
        "speed / speed of the read", log_x=True,
    )  # fmt: skip
    data: dict[str, Any] = {}
    for name in given.dtypes.split(","):
        for size in sizes:
            x = values(name, size)
            if size <= MOST_FOR_PEERS:
                verify(x)
            samples = measure(x, given, read)
            data[f"{name} {size}"] = samples.to_json()
            for contender, seconds in samples.seconds.items():
                pairs = zip(samples.seconds["read"], seconds, strict=True)
                shares = np.percentile([a / b for a, b in pairs], [25, 50, 75])
                low, middle, high = (float(share) for share in shares)
                rate = x.nbytes / samples.seconds_of(contender) / 1e9
                table.add(
                    name, f"{size:.0e}", contender, f"{rate:.2f}", f"{middle:.3f}",
                    f"{low:.2f}-{high:.2f}",
                )  # fmt: skip
                if name == "float32":
                    curves.add(contender, size, middle, low, high)
            print(f"{name} {size:.0e} done", flush=True)
    Report(
        "reducers/statistics_pass", given, packages=("numpy", "torch", "tdbg"),
        tables=[table], plots=[curves], data=data,
    ).save()  # fmt: skip


if __name__ == "__main__":
    main()
