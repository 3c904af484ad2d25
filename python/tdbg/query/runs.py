"""A run as a row of the table ``runs``.

Every value comes from where the other faces of tdbg have it: state, loss and verdict
from ``view``, settings from ``compare``.  Columns that nobody asks for cost nothing.

Thread safety: functions and values; the trial's lock is held inside.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.compare import Value, settings_of
from tdbg.errors import TdbgError
from tdbg.modes import TRAINING, ModeKeys
from tdbg.trial import TABLES, LossSeries, Trial
from tdbg.view import UNREADABLE, RunView, loss_names, view_of

__all__ = ["RUN_COLUMNS", "RunRecord", "is_higher_better", "record_of", "unreadable"]

#: The columns of a row, in their order.
RUN_COLUMNS = TABLES["runs"]

# Metrics of which a higher value is the better one, by a word of their name.
_HIGHER = frozenset(
    {
        *("acc", "accuracy", "ap", "auc", "aucpr", "auroc", "bleu", "dice", "f1"),
        *("iou", "map", "miou", "mrr", "ndcg", "precision", "psnr", "r2", "recall"),
        *("return", "reward", "rouge", "score", "ssim", "success", "top1", "top5"),
    }
)
# Scalars that say how a training is set up: columns of ``settings``.
_SETTINGS = "scalar/optimizer/"


def is_higher_better(name: str) -> bool:
    """Whether the best value of a metric is its greatest one, by a word of its name.

    Example:
        >>> is_higher_better("val/top1_accuracy"), is_higher_better("val/perplexity")
        (True, False)
    """
    return not _HIGHER.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as a row.

    Attributes:
        values: Value of each column of ``RUN_COLUMNS`` that was asked for, but the
            three below; None where the run has none.
        last: Last value of each loss and metric; NaN where it is not finite.
        best: Best finite value of each; NaN if none is finite.
        settings: Settings and hyperparameters, as ``tdbg.compare.settings_of``.
    """

    values: Mapping[str, Any]
    last: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold: NaN is None, times are texts."""
        measured = {"last": self.last, "best": self.best}
        return {
            **{name: _plain(value) for name, value in self.values.items()},
            **{
                name: {each: _plain(value) for each, value in values.items()}
                for name, values in measured.items()
            },
            "settings": dict(self.settings),
        }


def record_of(
    trial: Trial,
    columns: Iterable[str] | None = None,
    *,
    view: RunView | None = None,
) -> RunRecord:
    """Return a run as a row of the table ``runs``.

    Args:
        trial: The run.
        columns: Names of columns; None: all of them.
        view: How the run is, if you have it at hand.

    Raises:
        QueryError: If there is no such column.

    Example:
        row = record_of(tdbg.create_trial("runs/digits"))
        print(row.values["state"], row.best, row.settings)
    """
    asked = [each.name for each in RUN_COLUMNS.named(columns)]
    try:
        with trial.no_refresh():
            return _record(_Run(trial, view), asked)
    except TdbgError as error:
        return unreadable(trial.path, error, asked)


def unreadable(
    path: str, error: TdbgError, columns: Iterable[str] | None = None
) -> RunRecord:
    """Return the row of a run that cannot be read.

    Args:
        path: Its directory.
        error: Why it cannot.
        columns: As of ``record_of``.
    """
    known = {"path": path, "state": UNREADABLE, "error": str(error)}
    asked = RUN_COLUMNS.names if columns is None else columns
    return RunRecord({name: known.get(name) for name in asked if name in _PLAIN})


class _Run:
    """A run, of which each part is read when a column needs it."""

    def __init__(self, trial: Trial, view: RunView | None) -> None:
        self.trial = trial
        self._view = view

    @cached_property
    def view(self) -> RunView:
        return self._view or view_of(self.trial)

    @cached_property
    def state(self) -> str:
        return self.trial.status if self._view is None else self._view.head.state

    @cached_property
    def created(self) -> datetime:
        return datetime.fromisoformat(self.trial.created)

    @property
    def updated(self) -> datetime | None:
        wall = self.view.head.wall
        return None if wall is None else datetime.fromtimestamp(wall, UTC)

    @property
    def duration(self) -> float | None:
        if self.updated is None:
            return None
        return (self.updated - self.created).total_seconds()

    @property
    def best_loss(self) -> float | None:
        loss = self.view.loss
        return None if loss is None else self.best[_label(loss.name, loss.mode)]

    @cached_property
    def losses(self) -> dict[str, NDArray[np.float64]]:
        """The values of each loss, in the order of their steps."""
        return {_label(each.name, each.mode): each.values for each in self._losses()}

    def _losses(self) -> list[LossSeries]:
        return self.trial.losses() if loss_names(self.trial) else []

    @cached_property
    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """The values of each scalar that is no setting, likewise."""
        return {
            _label(name.removeprefix("scalar/"), mode): series.values
            for mode in self.trial.modes()
            for name, series in self.trial.scalars(mode).items()
            if not name.startswith(_SETTINGS) and len(series.values)
        }

    @property
    def last(self) -> dict[str, float]:
        """The last value of each."""
        return {
            name: float(values[-1]) if np.isfinite(values[-1]) else math.nan
            for name, values in {**self.metrics, **self.losses}.items()
        }

    @cached_property
    def best(self) -> dict[str, float]:
        """The best value of each."""
        metrics = {
            name: _best(values, is_higher_better(name))
            for name, values in self.metrics.items()
        }
        losses = {name: _best(values, False) for name, values in self.losses.items()}
        return {**metrics, **losses}


def _label(name: str, mode: ModeKeys) -> str:
    """Return what a loss or metric is called; of evaluation it says so."""
    return name if mode in TRAINING else f"{name} ({mode.name})"


def _best(values: NDArray[np.float64], is_higher: bool) -> float:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan
    return float(finite.max() if is_higher else finite.min())


# What each column says of a run, but those that hold several values by name.
_PLAIN: dict[str, Callable[[_Run], Any]] = {
    "path": lambda run: run.trial.path,
    "state": lambda run: run.state,
    "created": lambda run: run.created,
    "updated": lambda run: run.updated,
    "duration": lambda run: run.duration,
    "steps": lambda run: run.view.head.steps,
    "evaluated": lambda run: run.view.head.evaluated,
    "recorded": lambda run: run.view.head.recorded,
    "rate": lambda run: run.view.head.rate,
    "cost": lambda run: run.view.head.cost,
    "bytes": lambda run: run.trial.n_bytes,
    "lost_records": lambda run: run.view.head.lost_records.records,
    "loss": lambda run: None if run.view.loss is None else run.view.loss.value,
    "best_loss": lambda run: run.best_loss,
    "verdict": lambda run: run.view.verdict.tone,
    "sentence": lambda run: run.view.verdict.sentence,
    "errors": lambda run: run.view.diagnosis.counts["error"],
    "warnings": lambda run: run.view.diagnosis.counts["warning"],
    "notes": lambda run: run.view.diagnosis.counts["info"],
    "error": lambda _: None,
}


def _record(run: _Run, asked: Iterable[str]) -> RunRecord:
    names = list(asked)
    return RunRecord(
        {name: _PLAIN[name](run) for name in names if name in _PLAIN},
        last=run.last if "last" in names else {},
        best=run.best if "best" in names else {},
        settings=settings_of(run.trial) if "settings" in names else {},
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
