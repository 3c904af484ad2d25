"""Errors of the statistics pass, NumPy and torch on tensors that are hard to sum.

    python -m benchmarks.reducers.accuracy [--quick]

Relative errors of std, l1 and l2 at full size against two passes in 80-bit floats, the
second of which corrects the mean of the first.  Fails if one of tdbg's is beyond its
bound: 1e-7 for float32, 1e-12 for float64 and in precise mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report, Table, check, options
from tdbg import _core

CHUNK = 1 << 20
QUICK_ELEMENTS = 300_000

Draw = Callable[[np.random.Generator, int], NDArray[Any]]


def outlier(g: np.random.Generator, n: int) -> NDArray[Any]:
    x = g.normal(size=n)
    x[n // 3] = 1e30
    return x


#: By name: elements at full size, type, and how they are drawn.
CASES: dict[str, tuple[int, Any, Draw]] = {
    "N(0, 0.02)": (10**8, np.float32, lambda g, n: 0.02 * _normal(g, n)),
    "N(0.5, 1e-3)": (10**8, np.float32, lambda g, n: 0.5 + 1e-3 * _normal(g, n)),
    "N(1e4, 0.02)": (10**7, np.float32, lambda g, n: g.normal(1e4, 0.02, n)),
    "N(1e6, 1)": (10**7, np.float32, lambda g, n: g.normal(1e6, 1, n)),
    "lognormal, s=8": (10**7, np.float32, lambda g, n: g.lognormal(0, 8, n)),
    "sorted U(0, 1)": (10**7, np.float32, lambda g, n: np.sort(g.random(n))),
    "pairs of +-1e8": (
        10**7,
        np.float32,
        lambda g, n: np.where(np.arange(n) % 2, 1e8, -1e8) + g.normal(size=n),
    ),
    "outlier of 1e30": (10**7, np.float32, outlier),
    "N(1e9, 1e-3)": (10**7, np.float64, lambda g, n: g.normal(1e9, 1e-3, n)),
}


def _normal(g: np.random.Generator, n: int) -> NDArray[np.float32]:
    return g.standard_normal(n, np.float32)


def exact(x: NDArray[Any]) -> dict[str, float]:
    """The three figures, in 80-bit floats."""
    starts = range(0, x.size, CHUNK)

    def total(of: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
        parts = (of(x[i : i + CHUNK].astype(np.longdouble)).sum() for i in starts)
        return sum(parts, np.longdouble(0))

    mean = total(lambda part: part) / x.size
    off = total(lambda part: part - mean)
    m2 = total(lambda part: (part - mean) ** 2) - off * off / x.size
    return {
        "std": float(np.sqrt(m2 / x.size)),
        "l1": float(total(np.abs)),
        "l2": float(np.sqrt(total(np.square))),
    }


def ours(x: NDArray[Any], **how: Any) -> dict[str, float]:
    row = _core.reduce(x, **how)
    std = math.sqrt(float(row["m2"]) / x.size)
    return {"std": std, "l1": float(row["l1"]), "l2": float(row["l2"])}


def numpys(x: NDArray[Any]) -> dict[str, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "std": float(x.std()),
            "l1": float(np.abs(x).sum()),
            "l2": float(np.linalg.norm(x)),
        }


def torchs(x: NDArray[Any]) -> dict[str, float] | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    t = torch.from_numpy(x)
    return {
        "std": float(torch.std(t, correction=0)),
        "l1": float(torch.norm(t, p=1)),
        "l2": float(torch.norm(t, p=2)),
    }


def main() -> None:
    given = options(__doc__).parse_args()
    table = Table("accuracy", ("case", "elements", "who", "std", "l1", "l2"))
    for case, (elements, dtype, draw) in CASES.items():
        n = QUICK_ELEMENTS if given.quick else elements
        x = draw(np.random.default_rng(7), n).astype(dtype)
        expected = exact(x)
        answers = {"numpy": numpys(x), "torch": torchs(x)}
        bounds = {}
        for name in _core.implementations():
            answers[name] = ours(x, implementation=name)
            bounds[name] = 1e-12 if dtype == np.float64 else 1e-7
            answers[f"{name} precise"] = ours(x, implementation=name, precise=True)
            bounds[f"{name} precise"] = 1e-12
        for who, answer in answers.items():
            if answer is None:
                continue
            errors = {k: abs(answer[k] / expected[k] - 1) for k in expected}
            table.add(case, f"{n:.0e}", who, *(f"{e:.1e}" for e in errors.values()))
            if who in bounds:
                worst = max(errors.values())
                check(worst <= bounds[who], f"{case}, {who}: {errors}")
        print(f"{case} done", flush=True)
    Report(
        "reducers/accuracy", given, packages=("numpy", "torch", "tdbg"), tables=[table]
    ).save()


if __name__ == "__main__":
    main()
