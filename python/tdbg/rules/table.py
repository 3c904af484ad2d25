"""Tables of statistics, as rules see them, and the verdicts that rules make.

Implements docs/rules.md, "Windows".

Thread safety: tables are read-only.  Values and histograms are read on demand, by the
thread of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.run.findings import Evidence, Severity, Stage

if TYPE_CHECKING:
    from tdbg.rules.value_cache import ValueCache
    from tdbg.rules.vocabulary import Vocabulary
    from tdbg.stats.histogram import Histogram
    from tdbg.trial import TensorStatistics


__all__ = [
    "LASTING",
    "NOT_FINITE",
    "OK",
    "UNKNOWN",
    "Advice",
    "Bools",
    "Description",
    "Evaluation",
    "Floats",
    "Severities",
    "Table",
    "TensorInfo",
    "min_span",
    "nothing_to_describe",
    "rows_of_lasting",
    "streak_spans",
]


Severities = NDArray[np.int8]

# Verdicts that are no severity.
UNKNOWN = -1
OK = 0


#: What to do, in words; or a function that says it in those of the run's framework.
Advice: TypeAlias = str | Callable[["Vocabulary"], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A finding in words and numbers.

    Attributes:
        message: What was found.
        value: The number that was judged, or None.
        threshold: The limit that the value exceeds, or None.
        advice: What to do about it.
        since: The step since which it is so, if the rule had to watch it for a while;
            None: since the step of the verdict.
        stage: Where it stands in the chain of causes, if not where the findings of
            its rule usually do (``Rule.stage``).
        evidence: Which chart of the tensor shows it, and the limit in that chart.
        gain: The share of the time of a step that following the advice saves, from 0
            to 1; None: not known.
    """

    message: str
    value: float | None = None
    threshold: float | None = None
    advice: Advice = ""
    since: int | None = None
    stage: Stage | None = None
    evidence: Evidence | None = None
    gain: float | None = None


def nothing_to_describe(j: int) -> Description:
    """Raise: the ``describe`` of verdicts that are never findings."""
    raise AssertionError(j)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Verdicts of one rule on the new steps of a window.

    Attributes:
        names: The tensors.
        steps: The new steps, ascending.
        mode: Mode of the steps.
        severities: Names x steps: ``UNKNOWN``, ``OK`` or a ``Severity``.
        describe: Called with the indices (name, step) of a finding.
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    mode: ModeKeys
    severities: Severities
    describe: Callable[[int, int], Description]

    @classmethod
    def of_one(
        cls,
        name: str,
        steps: NDArray[np.int64],
        mode: ModeKeys,
        severities: NDArray[np.integer],
        describe: Callable[[int], Description],
    ) -> Evaluation:
        """Make verdicts on one name, which need not be a tensor: one for each step."""
        return cls(
            names=(name,),
            steps=steps,
            mode=mode,
            severities=severities.astype(np.int8)[np.newaxis, :],
            describe=lambda _, j: describe(j),
        )


Result = TypeVar("Result")
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

#: Steps that a condition must last to be no accident, however many of them were
#: recorded: a warm-up, or a layer that begins at zero, takes some.
LASTING = 10

# A derived field: number of elements that are NaN or infinite.
NOT_FINITE = "not_finite"


def rows_of_lasting(rows: int, steps: int = LASTING) -> int:
    """Return the ``lookback`` that ``Table.lasts`` needs.

    Example:
        >>> rows_of_lasting(3)
        9
    """
    return max(rows, steps) - 1


def min_span(rows: int, steps: int = LASTING) -> int:
    """Minimum span, in steps, of a streak of *rows* rows; 1 if *rows* is 1.

    Example:
        >>> min_span(3), min_span(1)
        (10, 1)
    """
    return steps if rows > 1 else 1


def streak_spans(
    steps: NDArray[np.int64],
    streak: NDArray[np.int64],
    begins: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the span of each streak, in steps: from its first row to the current one.

    Args:
        steps: Global steps.
        streak: Names x steps: length of the streak so far, in rows.
        begins: Names x steps: the step at which a streak that begins with this row
            counts as begun; None: the step of the row.
    """
    own = np.broadcast_to(steps, streak.shape) if begins is None else begins
    first = np.maximum.accumulate(np.where(streak == 1, own, -1), axis=1)
    lasted: NDArray[np.int64] = steps[np.newaxis, :] - first + 1
    return lasted


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """The facts about a tensor that ``Rule.selects`` can use.

    Attributes:
        name: The tensor's name.
        role: "weight", "bias", "gradient", "output", "loss", ...
        collections: The collections that the tensor belongs to.
        dtype: The element type, as "float32".
        shape: The shape as it first came, in any mode; () where it is not known.
    """

    name: str
    role: str
    collections: frozenset[str] = frozenset()
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Statistics of some tensors, names x steps, all steps of one mode.

    Attributes:
        names: The tensors, in the order of execution.
        roles: The role of each tensor.
        steps: Global steps, ascending.
        mode: Mode of the steps.
        start: Index of the first new step; the steps before it are older ones.
        present: Names x steps: whether the tensor has a row at the step.
        usable: For each step, whether it was recorded completely.
        skipped: For each step, whether the loss scaler skipped the optimizer.
        ordinal: Names x steps: number of the row, from 1 for the first row of the
            tensor in this mode; 0 where there is no row.
        columns: Returns a field of the rows by its name, names x steps.
        dtypes: The element type of each tensor, as "float32".
        shapes: The shape of each tensor as it first came, in any mode.
        wall_ns: When each step was recorded, in ns since 1970 UTC.
        generations: A number for each step, which changes where the training was
            started again between two steps.
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
    shapes: tuple[tuple[int, ...], ...]
    wall_ns: NDArray[np.int64]
    generations: NDArray[np.int64]
    _values: ValueCache

    def __getitem__(self, column: str) -> Floats:
        """Return one field of the rows, names x steps; NaN where there is no row."""
        return self.columns(column)

    def value(self, name: str, step: int) -> NDArray[np.generic] | None:
        """Return the values of a tensor at a step, as saved, or None.

        Any tensor and step of the run are allowed.  ``value_steps`` lists the steps
        that have values.  Values are cached.
        """
        return self._values.value(name, step)

    def derived(self, what: Hashable, step: int, make: Callable[[], Result]) -> Result:
        """Return what *make* computes from values at a step; cached for all rules.

        Args:
            what: The key of the result, besides the step.
            step: The step.
            make: Computes the result, from recorded values at that step only.
        """
        return self._values.derived(what, step, make)

    def value_steps(self, name: str) -> NDArray[np.int64]:
        """Return the steps of this table, old and new, at which a tensor has values."""
        return self._steps_of(name, "values")

    def first_value_step(self, name: str) -> int | None:
        """Return the first step of the run at which a tensor has values, or None."""
        found = self._values.steps(name, "values")
        return int(found[0]) if len(found) else None

    def histogram_steps(self, name: str) -> NDArray[np.int64]:
        """Return the steps of this table at which a tensor has a histogram."""
        return self._steps_of(name, "histograms")

    def _steps_of(self, name: str, what: str) -> NDArray[np.int64]:
        found = self._values.steps(name, what)
        ends = self.steps[:1], self.steps[-1:] + 1
        first, last = (found.searchsorted(end).sum() for end in ends)
        if first == last:
            return found[:0]
        return np.intersect1d(self.steps, found[first:last], assume_unique=True)

    def histogram(self, name: str, step: int) -> Histogram | None:
        """Return the histogram of a tensor at a step, or None."""
        return self._values.histogram(name, step)

    def by_worker(self, name: str, step: int) -> Mapping[str, TensorStatistics]:
        """Return the rows of a tensor by worker, ordered by rank.

        A tensor that all workers share may have a single row.
        """
        return self._values.by_worker(name, step)

    @property
    def known(self) -> Bools:
        """Names x steps: where there is a row, at a usable step."""
        return self.present & self.usable[np.newaxis, :]

    @property
    def not_finite(self) -> Floats:
        """Names x steps: how many elements are NaN or infinite."""
        return self[NOT_FINITE]

    def select(self, chosen: Sequence[int] | NDArray[np.intp]) -> Table:
        """Return a table of some of the tensors, at the same steps."""
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
            shapes=tuple(self.shapes[i] for i in rows),
            wall_ns=self.wall_ns,
            generations=self.generations,
            _values=self._values,
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
        """Return where *holds* has held for *rows* rows in a row and *steps* steps.

        Rows count as in ``streak``.  Steps count from the first of these rows to the
        current one, both included: where every step is recorded, a few rows pass in a
        moment.  If *rows* is 1, one row is enough.  The ``lookback`` of the rule must
        be at least ``rows_of_lasting(rows, steps)``.
        """
        streak = self.streak(holds, known)
        return (streak >= rows) & (
            streak_spans(self.steps, streak) >= min_span(rows, steps)
        )

    def judge(
        self,
        severities: NDArray[np.integer],
        describe: Callable[[int, int], Description],
        known: Bools | None = None,
    ) -> Evaluation:
        """Make verdicts on the new steps.

        Args:
            severities: Names x steps, for all steps of the table.
            describe: Called with the indices (name, step) of a finding in this table.
            known: Where a verdict is possible; elsewhere it is ``UNKNOWN``.
        """
        known = self.known if known is None else known & self.known
        start = self.start
        verdicts = np.where(
            known, severities.astype(np.int8, copy=False), np.int8(UNKNOWN)
        )
        return Evaluation(
            names=self.names,
            steps=self.steps[start:],
            mode=self.mode,
            severities=verdicts[:, start:],
            describe=lambda i, j: describe(i, j + start),
        )

    def judge_bad(
        self,
        bad: Bools,
        severity: Severity,
        describe: Callable[[int, int], Description],
    ) -> Evaluation:
        """Make verdicts of one severity, wherever *bad* holds."""
        severities = np.where(bad, np.int8(severity), np.int8(OK))
        return self.judge(severities, describe)

    def judge_lasting(
        self,
        bad: Bools,
        lasting: Bools,
        severity: Severity,
        describe: Callable[[int, int], Description],
        known: Bools,
    ) -> Evaluation:
        """Make verdicts of one severity, where *bad* has held for long enough.

        Where *bad* holds, but not yet *lasting*, the verdict is ``UNKNOWN``.
        """
        severities = np.where(lasting, np.int8(severity), np.int8(OK))
        return self.judge(severities, describe, known & (lasting | ~bad))

    def judge_one(
        self,
        name: str,
        severities: NDArray[np.integer],
        describe: Callable[[int], Description],
    ) -> Evaluation:
        """Make verdicts on one name, which need not be a tensor.

        Args:
            name: The name.
            severities: Of the new steps only.
            describe: Called with the index of a finding among the new steps.
        """
        steps = self.steps[self.start :]
        return Evaluation.of_one(name, steps, self.mode, severities, describe)
