"""What invariants are learnt from and judged by: rows, and relations between them.

Implements docs/learnt-invariants.md, "What tdbg learns".  Learning sees a whole run
as one ``Rows``, a rule sees its window as another; both ask the same relation, so that
what is learnt and what is judged cannot differ.

Thread safety: pure functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import EVALUATION, TRAINING, ModeKeys
from tdbg.rules.columns import model_info_of_steps
from tdbg.rules.learnt.invariants import PHASES, LearntInvariant, phases_of
from tdbg.rules.window import Bools, Floats, Table, Window
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo
from tdbg.run.observations import Fault

__all__ = [
    "FEWEST_EVALUATED",
    "FIELDS",
    "WHOLE",
    "JudgedInvariants",
    "Relation",
    "Rows",
    "fewest_rows",
]

#: What hooks see of replicas that differ.
REPLICAS = frozenset(each for each in Fault if each.name.startswith("REPLICAS_"))
#: Stands in place of a tensor's name for statements about the whole training.
WHOLE = "training"
#: The columns of a row that relations read.
FIELDS = ("count", "zero", "min", "max", "mean", "m2", "l2")
# Fewest recorded steps that support a statement, in training and in evaluation.
FEWEST_ROWS, FEWEST_EVALUATED = 8, 3


def fewest_rows(mode: ModeKeys) -> int:
    """Return how many recorded steps of a mode must support a statement."""
    return FEWEST_EVALUATED if mode in EVALUATION else FEWEST_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Statistics of tensors at steps of one mode, and what is known of the model.

    Attributes:
        names: The tensors, in the order of execution.
        roles: The role of each.
        dtypes: The element type of each.
        mode: Mode of the steps.
        ages: For each step, the number of training steps before it.
        known: Names x steps: where there is a row, at a usable step.
        fields: Returns a field of the rows, names x steps.
        infos: The model info that holds at some of the steps.
        evaluated: Ages of the steps of evaluation; only with steps of training.
        differ: For each step, whether replicas were seen to differ.
        phase_starts: The age at which each phase begins.
    """

    names: tuple[str, ...]
    roles: tuple[str, ...]
    dtypes: tuple[str, ...]
    mode: ModeKeys
    ages: NDArray[np.int64]
    known: Bools
    fields: Callable[[str], Floats]
    infos: Sequence[tuple[ModelInfo | None, slice]] = ()
    evaluated: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    differ: Bools | None = None
    phase_starts: Mapping[str, int] = field(default_factory=lambda: phases_of(1))

    @property
    def phases(self) -> NDArray[np.intp]:
        """For each step, the index of its phase in ``PHASES``."""
        starts = [self.phase_starts[phase] for phase in PHASES]
        return np.searchsorted(starts, self.ages, side="right") - 1

    @classmethod
    def of(cls, table: Table, window: Window, steps: int) -> Rows:
        """Return the rows of a table.

        Args:
            table: The table; its old steps are taken, too.
            window: The window that has it.
            steps: How many training steps the healthy runs had.
        """
        evaluated: list[int] = []
        if table.mode in TRAINING:
            tables = filter(None, map(window.table, EVALUATION))
            every = (step for other in tables for step in other.steps.tolist())
            evaluated = [window.training_step(step) for step in every]
        differ = [each.step for each in window.observations(REPLICAS)]
        since = min(differ, default=np.iinfo(np.int64).max)
        return cls(
            names=table.names,
            roles=table.roles,
            dtypes=table.dtypes,
            mode=table.mode,
            ages=np.array([*map(window.training_step, table.steps.tolist())], np.int64),
            known=table.known,
            fields=table.__getitem__,
            infos=tuple(model_info_of_steps(window, table)),
            evaluated=np.array(evaluated, np.int64),
            differ=table.steps >= since,
            phase_starts=phases_of(steps),
        )

    def places(self) -> dict[str, int]:
        """Return the index of each name."""
        return {name: i for i, name in enumerate(self.names)}

    def at(self, invariants: Iterable[LearntInvariant]) -> NDArray[np.intp]:
        """Return the index of the tensor of each invariant."""
        place = self.places()
        return np.array([place[each.tensor] for each in invariants], np.intp)

    def rms(self) -> Floats:
        """Return the root mean square of each row."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.fields("l2") / np.sqrt(self.fields("count")))

    def before(self) -> NDArray[np.intp]:
        """Return for each cell the column of the known row before it; -1: none."""
        at = np.arange(self.known.shape[1])
        last = np.maximum.accumulate(np.where(self.known, at, -1), axis=1)
        before = np.full_like(last, -1)
        before[:, 1:] = last[:, :-1]
        return before


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedInvariants:
    """Verdicts on some invariants of one kind: invariants x steps.

    Attributes:
        invariants: The invariants.
        known: Where a verdict is possible.
        broken: Where the invariant does not hold.
    """

    invariants: tuple[LearntInvariant, ...]
    known: Bools
    broken: Bools


class Relation(ABC):
    """A kind of invariant.

    Attributes:
        kind: Its name in files.
        severity: Of a finding that it is broken.
    """

    kind: ClassVar[str]
    severity: ClassVar[Severity] = Severity.WARNING

    @abstractmethod
    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield what holds in a healthy run, at all of its steps of one mode."""

    def join(self, found: Sequence[LearntInvariant]) -> LearntInvariant | None:
        """Return what holds in several runs that each have a statement; None: nothing.

        By default, what has the same value in all of them.
        """
        first = found[0]
        if any(each.value != first.value for each in found):
            return None
        return replace(first, rows=sum(each.rows for each in found))

    @abstractmethod
    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Judge invariants of this kind at all steps.

        REQUIRES: the rows have the tensors of the invariants, and their mode.
        """

    @abstractmethod
    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Say how an invariant is broken at a step.

        Returns:
            The sentence, the value, and the limit that it breaks.
        """

    def _all(
        self, invariants: Sequence[LearntInvariant], known: Bools, broken: Bools
    ) -> JudgedInvariants:
        return JudgedInvariants(
            invariants=tuple(invariants), known=known, broken=broken & known
        )
