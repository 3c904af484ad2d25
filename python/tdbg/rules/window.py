"""What a rule sees: columns of statistics over a stretch of steps.

Implements docs/rules.md, "Windows".  A window holds new steps, which a rule is to
judge, after older ones, which it may look back at.  It holds as many older steps as
the rule has declared to need, so that a verdict does not depend on where one window
ends and the next begins.

Thread safety: windows are read-only once made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.modes import ModeKeys

__all__ = [
    "FIELDS",
    "HEALTHY",
    "UNKNOWN",
    "Description",
    "Judgement",
    "Table",
    "TensorInfo",
    "UnitTable",
    "Window",
]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Levels = NDArray[np.int8]

# What a verdict is, where it is no severity.
UNKNOWN = -1
HEALTHY = 0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What a rule chooses tensors by.

    Attributes:
        name: The tensor's name.
        role: "weight", "bias", "gradient", "output", "loss", ...
        collections: Which of the collections that rules ask for it belongs to.
    """

    name: str
    role: str
    collections: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A verdict in words and numbers, made only where it is a finding."""

    message: str
    value: float | None = None
    threshold: float | None = None
    advice: str = ""


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
        value: Gives the values of a tensor at a step, or None.
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
    value: Callable[[str, int], NDArray[np.generic] | None] = field(
        default=lambda _name, _step: None
    )

    def __getitem__(self, column: str) -> Floats:
        """One field of the rows, names x steps; meaningless where not present."""
        return self.columns(column)

    @property
    def known(self) -> Bools:
        """Where there is a row, of a step that is there without loss."""
        return self.present & self.usable[np.newaxis, :]

    @property
    def not_finite(self) -> Floats:
        """How many elements are NaN or infinite."""
        infinite = self["positive_infinity"] + self["negative_infinity"]
        return self["nan"] + infinite

    def select(self, chosen: Sequence[int] | NDArray[np.intp]) -> Table:
        """The same steps of some of the tensors."""
        rows = np.asarray(chosen, dtype=np.intp)
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
            columns=lambda name: self.columns(name)[rows],
            value=self.value,
        )

    def streak(self, holds: Bools, known: Bools | None = None) -> NDArray[np.int64]:
        """For how many rows in a row *holds* has held, up to each one.

        Steps at which a tensor was not due are passed over.  A step that is not
        usable or was skipped, and a row that is there but not *known*, break the
        row: what is not known cannot be counted.
        """
        known = self.known if known is None else known
        result = np.zeros(holds.shape, dtype=np.int64)
        current = np.zeros(len(self.names), dtype=np.int64)
        grows = holds & known
        passed = ~self.present & (self.usable & ~self.skipped)[np.newaxis, :]
        for j in range(len(self.steps)):
            grown = np.where(grows[:, j], current + 1, 0)
            current = np.where(passed[:, j], current, grown)
            result[:, j] = np.where(passed[:, j], 0, current)
        return result

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
        verdicts = np.where(known, levels, UNKNOWN).astype(np.int8)
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
        levels = np.where(bad, int(severity), HEALTHY)
        return self.judge(levels, describe)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTable:
    """Unit summaries of one tensor in one mode: steps x units.

    Attributes:
        name: The tensor whose units they are.
        steps: Global steps, ascending.
        mode: The mode of the steps.
        start: Index of the first new step.
        usable: Steps: whether the step is there without loss.
        active: How many values of the unit were above zero.
        beyond: How many were outside the range that the summary watches.
        count: How many there were.
    """

    name: str
    steps: NDArray[np.int64]
    mode: ModeKeys
    start: int
    usable: Bools
    active: NDArray[np.uint64]
    beyond: NDArray[np.uint64]
    count: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one rule is shown at once.

    Attributes:
        first: First new step.
        last: Last new step.
    """

    first: int
    last: int
    _tables: tuple[Table, ...] = ()
    _unit_tables: tuple[UnitTable, ...] = ()

    def tables(self, *modes: ModeKeys) -> Iterator[Table]:
        """The tables that have new steps, of these modes, or of every mode."""
        for table in self._tables:
            if (not modes or table.mode in modes) and table.start < len(table.steps):
                yield table

    def table(self, mode: ModeKeys) -> Table | None:
        """What is seen of a mode, with new steps in it or not; None: nothing.

        For rules that judge steps of one mode by those of another.  Steps of the other
        mode that come after the one that is judged are not to be looked at.
        """
        return next((table for table in self._tables if table.mode is mode), None)

    def units(self, *modes: ModeKeys) -> Iterator[UnitTable]:
        """The unit summaries that have new steps, of these modes, or of all."""
        for table in self._unit_tables:
            if (not modes or table.mode in modes) and table.start < len(table.steps):
                yield table
