"""Tensors of which workers hold parts: which of them count, and the whole.

A parameter that is sharded has one part on each worker, or the same on several; of
what is held more than once the first rank's counts.  An activation that ranks share
has a group of parts for each part of the batch, so that all groups count, and of each
group one replica.

Thread safety: ``Contributions`` has none; the rest are pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg._core import Definition
from tdbg.trial._attempts import Lane
from tdbg.trial._roles import PER_WORKER, SHARD, role_of

__all__ = ["Contributions", "assemble", "is_shard", "tell_missing", "whole_count"]

_Placement = tuple[int, int, int, int, int]


class Contributions:
    """Which rows count when several workers have some of the same tensor.

    Lanes must be asked about in the order of their ranks.
    """

    def __init__(self) -> None:
        self._holders: dict[object, object] = {}

    def merges(self, lane: Lane, number: int) -> bool:
        """Whether the rows of this definition add to those of other workers."""
        definition = lane.writer.definitions[number]
        return role_of(definition) in PER_WORKER or is_shard(definition)

    def counts(self, lane: Lane, number: int) -> bool:
        """Whether they count: of a part held more than once only one holder's do."""
        definition = lane.writer.definitions[number]
        holder: object = lane.writer.rank
        if role_of(definition) in PER_WORKER:
            # Groups are told apart by nothing; their replicas by their places.
            holder = tuple(p[4] for p in definition.placements if p[0] != SHARD)
        elif not is_shard(definition):
            return True
        if not definition.placements:
            return True
        # Attempts may divide a tensor differently.
        part = (
            definition.name,
            lane.attempt,
            definition.global_shape,
            definition.global_offset,
            definition.shape,
        )
        return self._holders.setdefault(part, holder) == holder


def is_shard(definition: Definition) -> bool:
    """Whether it is of a part of a tensor."""
    return any(placement[0] == SHARD for placement in definition.placements)


def whole_count(definition: Definition) -> int:
    """Elements that all parts together have; 0 where nobody can know.

    The parts of an activation are not counted: how many groups of them there are
    depends on the training.
    """
    if not is_shard(definition) or role_of(definition) in PER_WORKER:
        return 0
    return math.prod(definition.global_shape)


def assemble(
    parts: Sequence[tuple[Definition, NDArray[np.generic]]],
) -> NDArray[np.generic] | None:
    """The whole tensor, which cannot be written to; None if parts are missing.

    Also where they are no blocks, but interleave.

    Args:
        parts: Those of one tensor with their values; at least one.  Of those that lie
            at the same place the first counts.
    """
    shape = parts[0][0].global_shape
    unique: dict[object, tuple[Definition, NDArray[np.generic]]] = {}
    for definition, value in parts:
        if definition.global_shape == shape and value.size:
            place = definition.global_offset, definition.shape
            unique.setdefault(place, (definition, value))
    found = list(unique.values())
    if not _tile(shape, [definition for definition, _ in found]):
        return None
    whole = np.empty(shape, parts[0][1].dtype)
    for definition, value in found:
        whole[_block(definition)] = value
    whole.flags.writeable = False
    return whole


def tell_missing(
    definitions: Iterable[Definition], savers: Iterable[str], workers: Iterable[str]
) -> str:
    """Which parts there are and which are missing, in words.

    Args:
        definitions: Of the parts that were saved; at least one.
        savers: Names of the workers that saved them.
        workers: Names of all workers that were seen.
    """
    known = list(definitions)
    cut = [i for i, p in enumerate(known[0].placements) if p[0] == SHARD]
    sizes = [known[0].placements[i][3] for i in cut]
    there = {tuple(each.placements[i][4] for i in cut) for each in known}
    missing = [at for at in np.ndindex(*sizes) if at not in there]
    by = list(savers)
    text = f"{len(there)} of {math.prod(sizes)} parts saved, by {', '.join(by)}"
    if missing:
        shown = ", ".join(str(at[0] if len(at) == 1 else at) for at in missing[:4])
        more = ", ..." if len(missing) > 4 else ""
        text += f"; missing: that of mesh coordinate {shown}{more}"
    else:
        text += "; they are no blocks of it"
    silent = [worker for worker in workers if worker not in by]
    if silent:
        text += f"; nothing of {', '.join(silent)}"
    return text


def _tile(shape: tuple[int, ...], definitions: Sequence[Definition]) -> bool:
    """Whether these parts cover the shape, each element once."""
    if sum(math.prod(each.shape) for each in definitions) != math.prod(shape):
        return False
    if not definitions:
        return True
    low = np.array([each.global_offset for each in definitions], np.int64)
    high = low + np.array([each.shape for each in definitions], np.int64)
    if (low < 0).any() or (high > np.array(shape, np.int64)).any():
        return False
    for i in range(len(low) - 1):
        apart = (high[i] <= low[i + 1 :]) | (high[i + 1 :] <= low[i])
        if not apart.any(axis=1).all():
            return False
    return True


def _block(definition: Definition) -> tuple[slice, ...]:
    pairs = zip(definition.global_offset, definition.shape, strict=True)
    return tuple(slice(start, start + size) for start, size in pairs)
