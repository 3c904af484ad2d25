"""Steps that pass without an event of the session.

Observing a step costs 100 us of Python.  While it is known in advance what the next
steps capture, a source lets them pass: ``CountedSteps`` where the core compares the
events, ``LightSteps`` where a compiled function is a whole step.  Before its next
event, the session ends the source and accounts for all of its steps at once.

Thread safety: values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from tdbg.capture.tensor_entry import TensorEntry

__all__ = ["PassedNumbers", "PassedSteps", "PassingSteps"]


class PassedNumbers(NamedTuple):
    """Numbers to record of one step that has passed.

    Attributes:
        n_before: How many steps passed before this one.
        duration_ns: Duration of the step.
        entries: The names of the numbers.
        values: The numbers: float32, contiguous, of one dimension; None: they could not
            be read, and are refused.
        flags: What to capture of each.
    """

    n_before: int
    duration_ns: int
    entries: Sequence[TensorEntry]
    values: NDArray[Any] | None
    flags: Sequence[int]


class PassedSteps(NamedTuple):
    """Training steps that have passed.

    Attributes:
        n: How many they are.
        duration_ns: Their duration in all.
        last_ns: The duration of the last one.
        numbers: Numbers of some of them, in the order of the steps.
        felt_ns: Time that each costs the training outside all clocks of tdbg; the
            default budget charges it.
        forwards: How often each step called each root; None: as often as the last
            observed step did.
    """

    n: int
    duration_ns: int = 0
    last_ns: int = 0
    numbers: Sequence[PassedNumbers] = ()
    felt_ns: int = 0
    forwards: Mapping[Hashable, int] | None = None


class PassingSteps(Protocol):
    """A source of steps that pass; ``Session.let_pass`` takes it."""

    @property
    def n(self) -> int:
        """Number of steps that are over."""

    @property
    def n_begun(self) -> int:
        """Number of steps that have begun."""

    @property
    def duration_ns(self) -> int:
        """Duration of the steps that are over."""

    def end(self) -> PassedSteps:
        """Let no more steps pass; return those that are over."""

    def resume(self, n: int) -> None:
        """Continue where the steps have ended.

        Args:
            n: How many steps have passed; the session has accounted for them.
        """
