"""Steps of a compiled function that capture at most a few numbers.

A call of the function is a whole step, so nothing but the function has to be called:
``LightSteps`` notes when the step began and ended, and what it returned.

Thread safety: the training's thread; an event of another thread may end them, and waits
for nothing that the training computes.

Errors: none raises into the training.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.passed_steps import PassedNumbers, PassedSteps
from tdbg.capture.schedule import StepPlan
from tdbg.capture.step_clock import COMPUTE
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.modes import TRAIN, ModeKeys

if TYPE_CHECKING:
    from tdbg.capture.session import Session

__all__ = ["LightSteps", "Numbers"]

# The session observes a step after this time, or this many steps: readers get what the
# steps record no later.
_NS = 250_000_000
_MOST = 64
# Fewer are not worth it.
_FEWEST = 3

# The numbers of one step, each with its name.
Numbers = Sequence[tuple[TensorEntry, Any]]


class LightSteps:
    """Training steps that pass the session (``PassingSteps``); ``begin`` makes them.

    The next event of the session ends them; then others may follow.

    Args:
        session: The session.
        root: The key of their forwards.
        optimizer: The key of the optimizer that ends them.
        step_plan: What each of them captures.
        most: How many they may be.
        until_ns: The time (``time.perf_counter_ns``) from which on none may begin.
        read: Returns what to record of a step, given what the step has returned; None:
            nothing is recorded.  A number may be an array of one element that is not
            computed yet.
        ended: Called with their number when the session has accounted for them.

    Example::

        light = LightSteps.begin(session, root, optimizer, mode)
        while light is not None and light.goes_on():
            light.add(step())
    """

    __slots__ = (
        "_began_ns",
        "_changes",
        "_clock",
        "_ended",
        "_is_open",
        "_most",
        "_n_changes",
        "_optimizer",
        "_read",
        "_root",
        "_session",
        "_step_plan",
        "_steps",
        "_thread",
        "_until_ns",
    )

    def __init__(
        self,
        session: Session,
        root: Hashable,
        optimizer: Hashable,
        step_plan: StepPlan,
        most: int,
        until_ns: int,
        read: Callable[[Any], Numbers] | None,
        ended: Callable[[int], None],
    ) -> None:
        self._session = session
        self._root = root
        self._optimizer = optimizer
        self._thread = threading.get_ident()
        self._step_plan = step_plan
        self._most = most
        self._until_ns = until_ns
        self._read = read
        self._ended = ended
        self._changes = session.policy.registry.changes
        self._n_changes = self._changes.count
        self._began_ns = 0
        self._clock = session.clock
        self._is_open = True
        # The duration and the numbers of each step.
        self._steps: list[tuple[int, Numbers]] = []

    @classmethod
    def begin(
        cls,
        session: Session,
        root: Hashable,
        optimizer: Hashable,
        mode: ModeKeys,
        *,
        read: Callable[[Any], Numbers] | None = None,
        ended: Callable[[int], None] = lambda _: None,
    ) -> LightSteps | None:
        """Let the steps that follow pass; None: the session has to observe them.

        REQUIRES: the session is between two steps, and calls this (``Session.run``).

        Args:
            session: The session.
            root: The key of the forwards of these steps.
            optimizer: The key of the optimizer that ends them.
            mode: Their mode.
            read: See the class.
            ended: See the class.
        """
        now_ns = time.perf_counter_ns()
        until_ns = min(session.obedience.next_poll_ns, now_ns + _NS)
        if until_ns <= now_ns or not session.machine.may_pass(mode, optimizer):
            return None
        if session.is_called_in_steps:
            return None
        first, policy = session.machine.following(mode), session.policy
        most = policy.n_alike(mode, first, _MOST)
        if most < _FEWEST:
            return None
        plan = policy.step_plan(mode, first)
        light = cls(session, root, optimizer, plan, most, until_ns, read, ended)
        session.let_pass(light)
        return light

    def goes_on(self) -> bool:
        """Return whether the step that begins now passes."""
        self._began_ns = now_ns = time.perf_counter_ns()
        goes_on = (
            self._is_open
            and now_ns < self._until_ns
            and len(self._steps) < self._most
            and self._changes.count == self._n_changes
            and self._session.is_live
        )
        if goes_on:
            self._clock.enter(COMPUTE)
        return goes_on

    def add(self, result: Any = None) -> None:
        """Note that the step is over, and has returned *result*."""
        duration_ns, read = time.perf_counter_ns() - self._began_ns, self._read
        self._clock.leave(COMPUTE)
        numbers: Numbers = ()
        if read is not None:
            try:
                numbers = read(result)  # May tell the samples of the step, too.
            except Exception as error:
                self._clock.step_passes()
                self._steps.append((duration_ns, ()))
                self._session.run(_raise, error)
                return
        # Before the step counts: another thread may number those that do.
        self._clock.step_passes()
        self._steps.append((duration_ns, numbers))
        if not self._is_open:
            self._session.run(self._pass_late)

    def _pass_late(self) -> None:
        """Let the step pass during which another thread has ended them."""
        if self._session.machine.may_pass(TRAIN, self._optimizer):
            self._session.let_pass(self)

    @property
    def n(self) -> int:
        """Number of steps that are over; one that is under way cannot ask."""
        return len(self._steps)

    n_begun = n

    @property
    def duration_ns(self) -> int:
        """Duration of the steps that are over."""
        return sum(duration_ns for duration_ns, _ in self._steps)

    def end(self) -> PassedSteps:
        """Let no more steps pass; return those that are over."""
        self._is_open = False
        steps, self._steps = tuple(self._steps), []
        return PassedSteps(
            len(steps),
            sum(duration_ns for duration_ns, _ in steps),
            steps[-1][0] if steps else 0,
            [
                found
                for i, each in enumerate(steps)
                if (found := self._passed(i, *each))
            ],
            forwards={self._root: 1},
        )

    def resume(self, n: int) -> None:
        """Report that the session has accounted for the steps."""
        if n:
            self._ended(n)

    def _passed(
        self, n_before: int, duration_ns: int, numbers: Numbers
    ) -> PassedNumbers | None:
        """Return what is captured of the numbers of a step; None: nothing is."""
        if not numbers:
            return None
        of_entry = self._step_plan.of_entry
        chosen = [(*each, of_entry(each[0])) for each in numbers]
        chosen = [each for each in chosen if each[2]]
        if not chosen:
            return None
        entries, values, flags = zip(*chosen, strict=True)
        array: NDArray[Any] | None = None
        # The next step may have taken the memory over (`donate_argnums` of JAX).
        with contextlib.suppress(Exception):
            if threading.get_ident() == self._thread or all(map(_is_there, values)):
                array = np.array(values, np.float32)
            else:
                # The step that computes them may be waiting for this call.
                self._session.is_called_in_steps = True
        return PassedNumbers(n_before, duration_ns, entries, array, flags)


def _is_there(value: Any) -> bool:
    """Return whether a number is computed."""
    is_ready = getattr(value, "is_ready", None)
    return is_ready is None or bool(is_ready())


def _raise(error: Exception) -> None:
    raise error
