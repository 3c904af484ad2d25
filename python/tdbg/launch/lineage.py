"""Tell whether a step of JAX goes on with a training, or begins another one.

JAX keeps no model: what a step returns is what the next one is given.  A training is
followed by one array of its parameters.  If a step is given another array than the step
before has returned, the program has put it there: it may have clipped, averaged or
restored the parameters, or it has made new ones and trains again.

Thread safety: the training's thread.

Errors: none; where nothing can be followed, everything is one training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

__all__ = ["Lineage"]

# Trainings of fewer steps are no trainings of their own: a program may make a few steps
# from the same parameters again and again (meta-learning).
LEAST_STEPS = 10
# Largest number of elements of the array that is followed: it is kept.
MOST_ELEMENTS = 2**20
# What the program has made of the parameters of a training points where these do: the
# cosine of new ones is about 0.
SIMILAR = 0.5

Way = tuple[int, ...]


class _Link(NamedTuple):
    """Where the array is: in what a step is given, and in what it leaves."""

    given: Way
    left: Way


class Lineage:
    """Follows one training from step to step.

    Example::

        if lineage.goes_on(args, kwargs):
            outputs = step(*args, **kwargs)
            lineage.has_run(args, kwargs, outputs)
    """

    def __init__(self) -> None:
        self._n_steps = 0
        # How many there were when the program began again, in too few steps.
        self._n_before = 0
        self._link: _Link | None = None
        # The arrays that were given to the first step, and that it has left, by ways.
        self._given: dict[Way, Any] = {}
        self._left: dict[Way, Any] = {}
        # What is followed: at first, and as the latest step has left it.
        self._first: NDArray[Any] | None = None
        self._last: Any = None

    def goes_on(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a step with these arguments goes on with the training."""
        given = (args, kwargs)
        if self._n_steps == 0:
            self._given = dict(_arrays(given))
        elif self._n_steps == 1:
            self._begin(given)
        if self._link is None:
            return True
        array = _at(given, self._link.given)
        if array is self._last or not isinstance(array, jax.Array):
            return True
        if not self._is_new(array):
            return True
        if self._n_steps - self._n_before >= LEAST_STEPS:
            return False
        self._n_before = self._n_steps
        return True

    def has_run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any
    ) -> None:
        """Note what a step has left: in its outputs, and in models that it changed."""
        left = (outputs, args, kwargs)
        if self._n_steps == 0:
            self._left = dict(_arrays(left))
        elif self._link is not None:
            self._last = _at(left, self._link.left)
        self._n_steps += 1

    def _begin(self, given: Any) -> None:
        """Choose the array to follow, at the second step."""
        before = set(map(id, self._given.values()))
        ways = {id(each): way for way, each in self._left.items()}
        fitting = [
            (-array.size, way)
            for way, array in _arrays(given)
            if id(array) in ways and id(array) not in before
        ]
        if fitting:
            # Parameters come before what an optimizer keeps of each.
            _, way = min(fitting)
            array = _at(given, way)
            first = self._given.get(way)
            self._link, self._last = _Link(way, ways[id(array)]), array
            if first is not None and not first.is_deleted():
                self._first = np.asarray(first)
        self._given, self._left = {}, {}

    def _is_new(self, array: Any) -> bool:
        if array.is_deleted() or self._last is None or self._last.is_deleted():
            return False
        new, last = np.asarray(array), np.asarray(self._last)
        if new.shape != last.shape:
            return True
        if self._first is not None and np.array_equal(new, self._first):
            return True
        one, other = (each.astype(np.float64).ravel() for each in (new, last))
        sizes = float(np.linalg.norm(one) * np.linalg.norm(other))
        return not abs(float(one @ other)) >= SIMILAR * sizes > 0.0


def _arrays(tree: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Yield the arrays that may be followed, with the ways to them."""
    children = _children(tree)
    if children is None:
        is_array = isinstance(tree, jax.Array) and not isinstance(tree, jax.core.Tracer)
        is_float = is_array and jax.numpy.issubdtype(tree.dtype, np.floating)
        if is_float and tree.ndim and tree.size <= MOST_ELEMENTS:
            yield way, tree
        return
    for i, child in enumerate(children):
        yield from _arrays(child, (*way, i))


def _at(tree: Any, way: Way) -> Any:
    """Return what is at the end of a way; None: nothing is."""
    for index in way:
        children = _children(tree)
        if children is None or index >= len(children):
            return None
        tree = children[index]
    return tree


def _children(tree: Any) -> Sequence[Any] | None:
    """Return the children of a node of a pytree; None: it is a leaf."""
    found = jax.tree_util.default_registry.flatten_one_level(tree)
    return None if found is None else list(found[0])
