"""What the prints of replicas say: whether they differ, where, and for what reason.

Replicas that are kept equal by a wrapper, or by the program's own reduction of
gradients, are equal to the last bit.  Where nobody says that they are to be equal
nothing is said: of tensors in no wrapper it is known only if their gradients, of ranks
that began alike, were equal too.  Replicas that meet again after some steps (local SGD)
differ on purpose.

Ranks that are given the same batches at each step are no replicas that differ, but no
use either: an average of equal gradients is that of one rank.

Thread safety: one caller at a time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.replica_prints import Print, Standing, one_element
from tdbg.run.observations import Fault

__all__ = ["Difference", "Differences"]

# Steps without a meeting of the replicas, after which a wrapper that was never called,
# or one whose reductions were switched off, is no part of local SGD.
_ALONE_STEPS = {Standing.BYPASSED: 7, Standing.UNSYNCED: 60}
# A difference below this share of the weights is one of rounding.
_ROUNDING = 1e-6
# Gradients are those of another rank times a number, up to this share.
_ALIKE = 1e-3
_OF_WRAPPER = (Standing.REDUCED, Standing.BYPASSED, Standing.UNSYNCED)
# Steps at which ranks are given equal batches, and different ones of each rank.
_LEAST_EQUAL = 10
# The step by which ranks without a wrapper have shown that they reduce gradients.
_PROVEN = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between replicas, or that there is none where one should be.

    Attributes:
        fault: The likely reason.
        n: The first look that saw it: steps of the optimizer before it.
        since: The latest look before at which all were equal; -1: none.
        names: The tensors that differ; none if what ranks were given does not.
        n_tensors: How many tensors were compared.
        ranks: All that were compared.
        odd: Those that differ from the majority; empty: there is no majority.
        numbers: More facts, by name.
    """

    fault: Fault
    n: int
    since: int
    names: tuple[str, ...]
    n_tensors: int
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)


class Differences:
    """Compare the prints of one look after the other.

    Example::

        differences = Differences()
        for each in differences.find(names, {0: mine, 1: its}):
            print(each.fault, each.names)
    """

    def __init__(self) -> None:
        # By tensor, the latest look at which it was equal, and the first at which not.
        self._equal_at: dict[str, int] = {}
        self._differs_at: dict[str, int] = {}
        # Whether ranks without a wrapper seem to reduce gradients.
        self._reduce = self._has_differed = self._buffers_differ = False

    def find(
        self, names: Sequence[str], prints: Mapping[int, Print]
    ) -> list[Difference]:
        """Return what is new in the prints of one look, by rank."""
        found = []
        groups = defaultdict[Any, dict[int, Print]](dict)
        for rank, each in sorted(prints.items()):
            if not each.group or rank in each.group:
                groups[each.kind, each.group][rank] = each
        for group in groups.values():
            if len(group) > 1 and not self._has_differed:
                found += self._compare(_Group(names, group))
            if len(group) > 1:
                found += _same_inputs(group)
        return found

    def _compare(self, group: _Group) -> list[Difference]:
        self._learn(group)
        for name in group.names_of(~group.differ):
            self._equal_at[name] = group.n
            self._differs_at.pop(name, None)
        for name in group.names_of(group.differ):
            self._differs_at.setdefault(name, group.n)
        found = []
        buffers = group.differ & (group.standings == Standing.BUFFER)
        if buffers.any() and not self._buffers_differ:
            self._buffers_differ = True
            found.append(self._difference(group, Fault.REPLICAS_BUFFERS, buffers))
        judged = np.isin(group.standings, (*_OF_WRAPPER, Standing.LATE))
        if self._reduce and group.n >= _PROVEN:
            judged |= group.standings == Standing.ALONE
        differ = group.differ & judged
        if differ.any():
            fault, chosen, numbers = _reason(group, differ)
            if fault is not None:
                self._has_differed = True
                found.append(self._difference(group, fault, chosen, numbers))
        return found

    def _difference(
        self,
        group: _Group,
        fault: Fault,
        chosen: NDArray[np.bool_],
        numbers: Mapping[str, float] | None = None,
    ) -> Difference:
        names = group.names_of(chosen)
        return Difference(
            fault,
            min(self._differs_at[name] for name in names),
            min(self._equal_at.get(name, -1) for name in names),
            names,
            len(group.differ),
            group.ranks,
            group.odd(chosen),
            {"relative": group.relative(chosen), **(numbers or {})},
        )

    def _learn(self, group: _Group) -> None:
        """Learn whether ranks reduce the gradients of tensors in no wrapper."""
        alone = group.standings == Standing.ALONE
        if group.n == 0:
            unlike = group.differ[alone].any() or group.gradients_differ[alone].any()
            equal = not unlike
            self._reduce = equal and bool(group.has_gradient[alone].any())
        elif group.n <= _PROVEN and group.differ[alone].any():
            self._reduce = False


class _Group:
    """Prints of ranks that share one replica, at one step.

    Attributes:
        n: Steps of the optimizer before it.
        standings: By tensor how it is kept equal; 0 where ranks do not agree on it.
        differ: By tensor, whether it differs on any two ranks.
        gradients_differ: The same of the gradients.
        has_gradient: By tensor, whether any rank has a gradient that is not zero.
    """

    def __init__(self, names: Sequence[str], prints: Mapping[int, Print]) -> None:
        self._names = names
        self.prints = prints
        self.ranks = tuple(prints)
        first = prints[self.ranks[0]]
        self.n = first.n
        every = np.array([each.standings for each in prints.values()])
        self.standings = np.where((every > 0).all(0), every.max(0), 0)
        self.weights = np.stack([each.weights for each in prints.values()])
        self.gradients = np.stack([each.gradients for each in prints.values()])
        self.sizes = np.stack([each.sizes for each in prints.values()])
        self.differ = _differ(self.weights)
        self.gradients_differ = _differ(self.gradients)
        self.has_gradient = np.asarray(self.gradients.any((0, 2)))

    def names_of(self, chosen: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return the names of the chosen tensors."""
        return tuple(self._names[i] for i in np.flatnonzero(chosen).tolist())

    def odd(self, chosen: NDArray[np.bool_]) -> tuple[int, ...]:
        """Return the ranks that differ from the majority in the chosen tensors."""
        return tuple(self.ranks[i] for i in _odd(self.weights[:, chosen]))

    def relative(self, chosen: NDArray[np.bool_]) -> float:
        """Return about how large the differences are, as a share of the weights."""
        squares, signed = self.sizes[:, chosen, 0], self.sizes[:, chosen, 1]
        apart = np.maximum(np.ptp(signed, axis=0), np.ptp(np.sqrt(squares), axis=0))
        whole = float(squares.max(0).sum())
        share = math.sqrt(float((apart**2).sum()) / whole) if whole > 0 else math.nan
        return share if math.isfinite(share) else math.nan


def _same_inputs(prints: Mapping[int, Print]) -> list[Difference]:
    """Return that ranks whose gradients a wrapper averages get the same batches."""
    ranks, every = tuple(prints), [*prints.values()]
    first = every[0].inputs
    is_equal = all(each.inputs == first for each in every)
    averages = all(each.averages for each in every)
    # Batches that are always alike are no samples: a graph, say.
    if not (is_equal and averages) or len({*first.values()}) < _LEAST_EQUAL:
        return []
    steps = {"steps": len(first)}
    fault = Fault.RANKS_SAME_INPUTS
    return [Difference(fault, every[0].n, -1, (), 0, ranks, (), steps)]


def _differ(sums: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which tensors differ, given the sums of each rank and tensor."""
    found: NDArray[np.bool_] = (sums != sums[:1]).any((0, 2))
    return found


def _odd(sums: NDArray[Any]) -> list[int]:
    """Return which ranks differ from the majority of them; none without one."""
    owners = defaultdict[bytes, list[int]](list)
    for i, each in enumerate(sums):
        owners[each.tobytes()].append(i)
    most = max(owners.values(), key=len)
    if 2 * len(most) <= len(sums):
        return []
    return [i for i in range(len(sums)) if i not in most]


_Found = tuple[Fault | None, NDArray[np.bool_], Mapping[str, float]]


def _reason(group: _Group, differ: NDArray[np.bool_]) -> _Found:
    """Return the likely reason for which tensors differ, and which of them tell."""
    for standing, fault in (
        (Standing.BYPASSED, Fault.REPLICAS_BYPASS),
        (Standing.UNSYNCED, Fault.REPLICAS_UNSYNCED),
    ):
        chosen = differ & (group.standings == standing)
        if chosen.any():
            n_apart = _n_apart(group.prints.values())
            is_sure = n_apart >= _ALONE_STEPS[standing]
            return fault if is_sure else None, chosen, {"apart": n_apart}
    late = differ & (group.standings == Standing.LATE)
    if late.any() and (late == differ).all():
        return Fault.REPLICAS_LATE_PARAMETERS, late, {}
    differ = differ & ~late
    if group.n == 0:
        return Fault.REPLICAS_START, differ, {}
    found = _one_element(group, differ)
    if found is not None:
        return Fault.REPLICAS_ELEMENT, differ, found
    return _reason_in_steps(group, differ)


def _reason_in_steps(group: _Group, differ: NDArray[np.bool_]) -> _Found:
    """Return what happened to replicas that had been equal."""
    forwards = [each.n_forwards for each in group.prints.values()]
    if len(set(forwards)) > 1:
        extremes = {"least": min(forwards), "most": max(forwards)}
        return Fault.REPLICAS_STEPS, differ, extremes
    if group.relative(differ) < _ROUNDING:
        return Fault.REPLICAS_ROUNDING, differ, {}
    unlike = group.gradients_differ & differ
    if not unlike.any():
        return Fault.REPLICAS_UPDATES, differ, {}
    ratio = _ratio(group.sizes[:, unlike, 2:])
    if ratio is not None:
        return Fault.REPLICAS_SCALED, differ, {"ratio": ratio}
    return Fault.REPLICAS_GRADIENTS, unlike, {}


def _one_element(
    group: _Group, differ: NDArray[np.bool_]
) -> Mapping[str, float] | None:
    """Return the facts of the only element that differs; None: several do."""
    if np.count_nonzero(differ) != 1:
        return None
    sums = group.weights[:, differ][:, 0].tolist()
    others = [each for each in sums if each != sums[0]]
    if any(each != others[0] for each in others):
        return None
    found = one_element(sums[0], others[0])
    if found is None:
        return None
    bit = {} if found.bit is None else {"bit": found.bit}
    return {"index": found.index, **bit}


def _ratio(sizes: NDArray[Any]) -> float | None:
    """Return by how much the gradients of some ranks are scaled; None: they are not.

    Args:
        sizes: By rank and tensor, the sum of squares and the sum with signs.
    """
    norms = np.sqrt(sizes[:, :, 0].sum(1))
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        return None
    signed = sizes[:, :, 1] / norms[:, None]
    if not np.allclose(signed, signed[:1], rtol=_ALIKE, atol=_ALIKE):
        return None
    ratio = float(norms.max() / norms.min())
    return ratio if ratio > 1 + _ALIKE else None


def _n_apart(prints: Iterable[Print]) -> int:
    """Return at how many steps the ranks were not all equal; 0 if they once were."""
    every = [each.spots for each in prints]
    common = sorted(set.intersection(*(set(spots) for spots in every)))
    values = [[spots[n] for spots in every] for n in common if n > 0]
    if any(len(set(each)) == 1 for each in values):
        return 0
    return len(values)
