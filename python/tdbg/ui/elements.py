"""The elements of a tensor at one step, as a picture of limited size.

An element beyond the picture is not left out: a cell of it stands for a block of
elements, and has the one that is furthest from zero.

Thread safety: pure functions, and one that reads, with the trial's lock held inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import TensorUnavailable
from tdbg.trial import Trial
from tdbg.ui.packing import pack

__all__ = ["Picture", "picture", "values"]

# Cells along each side.
MOST_CELLS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A matrix, or a coarser one of blocks of it.

    Attributes:
        extreme: float64 (rows, columns): of each block the finite element furthest
            from zero; 0 where there is none.
        bad: uint8 (rows, columns): 1 where an element is NaN or infinite.
        block: Rows and columns of a block.
    """

    extreme: NDArray[np.float64]
    bad: NDArray[np.uint8]
    block: tuple[int, int]


def picture(array: NDArray[Any], most: int = MOST_CELLS) -> Picture:
    """The picture of an array; the first axis goes down, all others to the right.

    Args:
        array: Of any shape.  Of complex numbers the magnitudes are shown.
        most: Most cells along each side.

    Example:
        >>> picture(np.array([[1.0, -5.0, 2.0]]), most=2).extreme.tolist()
        [[-5.0, 2.0]]
    """
    numbers = np.abs(array) if array.dtype.kind == "c" else array
    rows = numbers.shape[0] if numbers.ndim > 1 else 1
    table = np.asarray(numbers, np.float64).reshape(rows, -1)
    bad = ~np.isfinite(table)
    low = high = np.where(bad, 0.0, table)
    block = []
    for axis in (0, 1):
        n = table.shape[axis]
        size = max(1, -(-n // most))
        block.append(size)
        if size > 1:
            starts = np.arange(0, n, size)
            low = np.minimum.reduceat(low, starts, axis=axis)
            high = np.maximum.reduceat(high, starts, axis=axis)
            bad = np.logical_or.reduceat(bad, starts, axis=axis)
    extreme = np.where(-low > high, low, high)
    return Picture(extreme, bad.astype(np.uint8), (block[0], block[1]))


def values(trial: Trial, name: str, at: int, worker: str | None = None) -> bytes:
    """The picture of a tensor's values at a step.

    Args:
        trial: The run.
        name: The tensor.
        at: A training step: the newest saved values up to there are shown, or, where
            there are none, the first ones.
        worker: Those of this worker; None: of the first that saved them, or of the
            parts of all of them.

    Returns:
        Arrays ``extreme`` and ``bad``; ``step``, ``shape``, ``block`` and ``n_steps``,
        at how many steps values were saved.  No arrays where they never were.

    Raises:
        TensorUnavailable: If the name is unknown.
        InvalidWorker: If there is no such worker.
    """
    if not trial.has_tensor(name):
        msg = "there is no tensor of that name"
        raise TensorUnavailable(msg)
    tensor = trial.tensor(name)
    steps = tensor.steps(what="values", worker=worker)
    if not steps:
        return pack({"n_steps": 0}, {})
    step = max((each for each in steps if each <= at), default=steps[0])
    array = tensor.value(step, worker=worker)
    shown = picture(array)
    return pack(
        {
            "n_steps": len(steps),
            "step": step,
            "shape": list(array.shape),
            "block": list(shown.block),
        },
        {"extreme": shown.extreme, "bad": shown.bad},
    )
