"""StalledTraining: trainings that stall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs
from tdbg.modes import ModeKeys
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.table import Description, Evaluation
from tdbg.rules.window import Idle, TensorInfo, Window
from tdbg.run.findings import Severity

__all__ = ["StalledTraining"]

NANOSECONDS = 1e-9
# The name of verdicts on the training as a whole.
NAME = "training"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class StalledTraining(Rule):
    """Report trainings that record no step for a long time.

    Args:
        threshold: Seconds without a step.
        times_usual: Times the longest of the last pauses between two steps that the
            pause must also exceed.
        num_steps: Number of last pauses to consider.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold: float = 600.0
    times_usual: float = 5.0
    num_steps: int = 100

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0)
        check_number(self, "times_usual", least=1.0)
        check_number(self, "num_steps", least=1, whole=True)

    @property
    def needs(self) -> Needs:
        """Losses, which have a row at every step."""
        return Needs(collections=frozenset({"losses"}))

    @property
    def lookback(self) -> int:
        """The rows to compare a pause with."""
        return self.num_steps + 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses."""
        return tensor.role == "loss"

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Judge a training that records no steps now."""
        if idle.ended or idle.mode is None:
            return
        still = idle.seconds > self.threshold

        def describe() -> Description:
            gone = {
                True: "Its process is alive.",
                False: "Its process is gone.",
                None: "tdbg cannot tell whether its process is alive.",
            }
            where = idle.where() if idle.alive is not False else ""
            what = f"{gone[idle.alive]} {where}".rstrip()
            return self._describe(idle.seconds, self.threshold, what)

        yield idle.judge(NAME, Severity.WARNING if still else None, describe)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge pauses that have ended, by the times of the steps."""
        seen = [table for mode in ModeKeys if (table := window.table(mode)) is not None]
        if not seen:
            return
        there = [table.present.any(axis=0) for table in seen]
        steps = np.concatenate([t.steps[at] for t, at in zip(seen, there, strict=True)])
        wall, generation = (
            np.concatenate(
                [getattr(t, of)[at] for t, at in zip(seen, there, strict=True)]
            )
            for of in ("wall_ns", "generations")
        )
        order = np.argsort(steps)
        steps, wall, generation = steps[order], wall[order], generation[order]
        pause = np.diff(wall, prepend=wall[:1]) * NANOSECONDS
        # The time between two attempts does not count as a pause.
        pause[np.diff(generation, prepend=generation[:1]) != 0] = 0.0
        for table in window.tables():
            rows = table.present[:, table.start :].any(axis=0)
            new = table.steps[table.start :][rows]
            at = np.searchsorted(steps, new)
            usual = np.array([self._usual(pause, k) for k in at.tolist()])
            limit = np.maximum(self.threshold, self.times_usual * usual)
            yield self._of_pauses(new, table.mode, pause[at], limit)

    def _usual(self, pause: NDArray[np.float64], k: int) -> float:
        """Return the longest previous pause, without the time before the first step."""
        before = pause[max(1, k - self.num_steps) : k]
        return float(before.max()) if len(before) else 0.0

    def _of_pauses(
        self,
        steps: NDArray[np.int64],
        mode: ModeKeys,
        pause: NDArray[np.float64],
        limit: NDArray[np.float64],
    ) -> Evaluation:
        severities = np.where(pause > limit, int(Severity.WARNING), 0)
        return Evaluation.of_one(
            NAME,
            steps,
            mode,
            severities,
            lambda j: self._describe(
                float(pause[j]), float(limit[j]), "Then the training continued."
            ),
        )

    def _describe(self, seconds: float, limit: float, what: str) -> Description:
        return Description(
            message=(
                "The training stalled: it recorded no step for "
                f"{seconds:,.0f} s. {what}"
            ),
            value=seconds,
            threshold=limit,
            advice=(
                "Find out what it waits for (tdbg stacks RUN): a hung collective, a "
                "loader or file system that does not respond, or a full disk. Set "
                "timeouts on loaders and process groups."
            ),
        )
