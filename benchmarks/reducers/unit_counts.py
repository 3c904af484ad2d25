"""Unit summaries against the statistics row of the same tensor.

    python -m benchmarks.reducers.unit_counts [--quick] [--rounds N]

Time of the processor, interleaved; the aim is no more than that of a second row for
outputs of convolutions and linear layers.  Counts are checked against the reference.
"""

from __future__ import annotations

import time
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks._harness import Report, Table, check_equal, interleave, options
from tdbg import _core
from tdbg.stats.reference import unit_counts

Shape = tuple[int, ...]
LAYERS: tuple[tuple[str, Shape, bool], ...] = (
    ("convolution", (64, 128, 28, 28), False),
    ("convolution, channels last", (64, 128, 28, 28), True),
    ("convolution, 7x7", (64, 512, 7, 7), False),
    ("convolution, 2x2", (64, 512, 2, 2), False),
    ("convolution, small", (32, 64, 8, 8), False),
    ("linear", (4096, 1000), False),
    ("linear, small", (32, 512), False),
    ("linear, 10 units", (100_000, 10), False),
    ("logits", (512, 50257), False),
)
DTYPES = (np.float32, ml_dtypes.bfloat16)


def make(shape: Shape, channels_last: bool, dtype: Any) -> Any:
    rng = np.random.default_rng(0)
    if not channels_last:
        return rng.normal(size=shape).astype(dtype)
    n, c, *space = shape
    return np.moveaxis(rng.normal(size=(n, *space, c)).astype(dtype), -1, 1)


def main() -> None:
    given = options(__doc__).parse_args()
    rounds = given.rounds or (3 if given.quick else 31)
    table = Table("unit summary, time / statistics row", ("output", "ratio"))
    data: dict[str, Any] = {"implementation": _core.implementation()}
    for name, shape, channels_last in LAYERS:
        for dtype in DTYPES:
            x = make(shape, channels_last, dtype)
            times = max(1, 500_000 // x.size)

            def row(x: Any = x, times: int = times) -> object:
                return [_core.reduce(x) for _ in range(times)][-1]

            def units(x: Any = x, times: int = times) -> object:
                return [_core.count_units(x, 1, -1, 1) for _ in range(times)][-1]

            expected = unit_counts(x, 1, -1, 1)
            check_equal(_core.count_units(x, 1, -1, 1), expected, name)
            samples = interleave(
                {"row": row, "units": units},
                baseline="row",
                rounds=rounds,
                seed=given.seed,
                clock=time.thread_time,
            )
            table.add(f"{name}, {x.dtype.name}", samples.text("units"))
            data[f"{name}, {x.dtype.name}"] = samples.to_json()
    Report("reducers/unit_counts", given, tables=[table], data=data).save()


if __name__ == "__main__":
    main()
