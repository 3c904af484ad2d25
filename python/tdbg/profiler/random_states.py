"""What a dataset draws random numbers from, and whether it did.

The states of the random generators of this process, and of those that a dataset keeps,
are compared before and after a fetch.  What begins in the same state draws the same.

Thread safety: the thread that fetches.  Errors: those of odd generators.
"""

from __future__ import annotations

import array
import functools
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

__all__ = ["FETCHES", "SOURCES", "RandomStates", "drawn_since", "equal_in_all"]

FETCHES = 4
"""How many fetches of a process are watched in each epoch."""

SOURCES = ("numpy.random", "random", "torch", "its own generator")
"""What numbers are drawn from."""

_BITS = 15
_MASK = (1 << _BITS) - 1
# Attributes of a dataset that are looked at, and how deep.
_MOST_ATTRIBUTES, _MOST_HELD, _DEEPEST = 64, 16, 3


class RandomStates:
    """The states of what a dataset may draw random numbers from, in this process.

    Args:
        dataset: Whose own generators are looked at, too.
    """

    def __init__(self, dataset: Any) -> None:
        self._held = [*islice(_generators(dataset, _DEEPEST), _MOST_HELD)]

    def read(self) -> tuple[int, ...]:
        """Return a short hash of each state."""
        numpy, torch = sys.modules.get("numpy"), sys.modules["torch"]
        return (
            0 if numpy is None else _of_numpy(numpy.random.get_state()),
            _of_python(random.getstate()),
            zlib.crc32(torch.get_rng_state().numpy()),
            zlib.crc32(repr([each() for each in self._held]).encode()),
        )


def drawn_since(before: Sequence[int], after: Sequence[int]) -> int:
    """Return the states before of those sources that were drawn from, as a number."""
    packed = 0
    for i, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            packed |= (one & _MASK or 1) << (i * _BITS)
    return packed


def equal_in_all(groups: Sequence[Sequence[int]]) -> list[int]:
    """Return the sources that were drawn from, in one state in each group.

    Args:
        groups: What ``drawn_since`` returned.
    """
    return [
        source
        for source in range(len(SOURCES))
        if groups
        and all(
            len({each >> (source * _BITS) & _MASK for each in group}) == 1
            and group[0] >> (source * _BITS) & _MASK
            for group in groups
        )
    ]


def _of_numpy(state: Any) -> int:
    return zlib.crc32(state[1].tobytes(), int(state[2]))


def _of_python(state: Any) -> int:
    return zlib.crc32(array.array("Q", state[1]).tobytes())


def _generators(held: Any, depth: int) -> Iterator[Callable[[], object]]:
    """Yield what reads the states of generators that an object has."""
    for each in islice(getattr(held, "__dict__", {}).values(), _MOST_ATTRIBUTES):
        reader = _reader_of(each)
        if reader is not None:
            yield functools.partial(reader, each)
        elif depth and isinstance(each, list | tuple) and len(each) <= _MOST_HELD:
            for one in each:
                yield from _generators(one, depth - 1)
        elif depth and not isinstance(each, type):
            yield from _generators(each, depth - 1)


def _reader_of(value: Any) -> Callable[[Any], object] | None:
    """Return what reads the state of a generator; None: it is none."""
    numpy, torch = sys.modules.get("numpy"), sys.modules["torch"]
    if isinstance(value, torch.Generator):
        return lambda own: zlib.crc32(own.get_state().numpy())
    if isinstance(value, random.Random):
        return lambda own: _of_python(own.getstate())
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return lambda own: str(own.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return lambda own: _of_numpy(own.get_state())
    return None
