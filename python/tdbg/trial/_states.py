"""Whether a step has been saved, may still come, or never will.

Thread safety: functions over a ``RunState`` whose lock is held, except ``wait``.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable

import numpy as np

from tdbg.errors import NoMoreData, QueryError, StepNotYetAvailable, StepUnavailable
from tdbg.modes import ModeKeys
from tdbg.trial._run import RunState

__all__ = ["StepState", "missing_step", "mode_key", "state_of", "wait"]

# Between two looks at a run that is waited for.
SHORTEST_WAIT = 0.002
LONGEST_WAIT = 0.05


class StepState(enum.IntEnum):
    """What a reader can expect of a step."""

    UNAVAILABLE = 0
    """Nothing was saved at it, and nothing ever will be."""
    AVAILABLE = 1
    """It was saved, and nothing more will come for it."""
    NOT_YET_AVAILABLE = 2
    """It may still come, or is not complete yet."""


def mode_key(mode: ModeKeys | str | None) -> ModeKeys:
    """The mode of that name or value; None means GLOBAL.

    Raises:
        QueryError: If there is no such mode.
    """
    given: object = mode
    if given is None:
        return ModeKeys.GLOBAL
    if isinstance(given, ModeKeys):
        return given
    name = given.upper() if isinstance(given, str) else ""
    if name not in ModeKeys.__members__:
        msg = f"mode must be one of {', '.join(ModeKeys.__members__)}, not {given!r}"
        raise QueryError(msg)
    return ModeKeys[name]


def state_of(run: RunState, step: int, mode: ModeKeys) -> StepState:
    """The state of *step*, in the count of *mode*."""
    steps, at = run.table.of_mode(mode)
    i = int(np.searchsorted(steps, step))
    if i == len(steps):
        in_range = mode is not ModeKeys.GLOBAL or run.start <= step < run.stop
        may_come = in_range and not run.ended
        return StepState.NOT_YET_AVAILABLE if may_come else StepState.UNAVAILABLE
    record = run.table.data[at[i]]
    if steps[i] == step:
        if not record["settled"]:
            return StepState.NOT_YET_AVAILABLE
        saved = run.has_data(int(record["step"]))
        return StepState.AVAILABLE if saved else StepState.UNAVAILABLE
    if run.ended or run.table.last_complete() >= record["step"]:
        return StepState.UNAVAILABLE
    return StepState.NOT_YET_AVAILABLE


def missing_step(run: RunState, step: int, mode: ModeKeys) -> QueryError:
    """The error for a step at which nothing can be read."""
    where = f"step {step} (mode {mode.name})"
    steps, _ = run.table.of_mode(mode)
    last = int(steps[-1]) if len(steps) else -1
    if state_of(run, step, mode) is StepState.NOT_YET_AVAILABLE:
        return StepNotYetAvailable(f"{where} is not there yet; the last is {last}")
    if run.ended and step > last:
        return NoMoreData(
            f"{where} will not come: the training has ended, its last is {last}"
        )
    return StepUnavailable(f"{where} was not saved{_nearest_steps(steps, step)}")


def wait(
    run: RunState, required: Iterable[int], mode: ModeKeys, timeout: float | None
) -> None:
    """Return when all *required* steps are available.

    Raises:
        StepUnavailable: If one of them was not saved and never will be.
        NoMoreData: If the training ended before one of them.
        StepNotYetAvailable: If *timeout* seconds have passed.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = SHORTEST_WAIT
    for step in sorted(required):
        while True:
            with run.lock:
                state = state_of(run, step, mode)
                if state is StepState.NOT_YET_AVAILABLE and run.poll():
                    pause = SHORTEST_WAIT
                    state = state_of(run, step, mode)
                if state is StepState.AVAILABLE:
                    break
                if state is StepState.UNAVAILABLE:
                    raise missing_step(run, step, mode)
            left = np.inf if deadline is None else deadline - time.monotonic()
            if left <= 0:
                msg = f"step {step} (mode {mode.name}) did not come in {timeout:g} s"
                raise StepNotYetAvailable(msg)
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_WAIT)


def _nearest_steps(steps: np.ndarray[tuple[int], np.dtype[np.int64]], step: int) -> str:
    i = int(np.searchsorted(steps, step))
    near = [str(s) for s in steps[max(0, i - 1) : i + 1].tolist() if s != step]
    return f"; the nearest recorded is {' or '.join(near)}" if near else ""
