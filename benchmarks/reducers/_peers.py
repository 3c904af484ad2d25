"""The same statistics, as others compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FIELDS = ("mean", "m2", "l1", "l2")


def numpy_row(x: NDArray[Any]) -> dict[str, float]:
    """The row as one writes it in NumPy: in the array's own type where that works."""
    if x.dtype.itemsize < 4 and x.dtype.kind not in "biu":
        x = x.astype(np.float32)  # NumPy's sums of 16-bit floats overflow.
    finite = np.isfinite(x)
    magnitude = np.abs(x)
    return {
        "nan": float(np.isnan(x).sum()),
        "positive_infinity": float(np.isposinf(x).sum()),
        "negative_infinity": float(np.isneginf(x).sum()),
        "finite": float(finite.sum()),
        "zero": float((x == 0).sum()),
        "min": float(x.min()),
        "max": float(x.max()),
        "abs_min": float(magnitude.min()),
        "mean": float(x.mean(dtype=np.float64)),
        "m2": float(x.var() * x.size),
        "l1": float(magnitude.sum(dtype=np.float64)),
        "l2": float(
            np.linalg.norm(x.astype(np.float64) if x.dtype.kind in "biu" else x)
        ),
    }


def smdebug_numpy(x: NDArray[Any]) -> dict[str, float]:
    """Smdebug's six reductions of an array (min, max, mean, std, l1, l2)."""
    flat = x.astype(np.float32) if x.dtype.kind == "V" else x
    return {
        "min": float(flat.min()),
        "max": float(flat.max()),
        "mean": float(flat.mean()),
        "std": float(flat.std()),
        "l1": float(np.linalg.norm(flat, ord=1)),
        "l2": float(np.linalg.norm(flat, ord=2)),
    }


def torch_view(x: NDArray[Any]) -> Any:
    """*x* as a tensor of the same memory; None where torch has no such type."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    if x.dtype.name in ("float16", "float32", "float64"):
        return torch.from_numpy(x)
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return None


def smdebug_torch(x: Any) -> dict[str, float]:
    """Smdebug's six reductions of a tensor, one after the other."""
    import torch

    return {
        "min": float(torch.min(x)),
        "max": float(torch.max(x)),
        "mean": float(torch.mean(x)),
        "std": float(torch.std(x)),
        "l1": float(torch.norm(x, p=1)),
        "l2": float(torch.norm(x, p=2)),
    }
