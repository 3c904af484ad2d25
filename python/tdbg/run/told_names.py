"""Names of what is told of a tensor whose values are not kept: docs/smdebug-runs.md.

Thread safety: pure functions.
"""

from __future__ import annotations

__all__ = ["NAMES", "reduction_name", "shape_name"]

#: Reductions and norms, as smdebug names them.
NAMES = ("min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2")


def reduction_name(reduction: str, tensor: str, absolute: bool) -> str:
    """Return the name of the scalar that holds a reduction of a tensor.

    Example:
        >>> reduction_name("mean", "fc.weight", absolute=True)
        'smdebug/reductions/abs_mean/fc.weight'
    """
    prefix = "abs_" if absolute else ""
    return f"smdebug/reductions/{prefix}{reduction}/{tensor}"


def shape_name(tensor: str) -> str:
    """Return the name of the tensor that holds the shape of a tensor.

    Example:
        >>> shape_name("fc.weight")
        'smdebug/shapes/fc.weight'
    """
    return f"smdebug/shapes/{tensor}"
