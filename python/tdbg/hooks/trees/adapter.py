"""What capture asks a framework of boosted trees: everything it gives is an array."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tdbg.capture.adapter import FrameworkAdapter, TensorRef, array_ref

__all__ = ["ArrayAdapter"]


class ArrayAdapter(FrameworkAdapter):
    """Describes arrays of NumPy.

    Args:
        name: The framework's name.
        version: Its version.
        rank: Returns this process's rank in the framework's collective and the number
            of ranks; None outside of one.
    """

    def __init__(
        self,
        name: str,
        version: str,
        rank: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> None:
        self.name = name
        self.version = version
        self._rank = rank

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is an array."""
        return isinstance(value, np.ndarray)

    def describe(self, tensor: Any) -> TensorRef | None:
        """Return where an array lies."""
        return array_ref(tensor)

    def process_rank(self) -> tuple[int, int] | None:
        """Return the rank in the framework's collective."""
        return self._rank()

    def n_threads(self) -> int:
        """Return the number of threads that OpenMP uses, as the frameworks do."""
        given = os.environ.get("OMP_NUM_THREADS", "")
        return int(given) if given.isdigit() and int(given) else os.cpu_count() or 1
