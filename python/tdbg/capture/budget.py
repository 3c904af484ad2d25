"""Keeps what capture costs within a share of the training, where one is given.

Implements docs/overhead.md, "The budget".  Pure: measured times in, decisions
out; no clock of its own, so that the same times lead to the same decisions.

What is given up comes in the order of what it is worth least: that rules have every
step of the beginning, histograms, raw values (their statistics stay), then ever more
of the statistics, those of activations first.  Losses and scalars are never given up.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tdbg.capture.policy import Policy
from tdbg.capture.wants import Throttle
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys

__all__ = ["LEVELS", "BudgetController", "Change", "Throttling", "parse_budget"]

VARIABLE = "TDBG_BUDGET"

# Steps in which everything happens for the first time: definitions, plans, memory.
WARM_UP = 5
# What is judged is at least so many steps, and so much time: less is noise.
LEAST_STEPS = 20
LEAST_NS = 1_000_000_000
# There is room for more when less than this part of the budget is used: one level
# down costs at most twice as much.
ROOM = 0.45
# Windows with room before one level is given back; twice as many each time that
# this turns out to have been too much, half as many each time that it does not.
PATIENCE = 2
MAX_PATIENCE = 256

_FACTORS = (2, 4, 8, 16, 32, 64, 128, 256)
LEVELS: tuple[Throttle, ...] = (
    Throttle(),
    Throttle(beginning=False),
    Throttle(beginning=False, histograms=False),
    Throttle(beginning=False, histograms=False, values=False),
    *(
        Throttle(
            beginning=False,
            histograms=False,
            values=False,
            activations=factor,
            others=others,
        )
        for factor in _FACTORS
        for others in (factor // 2, factor)
    ),
)
"""What is given up, ever more of it."""


def parse_budget(value: object) -> float | None:
    """The budget as a share; None: that of the environment, or none.

    Raises:
        ConfigurationError: If it is no share above 0 and up to 1.
    """
    name = "budget"
    if value is None:
        text = os.environ.get(VARIABLE, "").strip()
        if not text:
            return None
        name, value = VARIABLE, text
        with contextlib.suppress(ValueError):
            value = float(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.0 < float(value) <= 1.0:  # type: ignore[arg-type]
        msg = (
            f"{name} must be a share of the training's time above 0 and up to 1, "
            f"such as 0.02 for 2 %, not {value!r}"
        )
        raise ConfigurationError(msg)
    return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Change:
    """A decision.

    Attributes:
        previous: The level before, of LEVELS.
        level: The level from now on; the same where nothing is left to give up.
        share: What was measured, relative to the steps without capture.
        steps: In how many steps.
    """

    previous: int
    level: int
    share: float
    steps: int


class BudgetController:
    """Decides how much is given up, from what each step has cost.

    Example:
        controller = BudgetController(0.02)
        change = controller.end_step(capture_ns, rest_ns, period=10)

    Args:
        budget: Share of the time of the steps without capture.
        differs: Whether a level differs from the one before for this run.
    """

    def __init__(
        self, budget: float, differs: Callable[[int], bool] = lambda _: True
    ) -> None:
        self.budget = budget
        self.level = 0
        self._differs = differs
        self._warm_up = WARM_UP
        self._patience = PATIENCE
        self._calm = 0
        self._windows_since_return: int | None = None
        self._is_at_limit = False
        self._start()

    def end_step(self, capture_ns: int, rest_ns: int, period: int) -> Change | None:
        """A step has ended.

        Args:
            capture_ns: What capture cost in it.
            rest_ns: What the rest of it took.
            period: Steps in which everything that is scheduled comes once.
        """
        if self._warm_up > 0:
            self._warm_up -= 1
            return None
        self._steps += 1
        self._capture += capture_ns
        self._rest += max(rest_ns, 0)
        if self._rest == 0:
            return None
        mean = self._rest / self._steps
        window = max(period, LEAST_STEPS, math.ceil(LEAST_NS / mean))
        # Too much is too much before the window is over: more has been spent than
        # all of it may cost.
        used = self._capture / (self.budget * mean * max(window, self._steps))
        if used > 1.0:
            return self._give_up(used)
        if self._steps < window:
            return None
        return self._finish_window(used)

    def _finish_window(self, used: float) -> Change | None:
        if self._windows_since_return is not None:
            self._windows_since_return += 1
            if self._windows_since_return > self._patience:
                # What was given back could stay.
                self._windows_since_return = None
                self._patience = max(self._patience // 2, PATIENCE)
        self._calm = self._calm + 1 if used < ROOM else 0
        change = None
        if self._calm >= self._patience and self.level > 0:
            change = self._move(self._lower())
            self._windows_since_return = 0
        self._start()
        return change

    def _give_up(self, used: float) -> Change | None:
        since = self._windows_since_return
        if since is not None and since <= self._patience:
            # What was given back a moment ago was too much.
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        self._windows_since_return = None
        self._calm = 0
        level = self.level
        for _ in range(2 if used > 4.0 else 1):
            level = self._higher(level)
        change = self._move(level)
        if change is None and not self._is_at_limit:
            self._is_at_limit = True
            change = Change(level, level, self._capture / self._rest, self._steps)
        self._start()
        return change

    def _higher(self, level: int) -> int:
        for candidate in range(level + 1, len(LEVELS)):
            if self._differs(candidate):
                return candidate
        return level

    def _lower(self) -> int:
        level = self.level
        while level > 0 and not self._differs(level):
            level -= 1
        return max(level - 1, 0)

    def _move(self, level: int) -> Change | None:
        if level == self.level:
            return None
        change = Change(self.level, level, self._capture / self._rest, self._steps)
        self.level = level
        self._is_at_limit = False
        return change

    def _start(self) -> None:
        self._steps = self._capture = self._rest = 0


class Throttling:
    """A controller at work on a policy.

    Args:
        budget: As of the controller.
        policy: What is given up is left out of it.
    """

    def __init__(self, budget: float, policy: Policy) -> None:
        self._policy = policy
        self._controller = BudgetController(budget, self._differs)
        self._known: dict[int, bool] = {}
        self._revision = -1
        self.n_changes = 0

    @property
    def budget(self) -> float:
        """The share that is allowed."""
        return self._controller.budget

    @property
    def throttle(self) -> Throttle:
        """What is given up now."""
        return LEVELS[self._controller.level]

    def end_step(
        self, mode: ModeKeys, capture_ns: int, rest_ns: int
    ) -> dict[str, Any] | None:
        """A step has ended: what was changed, as the event tells it, or None."""
        change = self._controller.end_step(
            capture_ns, rest_ns, self._policy.period(mode)
        )
        if change is None:
            return None
        why = "nothing is left to give up"
        if change.level != change.previous:
            why = "over budget" if change.level > change.previous else "room again"
            self._policy.set_throttle(self.throttle)
            self.n_changes += 1
        return {
            "what": "budget",
            "why": why,
            "budget": self.budget,
            "measured": change.share,
            "steps": change.steps,
            "level": change.level,
            "throttle": self.throttle._asdict(),
            "text": self.throttle.text(),
        }

    def _differs(self, level: int) -> bool:
        revision = self._policy.registry.revision
        if revision != self._revision:
            self._revision = revision
            self._known.clear()
        if level not in self._known:
            self._known[level] = self._policy.differ(LEVELS[level - 1], LEVELS[level])
        return self._known[level]
