"""The largest errors of the statistics pass that a random search finds.

    python benchmarks/reducers/worst_patterns.py [--tensors 20000] [--seed 0]

Roundings of float32 sums cancel in most tensors.  They add up in those that repeat a
short pattern, so the search tiles random patterns and keeps the worst relative error
of each field against float64 in two passes (that of the mean relative to the mean of
|x|).  Fails if one exceeds the bound of docs/statistics.md.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg.stats import reference

BOUND = 2e-7
LONGEST_PATTERN = 64
MOST_ELEMENTS = 20_000


def random_tensor(random: np.random.Generator) -> NDArray[np.float32]:
    """A short pattern, of any scale and offset, repeated."""
    pattern = random.normal(size=random.integers(1, LONGEST_PATTERN))
    if random.random() < 0.5:
        pattern = pattern * 10.0 ** random.uniform(-3, 3, size=pattern.shape)
    if random.random() < 0.5:
        pattern = pattern + 10.0 ** random.uniform(-2, 4)
    n = int(random.integers(1, MOST_ELEMENTS))
    return np.resize(pattern.astype(np.float32), n)


def errors(tensor: NDArray[np.float32]) -> dict[str, float]:
    """Relative error of each field that is rounded."""
    got = _core.reduce(tensor)
    expected = reference.row(tensor)
    scales = {
        "mean": expected.l1 / expected.count,
        "m2": expected.m2,
        "l1": expected.l1,
        "l2": expected.l2,
    }
    return {
        field: abs(float(got[field]) - getattr(expected, field)) / scale
        for field, scale in scales.items()
        # A pattern of one value has no deviation to be relative to.
        if scale > 1e-12 * expected.l2**2 or (field != "m2" and scale > 0)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    worst = dict.fromkeys(("mean", "m2", "l1", "l2"), 0.0)
    for _ in range(given.tensors):
        for field, error in errors(random_tensor(random)).items():
            worst[field] = max(worst[field], error)
    print(f"{_core.implementation()}, {given.tensors} tensors, seed {given.seed}")
    for field, error in worst.items():
        print(f"    {field:5} {error:.1e}")
    if max(worst.values()) > BOUND:
        msg = f"beyond the bound of {BOUND:.0e}"
        raise SystemExit(msg)


if __name__ == "__main__":
    main()
