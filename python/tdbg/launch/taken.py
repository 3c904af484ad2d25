"""Decide which of two searches captures a call that both see.

Keras trains with tensors of PyTorch, or with functions that JAX compiles.  The inside
of its calls belongs to the search for trainings with Keras.

Thread safety: a call is taken for the thread that makes it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["is_taken", "taken"]


class _Local(threading.local):
    is_taken = False


_local = _Local()


def is_taken() -> bool:
    """Return whether this thread is inside ``taken``."""
    return _local.is_taken


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """Let only the search that enters this context capture."""
    before, _local.is_taken = _local.is_taken, True
    try:
        yield
    finally:
        _local.is_taken = before
