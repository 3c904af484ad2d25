"""Ratio and speed of codecs on weights, gradients and activations of real trainings.

    python -m benchmarks.run --only codec
    python -m benchmarks.codec.chunks [--quick] [--rounds N] [--json FILE]

Every round compresses and decompresses with each contender once, in random order, and
compares what comes back with what went in.  Speeds are megabytes a second of raw
values over processor time of the process, medians; ratios of speed are medians of the
pairs of a round.  The differences of tdbg are to the save before; a new contender is
made for each, so that its key frame is always that one.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import (
    Measured,
    Report,
    Samples,
    Table,
    check,
    interleave,
    options,
)
from benchmarks.codec._contenders import Bytes, Codec, codecs
from benchmarks.codec._tensors import tensors

ENVIRONMENT = "codec"
BASELINE = "ZipNN"
SLOW = 7  # Rounds of everything are enough: the ratios are far apart.


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--json", type=Path, help="write all figures there, too")
    given = parser.parse_args()
    rounds = given.rounds or (2 if given.quick else SLOW)
    columns = ("tensor", "codec", "ratio", "compress MB/s", "decompress MB/s")
    table = Table("codecs", (*columns, "compress speed / ZipNN's"))
    data: dict[str, Any] = {}
    for name, saves in tensors(8 if given.quick else 40).items():
        values = saves[-1].view(np.uint8)
        base = saves[-2].view(np.uint8) if len(saves) > 1 else None
        dtype = str(saves[-1].dtype)
        print(f"{name}: {values.nbytes / 1e6:.1f} MB")
        samples, sizes = compare(values, dtype, base, rounds, given.seed)
        for codec in sizes:
            rates = {
                "compress": rate(values, samples.seconds[codec]),
                "decompress": rate(values, samples.also[codec]["decompress"]),
            }
            ratio = values.nbytes / sizes[codec]
            speed = samples.ratio(BASELINE, over=codec)
            table.add(
                name, codec, f"{ratio:.3f}", f"{rates['compress']:.0f}",
                f"{rates['decompress']:.0f}", speed,
            )  # fmt: skip
            data[f"{name}: {codec}"] = {
                "bytes": values.nbytes, "stored": sizes[codec], "ratio": ratio, **rates,
                "speed over ZipNN": vars(speed),
            }  # fmt: skip
    table.note = f"One thread; medians of {rounds} rounds; every round verified."
    packages = ("numpy", "torch", "zstandard", "blosc2", "zipnn", "tdbg")
    Report("codec/chunks", given, packages, tables=[table], data=data).save()
    if given.json:
        given.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 0


def compare(
    values: Bytes, dtype: str, base: Bytes | None, rounds: int, seed: int | None
) -> tuple[Samples, dict[str, int]]:
    """Time every contender on *values*; returns what each needs, too."""
    makers = codecs(dtype, values.nbytes, base)
    kept = {name: make() for name, make in makers.items()}
    outs = {name: np.zeros_like(values) for name in makers}
    sizes: dict[str, int] = {}

    def run(name: str) -> Measured:
        fresh = "difference" in name
        codec: Codec = makers[name]() if fresh else kept[name]
        given = codec.prepare(values)
        start = time.process_time()
        pieces = codec.compress(given)
        middle = time.process_time()
        codec.decompress(pieces, outs[name])
        end = time.process_time()
        sizes[name] = sum(len(piece) for piece in pieces)
        return Measured(middle - start, outs[name], {"decompress": end - middle})

    def verify(answers: Mapping[str, Any]) -> None:
        for name, answer in answers.items():
            check(np.array_equal(answer, values), f"{name} gives other values back")
        for out in outs.values():
            out[:] = 0

    samples = interleave(
        {name: lambda name=name: run(name) for name in makers},
        baseline=BASELINE,
        rounds=rounds,
        seed=seed,
        verify=verify,
    )
    return samples, sizes


def rate(values: Bytes, seconds: list[float]) -> float:
    """Megabytes a second, of the median."""
    return values.nbytes / statistics.median(seconds) / 1e6


if __name__ == "__main__":
    sys.exit(main())
