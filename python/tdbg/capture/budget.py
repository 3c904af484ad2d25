"""The budget: how much capture may cost the training, and what it leaves out for that.

``BudgetController`` decides how much to leave out.  ``Throttling`` applies the decision
to a policy.

Thread safety: none; the thread of the training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdbg.capture.policy import Policy
from tdbg.capture.schedule import Throttle
from tdbg.config.options import AUTO
from tdbg.modes import TRAINING, ModeKeys

if TYPE_CHECKING:
    from tdbg.capture.steps import Step

__all__ = [
    "FELT",
    "LEVELS",
    "BudgetController",
    "LevelChange",
    "Throttling",
    "floor_of",
    "seconds_of",
    "share_of",
]

# In these steps everything happens for the first time: definitions, entries, memory.
WARM_UP = 5
# Fewer steps, or less time, are too noisy to decide on.
LEAST_STEPS = 20
LEAST_NS = 1_000_000_000
# A level may be given back while less than this part of the budget is used, because
# the level below costs at most twice as much.
ROOM = 0.45
# Windows with room before a level is given back: twice as many each time that this
# proves too much, half as many each time that it does not.
PATIENCE = 1
MAX_PATIENCE = 256

# How much rarer activations, the rest and losses become, level by level.  Each takes
# its turn before the previous one is gone.
_FACTORS = (
    *((2, 1, 1), (2, 2, 1), (4, 2, 1), (4, 4, 1), (8, 4, 1), (8, 8, 1)),
    *((8, 8, 2), (8, 8, 4), (16, 16, 4), (16, 16, 8), (32, 32, 8), (32, 32, 16)),
    *((64, 64, 16), (128, 128, 16), (256, 256, 16)),
)
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
            activations=activations,
            others=others,
            steps=steps,
        )
        for activations, others, steps in _FACTORS
    ),
)
"""What tdbg leaves out at each level, more from level to level."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A decision of the controller.

    Attributes:
        previous: The level before, an index of LEVELS.
        level: The level from now on; equal to *previous* if nothing is left to give up.
        share: The measured cost, relative to the steps without capture.
        steps: Number of steps in which it was measured.
    """

    previous: int
    level: int
    share: float
    steps: int


# AUTO keeps this share ...
AUTO_SHARE = 0.05
# ... for the first minute as a whole, and for every window afterwards.
AUTO_HORIZON_NS = 60_000_000_000
# Until then, later steps pay back what the first ones spent; they keep at least this
# part of the budget.
LEAST_PART = 0.2
# But nothing is left out before so much is spent: most trainings that are over by then
# are short, and every step of them counts.
FREE_NS = 500_000_000
# Counted steps take no more than this part of it, however short they are, so that
# something is left for capture.
COUNTED_PART = 0.6
# At most so many levels are taken or given back at once: tdbg then captures an eighth,
# or eight times as much.
MOST_LEVELS = 6


class BudgetController:
    """Decides how much to leave out, given the cost of each step.

    Example:
        controller = BudgetController(0.02)
        change = controller.end_step(capture_ns, rest_ns, period=10)

    Args:
        budget: Share of the time of the steps without capture.
        differs: Returns whether a level differs from the previous one in this run.
        horizon_ns: The budget holds for this time from the start as a whole: until it
            is over, the other steps pay back what excused steps cost.

    Attributes:
        level: What is left out now, an index of LEVELS.
        limit: The highest level that it may take; set by the caller.
        excess_ns: Time beyond the budget that was spent because of *limit*.
    """

    def __init__(
        self,
        budget: float,
        differs: Callable[[int], bool] = lambda _: True,
        horizon_ns: int = 0,
    ) -> None:
        self.budget = budget
        self._horizon = horizon_ns
        self._all_capture = self._all_rest = 0.0
        self.level = 0
        self.limit = len(LEVELS) - 1
        self.excess_ns = 0.0
        self._differs = differs
        self._warm_up = WARM_UP
        self._patience = PATIENCE
        self._calm = 0
        self._windows_since_return: int | None = None
        self._is_at_limit = False
        self._start()

    @property
    def has_overspent(self) -> bool:
        """Whether the cost exceeds what the horizon, or the time so far, may cost."""
        return self._all_capture > self.budget * max(self._all_rest, self._horizon)

    def end_step(
        self,
        capture_ns: float,
        rest_ns: float,
        period: int,
        *,
        is_excused: bool = False,
    ) -> LevelChange | None:
        """Account for the cost of a step.

        Args:
            capture_ns: Time that capture took in the step.
            rest_ns: Time that the rest of the step took.
            period: Number of steps in which everything that is scheduled comes once.
            is_excused: Whether the step is paid for, but decides nothing.

        Returns:
            The decision, if there is one.
        """
        rest_ns = max(0.0, rest_ns)
        self._all_capture += capture_ns
        self._all_rest += rest_ns
        is_free = self._horizon > 0 and self._all_capture <= FREE_NS
        if is_excused or is_free or self._warm_up > 0:
            if not is_excused:
                self._warm_up -= 1
            self._share = self._share_of_window()
            return None
        self._steps += 1
        self._capture += capture_ns
        self._rest += rest_ns
        if self._rest == 0:
            return None
        mean = self._rest / self._steps
        window = max(period, LEAST_STEPS, math.ceil(LEAST_NS / mean))
        # The window need not be over: more has been spent than all of it may cost.
        used = self._capture / (self._share * mean * max(window, self._steps))
        if used > 1.0:
            # How much more than the budget the steps of the window have cost so far.
            n_steps = max(LEAST_STEPS, self._steps)
            over = self._capture / (self.budget * mean * n_steps)
            return self._give_up(used, over)
        if self._steps < window:
            return None
        return self._finish_window(used)

    def count(self, n_steps: int, capture_ns: float, rest_ns: float) -> None:
        """Account for steps that decide nothing.

        Args:
            n_steps: How many.
            capture_ns: Time that they cost; the budget is charged no more than
                ``COUNTED_PART`` of what these steps may cost.
            rest_ns: Time that the rest of them took.
        """
        part_ns = COUNTED_PART * rest_ns
        self._all_capture += min(capture_ns, self.budget * part_ns)
        self._all_rest += rest_ns
        if self._warm_up <= 0:
            self._steps += n_steps
            self._capture += min(capture_ns, self._share * part_ns)
            self._rest += rest_ns

    def _share_of_window(self) -> float:
        """Return the share that the window may cost: less while steps pay back."""
        left_ns = self._horizon - (self._all_rest - self._rest)
        if left_ns <= 0:
            return self.budget
        spent = self._all_capture - self._capture
        share = (self.budget * self._horizon - spent) / left_ns
        return min(max(share, LEAST_PART * self.budget), self.budget)

    def _finish_window(self, used: float) -> LevelChange | None:
        if self._windows_since_return is not None:
            self._windows_since_return += 1
            if self._windows_since_return > self._patience:
                # The level that was given back turned out to be cheap enough.
                self._windows_since_return = None
                self._patience = max(self._patience // 2, PATIENCE)
        self._calm = self._calm + 1 if used < ROOM else 0
        change = None
        if self._calm >= self._patience and self.level > 0:
            level = self.level
            for _ in range(self._n_back(used)):
                level = self._lower(level)
            change = self._move(level)
            self._windows_since_return = self._calm = 0
        self._start()
        return change

    def _give_up(self, used: float, over: float) -> LevelChange | None:
        since = self._windows_since_return
        if since is not None and since <= self._patience:
            # The level that was given back turned out to be too expensive.
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        self._windows_since_return = None
        self._calm = 0
        level = self.level
        n_levels = 2 if used > 4.0 else 1
        if self._horizon and over > 1.0:
            # Two levels halve what is captured: at once, for the minute is short.
            n_levels = min(max(n_levels, round(2 * math.log2(over))), MOST_LEVELS)
        for _ in range(n_levels):
            higher = self._higher(level)
            if higher > self.limit:
                self.excess_ns += self._capture - self._share * self._rest
                break
            level = higher
        change = self._move(level)
        is_last = self._higher(level) == level
        if change is None and is_last and not self._is_at_limit:
            self._is_at_limit = True
            change = LevelChange(level, level, self._capture / self._rest, self._steps)
        self._start()
        return change

    def _n_back(self, used: float) -> int:
        """Return how many levels a window with room gives back, as many as were taken.

        Two levels double what is captured, at most to twice what ``ROOM`` leaves.
        """
        if not self._horizon:
            return 2 if used < ROOM / 4 else 1
        doublings = math.log2(2 * ROOM / used) if used > 0 else math.inf
        return int(min(max(2 * doublings, 1), MOST_LEVELS))

    def _higher(self, level: int) -> int:
        for candidate in range(level + 1, len(LEVELS)):
            if self._differs(candidate):
                return candidate
        return level

    def _lower(self, level: int) -> int:
        while level > 0 and not self._differs(level):
            level -= 1
        return max(level - 1, 0)

    def _move(self, level: int) -> LevelChange | None:
        if level == self.level:
            return None
        change = LevelChange(self.level, level, self._capture / self._rest, self._steps)
        self.level = level
        self._is_at_limit = False
        return change

    def _start(self) -> None:
        self._steps = 0
        self._capture = self._rest = 0.0
        self._share = self._share_of_window()


# Steps without a decision after ranks could not be asked.
PAUSE = 100
# AUTO charges this many times the time spent in tdbg: afterwards, the training's own
# code and data have left the caches, which no clock inside tdbg sees.  Measured at
# steps of 0.8 ms: 2 to 3 times (docs/overhead.md).
FELT = 3.0
# But no more than this is added to a step: the caches are full again after that.
MOST_FELT_NS = 2_000_000


def felt(spent_ns: float) -> float:
    """Return what a training feels of the time that a step spends in tdbg."""
    return spent_ns + min((FELT - 1) * spent_ns, MOST_FELT_NS)


# Whatever it costs, AUTO makes nothing so much rarer that rules have too little to
# judge by.  After so many steps for each time that something is rarer: statistics are
# never further apart than a tenth of the steps so far ...
FLOOR_STEPS = 100
# ... or, when this floor has cost more than the budget by so much, than half of them.
FLOOR_NS = 500_000_000
LOW_FLOOR_STEPS = 20


def floor_of(n_steps: int, excess_ns: float = 0.0) -> int:
    """Return the highest level that rules can live with after so many steps.

    Args:
        n_steps: Training steps so far.
        excess_ns: What the floor has cost beyond the budget.

    Example:
        >>> LEVELS[floor_of(300)].others, LEVELS[floor_of(4000)].others
        (2, 32)
    """
    factor = n_steps / (FLOOR_STEPS if excess_ns < FLOOR_NS else LOW_FLOOR_STEPS)
    rarest = (max(each.activations, each.others, each.steps) for each in LEVELS)
    return sum(each <= max(factor, 1.0) for each in rarest) - 1


class Throttling:
    """Applies the decisions of a controller to a policy.

    Args:
        budget: The share, by which the beginning that rules need is the first thing to
            go; or AUTO, which keeps the beginning unless it costs all that the first
            minute may, and makes everything else rarer.
        policy: The policy.
        propose: Asks all ranks to leave out the same from one step on, and returns
            whether they will; None: there are no others.

    Attributes:
        budget: The share that is allowed.
        is_auto: Whether it is AUTO.
        n_changes: How often the policy was changed.
        is_proposed: Whether the ranks have yet to apply the latest decision; nothing
            else is decided until the one who applies it resets this.
    """

    def __init__(
        self,
        budget: float | str,
        policy: Policy,
        propose: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> None:
        self._policy = policy
        self._propose = propose
        self.is_proposed = False
        self._n_paused = 0
        self.is_auto = budget == AUTO
        self._keeps_beginning = self.is_auto
        self.budget = float(share_of(budget) or 0.0)
        horizon = AUTO_HORIZON_NS if self.is_auto else 0
        self._controller = BudgetController(self.budget, self._differs, horizon)
        self._known: dict[int, bool] = {}
        self._revision = -1
        self._n_steps = 0
        self._floor_at = 0
        self.n_changes = 0

    @property
    def has_overspent(self) -> bool:
        """Whether the cost exceeds what the budget allows so far."""
        return self._controller.has_overspent

    @property
    def throttle(self) -> Throttle:
        """Return what capture leaves out now."""
        return self._at(self._controller.level)

    @property
    def left_out(self) -> str:
        """Return in words what capture leaves out now; empty if nothing."""
        interval = self._policy.save_config.of(ModeKeys.TRAIN).statistics_interval
        return self.throttle.text(interval)

    def end_step(
        self, step: Step, capture_ns: float, rest_ns: float
    ) -> dict[str, Any] | None:
        """Account for the cost of a step; return a change as an event.

        Neither time has any in which the thread waited for a processor.

        Args:
            step: The step.
            capture_ns: Its cost, without what comes only once.
            rest_ns: The time that the rest of it took.
        """
        policy = self._policy
        if step.mode in TRAINING:
            self._pass(1)
        if policy.asked or self.is_proposed:
            return None  # Whoever asked for a capture has it, whatever it costs.
        if self._n_paused:
            self._n_paused -= 1
            return None
        controller = self._controller
        before = controller.level
        schedule = policy.of_mode(step.mode)
        is_dense = self._keeps_beginning and step.mode_step < schedule.beginning
        felt_ns = felt(capture_ns) if self.is_auto else capture_ns
        change = controller.end_step(
            felt_ns, rest_ns, schedule.period, is_excused=is_dense
        )
        if is_dense and controller.has_overspent:
            self._keeps_beginning = False
            self._known.clear()
            share = felt_ns / max(rest_ns, 1)
            event = self._changed("over budget", LevelChange(before, before, share, 1))
            self._keeps_beginning = event is None
            return event
        if change is None:
            return None
        if change.level == change.previous:
            return self._event("nothing is left to give up", change)
        is_more = change.level > change.previous
        return self._changed("over budget" if is_more else "room again", change)

    def count(self, n_steps: int, rest_ns: float, felt_ns: int = 0) -> None:
        """Account for steps that have passed; they decide nothing.

        Args:
            n_steps: How many.
            rest_ns: The time that they took.
            felt_ns: What the training feels of each of them; only AUTO charges it.
        """
        self._pass(n_steps)
        if self._policy.asked or self.is_proposed:
            return
        if self._n_paused:
            self._n_paused = max(0, self._n_paused - n_steps)
            return
        self._controller.count(n_steps, felt_ns * n_steps * self.is_auto, rest_ns)

    def _pass(self, n_steps: int) -> None:
        """Note training steps: the longer it lasts, the rarer rules may look."""
        self._n_steps += n_steps
        if self.is_auto and self._n_steps >= self._floor_at:
            controller = self._controller
            controller.limit = floor_of(self._n_steps, controller.excess_ns)
            self._floor_at = self._n_steps + LEAST_STEPS

    def _changed(self, why: str, change: LevelChange) -> dict[str, Any] | None:
        throttle = self.throttle
        if self._propose is None:
            self._policy.set_throttle(throttle)
        elif self._propose(throttle._asdict()):
            self.is_proposed = True
        else:
            self._controller.level, self._n_paused = change.previous, PAUSE
            return None
        self.n_changes += 1
        return self._event(why, change)

    def _event(self, why: str, change: LevelChange) -> dict[str, Any]:
        return {
            "what": "budget",
            "why": why,
            "budget": self.budget,
            "measured": change.share,
            "steps": change.steps,
            "level": change.level,
            "throttle": self.throttle._asdict(),
            "text": self.left_out,
        }

    def _at(self, level: int) -> Throttle:
        throttle = LEVELS[level]
        if not self.is_auto:
            return throttle
        return throttle._replace(
            beginning=self._keeps_beginning,
            histograms=True,
            values=True,
            keeps_written=True,
        )

    def _differs(self, level: int) -> bool:
        revision = self._policy.registry.revision
        if revision != self._revision:
            self._revision = revision
            self._known.clear()
        if level not in self._known:
            found = self._policy.differ(self._at(level - 1), self._at(level))
            self._known[level] = found
        return self._known[level]


def share_of(budget: float | str | None) -> float | None:
    """Return the share that a budget allows; None: any."""
    return AUTO_SHARE if isinstance(budget, str) else budget


def seconds_of(budget: float | str | None) -> float:
    """Return what a budget allows a training that is shorter than its horizon."""
    return AUTO_SHARE * AUTO_HORIZON_NS / 1e9 if isinstance(budget, str) else 0.0
