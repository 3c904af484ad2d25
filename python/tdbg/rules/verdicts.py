"""Verdicts of a rule on steps, and how they are put into words.

Thread safety: values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys

__all__ = [
    "HEALTHY",
    "UNKNOWN",
    "Description",
    "Judgement",
    "Levels",
    "nothing_to_describe",
]

Levels = NDArray[np.int8]

# What a verdict is, where it is no severity.
UNKNOWN = -1
HEALTHY = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A verdict in words and numbers, made only where it is a finding."""

    message: str
    value: float | None = None
    threshold: float | None = None
    advice: str = ""


def nothing_to_describe(j: int) -> Description:
    """What describes verdicts of which none can be a finding."""
    raise AssertionError(j)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdicts of one rule on the new steps of a window.

    Attributes:
        names: The tensors.
        steps: The new steps, ascending.
        mode: Their mode.
        levels: Names x steps: ``UNKNOWN``, ``HEALTHY`` or a ``Severity``.
        describe: Called with the indices of a verdict that is a severity.
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    mode: ModeKeys
    levels: Levels
    describe: Callable[[int, int], Description]

    @classmethod
    def of_one(
        cls,
        name: str,
        steps: NDArray[np.int64],
        mode: ModeKeys,
        levels: NDArray[np.integer],
        describe: Callable[[int], Description],
    ) -> Judgement:
        """Verdicts on one tensor, or on what goes by one name: one a step."""
        return cls(
            names=(name,),
            steps=steps,
            mode=mode,
            levels=levels.astype(np.int8)[np.newaxis, :],
            describe=lambda _, j: describe(j),
        )
