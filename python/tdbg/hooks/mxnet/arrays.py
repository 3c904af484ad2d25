"""Arrays of MXNet: when they are there, where they lie, and what capture asks of them.

MXNet computes asynchronously, and an operation that fails raises where somebody waits
for its result, once. So tdbg waits by ``wait_for``, outside of ``session.run``: what
is raised there is the program's, and the time is the program's, too.

Thread safety: pure functions; MXNet's engine may be waited for by any thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import mxnet
import numpy as np
from mxnet.base import _LIB, check_call
from numpy.typing import NDArray

from tdbg.capture.adapter import ComputedRow, FrameworkAdapter, TensorRef, array_ref
from tdbg.hooks.mxnet.kinds import kind_of
from tdbg.hooks.sparse import dense_of_slices, row_of_slices, units_of_slices

__all__ = ["MxnetAdapter", "is_dense", "is_tensor", "number_of", "wait_for"]

_NDArray = mxnet.nd.NDArray
_SPARSE = "row_sparse"
_TYPES = ("bool", "float16", "float32", "float64", "int8", "uint8", "int32", "int64")
# By types, and by the dtypes that arrays with the semantics of NumPy have.
_NAMES: dict[Any, str] = {np.dtype(each).type: each for each in _TYPES}
_NAMES |= {np.dtype(each): each for each in _TYPES}


def is_tensor(value: Any) -> bool:
    """Whether it is an array of MXNet or of NumPy: no symbol."""
    return isinstance(value, _NDArray | np.ndarray)


def wait_for(arrays: Iterable[Any]) -> None:
    """Wait until arrays are computed.

    Raises:
        MXNetError: If an operation of the program has failed that one of them comes
            from. Nobody would hear of it if it were kept back here.
    """
    for array in arrays:
        if isinstance(array, _NDArray):
            array.wait_to_read()


def is_dense(array: Any) -> bool:
    """Whether an array of MXNet has all its elements in memory."""
    return bool(array.stype == "default")


def describe(tensor: Any) -> TensorRef | None:
    """Return where a tensor lies, which is waited for; None for a sparse one."""
    if not isinstance(tensor, _NDArray):
        return array_ref(tensor)
    if tensor.stype != "default":
        return None
    name = _NAMES.get(tensor.dtype)
    if name is None:
        return None
    if not tensor.ctx.device_type.startswith("cpu"):
        return array_ref(tensor.asnumpy())
    tensor.wait_to_read()
    pointer = ctypes.c_void_p()
    # oneDNN's own layouts become plain ones here.
    check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(pointer)))
    return TensorRef(pointer.value or 0, name, tensor.shape, owner=tensor)


def number_of(value: Any) -> float | None:
    """Return the number in an array of one element, or of Python; None: it is none."""
    try:
        if isinstance(value, _NDArray):
            value = value.asnumpy().reshape(())
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def sparse_row(tensor: Any, scale: float) -> ComputedRow | None:
    """The row of a tensor of which only some rows are given; None: it is no such."""
    if getattr(tensor, "stype", "") != _SPARSE:
        return None
    return row_of_slices(*_slices(tensor), tensor.shape[0], scale)


def sparse_units(tensor: Any) -> NDArray[Any] | None:
    """Count the rows of a row-sparse tensor as units; None if it is not row-sparse."""
    if getattr(tensor, "stype", "") != _SPARSE:
        return None
    return units_of_slices(*_slices(tensor), tensor.shape[0])


def sparse_table(tensor: Any) -> TensorRef | None:
    """Return a row-sparse tensor as a dense one; None if it is not row-sparse."""
    if getattr(tensor, "stype", "") != _SPARSE:
        return None
    return dense_of_slices(*_slices(tensor), tensor.shape[0])


def _slices(array: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    return array.indices.asnumpy(), array.data.asnumpy()


class MxnetAdapter(FrameworkAdapter):
    """Describes MXNet's arrays."""

    name = "mxnet"
    version = str(mxnet.__version__)

    # Functions, so that a call of the method is one call.
    is_tensor = staticmethod(is_tensor)
    kind_of = staticmethod(kind_of)
    describe = staticmethod(describe)
    compute_row = staticmethod(sparse_row)
    compute_units = staticmethod(sparse_units)
    to_dense = staticmethod(sparse_table)
    read_number = staticmethod(number_of)
