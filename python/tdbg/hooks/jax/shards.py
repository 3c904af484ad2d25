"""Which device shows which part of an array that several devices share.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.adapter import Part
from tdbg.run.schema import PlacementKind

__all__ = ["PartTable", "part_of", "part_table"]

_NO_PART = -1


class PartTable(NamedTuple):
    """The parts of an array that the devices of this process hold.

    Attributes:
        parts: By number of the device, which part it shows; negative: another device
            shows the same.
        global_shape: Shape of the whole.
        offsets: By device, where its part lies in the whole.
    """

    parts: tuple[int, ...]
    global_shape: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]

    def attributes(self) -> dict[str, NDArray[np.int64]]:
        """Return the words that the handler of the core needs."""
        return {
            "parts": np.array(self.parts, np.int64),
            "global_shape": np.array(self.global_shape, np.int64),
            "offsets": np.array(self.offsets, np.int64).reshape(-1),
        }


def part_table(sharding: Any, shape: tuple[int, ...]) -> PartTable:
    """Return which device of this process shows which part.

    Of devices that hold the same, on any process, the first shows it.

    Args:
        sharding: How the array is divided.
        shape: Of the whole.
    """
    holders: dict[tuple[int, ...], int] = {}
    at: dict[int, tuple[int, ...]] = {}
    indices = sharding.devices_indices_map(shape)
    for device in sorted(indices, key=lambda each: each.id):
        each_index = zip(indices[device], shape, strict=True)
        offset = tuple(index.indices(n)[0] for index, n in each_index)
        at[device.id] = offset
        holders.setdefault(offset, device.id)
    numbers = {offset: i for i, offset in enumerate(holders)}
    platform = next(iter(indices)).platform
    local = sorted(jax.local_devices(backend=platform), key=lambda each: each.id)
    nothing = (0,) * len(shape)
    return PartTable(
        tuple(
            numbers[at[each.id]]
            if each.id in at and holders[at[each.id]] == each.id
            else _NO_PART
            for each in local
        ),
        shape,
        tuple(at.get(each.id, nothing) for each in local),
    )


def part_of(
    shape: tuple[int, ...], global_shape: tuple[int, ...], offset: tuple[int, ...]
) -> Part | None:
    """Return where a part lies; None if it is the whole.

    Example:
        >>> part_of((2, 3), (4, 3), (2, 0)).global_offset
        (2, 0)
    """
    if not global_shape or shape == global_shape:
        return None
    placements = tuple(
        (PlacementKind.SHARD, 0, i, math.ceil(whole / part), at // part)
        for i, (part, whole, at) in enumerate(
            zip(shape, global_shape, offset, strict=True)
        )
        if part != whole and part
    )
    return Part(global_shape, offset, placements)
