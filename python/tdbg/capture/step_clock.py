"""The clock of a session: what phase a training is in, and how long each one takes.

``tdbg._core.StepClock`` measures; ``NoClock`` stands where there is no core.

Thread safety: as cpp/sampler/step_clock.h.

Errors: none.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from tdbg.modes import TRAINING, ModeKeys
from tdbg.run.profile_tables import Phase

if TYPE_CHECKING:
    from tdbg._core import StepClock

__all__ = [
    "BACKWARD",
    "COMPUTE",
    "EVALUATION",
    "FORWARD",
    "FORWARD_OF",
    "OPTIMIZER",
    "STEP_OF",
    "make_clock",
]

# Plain numbers: each step passes them to the core.
FORWARD, EVALUATION = int(Phase.FORWARD), int(Phase.EVALUATION)
OPTIMIZER, COMPUTE = int(Phase.OPTIMIZER), int(Phase.COMPUTE)
BACKWARD = int(Phase.BACKWARD)

# What a forward is in each mode.
FORWARD_OF = {mode: FORWARD if mode in TRAINING else EVALUATION for mode in ModeKeys}
# What a step is that is compiled as a whole.
STEP_OF = {mode: COMPUTE if mode in TRAINING else EVALUATION for mode in ModeKeys}


class NoClock:
    """Stands where nothing is measured; it only tells the time."""

    is_on = False
    phase = n_lost = n_steps = coming_step = 0
    global_step = -1
    tdbg_begins = tdbg_ends = staticmethod(time.perf_counter_ns)

    def take_rows(self) -> bytes:
        """Return no rows."""
        return b""

    def end_step(self, *_: Any) -> bool:
        """Do nothing; no rows are due."""
        return False

    number_steps = end_step

    def start(self, *_: Any) -> None:
        """Do nothing."""

    loss_begins = loss_ends = move = stand_in = stand_down = start
    stop = enter = leave = collects = spend = spend_in = start
    add_batch = add_samples = step_passes = start
    end_evaluation = keep_evaluation = forget_evaluation = set_is_repeating = start


def make_clock(*, has_core: bool) -> StepClock:
    """Return a clock that has not started."""
    if has_core:
        clock: StepClock = import_module("tdbg._core").StepClock()
        return clock
    return cast("StepClock", NoClock())
