"""Conditions for ``hook.invariant``: what must hold in a training of any framework.

    hook.invariant("tied", same_tensor(model.head.weight, model.embedding.weight))
    hook.invariant("frozen", unchanged(model.backbone))

Each function returns a condition.  Its arguments are tensors, or whatever holds some: a
module, a list, a dictionary.  If your program puts another tensor in its place, give a
function that returns the present one: ``lambda: model.head.weight``.

Thread safety: a condition belongs to one thread.

Errors: a condition raises what the library of its tensors raises; a hook reports it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError

__all__ = ["finite", "moves_slower_than", "same_tensor", "sums_to", "unchanged"]

#: Returns whether it holds, and what to say if it does not.
Condition = Callable[[], tuple[bool, str]]
# Rounding errors of float32, relative.
ROUNDING = 1e-5
# Movements before it is said that two models move alike.
ENOUGH_MOVES = 10


def same_tensor(first: Any, second: Any, *, values: bool = False) -> Condition:
    """Return the condition that two tensors are one: they share their memory.

    Args:
        first: A tensor, or a function that returns it.
        second: The other one.
        values: Whether it is enough that they are equal.

    Example:
        >>> import numpy as np
        >>> embedding = np.zeros((4, 2))
        >>> same_tensor(embedding, embedding)()[0]
        True
        >>> same_tensor(embedding, embedding.copy())()[0]
        False
    """

    def holds() -> tuple[bool, str]:
        a, b = _present(first), _present(second)
        if a is b or _memory_of(a) == _memory_of(b):
            return True, ""
        x, y = _array(a), _array(b)
        if x.shape != y.shape:
            return False, f"The tensors have the shapes {x.shape} and {y.shape}."
        if values and np.array_equal(x, y, equal_nan=True):
            return True, ""
        apart = np.max(np.abs(x - y), initial=0.0)
        if not apart:
            return False, "The tensors are equal, but do not share their memory."
        return False, f"The tensors differ by up to {apart:.3g}."

    return holds


def unchanged(tensors: Any) -> Condition:
    """Return the condition that no tensor changes after the first check.

    It keeps a checksum of each tensor, and no copy.

    Args:
        tensors: A tensor, a module with its parameters and buffers, a list or
            dictionary of these, or a function that returns one of them.

    Example:
        >>> import numpy as np
        >>> frozen = {"weight": np.ones(3)}
        >>> condition = unchanged(frozen)
        >>> condition()[0]
        True
        >>> frozen["weight"][1] = 2.0
        >>> condition()
        (False, '1 of 1 tensors changed, the first of them weight.')
    """
    known: dict[str, int] = {}

    def holds() -> tuple[bool, str]:
        found = {name: _checksum(each) for name, each in _named(_present(tensors))}
        if not known:
            known.update(found)
        changed = [name for name, each in known.items() if found.get(name) != each]
        if not changed:
            return True, ""
        first = f", the first of them {changed[0]}" if changed[0] else ""
        return False, f"{len(changed)} of {len(known)} tensors changed{first}."

    return holds


def moves_slower_than(target: Any, online: Any) -> Condition:
    """Return the condition that a target moves less than the model that it follows.

    For target networks and running averages of weights, however they are updated: they
    make a shorter way than the model, apart from the distance at the first check.  It
    keeps a copy of both.

    Args:
        target: Tensors, as for ``unchanged``.
        online: Those that it follows, with the same shapes in the same order.

    Example:
        >>> import numpy as np
        >>> target, online = np.zeros(2), np.zeros(2)
        >>> condition = moves_slower_than(target, online)
        >>> condition()[0]
        True
        >>> target += 1.0
        >>> condition()
        (False, 'The target has moved by 1.41, the model that it follows by 0.')
    """
    last: list[NDArray[Any]] = []
    ways, distance, n_moves = np.zeros(2), 0.0, 0

    def holds() -> tuple[bool, str]:
        nonlocal last, distance, n_moves
        now = [_flat(_present(each)) for each in (target, online)]
        if not last:
            last, distance = now, _norm(now[0] - now[1])
            return True, ""
        steps = [_norm(after - before) for after, before in zip(now, last, strict=True)]
        ways[:] += steps
        last, n_moves = now, n_moves + (steps[1] > 0)
        moved, followed = ways.tolist()
        if moved > followed * (1 + ROUNDING) + distance + ROUNDING * _norm(now[0]):
            return False, (
                f"The target has moved by {moved:.3g}, the model that it follows by "
                f"{followed:.3g}."
            )
        is_same = abs(moved - followed) <= 1e-9 * followed and not distance
        if is_same and n_moves >= ENOUGH_MOVES:
            return False, f"Both have moved alike, by {moved:.3g}: is it a copy at all?"
        return True, ""

    return holds


def finite(tensors: Any) -> Condition:
    """Return the condition that no tensor has NaN or infinity.

    Args:
        tensors: Tensors, as for ``unchanged``.

    Example:
        >>> import numpy as np
        >>> finite([np.ones(2), np.array([1.0, np.nan])])()
        (False, '1 has elements that are not finite: 1 of 2.')
    """

    def holds() -> tuple[bool, str]:
        for name, each in _named(_present(tensors)):
            array = _array(each)
            n_bad = array.size - int(np.count_nonzero(np.isfinite(array)))
            if n_bad:
                what = name or "The tensor"
                counts = f"{n_bad:,} of {array.size:,}"
                return False, f"{what} has elements that are not finite: {counts}."
        return True, ""

    return holds


def sums_to(
    tensor: Any, total: float, *, axis: int | None = -1, tolerance: float = 1e-3
) -> Condition:
    """Return the condition that a tensor sums to *total* along an axis.

    Args:
        tensor: A tensor, or a function that returns it.
        total: The sum.
        axis: The axis; None: over all elements.
        tolerance: Largest difference from the sum.

    Example:
        >>> import numpy as np
        >>> sums_to(np.array([[0.5, 0.5], [0.9, 0.3]]), 1)()
        (False, 'A sum is 1.2 and not 1.')
    """

    def holds() -> tuple[bool, str]:
        sums = np.atleast_1d(_array(_present(tensor)).sum(axis=axis)).ravel()
        if not sums.size:
            return True, ""
        apart = np.abs(sums - total)
        worst = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
        if apart[worst] <= tolerance:
            return True, ""
        return False, f"A sum is {sums[worst]:.6g} and not {total:g}."

    return holds


# ---- tensors of any framework ------------------------------------------------------


def _present(value: Any) -> Any:
    """Return what a function of the user's returns, or what was given instead of it."""
    is_function = callable(value) and not _is_tensor(value) and not _members(value)
    return value() if is_function else value


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _members(value: Any) -> dict[str, Any]:
    """Return what a module or a container holds, by name."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if isinstance(value, list | tuple):
        return {str(i): each for i, each in enumerate(value)}
    if hasattr(value, "named_parameters"):  # PyTorch
        of_module = [*value.named_parameters(), *value.named_buffers()]
        return dict(of_module)
    if hasattr(value, "collect_params"):  # MXNet
        return {name: each.data() for name, each in value.collect_params().items()}
    variables = getattr(value, "variables", None)  # Keras, TensorFlow
    if isinstance(variables, list | tuple):
        return {getattr(v, "path", None) or v.name: v for v in variables}
    return {}


def _named(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors in something, with their names in it."""
    if _is_tensor(value):
        yield name, value
        return
    members = _members(value)
    if not members and not isinstance(value, Mapping | list | tuple):
        msg = f"{type(value).__name__} is no tensor, and nothing that holds tensors"
        raise ConfigurationError(msg)
    for key, each in members.items():
        yield from _named(each, f"{name}.{key}" if name else key)


def _array(tensor: Any) -> NDArray[Any]:
    """Return the values of a tensor, as NumPy's."""
    if hasattr(tensor, "detach"):  # PyTorch
        tensor = tensor.detach().cpu()
        if "bfloat16" in str(tensor.dtype) or "float8" in str(tensor.dtype):
            tensor = tensor.float()
        return np.asarray(tensor.numpy())
    if hasattr(tensor, "asnumpy"):  # MXNet
        return np.asarray(tensor.asnumpy())
    return np.asarray(tensor)


def _memory_of(tensor: Any) -> object:
    """Return where a tensor lies and its form; equal for two names of one tensor."""
    if hasattr(tensor, "data_ptr"):
        place: object = (str(tensor.device), tensor.data_ptr(), tensor.stride())
    elif isinstance(tensor, np.ndarray):
        place = (tensor.__array_interface__["data"][0], tensor.strides)
    else:
        place = id(tensor)
    return place, tuple(tensor.shape), str(tensor.dtype)


def _checksum(tensor: Any) -> int:
    array = np.ascontiguousarray(_array(tensor))
    return zlib.crc32(array.view(np.uint8).data if array.size else b"")


def _flat(tensors: Any) -> NDArray[Any]:
    arrays = [_array(each).ravel().astype(np.float32) for _, each in _named(tensors)]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.float32)


def _norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))
