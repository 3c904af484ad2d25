"""A step, and what an event of the training leads to.

Values of the step machine (docs/steps.md); what a hook keeps for a step is in its
context.

Thread safety: none; owned by the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tdbg.modes import ModeKeys

__all__ = ["INTERRUPTED", "SKIPPED", "Change", "Counters", "Step", "change_of"]

# Flags of a step, on disk (docs/format.md): never renumber.
SKIPPED = 1
INTERRUPTED = 2


@dataclass(slots=True, eq=False)
class Step:
    """One step, from its first event until its end and a little longer.

    Attributes:
        number: Its global number.
        mode: Its mode.
        mode_step: Its number among the steps of that mode.
        flags: SKIPPED, INTERRUPTED.
        is_open: Whether it has not ended.
        is_taken: Whether a closure was evaluated already: what the optimizer
            calls after that are trials of its own and not captured.
        may_train: Of evaluation: whether gradients can be computed of its forward.
        micro_batch: Of the latest root forward.
        micro_batches: How many there were; at least 1.
        context: Whatever the owner of the machine keeps for the step.
    """

    number: int
    mode: ModeKeys
    mode_step: int
    flags: int = 0
    is_open: bool = True
    is_taken: bool = False
    may_train: bool = False
    micro_batch: int = 0
    micro_batches: int = 1
    context: Any = None
    forwards: dict[Hashable, int] = field(default_factory=dict)

    def add_forward(self, root: Hashable) -> None:
        """A root was called again: that is a further micro-batch."""
        count = self.forwards[root]
        self.forwards[root] = count + 1
        self.micro_batch = count
        self.micro_batches = max(self.micro_batches, count + 1)


class Counters(NamedTuple):
    """Numbers of the steps that come next.

    Attributes:
        step: The global one.
        modes: Those of each mode.
    """

    step: int
    modes: dict[ModeKeys, int]


class Change(NamedTuple):
    """What an event led to.

    Attributes:
        step: The step that the event belongs to, or None.
        began: Whether that step begins here.
        ended: Steps that ended, in this order; before *step* began.
    """

    step: Step | None
    began: bool = False
    ended: tuple[Step, ...] = ()


# The same without a call of Python's: several events of every step make one.
change_of: Callable[[tuple[Step | None, bool, tuple[Step, ...]]], Change]
change_of = functools.partial(tuple.__new__, Change)
