"""``smdebug.pytorch.utils``: arrays and reductions of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tdbg.compat.smdebug.core import utils
from tdbg.compat.smdebug.core.reductions import get_numpy_reduction
from tdbg.compat.smdebug.left_out import refuse

__all__ = [
    "get_reduction_of_data",
    "is_current_version_supported",
    "make_numpy_array",
]


def make_numpy_array(x: Any) -> NDArray[Any]:
    """Make an array of a tensor on any device, a number, a sequence or an array.

    Floats that NumPy does not have, as bfloat16, become float32.

    Raises:
        SMDebugTypeError: If *x* is none of these.
    """
    if not isinstance(x, torch.Tensor):
        return utils.make_numpy_array(x)
    value = x.detach().cpu()
    try:
        array: NDArray[Any] = value.numpy()
    except TypeError:
        array = value.float().numpy()
    return array


def get_reduction_of_data(
    reduction_name: str,
    tensor_data: torch.Tensor | NDArray[Any],
    tensor_name: str = "",
    abs: bool = False,  # noqa: A002 - smdebug's name
) -> float:
    """Reduce all elements to one number, as a trial does, in float64.

    Args:
        reduction_name: min, max, mean, std, variance, sum, prod, l1 or l2.
        tensor_data: A tensor or an array.
        tensor_name: Ignored.
        abs: Whether to reduce the absolute values.

    Raises:
        SMDebugValueError: If there is no such reduction.
    """
    del tensor_name
    data = make_numpy_array(tensor_data).astype(np.float64)
    return float(get_numpy_reduction(reduction_name, data, abs))


def is_current_version_supported(pytorch_version: str = torch.__version__) -> bool:
    """Return whether tdbg captures this version of PyTorch: 2.0 and later."""
    return int(pytorch_version.partition(".")[0]) >= 2


__getattr__ = refuse(__name__)
