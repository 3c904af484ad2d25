"""``smdebug.core.reductions``: reductions of arrays, and their names in its files.

A reduction is that of all elements, as a trial gives it; smdebug took the matrix norm
of what has two dimensions, and none of more.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tdbg.compat.smdebug.core.reduction_config import ALLOWED_NORMS, ALLOWED_REDUCTIONS
from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.config.messages import nearest

__all__ = [
    "REDUCTIONS_PREFIX",
    "get_basic_numpy_reduction",
    "get_numpy_reduction",
    "get_reduction_tensor_name",
    "reverse_reduction_tensor_name",
]

REDUCTIONS_PREFIX = "smdebug/reductions/"


def get_numpy_reduction(reduction_name: str, numpy_data: Any, abs: bool = False) -> Any:  # noqa: A002 - smdebug's name
    """Reduce an array, or its absolute values, to one number.

    Raises:
        SMDebugValueError: If there is no such reduction.
    """
    known = (*ALLOWED_REDUCTIONS, *ALLOWED_NORMS)
    if reduction_name not in known:
        msg = f"no reduction {reduction_name!r}; {nearest(reduction_name, known)}"
        raise SMDebugValueError(msg)
    data = np.absolute(numpy_data) if abs else numpy_data
    return get_basic_numpy_reduction(reduction_name, data)


def get_basic_numpy_reduction(reduction_name: str, numpy_data: Any) -> Any:
    """Reduce an array to one number; None if there is no such reduction."""
    data = np.ravel(numpy_data)
    if reduction_name in ALLOWED_NORMS:
        return np.linalg.norm(data, ord=int(reduction_name[1:]))
    if reduction_name in ALLOWED_REDUCTIONS:
        name = {"variance": "var"}.get(reduction_name, reduction_name)
        return getattr(np, name)(data)
    return None


def get_reduction_tensor_name(
    tensorname: str,
    reduction_name: str,
    abs: bool,  # noqa: A002 - smdebug's name
    remove_colon_index: bool = True,
) -> str:
    """Return the name that a stored reduction has in smdebug's files."""
    name = f"{'abs_' if abs else ''}{reduction_name}/{tensorname}"
    if remove_colon_index:
        name = re.sub(r":\d+", "", name)
    return REDUCTIONS_PREFIX + name


def reverse_reduction_tensor_name(reduction_tensor_name: str) -> tuple[str, str, bool]:
    """Tensor, reduction, and whether of absolute values, of such a name.

    Raises:
        SMDebugValueError: If it is no such name.
    """
    _, prefix, rest = reduction_tensor_name.partition(REDUCTIONS_PREFIX)
    reduction, separator, tensor = rest.partition("/")
    if not (prefix and separator):
        msg = f"{reduction_tensor_name!r} is not a name of a reduction"
        raise SMDebugValueError(msg)
    return tensor, reduction.removeprefix("abs_"), reduction.startswith("abs_")
