"""Which of the outputs of a step is its loss.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

__all__ = ["find_loss"]

_LOSS = "loss"
# A step returns (state, (loss, metrics)), and nothing deeper.
_DEPTH = 2


def find_loss(outputs: Any, depth: int = _DEPTH) -> Any:
    """Return the first number with a fraction that a step returns; None: there is none.

    That is the output itself; the first such element of a tuple, as of
    ``(params, opt_state, loss)``, ``(loss, aux)`` or ``(state, (loss, aux))``; or what
    a mapping has as ``loss``. States of optimizers are not searched.

    Example:
        >>> float(find_loss(({"w": np.ones(2)}, (np.float32(0.5), "aux"))))
        0.5
    """
    if _is_number(outputs):
        return outputs
    if isinstance(outputs, Mapping):
        found = outputs.get(_LOSS)
        return found if _is_number(found) else None
    if depth and isinstance(outputs, tuple | list) and not hasattr(outputs, "_fields"):
        at_once = (each for each in outputs if _is_number(each))
        within = (find_loss(each, depth - 1) for each in outputs)
        return next(at_once, next((each for each in within if each is not None), None))
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return True
    is_array = isinstance(value, jax.Array | np.ndarray) and value.ndim == 0
    return is_array and bool(jax.numpy.issubdtype(value.dtype, jax.numpy.floating))
