"""``Windows``: begins and ends windows between steps, and keeps their budget.

At most one is open.  Each is told of by events: accepted, started, ended, or refused
with the reason.

Thread safety: the training's thread; results are worked out in a thread of their own,
which adds their cost.

Errors: none; what goes wrong refuses a window.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig, WindowConfig
from tdbg.errors import ConfigurationError
from tdbg.modes import TRAIN
from tdbg.profiler.python_sampler import sampler_of
from tdbg.profiler.windows.engine import Unavailable
from tdbg.profiler.windows.engines import Results, Started, start_engines
from tdbg.run.profile_requests import PROFILE, ProfileRequest
from tdbg.run.requests import Request
from tdbg.run.schema import EventKind

__all__ = ["Windows", "start"]

_NEVER = 1 << 62
# A window ends early when the process has grown by this part of the memory that was
# free when it began.
_MOST_MEMORY = 0.5
_CLOSING_SECONDS = 5.0
# Seconds between two samples of the Python stack while a window is open.
_PYTHON_INTERVAL = 0.01
# Of so few steps their mean says nothing.
_FEWEST_STEPS = 5


class WindowCosts:
    """The cost of windows, held against a share of the training's time.

    Args:
        budget: The share.

    Attributes:
        budget: As the argument; may be changed.
        spent_ns: What all windows have cost.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.spent_ns = 0
        self._a_step: dict[tuple[str, ...], int] = {}
        # The number of a step, and when it began: outside of windows.
        self._anchor: tuple[int, int] | None = None
        self._began_ns: int | None = None

    def see(self, step: int, now_ns: int) -> None:
        """Note that a step begins; the first one begins the training's time."""
        if self._anchor is None:
            self._anchor = step, now_ns
        if self._began_ns is None:
            self._began_ns = now_ns

    def step_ns(self, step: int, now_ns: int) -> int:
        """Return how long a step takes outside of windows; 0: unknown."""
        if self._anchor is None:
            return 0
        n_steps = step - self._anchor[0]
        if n_steps < _FEWEST_STEPS:
            return 0
        return (now_ns - self._anchor[1]) // n_steps

    def begin_again(self) -> None:
        """Measure steps anew: a window has ended."""
        self._anchor = None

    def wait_ns(self, kinds: tuple[str, ...], n_steps: int, now_ns: int) -> int:
        """Return how long a window has to wait for the budget; 0: it may begin.

        The first window never waits: nobody knows before what it will cost.

        Args:
            kinds: What the window takes.
            n_steps: Its number of steps.
            now_ns: The time.
        """
        if not self.spent_ns or self._began_ns is None:
            return 0
        a_step = self._a_step.get(kinds) or max(self._a_step.values(), default=0)
        needed = (self.spent_ns + a_step * n_steps) / self.budget
        return max(0, round(needed) - (now_ns - self._began_ns))

    def add(self, kinds: tuple[str, ...], n_steps: int, cost_ns: int) -> None:
        """Add the cost of a window that has ended, as far as it is known."""
        self.spent_ns += cost_ns
        self._a_step[kinds] = cost_ns // max(1, n_steps)

    def add_results(self, kinds: tuple[str, ...], n_steps: int, cost_ns: int) -> None:
        """Add what its results have cost; any thread may."""
        self.spent_ns += cost_ns
        self._a_step[kinds] += cost_ns // max(1, n_steps)


@dataclass(slots=True)
class _Due:
    """A window that has not begun.

    Attributes:
        id: Its identity in events.
        window: When it begins and what it takes.
        start: The training step before which it begins; None: by time, or when the
            window that is open has ended.
        not_before_ns: It waits until then, on the monotonic clock.
        asked: What events say about who asked.
        over_budget: Whether the budget does not matter.
        is_told: Whether an event says that it is put off.
    """

    id: str
    window: WindowConfig
    start: int | None
    not_before_ns: int
    asked: Mapping[str, Any]
    over_budget: bool = False
    is_told: bool = False


@dataclass(slots=True)
class _Open:
    """The window that is open.

    Attributes:
        due: What it was.
        started: The engines.
        step: The first training step.
        global_step: The same among all steps.
        start_ns: When it began, on the monotonic clock.
        step_ns: How long a step takes outside of windows; 0: unknown.
        spent_ns: What starting it has cost.
        memory: Of the process as it began, in bytes, and the most that it may have.
    """

    due: _Due
    started: Started
    step: int
    global_step: int
    start_ns: int
    step_ns: int
    spent_ns: int
    memory: int

    def end_reason(self, step: int, now_ns: int) -> str:
        """Return why it is over before this step; empty: it is not."""
        n_steps, window = step - self.step, self.due.window
        if window.duration is not None:
            if n_steps and now_ns - self.start_ns >= window.duration * 1e9:
                return "its time is over"
        elif n_steps >= window.n_steps:
            return "its steps are over"
        if _memory() > self.memory:
            return "ended early: the process has taken half of the free memory"
        return ""


class Windows:
    """The windows of a session, from its settings and from requests.

    Args:
        session: The session.
        settings: Those of the profiler.
    """

    def __init__(self, session: Session, settings: ProfilerConfig) -> None:
        self._session = session
        self._costs = WindowCosts(settings.budget)
        self._results = Results(session)
        self._due: list[_Due] = []
        self._open: _Open | None = None
        self._listens = False
        for i, window in enumerate(settings.windows):
            self._add(_Due(f"settings-{i}", window, None, 0, {"by": "settings"}))
        session.obedience.on_request[PROFILE] = self.take
        self._listen(True)

    # ---- what is asked for -----------------------------------------------------

    def take(self, request: Request) -> None:
        """Accept a request for a window, or say why not."""
        try:
            asked = ProfileRequest.parse(request.body)
            window = asked.window
            if window is None:
                return
            told = {"by": asked.who, "why": asked.reason, "request": request.id}
            due = _Due(request.id, window, None, 0, told, asked.over_budget)
            busy = self._busy()
            if busy:
                self._tell(due, "refused", reason=busy)
                return
            self._add(due)
        except (ConfigurationError, TypeError, ValueError, RecursionError) as error:
            reason = str(error)[:1000]
            self._write(request.id, "refused", reason=reason, request=request.id)

    def change(self, settings: ProfilerConfig) -> None:
        """Keep another budget from now on."""
        self._costs.budget = settings.budget

    def _busy(self) -> str:
        """Return why another request cannot be accepted; empty: it can."""
        opened = self._open
        if opened is not None:
            return f"window {opened.due.id} is open: ask again when it has ended"
        waiting = [due for due in self._due if "request" in due.asked]
        if waiting:
            return f"request {waiting[0].id} waits for its window: one at a time"
        return ""

    def _add(self, due: _Due) -> None:
        """Accept a window, or refuse one that is over already."""
        machine = self._session.machine
        window, coming = due.window, machine.training_number
        due.start = self._first_step(window.start_step)
        if window.start_time is not None:
            now = time.time()
            end = window.start_time + (window.duration or 0.0)
            if window.duration is not None and end <= now:
                self._tell(due, "refused", reason="its time was over before it began")
                return
            due.start = None
            due.not_before_ns = time.monotonic_ns() + round(
                max(0.0, window.start_time - now) * 1e9
            )
        elif due.start is None:
            self._tell(
                due,
                "refused",
                reason=f"step {window.start_step:,} has begun already: the training "
                f"is at step {coming:,}",
            )
            return
        self._due.append(due)
        self._tell(due, "accepted", reason="", training_step=due.start)
        self._arm()

    def _first_step(self, requested: int | None) -> int | None:
        """Return the step before which a window begins; None: that has passed."""
        machine = self._session.machine
        coming, has_begun = machine.training_number, machine.training is not None
        # The step before it must be seen from its beginning, and so does its end.
        first = coming + 1 if has_begun or coming else 0
        if requested is None:
            return first
        return requested if requested >= first else None

    # ---- borders of steps ------------------------------------------------------

    def border(self) -> None:
        """Begin or end a window: a step has ended or begins."""
        step = self._session.machine.training_number
        now_ns = time.monotonic_ns()
        opened = self._open
        if opened is None:
            self._costs.see(step, now_ns)
        else:
            reason = opened.end_reason(step, now_ns)
            if not reason:
                return
            self._end(opened, step, reason)
        for due in self._due:
            if self._open is None and self._is_due(due, step, now_ns):
                self._begin(due, step)
                break
        self._arm()

    def _is_due(self, due: _Due, step: int, now_ns: int) -> bool:
        if now_ns < due.not_before_ns:
            return False
        if due.start is None:  # By time: it begins after a step that is seen whole.
            due.start = step + 1
        if step < due.start:
            return False
        wait_ns = 0
        if not due.over_budget:
            kinds, n = due.window.kinds, due.window.n_steps
            wait_ns = self._costs.wait_ns(kinds, n, now_ns)
        if wait_ns:
            due.start, due.not_before_ns = None, now_ns + wait_ns
            if not due.is_told:
                due.is_told = True
                self._tell(due, "accepted", reason=self._put_off(wait_ns))
        return not wait_ns

    def _put_off(self, wait_ns: int) -> str:
        return (
            f"put off for about {wait_ns / 1e9:.0f} s: windows have cost "
            f"{self._costs.spent_ns / 1e9:.2f} s, and may take "
            f"{100 * self._costs.budget:g} % of the training's time"
        )

    def _begin(self, due: _Due, step: int) -> None:
        self._due.remove(due)
        if due.window.every is not None:
            self._due.append(replace(due, start=step + due.window.every, is_told=False))
        begin_ns = time.monotonic_ns()
        step_ns = self._costs.step_ns(step, begin_ns)
        try:
            started = start_engines(due.window, self._session.framework)
        except Exception as error:  # Of a profiler that is not tdbg's.
            is_known = isinstance(error, Unavailable)
            self._tell(due, "refused", reason=str(error) if is_known else repr(error))
            return
        start_ns = time.monotonic_ns()
        due.id = f"{due.id}-{step}" if due.window.every is not None else due.id
        due = replace(due, window=started.window)
        machine = self._session.machine
        following = machine.next_training()[1]
        global_step = following if machine.training is None else following - 1
        spent_ns = start_ns - begin_ns
        self._open = _Open(
            due, started, step, global_step, start_ns, step_ns, spent_ns, _most_memory()
        )
        self._tell(
            due,
            "started",
            reason="",
            first_step=global_step,
            training_step=step,
            start_ns=start_ns,
            unknown=started.unknown,
        )
        self._session.meter.once_ns += spent_ns
        self._sample_at_most_each(_PYTHON_INTERVAL)

    def _sample_at_most_each(self, seconds: float | None) -> None:
        """Sample the Python stack more often; None: as ever."""
        sampler = sampler_of(self._session)
        if sampler is not None:
            sampler.limit(seconds)

    def _end(self, opened: _Open, step: int, reason: str) -> None:
        self._open = None
        end_ns = time.monotonic_ns()
        self._sample_at_most_each(None)
        finish = [engine.stop() for engine in reversed(opened.started.engines)]
        stopped_ns = time.monotonic_ns()
        n_steps = step - opened.step
        # What the steps took longer than others; unknown without any others.
        longer_ns = 0
        if opened.step_ns and n_steps:
            longer_ns = end_ns - opened.start_ns - n_steps * opened.step_ns
        spent_ns = opened.spent_ns + stopped_ns - end_ns
        self._session.meter.once_ns += stopped_ns - end_ns
        told = {
            "id": opened.due.id,
            "reason": reason,
            "kinds": list(opened.due.window.kinds),
            **opened.due.asked,
            "first_step": opened.global_step,
            "last_step": max(opened.global_step, self._last_step()),
            "start_ns": opened.start_ns,
            "end_ns": end_ns,
            "unknown": opened.started.unknown,
        }
        kinds, costs = opened.due.window.kinds, self._costs
        known_ns = spent_ns + max(0, longer_ns)
        costs.add(kinds, n_steps, known_ns)

        def cost_ns(results_ns: int) -> int:
            costs.add_results(kinds, n_steps, results_ns)
            return known_ns + results_ns

        self._results.work_out(finish, told, opened.global_step, cost_ns)
        self._costs.begin_again()

    def _last_step(self) -> int:
        machine = self._session.machine
        is_open = machine.training is not None
        return machine.next_training()[1] - 1 - is_open

    def _arm(self) -> None:
        """Let no step pass unseen that matters to a window."""
        first = _NEVER
        if self._open is not None:
            first = 0
        else:
            starts = [due.start for due in self._due if due.start is not None]
            first = max(0, min(starts, default=_NEVER) - 1)
        machine = self._session.machine
        # Steps of other modes are numbered with those of training.
        others = machine.next_training()[0] - machine.following(TRAIN)
        self._session.policy.seen_from = first - others if first < _NEVER else _NEVER
        self._listen(self._open is not None or bool(self._due))

    def _listen(self, listens: bool) -> None:
        if listens is not self._listens:
            self._listens = listens
            borders = self._session.listeners.border
            (borders.append if listens else borders.remove)(self.border)

    # ---- the end ---------------------------------------------------------------

    def close(self) -> None:
        """End the window that is open, and refuse those that have not begun."""
        session = self._session
        opened, self._open = self._open, None
        self._sample_at_most_each(None)
        unmet = [due for due in self._due if due.window.every is None]
        if opened is not None:
            step = session.machine.training_number
            step += session.machine.training is not None
            if step > opened.step:
                self._end(opened, step, "the training has ended")
            else:  # It has begun where the last step has ended.
                for engine in reversed(opened.started.engines):
                    engine.stop()
                unmet.append(opened.due)
        for due in unmet:
            reason = "the training ended before the window began"
            self._tell(due, "refused", reason=reason)
        self._due.clear()
        self._arm()
        self._results.close(_CLOSING_SECONDS)

    def forked(self) -> None:
        """Let go of everything: a child has no windows."""
        opened, self._open = self._open, None
        self._due.clear()
        if opened is not None:
            for engine in opened.started.engines:
                engine.abandon()

    # ---- events ----------------------------------------------------------------

    def _tell(self, due: _Due, state: str, **content: Any) -> None:
        kinds = list(due.window.kinds)
        self._write(due.id, state, kinds=kinds, **due.asked, **content)

    def _write(self, identity: str, state: str, **content: Any) -> None:
        told = {"what": "profile_window", "id": identity, "state": state, **content}
        step = self._session.machine.next_training()[1]
        self._session.write_event(EventKind.CHANGE, told, step)


def start(session: Session, settings: ProfilerConfig) -> Windows:
    """Start the windows of a session."""
    return Windows(session, settings)


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _memory() -> int:
    """Return the resident memory of this process, in bytes; 0: unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - at each step
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _most_memory() -> int:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * _PAGE
    except (OSError, ValueError):
        return _NEVER
    return _memory() + int(_MOST_MEMORY * free)
