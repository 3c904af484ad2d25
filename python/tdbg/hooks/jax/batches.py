"""Where the batch is among the arguments of a step.

Parameters and states are known (``arguments.py``).  Whatever else a step returns in the
same shapes is its state, too; random keys are no data.  The rest is the batch.

Thread safety: pure functions.

Errors: none but those of the program's own classes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tdbg.hooks.compiled.batches import UNKNOWN, SamplesOf, Witness, samples_in
from tdbg.hooks.jax.arguments import ArgumentReader, has_model

__all__ = ["find_batch"]

# Random keys that are plain arrays: of threefry, and of rbg.
_KEYS = ((2,), (4,))


def find_batch(
    reader: ArgumentReader,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    outputs: Any,
) -> SamplesOf | None:
    """Return what reads the samples of a call; None: its arguments do not tell them.

    Args:
        reader: Finds the parameters.
        args: The positional arguments of a call that is over.
        kwargs: The named ones.
        outputs: What it has returned.
    """
    if jax.process_count() > 1:
        return None  # An array has the samples of all processes.
    found = reader.read(args, kwargs)
    known = {id(each.array) for each in found.parameters}
    known |= {id(each.array) for each in found.states}
    leaves = jax.tree_util.tree_leaves(outputs)
    returned = Counter(map(_kind, filter(_is_array, leaves)))
    arrays: list[tuple[Sequence[Any], Any]] = []
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    for place, value in given.items():
        arrays += _of_batch(place, value, known, returned)
    if samples_in([array.shape for _, array in arrays]) == UNKNOWN:
        return None
    return Witness(arrays[0][0])


def _of_batch(
    place: int | str, value: Any, known: set[int], returned: Counter[Any]
) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield the arrays of an argument that may be the batch, and where each is."""
    if has_model(value):
        return
    leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    arrays = [(path, leaf) for path, leaf in leaves if _is_array(leaf) and leaf.ndim]
    if any(id(leaf) in known for _, leaf in arrays):
        return
    if Counter(_kind(leaf) for _, leaf in arrays) <= returned:
        return
    for path, leaf in arrays:
        if not _is_key(leaf):
            yield (place, *map(_step, path)), leaf


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _kind(array: Any) -> Any:
    return array.shape, array.dtype


def _is_key(array: Any) -> bool:
    if isinstance(array, jax.Array):
        is_typed = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
        return is_typed or (array.dtype == np.uint32 and array.shape in _KEYS)
    return False


def _step(key: Any) -> Callable[[Any], Any]:
    """Return what goes one step into a pytree."""
    if isinstance(key, jax.tree_util.SequenceKey):
        return operator.itemgetter(key.idx)
    if isinstance(key, jax.tree_util.GetAttrKey):
        return operator.attrgetter(key.name)
    return operator.itemgetter(key.key)
