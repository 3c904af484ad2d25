"""Invariants: conditions that only the author of a training knows, and the hook checks.

Implements docs/invariants.md, "What only you know".  A condition is checked where a
step of training begins, and when the run ends; the first time that it does not hold,
the hook writes an observation, and checks it no more.

Thread safety: the training's thread.

Errors: ``invariant`` raises ConfigurationError for what can never be checked; nothing
that a condition raises escapes.
"""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.config.messages import short, whole_number
from tdbg.config.quantities import number
from tdbg.errors import ConfigurationError
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

if TYPE_CHECKING:
    from tdbg.capture.session import Session

__all__ = ["Invariants", "WithInvariants"]

Condition = Callable[[], Any]
# What all conditions of a hook may cost: this share of the training's time.
SHARE = 0.01
# So often in a row a condition may fail to be checked, before it is given up.
MOST_FAILURES = 3
_LONGEST_MESSAGE = 500


@dataclass(slots=True)
class _Invariant:
    """A condition, and when it was checked.

    Attributes:
        name: Its name.
        condition: Returns whether it holds.
        tolerance: How far from zero a number may be that it returns.
        every: Number of steps between two checks, at least.
        due: The step from which on it is checked next.
        n_failures: How often in a row it could not be checked.
    """

    name: str
    condition: Condition
    tolerance: float
    every: int
    due: int = 0
    n_failures: int = 0

    def violation(self) -> str | None:
        """Return how it is broken; None if it holds.

        Raises:
            Exception: Whatever the condition raises; it could not be checked.
        """
        try:
            result = self.condition()
        except AssertionError as error:
            return str(error)
        said = ""
        if isinstance(result, tuple) and len(result) == 2:
            result, said = result[0], str(result[1])
        if result is None:
            return None
        if _is_truth(result):
            return None if bool(result) else said
        value = float(result)
        if abs(value) <= self.tolerance:
            return None
        found = f"It is {number(value)}, more than {number(self.tolerance)} from zero."
        return said or found


class Invariants:
    """The conditions of one hook.

    Args:
        session: Begins the steps, and writes what was observed.
        quietly: Makes what surrounds the checks: the framework records no gradient.
    """

    def __init__(
        self, session: Session, quietly: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._session = session
        self._quietly = quietly
        self._known: dict[str, _Invariant] = {}
        self._step = -1
        self._resumes_ns = 0
        session.listen(border=self._step_begins, close=self._end, rest=self.clear)

    def add(self, invariant: _Invariant) -> None:
        """Check a condition from the next step on.

        Raises:
            ConfigurationError: If another one has its name.
        """
        if invariant.name in self._known:
            msg = f"there is an invariant {invariant.name!r} already; name it otherwise"
            raise ConfigurationError(msg)
        self._known[invariant.name] = invariant

    def clear(self) -> None:
        """Forget all conditions, and what they refer to."""
        self._known.clear()

    def _step_begins(self) -> None:
        step = self._session.training
        if step is None or step.number <= self._step or not self._known:
            return
        self._step = step.number
        start = time.perf_counter_ns()
        if start < self._resumes_ns:
            return
        due = [each for each in self._known.values() if each.due <= step.number]
        self._check(due, step.number)
        end = time.perf_counter_ns()
        self._resumes_ns = end + int((end - start) * (1 / SHARE - 1))

    def _end(self) -> None:
        """Check once more what the last step has left."""
        last, _ = self._session.latest_step(TRAIN)
        self._session.run(self._check, [*self._known.values()], max(0, last))
        self.clear()

    def _check(self, invariants: list[_Invariant], step: int) -> None:
        with self._quietly():
            for each in invariants:
                self._check_one(each, step)

    def _check_one(self, invariant: _Invariant, step: int) -> None:
        invariant.due = step + invariant.every
        try:
            said = invariant.violation()
        except Exception as error:  # The user's code: may raise anything.
            invariant.n_failures += 1
            if invariant.n_failures >= MOST_FAILURES:
                self._tell(invariant.name, step, error=_text_of(error))
            return
        invariant.n_failures = 0
        if said is not None:
            self._tell(invariant.name, step, message=said)

    def _tell(self, name: str, step: int, **words: str) -> None:
        self._known.pop(name, None)
        words = {key: text[:_LONGEST_MESSAGE] for key, text in words.items()}
        fault = Fault.BROKEN_INVARIANT
        self._session.observe(Observation(fault, step, (name,), words=words))


class WithInvariants:
    """The part of a hook that takes invariants."""

    _session: Session
    _adapter: FrameworkAdapter
    _invariants: Invariants | None = None

    def invariant(
        self, name: str, condition: Condition, *, tolerance: float = 0.0, every: int = 1
    ) -> None:
        """Check a condition where steps of training begin, and when the run ends.

            hook.invariant("tied", lambda: model.head.weight is model.embedding.weight)
            hook.invariant("frozen", tdbg.invariants.unchanged(model.backbone))

        The first time that it does not hold, the run says so, and the rule
        ``BrokenInvariant`` reports it.  All conditions together cost at most 1 % of
        the training's time: while that is spent, steps pass without a check.  A hook
        that is closed keeps no condition.

        Args:
            name: The name, for messages.
            condition: Called without arguments.  It holds if it returns True, None or
                a number that is 0; it is broken if it returns False or another number,
                or raises AssertionError.  A pair also has the message to show:
                ``(False, "rows 3 and 5 are equal")``.  It must not call the model.
            tolerance: How far from 0 a number may be.
            every: Number of steps between two checks, at least.

        Raises:
            ConfigurationError: If an argument is none of these, or if the name is
                taken.
        """
        given: object = name
        if not isinstance(given, str) or not given:
            msg = f"an invariant has a name, not {given!r}"
            raise ConfigurationError(msg)
        function: object = condition
        if not callable(function):
            msg = (
                f"the condition of {name!r} is {short(function)}, which cannot be "
                "called; give a function, as lambda: a is b"
            )
            raise ConfigurationError(msg)
        far: object = tolerance
        is_number = isinstance(far, int | float) and not isinstance(far, bool)
        if not is_number or not tolerance >= 0:
            msg = f"the tolerance of {name!r} is {tolerance!r}; give a number from 0 on"
            raise ConfigurationError(msg)
        if whole_number(every, 1) is None:
            msg = f"every of {name!r} is {every!r}; give a whole number of at least 1"
            raise ConfigurationError(msg)
        if not self._session.is_live:
            return
        if self._invariants is None:
            self._invariants = Invariants(self._session, self._adapter.quietly)
        self._invariants.add(_Invariant(name, condition, float(tolerance), every))


def _is_truth(value: object) -> bool:
    """Return whether something is True or False, in any library."""
    if isinstance(value, numbers.Number):
        return isinstance(value, bool)
    return "bool" in str(getattr(value, "dtype", ""))


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
