"""Steps that capture nothing, or a few numbers, told to the session many at once.

To tell a session that a step begins and ends takes 100 us of Python, which is 1 % of a
step of 10 ms; a compiled step has nothing else to tell.  While all that follows is
known, a hook counts such steps, and notes the numbers of each; everything else happens
when the next event of the session comes.

Thread safety: the training's thread.

Errors: none raises into the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.modes import ModeKeys

if TYPE_CHECKING:
    from tdbg.capture.session import Session

__all__ = ["LightSteps", "Numbers"]

# So long, and so many steps, does the session wait for them: what is recorded of a step
# can be read so much later.
_NS = 250_000_000
_MOST = 64
# Fewer are not worth it.
_FEWEST = 3

# Of one step: the names of numbers, and the numbers.
Numbers = Sequence[tuple[TensorEntry, Any]]


class LightSteps:
    """Training steps that are counted, and told to the session by ``close``.

    The session closes them before its next event; then others may follow.

    Args:
        session: The session.
        mode: The mode of the steps.
        step_plan: What they capture, all alike.
        most: How many they may be.
        until_ns: Until when (``time.perf_counter_ns``).
        read: Returns what is recorded of a step from what the step has returned; None:
            nothing is.  A number may be an array of one element that is yet computed.
        ended: Is given their number when the session knows them.

    Example::

        light = LightSteps.begin(session, root, optimizer, mode)
        while light is not None and light.goes_on():
            light.add(step())
    """

    __slots__ = (
        "_began_ns",
        "_changes",
        "_ended",
        "_is_open",
        "_mode",
        "_most",
        "_n_changes",
        "_read",
        "_root",
        "_session",
        "_step_plan",
        "_steps",
        "_until_ns",
    )

    def __init__(
        self,
        session: Session,
        root: Hashable,
        mode: ModeKeys,
        step_plan: StepPlan,
        most: int,
        until_ns: int,
        read: Callable[[Any], Numbers] | None,
        ended: Callable[[int], None],
    ) -> None:
        self._session = session
        self._root = root
        self._mode = mode
        self._step_plan = step_plan
        self._most = most
        self._until_ns = until_ns
        self._read = read
        self._ended = ended
        self._changes = session.policy.registry.changes
        self._n_changes = self._changes.count
        self._began_ns = 0
        self._is_open = True
        # Of each step when it began and ended, and its numbers.
        self._steps: list[tuple[int, int, Numbers]] = []

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
        """Begin to count the steps that follow; None: the session is to be told each.

        Args:
            session: The session, between two steps.
            root: The key of the forwards of these steps.
            optimizer: The key of the optimizer that ends them.
            mode: Their mode.
            read: As of the class.
            ended: As of the class.
        """
        machine, policy = session.machine, session.policy
        now_ns = time.perf_counter_ns()
        until_ns = min(session.obedience.next_poll_ns, now_ns + _NS)
        if until_ns <= now_ns or not machine.may_skip(mode, optimizer):
            return None
        first = machine.following(mode)
        plan = policy.step_plan(mode, first)
        if (plan.is_active and not plan.is_light) or first < policy.of_mode(
            mode
        ).beginning:
            return None
        most = int(min(policy.of_mode(mode).span.end - first, _MOST))
        due = (i for i in range(most) if policy.scalars_due(mode, first + i))
        most = next(due, most)
        if most < _FEWEST:
            return None
        light = cls(session, root, mode, plan, most, until_ns, read, ended)
        session.before_next_event(light.close)
        return light

    def goes_on(self) -> bool:
        """Whether the step that begins now is one of them."""
        self._began_ns = now_ns = time.perf_counter_ns()
        return (
            self._is_open
            and now_ns < self._until_ns
            and len(self._steps) < self._most
            and self._changes.count == self._n_changes
            and self._session.is_live
        )

    def add(self, result: Any = None) -> None:
        """The step that has begun is over, and has returned *result*."""
        now_ns, read = time.perf_counter_ns(), self._read
        numbers: Any = ()
        if read is not None:
            try:
                numbers = read(result)
            except Exception as error:
                self._session.run(_raise, error)
        self._steps.append((self._began_ns, now_ns, numbers))

    def close(self) -> None:
        """Tell the session what there was; nothing is counted any more."""
        if self._is_open:
            self._is_open = False
            if self._steps:
                self._session.run(self._tell)

    def _tell(self) -> None:
        session, steps = self._session, self._steps
        last = session.machine.skip(self._mode, self._root, len(steps))
        first = last.number - len(steps) + 1
        mode_step = last.mode_step - len(steps) + 1
        writer = session.step_writer
        for i, (began_ns, ended_ns, numbers) in enumerate(steps[:-1]):
            if numbers and self._record(first + i, numbers):
                writer.light_step_has_data(
                    first + i, self._mode, mode_step + i, ended_ns - began_ns
                )
        rest_ns = sum(ended - began for began, ended, _ in steps[:-1])
        writer.light_steps_end(last, len(steps) - 1, rest_ns)
        began_ns, ended_ns, numbers = steps[-1]
        spent_ns = session.meter.spent_ns
        context = StepContext(last, self._step_plan, began_ns, spent_ns)
        context.extend(ended_ns, spent_ns)
        last.context = context
        context.has_data = bool(numbers) and self._record(last.number, numbers)
        writer.step_ended(last, ended_ns, spent_ns, context)
        self._ended(len(steps))

    def _record(self, number: int, numbers: Numbers) -> bool:
        """Record the numbers of a step; return whether any is captured."""
        of_entry = self._step_plan.of_entry
        chosen = [(*each, of_entry(each[0])) for each in numbers]
        chosen = [each for each in chosen if each[2]]
        if chosen:
            entries, values, flags = zip(*chosen, strict=True)
            array = np.array(values, np.float32)
            self._session.recorder.take_step_numbers(number, entries, array, flags)
        return bool(chosen)


def _raise(error: Exception) -> None:
    raise error
