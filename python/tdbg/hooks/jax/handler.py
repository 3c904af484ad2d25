"""How the core gets to see a tensor: XLA calls its handler, or a callback does.

The handler needs a platform whose programs call functions of the host on its memory,
which only the CPU's do, and a version of XLA that takes it. Everywhere else
``jax.debug.callback`` copies each tensor to the host: it is correct, and slower.

Thread safety: any thread.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import jax
import numpy as np

from tdbg import _core

__all__ = ["calls_handler", "show_in_callback"]

_log = logging.getLogger("tdbg")


@functools.cache
def calls_handler() -> bool:
    """Whether XLA takes the handlers of the core; registers them at the first call."""
    try:
        for name, handler in _core.tap_handlers().items():
            jax.ffi.register_ffi_target(name, handler, platform="cpu", api_version=1)
    except Exception as error:
        _log.warning(
            "XLA does not take the handler of tdbg (%s): tensors are copied to Python, "
            "which is slower",
            error,
        )
        return False
    return True


def show_in_callback(x: Any, ticket: Any, *, tap: int) -> Any:
    """Return *x*, which is shown by ``jax.debug.callback``.

    Of an array that is divided among devices the callback is given the whole, which JAX
    gathers on one: nothing tells a callback which part it has.

    Args:
        x: The tensor; in a program that is written for each device, its part of it.
        ticket: Of the step, with the number of the part in such a program.
        tap: Number of the place.
    """
    jax.debug.callback(functools.partial(_show, tap), x, ticket)
    return x


def _show(tap: int, x: Any, ticket: Any) -> None:
    words = np.asarray(ticket)
    number = int(words[2]) if len(words) == 3 else 0  # Low, high, number of the part.
    if number >= 0:
        low, high = (int(word) for word in words[:2].view(np.uint32))
        array = np.ascontiguousarray(x)
        _core.show_tensor(low | high << 32, tap, array, number)
