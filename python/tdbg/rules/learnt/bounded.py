"""Relations with a margin: quantities that stay between bounds.

Implements docs/learnt-invariants.md, "What tdbg learns".

Thread safety: pure functions.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import number, percent
from tdbg.config.tensor_names import UPDATE
from tdbg.modes import TRAINING
from tdbg.rules.columns import streak_of_known
from tdbg.rules.learnt.invariants import PHASES, Bounds, LearntInvariant
from tdbg.rules.learnt.rows import JudgedInvariants, Relation, Rows, fewest_rows
from tdbg.rules.window import Bools, Floats

__all__ = ["BOUNDED"]

_RATE = re.compile(r"^scalar/optimizer(_\d+)?/.*/lr$")
# With fewer elements, a root mean square is chance.
FEWEST_ELEMENTS = 16
# Consecutive recorded steps at which a range must be broken.
PATIENCE = 3


class _Bounded(Relation):
    """Base class of quantities that stay between bounds."""

    # Decades that a quantity may exceed what was seen, and fall below it.
    ABOVE = 0.7
    PATIENCE: ClassVar[int] = PATIENCE

    def join(self, found: Sequence[LearntInvariant]) -> LearntInvariant | None:
        """Return the bounds around what all runs have seen, with the margin."""
        seen: dict[str, Bounds] = {}
        for each in found:
            for phase, ends in each.seen.items():
                seen[phase] = _around(seen.get(phase, ends), ends)
        bounds = {
            phase: self._bounds(found[0].what, self._near(phase, seen))
            for phase in seen
        }
        bounds = {phase: ends for phase, ends in bounds.items() if ends != (None, None)}
        if not bounds:
            return None
        rows = sum(each.rows for each in found)
        return replace(found[0], seen=seen, bounds=bounds, rows=rows)

    def _near(self, phase: str, seen: Mapping[str, Bounds]) -> Bounds:
        """Return what was seen in a phase, if training may be a phase earlier or later.

        A training that learns faster is where the healthy one was later, and one that
        learns more slowly where it was earlier.
        """
        i = PHASES.index(phase)
        found = seen[phase]
        for other in PHASES[max(0, i - 1) : i + 2]:
            if other in seen:
                found = _around(found, seen[other])
        return found

    def _bounds(self, what: str, seen: Bounds) -> Bounds:
        least, most = seen
        if what == "zero_share":
            return _bounds_of_share(least or 0.0, most or 0.0)
        if least is None or most is None or most <= 0:
            return None, None
        spread = math.log10(most / least) if least > 0 else 0.0
        below = max(_BELOW.get(what, self.ABOVE), spread / 2)
        low = least / 10**below if least > 0 else None
        return low, most * 10 ** max(self.ABOVE, spread / 2)

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Find where quantities have left their bounds for some rows in a row."""
        values, known = self._values(invariants, rows)
        low, high = (
            np.array(
                [[_end(each, phase, end) for phase in PHASES] for each in invariants]
            )
            for end in (0, 1)
        )
        phases = rows.phases
        with np.errstate(invalid="ignore"):
            outside = (values < low[:, phases]) | (values > high[:, phases])
        has_bounds = ~(np.isnan(low) & np.isnan(high))[:, phases]
        known = known & has_bounds & np.isfinite(values)
        outside &= known
        broken = streak_of_known(outside, known) >= self.PATIENCE
        return self._all(invariants, known & (broken | ~outside), broken)

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Name the value, and what was seen."""
        values, _ = self._values([invariant], rows)
        value = float(values[0, column])
        phase = PHASES[rows.phases[column]]
        least, most = invariant.bounds[phase]
        limit = most if most is not None and value > most else least
        shown = percent if invariant.what == "zero_share" else number
        seen = invariant.seen.get(phase, (None, None))
        between = " to ".join(shown(end) for end in seen if end is not None)
        there = f"In the healthy run, it was {between} {self._when(phase)}."
        return f"{_QUANTITIES[invariant.what]} is {shown(value)}. {there}", value, limit

    def _when(self, phase: str) -> str:
        where = {"begin": "at the beginning", "middle": "in the middle"}
        return where.get(phase, "towards the end")

    @abstractmethod
    def _values(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> tuple[Floats, Bools]:
        """Return the quantity of each invariant at each step, and where it is known."""


class _Range(_Bounded):
    """Quantities over the training."""

    kind = "range"

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield what was seen of each quantity, by phase."""
        fewest = fewest_rows(rows.mode)
        role_of = dict(zip(rows.names, rows.roles, strict=True))
        for what, roles in _ROLES_OF.items():
            asked = [
                LearntInvariant(
                    kind=self.kind, tensor=name, mode=rows.mode.name, what=what
                )
                for name, role in zip(rows.names, rows.roles, strict=True)
                if role in roles and (role != "scalar" or _RATE.match(name))
                if what != "update_ratio"
                or role_of.get(name[len(UPDATE) :]) == "weight"
            ]
            if not asked:
                continue
            values, known = self._values(asked, rows)
            known = known & np.isfinite(values)
            for each, line, there in zip(asked, values, known, strict=True):
                seen = _seen(line, there, rows.phases, what)
                if seen and int(np.count_nonzero(there)) >= fewest:
                    n = int(np.count_nonzero(there))
                    yield replace(each, seen=seen, rows=n)

    def _values(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> tuple[Floats, Bools]:
        place = rows.places()
        at = [place[each.tensor] for each in invariants]
        known, rms = rows.known[at], rows.rms()
        values = rms[at]
        with np.errstate(invalid="ignore", divide="ignore"):
            for i, each in enumerate(invariants):
                if each.what == "zero_share":
                    values[i] = rows.fields("zero")[at[i]] / rows.fields("count")[at[i]]
                elif each.what == "update_ratio":
                    weight = place.get(each.tensor.removeprefix(UPDATE))
                    if weight is None:
                        known[i] = False
                    else:
                        values[i] /= rms[weight]
                        known[i] &= rows.known[weight]
        return values, known


class _Initial(_Bounded):
    """The scale of parameters before the first update."""

    kind = "initial"
    PATIENCE = 1

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield the scale of each parameter at training step 0."""
        columns = np.flatnonzero(rows.ages == 0)
        if rows.mode not in TRAINING or not len(columns):
            return
        rms, count, j = rows.rms(), rows.fields("count"), int(columns[0])
        for i, name in enumerate(rows.names):
            if rows.roles[i] not in {"weight", "bias"} or not rows.known[i, j]:
                continue
            if count[i, j] < FEWEST_ELEMENTS or not rms[i, j] > 0:
                continue
            value = float(rms[i, j])
            yield LearntInvariant(
                kind=self.kind,
                tensor=name,
                mode=rows.mode.name,
                what="rms",
                seen={PHASES[0]: (value, value)},
                rows=1,
            )

    def _values(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> tuple[Floats, Bools]:
        at = rows.at(invariants)
        return rows.rms()[at], rows.known[at] & (rows.ages == 0)

    def _when(self, phase: str) -> str:
        del phase
        return "before the first update"


#: The relations.
BOUNDED: tuple[Relation, ...] = (_Initial(), _Range())

_QUANTITIES = {
    "rms": "Its root mean square",
    "gradient_rms": "Its root mean square",
    "loss": "It",
    "learning_rate": "It",
    "zero_share": "The share of zeros",
    "update_ratio": "The ratio of the update to its weight",
}
# The roles of tensors whose quantities are learnt.
_ROLES_OF = {
    "rms": {"output", "model_input"},
    "gradient_rms": {"gradient"},
    "loss": {"loss"},
    "learning_rate": {"scalar"},
    "zero_share": {"output"},
    "update_ratio": {"update"},
}
# Decades by which quantities may be smaller that fall as a model learns, or by a
# schedule.
_BELOW = dict.fromkeys(("gradient_rms", "loss", "learning_rate", "update_ratio"), 3.0)
# How far a share of zeros may leave what was seen, and what counts where none was.
_SHARE, _SOME_ZEROS = 0.3, 0.02


def _bounds_of_share(least: float, most: float) -> Bounds:
    low = least - _SHARE if least > _SHARE else None
    if most == 0:
        return low, _SOME_ZEROS
    return low, most + _SHARE if most + _SHARE < 1 else None


def _end(invariant: LearntInvariant, phase: str, end: int) -> float:
    found = invariant.bounds.get(phase, (None, None))[end]
    return math.nan if found is None else found


def _around(a: Bounds, b: Bounds) -> Bounds:
    """Return the smallest bounds that hold both."""
    least = [each for each in (a[0], b[0]) if each is not None]
    most = [each for each in (a[1], b[1]) if each is not None]
    return min(least, default=None), max(most, default=None)


def _seen(
    values: Floats, known: Bools, phases: NDArray[np.intp], what: str
) -> dict[str, Bounds]:
    """Return least and greatest value in each phase; zeros are no scale."""
    seen: dict[str, Bounds] = {}
    for i, phase in enumerate(PHASES):
        there = values[known & (phases == i)]
        if what != "zero_share":
            there = there[there > 0]
        if len(there):
            seen[phase] = float(there.min()), float(there.max())
    return seen
