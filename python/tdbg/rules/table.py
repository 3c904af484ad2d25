"""Columns of statistics over a stretch of steps, as a rule sees them.

Implements docs/rules.md, "Windows".

Thread safety: read-only once made; values and histograms are read when asked for, by
the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules.verdicts import HEALTHY, UNKNOWN, Description, Judgement

if TYPE_CHECKING:
    from tdbg.histogram import Histogram
    from tdbg.rules.source import RowSource

__all__ = [
    "FIELDS",
    "LASTING",
    "NOT_FINITE",
    "Bools",
    "Cells",
    "Floats",
    "Table",
    "TensorInfo",
    "rows_of_lasting",
    "spans",
    "steps_of",
]

Made = TypeVar("Made")
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

#: For so many steps something must last to be no accident, however many of them were
#: recorded: a warm-up, or a layer that begins at zero, takes some.
LASTING = 10

FIELDS = (
    "count",
    "nan",
    "positive_infinity",
    "negative_infinity",
    "zero",
    "min",
    "max",
    "abs_min",
    "mean",
    "m2",
    "l1",
    "l2",
)


# What is worked out of fields once for all rules, and kept like one.
NOT_FINITE = "not_finite"


def rows_of_lasting(rows: int, steps: int = LASTING) -> int:
    """How many rows before a new one decide whether something lasts.

    Example:
        >>> rows_of_lasting(3)
        9
    """
    return max(rows, steps) - 1


def steps_of(rows: int, steps: int = LASTING) -> int:
    """How many steps so many rows in a row must last: who asks for one wants it now.

    Example:
        >>> steps_of(3), steps_of(1)
        (10, 1)
    """
    return steps if rows > 1 else 1


def spans(
    steps: NDArray[np.int64],
    streak: NDArray[np.int64],
    begins: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Of how many steps each streak is, from its first row to this one.

    Args:
        steps: Global steps.
        streak: Names x steps: for how many rows in a row something has held.
        begins: Names x steps: the step from which on it holds; None: that of the row.
    """
    own = np.broadcast_to(steps, streak.shape) if begins is None else begins
    first = np.maximum.accumulate(np.where(streak == 1, own, -1), axis=1)
    lasted: NDArray[np.int64] = steps[np.newaxis, :] - first + 1
    return lasted


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What a rule chooses tensors by.

    Attributes:
        name: The tensor's name.
        role: "weight", "bias", "gradient", "output", "loss", ...
        collections: Which of the collections that rules ask for it belongs to.
        dtype: Its element type, as "float32".
    """

    name: str
    role: str
    collections: frozenset[str] = frozenset()
    dtype: str = ""


class Cells(Protocol):
    """What is read cell by cell."""

    def value(self, name: str, step: int) -> NDArray[np.generic] | None:
        """The values of a tensor at a step."""
        ...

    def histogram(self, name: str, step: int) -> Histogram | None:
        """The histogram of a tensor at a step."""
        ...

    def by_worker(self, name: str, step: int) -> Mapping[str, RowSource]:
        """The row of each worker."""
        ...

    def derived(self, what: Hashable, step: int, make: Callable[[], Made]) -> Made:
        """What is worked out of values at a step."""
        ...

    def steps(self, name: str, what: str = "values") -> NDArray[np.int64]:
        """Steps at which a tensor has values, or "histograms", ascending."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Statistics of some tensors, names x steps, all steps of one mode.

    Attributes:
        names: The tensors, in the order in which the run defined them.
        roles: Their roles.
        steps: Global steps, ascending.
        mode: The mode of the steps.
        start: Index of the first new step; those before it are looked back at.
        present: Names x steps: whether the tensor has a row there.
        usable: Steps: whether everything that was captured there is also here.
        skipped: Steps: whether the loss scaler skipped the optimizer.
        ordinal: Names x steps: which row of its tensor in this mode it is, from 1;
            0 where there is none.
        columns: Gives a field of the rows by its name, names x steps.
        dtypes: Their element types, as "float32".
        wall_ns: When each step was recorded, in ns since 1970 UTC.
        generations: A number for each step, which changes from one step to the next
            where the training was started again between them.
    """

    names: tuple[str, ...]
    roles: tuple[str, ...]
    steps: NDArray[np.int64]
    mode: ModeKeys
    start: int
    present: Bools
    usable: Bools
    skipped: Bools
    ordinal: NDArray[np.int64]
    columns: Callable[[str], Floats]
    dtypes: tuple[str, ...]
    wall_ns: NDArray[np.int64]
    generations: NDArray[np.int64]
    _cells: Cells

    def __getitem__(self, column: str) -> Floats:
        """One field of the rows, names x steps; meaningless where not present."""
        return self.columns(column)

    def value(self, name: str, step: int) -> NDArray[np.generic] | None:
        """The values of a tensor at a step, as they were saved; None: there are none.

        Any tensor and step may be asked for, and asking twice reads once.  Those at
        which there are values are ``value_steps``.
        """
        return self._cells.value(name, step)

    def derived(self, what: Hashable, step: int, make: Callable[[], Made]) -> Made:
        """What is worked out of values at a step, once for all rules and windows.

        Args:
            what: Tells it from anything else that is worked out at that step.
            step: The step.
            make: Works it out, of nothing but recorded values at that step.
        """
        return self._cells.derived(what, step, make)

    def value_steps(self, name: str) -> NDArray[np.int64]:
        """The steps of this table, old and new, at which a tensor has values."""
        return self._steps_of(name, "values")

    def histogram_steps(self, name: str) -> NDArray[np.int64]:
        """The same of histograms."""
        return self._steps_of(name, "histograms")

    def _steps_of(self, name: str, what: str) -> NDArray[np.int64]:
        found = self._cells.steps(name, what)
        ends = self.steps[:1], self.steps[-1:] + 1
        first, last = (found.searchsorted(end).sum() for end in ends)
        if first == last:
            return found[:0]
        return np.intersect1d(self.steps, found[first:last], assume_unique=True)

    def histogram(self, name: str, step: int) -> Histogram | None:
        """The histogram of a tensor at a step, or None."""
        return self._cells.histogram(name, step)

    def by_worker(self, name: str, step: int) -> Mapping[str, RowSource]:
        """The row of each worker that has one of its own, by its name, by rank.

        Of what all workers hold alike there may be one only.
        """
        return self._cells.by_worker(name, step)

    @property
    def known(self) -> Bools:
        """Where there is a row, of a step that is there without loss."""
        return self.present & self.usable[np.newaxis, :]

    @property
    def not_finite(self) -> Floats:
        """How many elements are NaN or infinite."""
        return self[NOT_FINITE]

    def select(self, chosen: Sequence[int] | NDArray[np.intp]) -> Table:
        """The same steps of some of the tensors."""
        rows = np.asarray(chosen, dtype=np.intp)
        cut: dict[str, Floats] = {}

        def read(name: str) -> Floats:
            if name not in cut:
                cut[name] = self.columns(name)[rows]
                cut[name].flags.writeable = False
            return cut[name]

        return Table(
            names=tuple(self.names[i] for i in rows),
            roles=tuple(self.roles[i] for i in rows),
            steps=self.steps,
            mode=self.mode,
            start=self.start,
            present=self.present[rows],
            usable=self.usable,
            skipped=self.skipped,
            ordinal=self.ordinal[rows],
            columns=read,
            dtypes=tuple(self.dtypes[i] for i in rows),
            wall_ns=self.wall_ns,
            generations=self.generations,
            _cells=self._cells,
        )

    def streak(self, holds: Bools, known: Bools | None = None) -> NDArray[np.int64]:
        """For how many rows in a row *holds* has held, up to each one.

        Steps at which a tensor was not due are passed over.  A step that is not
        usable or was skipped, and a row that is there but not *known*, break the
        row: what is not known cannot be counted.
        """
        known = self.known if known is None else known
        grows = holds & known
        passed = ~self.present & (self.usable & ~self.skipped)[np.newaxis, :]
        counted = np.cumsum(grows, axis=1, dtype=np.int64)
        # What was counted up to the last cell that breaks the row, itself included.
        broken = np.where(grows | passed, 0, counted)
        counted -= np.maximum.accumulate(broken, axis=1)
        counted[passed] = 0
        return counted

    def lasts(
        self,
        holds: Bools,
        known: Bools | None = None,
        *,
        rows: int,
        steps: int = LASTING,
    ) -> Bools:
        """Where *holds* has held for so many *rows* in a row and so many *steps*.

        Rows count as in ``streak``, steps of training from the first of these rows to
        this one, both included: where every step is recorded, some rows pass in a
        moment.  One row is at once.  A rule must look back at
        ``rows_of_lasting(rows, steps)`` rows.
        """
        streak = self.streak(holds, known)
        return (streak >= rows) & (spans(self.steps, streak) >= steps_of(rows, steps))

    def judge(
        self,
        levels: NDArray[np.integer],
        describe: Callable[[int, int], Description],
        known: Bools | None = None,
    ) -> Judgement:
        """Verdicts for the new steps.

        Args:
            levels: Names x steps, for all steps of the table.
            describe: Called with the row and the column of a finding in this table.
            known: Where a verdict is possible; elsewhere it is ``UNKNOWN``.
        """
        known = self.known if known is None else known & self.known
        start = self.start
        verdicts = np.where(known, levels.astype(np.int8, copy=False), np.int8(UNKNOWN))
        return Judgement(
            names=self.names,
            steps=self.steps[start:],
            mode=self.mode,
            levels=verdicts[:, start:],
            describe=lambda i, j: describe(i, j + start),
        )

    def judge_bad(
        self,
        bad: Bools,
        severity: Severity,
        describe: Callable[[int, int], Description],
    ) -> Judgement:
        """Verdicts of one severity, wherever *bad* holds."""
        levels = np.where(bad, np.int8(severity), np.int8(HEALTHY))
        return self.judge(levels, describe)

    def judge_lasting(
        self,
        bad: Bools,
        lasting: Bools,
        severity: Severity,
        describe: Callable[[int, int], Description],
        known: Bools,
    ) -> Judgement:
        """Verdicts of one severity, where *bad* has held for long enough.

        Bad, but not yet for long enough, is neither a finding nor well again.
        """
        levels = np.where(lasting, np.int8(severity), np.int8(HEALTHY))
        return self.judge(levels, describe, known & (lasting | ~bad))

    def judge_one(
        self,
        name: str,
        levels: NDArray[np.integer],
        describe: Callable[[int], Description],
    ) -> Judgement:
        """Verdicts on one tensor, or on what goes by one name.

        Args:
            name: The tensor.
            levels: Of the new steps only.
            describe: Called with the index of a finding among these.
        """
        steps = self.steps[self.start :]
        return Judgement.of_one(name, steps, self.mode, levels, describe)
