"""State, steps, rate, cost and missing data of a run.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.messages import counted
from tdbg.modes import EVALUATION, TRAINING
from tdbg.trial import Trial, stop_reason

__all__ = ["ENDED", "Head", "are_trees", "head_of", "training_steps"]

#: States of a training that writes no more.
ENDED = ("closed", "dead")
# The rate is that of so many of the newest recorded steps.
RATE_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A run in numbers.

    Attributes:
        status: State of the training, as ``Trial.status``.
        steps: Training steps from the first to the last recorded one, evaluation apart;
            rounds of boosted trees.
        evaluated: Steps of evaluation and prediction, counted likewise.
        step_word: "step", or "round" of boosted trees.
        recorded: Recorded steps of all modes.
        first_step: Global number of the first recorded step; None if there is none.
        last_step: Global number of the last one.
        wall: Time of the last recorded step, in seconds since 1970 UTC, or None.
        rate: Training steps per second among the newest ones, or None.
        cost: Time that capture adds to a step, as a share of the step; None if the
            training was too short to tell.
        cost_text: The cost in words.
        stopped: Why somebody stopped the training, or None.
        created: When the run was created, as ISO 8601 text in UTC.
        bytes: Size of the run's files.
        problems: Number of problems with these files.
        lost: Number of lost records, whatever the reason.
        lost_text: Lost and unreadable records in words; empty if there are none.
        is_whole: Whether nothing is missing but what was left out on purpose.
        incomplete: Steps that some worker did not record and will not.
        damaged: Recorded steps that lost something.
        ranks: Number of ranks that the newest attempt was started with.
        absent: Number of those that wrote nothing.
    """

    status: str
    steps: int
    evaluated: int
    step_word: str
    recorded: int
    first_step: int | None
    last_step: int | None
    wall: float | None
    rate: float | None
    cost: float | None
    cost_text: str
    stopped: str | None
    created: str
    bytes: int
    problems: int
    lost: int
    lost_text: str
    is_whole: bool
    incomplete: int
    damaged: int
    ranks: int
    absent: int

    @property
    def has_ended(self) -> bool:
        """Whether the training writes no more."""
        return self.status in ENDED

    @property
    def counted_steps(self) -> str:
        """The training steps in words: ``1,263 steps``, ``1 round``."""
        if not self.steps and self.evaluated:
            return f"{_many(self.evaluated, 'step')} of evaluation"
        return _many(self.steps, self.step_word)

    @property
    def missing(self) -> str:
        """Say which data is missing; empty if none is."""
        parts = []
        if not self.is_whole:
            if self.lost:
                parts.append(f"{_many(self.lost, 'record')} lost")
            elif self.damaged:
                parts.append(f"{_many(self.damaged, 'step')} damaged")
            else:
                parts.append("some of its files are damaged")
        if self.incomplete:
            parts.append(f"{_many(self.incomplete, 'step')} not recorded by all ranks")
        if self.absent:
            parts.append(
                f"{self.absent:,} of {_many(self.ranks, 'rank')} wrote nothing"
            )
        return " and ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        document = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**document, "missing": self.missing}


def head_of(trial: Trial) -> Head:
    """Return the head of a run as it is now.

    Raises:
        TdbgError: If the run cannot be read.
    """
    with trial.no_refresh():
        table = trial.step_table()
        overhead, lost = trial.overhead(), trial.lost_records()
        steps, wall = table["step"], table["wall_ns"]
        status = trial.status
        is_over = status == "closed"
        newest = trial.attempts()[-1:]
        ranks = newest[0].world_size if newest else 0
        return Head(
            status=status,
            steps=training_steps(table),
            evaluated=_span(table, EVALUATION),
            step_word="round" if are_trees(trial) else "step",
            recorded=len(table),
            first_step=int(steps[0]) if len(steps) else None,
            last_step=int(steps[-1]) if len(steps) else None,
            wall=float(wall[-1]) / 1e9 if len(wall) else None,
            rate=_rate(table),
            cost=overhead.share if overhead.is_telling else None,
            cost_text=str(overhead),
            stopped=stop_reason(trial.events("status")),
            created=trial.created,
            bytes=trial.n_bytes,
            problems=len(trial.problems()),
            lost=lost.records,
            lost_text=str(lost) if lost else "",
            is_whole=lost.in_order,
            # Nobody comes late to a training that has ended in order.
            incomplete=int(np.sum((table["settled"] | is_over) & ~table["complete"])),
            damaged=int(np.sum(~table["lossless"])),
            ranks=ranks,
            absent=max(0, ranks - len(newest[0].writers)) if newest else 0,
        )


def training_steps(table: NDArray[np.void]) -> int:
    """Return the number of training steps, recorded or not, as the user counts them.

    Args:
        table: Steps as ``Trial.step_table`` returns them.

    Example:
        >>> training_steps(trial.step_table())  # every tenth of 400 is recorded
        391
    """
    return _span(table, TRAINING)


def are_trees(trial: Trial) -> bool:
    """Whether the run is of boosted trees, whose steps are rounds."""
    named = trial.collections()
    held = (named.get(name) for name in ("feature_importance", "trees"))
    if any(each is not None and each.tensor_names for each in held):
        return True
    return any("Booster" in info.models for info in trial.model_info())


def _span(table: NDArray[np.void], modes: frozenset[Any]) -> int:
    """Steps of some modes from the first to the last recorded one, each by itself."""
    total = 0
    for mode in modes:
        counts = table["mode_step"][table["mode"] == mode.value]
        total += int(counts.max() - counts.min()) + 1 if len(counts) else 0
    return total


def _rate(table: NDArray[np.void]) -> float | None:
    latest = table[np.isin(table["mode"], [mode.value for mode in TRAINING])]
    latest = latest[-RATE_STEPS:]
    if len(latest) < 2:
        return None
    seconds = float(latest["wall_ns"][-1] - latest["wall_ns"][0]) / 1e9
    n = training_steps(latest) - 1
    return n / seconds if seconds > 0 and n > 0 else None


def _many(n: int, noun: str) -> str:
    """``counted`` with separators between thousands: 1,263 steps."""
    return counted(n, noun).replace(str(n), f"{n:,}", 1)
