"""The points where two runs diverge: the first step at which each tensor differs.

Thread safety: values, and functions that hold a trial's lock inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tdbg.compare.axis import Axis
from tdbg.compare.execution import execution_of
from tdbg.compare.matching import match, mode_pairs
from tdbg.compare.scan import RunScan, StepBlock
from tdbg.errors import ConfigurationError
from tdbg.trial import Trial

__all__ = ["Divergence", "DivergencePoint", "divergence"]

# What float32 resolves.
RESOLUTION = 2.0**-23


@dataclass(frozen=True, slots=True)
class DivergencePoint:
    """The first place where a tensor or scalar of two runs differs.

    Attributes:
        name: The tensor or scalar.
        place: Its place on the axis: a global step, or a training step.
        deviation: The difference relative to the larger value; infinite if only one of
            them has a NaN or Inf.
    """

    name: str
    place: int
    deviation: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The comparison of all tensors and scalars that two runs share.

    Attributes:
        points: One for each tensor or scalar that differs, the earliest first; those at
            one place are in the order of a step of the first run.
        n_names: Number of tensors and scalars that were compared.
        n_places: Number of places that both runs recorded, in the mode with the most.
    """

    points: tuple[DivergencePoint, ...]
    n_names: int
    n_places: int


def divergence(
    first: Trial,
    second: Trial,
    *,
    axis: Axis = Axis.STEP,
    tolerance: float = 0.0,
    check: Callable[[], None] | None = None,
) -> Divergence:
    """Find where the tensors and scalars that both runs have first differ.

    At each step that both runs recorded, this compares statistics as ``diff`` does, but
    with one tolerance for all.  What differs by less than float32 resolves is the same.

    Args:
        first: A run.
        second: Another one.
        axis: ``Axis.STEP`` or ``Axis.GLOBAL``.
        tolerance: The relative difference to ignore: 0.01 for 1 %.
        check: Called between parts, as by ``Trial.envelope``.

    Raises:
        ConfigurationError: If *axis* is time, which matches no steps, or *tolerance* is
            negative.

    Example:
        found = divergence(tdbg.create_trial("runs/a"), tdbg.create_trial("runs/b"))
        if found.points:
            print("the runs diverge at step", found.points[0].place)
    """
    if axis.is_time:
        msg = "runs diverge at a step: align them by step, not by time"
        raise ConfigurationError(msg)
    if not tolerance >= 0:
        msg = f"a tolerance must be 0 or more, not {tolerance!r}"
        raise ConfigurationError(msg)
    with first.no_refresh(), second.no_refresh():
        # No aliases: rows of both runs are of the same names.
        known = set(second.tensor_names())
        names = [name for name in first.tensor_names() if name in known]
        execution = execution_of(first, names)
        scan = RunScan(
            (first, second), {name: name for name in names}, execution, check=check
        )
        scan.reads_values = False
        found: dict[int, DivergencePoint] = {}
        n_places = 0
        for modes in mode_pairs(first, second, None):
            # A step of training is not compared with one of evaluation at its place.
            matched = match(first, second, modes, axis.value)
            n_places = max(n_places, len(np.unique(matched.places)))
            for block in scan.blocks(matched):
                _add_points(found, scan, block, max(tolerance, RESOLUTION))
    points = sorted(found.items(), key=lambda item: (item[1].place, item[0]))
    return Divergence(tuple(point for _, point in points), len(names), n_places)


def _add_points(
    found: dict[int, DivergencePoint], scan: RunScan, block: StepBlock, tolerance: float
) -> None:
    """Add the first place of a block at which each tensor is beyond the tolerance."""
    differs = block.present & (block.size > tolerance)
    for i in np.flatnonzero(differs.any(axis=1)).tolist():
        at = int(differs[i].argmax())
        place = int(block.places[at])
        if i not in found or place < found[i].place:
            size = float(block.size[i, at])
            found[i] = DivergencePoint(scan.names[i], place, size)
