"""SimilarAcrossRuns: runs that should be the same but differ."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import plural
from tdbg.errors import ConfigurationError
from tdbg.rules.builtin.tensors.tensor_rule import TensorRule
from tdbg.rules.registry import register
from tdbg.rules.rule import check_names, check_number
from tdbg.rules.table import Description, Evaluation, Table
from tdbg.rules.window import Window
from tdbg.run.findings import Severity
from tdbg.stats.row_fields import FIELDS

if TYPE_CHECKING:
    from tdbg.trial import Trial

__all__ = ["SimilarAcrossRuns"]

# Number of trials that stay open between windows.
OPEN_RUNS = 16


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarAcrossRuns(TensorRule):
    """Report tensors that differ from those of another run at the same step.

    The rule compares rows of statistics, field by field.  A row that the other run
    lacks is unknown.

    Args:
        other_runs: Directories of the runs to compare with; at least one.
        collections: Collections to compare.
        rtol: Largest relative difference of a field.
        atol: Largest absolute difference of a field, in addition.

    Raises:
        ConfigurationError: If a parameter is not of its kind.

    Example::

        tdbg check runs/b --rule 'SimilarAcrossRuns(other_runs=["runs/a"])'
    """

    by_default: ClassVar[bool] = False
    other_runs: tuple[str, ...] = ()
    collections: tuple[str, ...] = ("losses", "weights", "biases", "gradients")
    rtol: float = 1e-6
    atol: float = 0.0

    def __post_init__(self) -> None:
        check_names(self, "other_runs")
        if not self.other_runs:
            msg = (
                f"{self.name}.other_runs is empty; give the runs to compare with, as "
                '("runs/first",)'
            )
            raise ConfigurationError(msg)
        TensorRule.__post_init__(self)
        check_number(self, "rtol", least=0.0)
        check_number(self, "atol", least=0.0)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Compare the run with each of the other runs."""
        others = [_open(run) for run in self.other_runs]
        for trial in others:
            trial.refresh()
        for table in window.tables():
            yield self._judge(table, others)

    def _judge(self, table: Table, others: list[Trial]) -> Evaluation:
        known = np.zeros(table.present.shape, bool)
        differs = np.zeros(table.present.shape, bool)
        worst: dict[tuple[int, int], tuple[str, str, float, float]] = {}
        for run, trial in zip(self.other_runs, others, strict=True):
            theirs = _rows_of(trial, table)
            both = table.known & ~np.isnan(theirs["count"])
            known |= both
            for field in FIELDS:
                a, b = table[field], theirs[field]
                close = np.isclose(a, b, self.rtol, self.atol, equal_nan=True)
                apart = both & ~close
                for i, j in np.argwhere(apart & ~differs).tolist():
                    worst[i, j] = run, field, float(a[i, j]), float(b[i, j])
                differs |= apart

        def describe(i: int, j: int) -> Description:
            run, field, ours, other = worst[i, j]
            same = int(np.count_nonzero(known[:, j] & ~differs[:, j]))
            return Description(
                message=(
                    f"This tensor differs from {run}: {field} is {ours:.9g} instead of "
                    f"{other:.9g}. At this step, {same:,} of "
                    f"{plural(int(np.count_nonzero(known[:, j])), 'tensor')} "
                    f"{'is' if same == 1 else 'are'} the same."
                ),
                value=abs(ours - other),
                threshold=self.atol + self.rtol * abs(other),
                advice=lambda words: (
                    f"If the runs should be the same, check {words.reproducing}, the "
                    "order of files, versions, and hardware. The first tensor that "
                    "differs shows where to look."
                ),
            )

        return table.judge(np.where(differs, int(Severity.WARNING), 0), describe, known)


@functools.lru_cache(maxsize=OPEN_RUNS)
def _open(run: str) -> Trial:
    from tdbg.trial import create_trial

    return create_trial(run)


def _rows_of(trial: Trial, table: Table) -> dict[str, NDArray[np.float64]]:
    """Return the rows of another run, arranged as in the table; NaN: no row."""
    shape = table.present.shape
    result = {field: np.full(shape, np.nan) for field in FIELDS}
    there = set(trial.tensor_names())
    names = [name for name in table.names if name in there]
    if not names or not len(table.steps):
        return result
    first, last = int(table.steps[0]), int(table.steps[-1])
    theirs = trial.statistics(names, start=first, end=last + 1)
    row = {name: i for i, name in enumerate(table.names)}
    rows = np.array([row[name] for name in theirs.names], np.intp)
    steps = np.asarray(theirs.steps)
    shared, mine, other = np.intersect1d(table.steps, steps, return_indices=True)
    usable = trial.step_table(start=first)
    sound = usable["step"][usable["complete"] & usable["lossless"]]
    kept = np.isin(shared, sound)
    mine, other = mine[kept], other[kept]
    for field in FIELDS:
        values = np.where(theirs.present, getattr(theirs, field), np.nan)
        result[field][np.ix_(rows, mine)] = values[:, other].astype(np.float64)
    return result
