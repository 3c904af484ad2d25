"""Prints of the replicas of a model: a few numbers for each tensor, to be compared.

Each rank sums the bits of a tensor three times: as they are, by position, and by the
square of the position, as integers that wrap around.  Equal tensors have equal sums.
If one element differs, the differences of the sums are d, i·d and i²·d, so they say
which element it is and by how much its bits differ, and nobody has to compare values.
Two sums of its values, squared and with signs by position, estimate how large a
difference is.

Thread safety: values that never change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BITS", "SIZES", "OneElement", "Print", "Standing", "one_element"]

BITS = np.dtype("<i8")
"""The type of the sums of bits."""
SIZES = np.dtype("<f8")
"""The type of the sums of values."""


class Standing(IntEnum):
    """The way in which ranks keep a tensor equal."""

    NONE = 0
    """Nobody is known to keep it equal: nothing is said of it."""
    REDUCED = 1
    """Its gradient is reduced by a wrapper."""
    BYPASSED = 2
    """A wrapper has it, and was never called."""
    UNSYNCED = 3
    """A wrapper has it, and its latest forward prepared no reduction."""
    HOOKED = 4
    """A wrapper has it, and the user's own function reduces its gradient."""
    LATE = 5
    """It is inside a wrapper that does not know it."""
    BUFFER = 6
    """It is a buffer inside a wrapper that does not broadcast buffers."""
    ALONE = 7
    """It is in no wrapper: the program may reduce its gradient."""


@dataclass(frozen=True, slots=True)
class Print:
    """The print of one rank's replica at one step.

    Attributes:
        n: Steps of the optimizer that this rank had made before.
        n_forwards: Forwards in training that it had made.
        group: The ranks that the replica is shared by; empty: all.
        kind: A text that is equal for equal names, shapes and types of the tensors.
        standings: How each tensor is kept equal, in the order of the names.
        weights: Sums of the bits of each tensor: shape (tensors, 3).
        gradients: The same of their gradients, zero where there is none.
        sizes: Of each tensor and then of its gradient the sum of squares and the sum
            with signs: shape (tensors, 4).
        spots: By ``n``, sums of the bits of the smallest tensor at steps before.
        inputs: By step of an optimizer, sums of the bits of what the model was given;
            in one of the prints.
        averages: Whether a wrapper averages gradients over the group.
    """

    n: int
    n_forwards: int
    group: tuple[int, ...]
    kind: str
    standings: tuple[int, ...]
    weights: NDArray[Any]
    gradients: NDArray[Any]
    sizes: NDArray[Any]
    spots: Mapping[int, int]
    inputs: Mapping[int, int]
    averages: bool

    def encode(self) -> bytes:
        """Return the print as bytes: a line of JSON, then the arrays."""
        head = {
            "n": self.n,
            "n_forwards": self.n_forwards,
            "group": self.group,
            "kind": self.kind,
            "standings": self.standings,
            "spots": {str(n): value for n, value in self.spots.items()},
            "inputs": {str(n): value for n, value in self.inputs.items()},
            "averages": self.averages,
        }
        arrays = (
            self.weights.astype(BITS),
            self.gradients.astype(BITS),
            self.sizes.astype(SIZES),
        )
        body = b"".join(each.tobytes() for each in arrays)
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + body

    @classmethod
    def decode(cls, data: bytes) -> Print:
        """Return the print that ``encode`` made bytes of.

        Raises:
            ValueError, KeyError, TypeError: If the bytes are something else.
        """
        line, _, body = data.partition(b"\n")
        head = json.loads(line)
        n = len(head["standings"])
        bits = np.frombuffer(body, BITS, count=6 * n).reshape(2, n, 3)
        sizes = np.frombuffer(body, SIZES, offset=bits.nbytes).reshape(n, 4)
        return cls(
            n=int(head["n"]),
            n_forwards=int(head["n_forwards"]),
            group=tuple(map(int, head["group"])),
            kind=str(head["kind"]),
            standings=tuple(map(int, head["standings"])),
            weights=bits[0],
            gradients=bits[1],
            sizes=sizes,
            spots=_numbers_by_step(head["spots"]),
            inputs=_numbers_by_step(head["inputs"]),
            averages=bool(head["averages"]),
        )

    def is_like(self, other: Print) -> bool:
        """Return whether the other rank has a replica of the same model."""
        return self.kind == other.kind and self.group == other.group


def _numbers_by_step(content: Mapping[str, Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in content.items()}


@dataclass(frozen=True, slots=True)
class OneElement:
    """The only element that differs between two replicas of a tensor.

    Attributes:
        index: Its place in the flattened tensor.
        bit: The only bit that differs, counted from the lowest; None: several do.
    """

    index: int
    bit: int | None


def one_element(first: Sequence[int], second: Sequence[int]) -> OneElement | None:
    """Return the element in which two tensors differ; None: they differ in several.

    Args:
        first: The three sums of the bits of one tensor.
        second: The same of the other tensor.

    Example:
        Element 5 has another lowest bit:

        >>> one_element([10, 20, 30], [11, 25, 55])
        OneElement(index=5, bit=0)
        >>> one_element([10, 20, 30], [11, 25, 56]) is None
        True
    """
    plain, placed, squared = (
        _signed(int(b) - int(a)) for a, b in zip(first, second, strict=True)
    )
    if not plain or placed % plain:
        return None
    index = placed // plain
    if index < 0 or _signed(index * index * plain) != squared:
        return None
    size = abs(plain)
    return OneElement(
        index, math.frexp(size)[1] - 1 if size & (size - 1) == 0 else None
    )


def _signed(number: int) -> int:
    """Return a number as 64 bits with a sign hold it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
