"""The size of a step's batch, where the arguments of the step tell it.

No argument says that it is the batch.  What is left when parameters, states and random
keys are gone may be one: its arrays must agree on how many samples they have.

Thread safety: pure functions.

Errors: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["UNKNOWN", "SamplesOf", "Witness", "samples_in"]

#: What the number of samples is where nothing tells it.
UNKNOWN = -1

#: Returns the samples of a call from its arguments, or ``UNKNOWN``.
SamplesOf = Callable[[tuple[Any, ...], Mapping[str, Any]], int]


def samples_in(shapes: Sequence[Sequence[Any]]) -> int:
    """Return how many samples the arrays of a batch have, or ``UNKNOWN``.

    That is their first dimension, if they agree.  Where they agree on the second one,
    too, the first may count micro-batches, or steps: nobody knows which.  Tokens and
    their labels are the exception.

    Args:
        shapes: Those of all arrays; numbers do not count.

    Example:
        >>> samples_in([(32, 784), (32,)]), samples_in([(32, 784), (10,)])
        (32, -1)
        >>> samples_in([(4, 32, 784), (4, 32)]), samples_in([(32, 128), (32, 128)])
        (-1, 32)
    """
    arrays = [each for each in shapes if len(each)]
    firsts = {each[0] for each in arrays}
    if len(firsts) != 1:
        return UNKNOWN
    seconds = {each[1] if len(each) > 1 else None for each in arrays}
    is_deep = max(map(len, arrays)) > 2
    if len(arrays) > 1 and is_deep and len(seconds) == 1 and seconds.isdisjoint({1}):
        return UNKNOWN
    (first,) = firsts
    return first if isinstance(first, int) else UNKNOWN


class Witness:
    """Reads the samples of each call from one array, which was found in another call.

    Args:
        place: Where the array is: a position or a name first, then what leads to it
            inside of that argument.
    """

    def __init__(self, place: Sequence[Callable[[Any], Any] | int | str]) -> None:
        self._argument, *self._way = place

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Return the samples, or ``UNKNOWN``."""
        try:
            at: Any = self._argument
            value = kwargs[at] if isinstance(at, str) else args[at]
            for go in self._way:
                value = go(value)  # type: ignore[operator]
            return int(value.shape[0])
        except Exception:
            return UNKNOWN  # It is called otherwise than before.
