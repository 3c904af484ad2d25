"""``KerasAdapter``: what capture asks Keras, which asks its backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.adapter import (
    ComputedRow,
    FrameworkAdapter,
    TensorRef,
    array_ref,
)
from tdbg.config.kinds import Kind
from tdbg.hooks.keras.backend import Backend
from tdbg.hooks.keras.kinds import kind_of

__all__ = ["KerasAdapter"]


class KerasAdapter(FrameworkAdapter):
    """Describes the tensors of Keras's backend, and arrays of NumPy.

    Args:
        backend: The backend; None: no Keras is needed, the hook does nothing.
    """

    name = "keras"

    def __init__(self, backend: Backend | None) -> None:
        self._backend = backend
        self.version = "" if backend is None else backend.version

    def is_tensor(self, value: Any) -> bool:
        """Whether it is a tensor of the backend, or an array."""
        if isinstance(value, np.ndarray):
            return True
        return self._backend is not None and self._backend.is_tensor(value)

    def kind_of(self, module: Any) -> Kind | None:
        """The kind of a layer, or of a loss."""
        return kind_of(module)

    def describe(self, tensor: Any) -> TensorRef | None:
        """Where a tensor lies; None for a sparse one."""
        array = self._array(tensor)
        return None if array is None else array_ref(array)

    def arrays(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The tensors of the backend as arrays, but for sparse ones."""
        return tensors if self._backend is None else self._backend.arrays(tensors)

    def compute_row(self, tensor: Any, scale: float) -> ComputedRow | None:
        """The row of a sparse gradient, as of the dense one."""
        if self._backend is None:
            return None
        return self._backend.sparse_row(tensor, scale)

    def to_dense(self, tensor: Any) -> TensorRef | None:
        """A sparse gradient with all of its zeros."""
        return None if self._backend is None else self._backend.sparse_table(tensor)

    def compute_units(self, tensor: Any) -> NDArray[Any] | None:
        """The counts of the rows of a sparse gradient."""
        return None if self._backend is None else self._backend.sparse_units(tensor)

    def read_number(self, value: Any) -> float | None:
        """The number in a tensor of one element, or of Python."""
        try:
            array = self._array(value)
            return float(value if array is None else array.reshape(()))
        except (TypeError, ValueError, RuntimeError):
            return None

    def _array(self, tensor: Any) -> NDArray[Any] | None:
        if isinstance(tensor, np.ndarray):
            return tensor
        return None if self._backend is None else self._backend.array(tensor)
