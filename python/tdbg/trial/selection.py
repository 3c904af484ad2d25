"""Which steps and names a question is about.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import NO_TENSORS, Role
from tdbg.config.patterns import NamePattern
from tdbg.config.quantities import conjoin, reach
from tdbg.errors import (
    ConfigurationError,
    NoMoreData,
    QueryError,
    StepNotYetAvailable,
    StepUnavailable,
)
from tdbg.modes import ModeKeys
from tdbg.trial import values
from tdbg.trial.removed import removed
from tdbg.trial.run import RunState
from tdbg.trial.training_steps import is_training

__all__ = [
    "Count",
    "StepState",
    "count_of",
    "global_step_of",
    "in_words",
    "matching",
    "missing_step",
    "mode_key",
    "saved_in",
    "saved_near",
    "state_of",
    "step_range",
    "steps_of",
    "wait",
]


WHAT = ("any", "values", "statistics", "tensors", "histograms")

# What is recorded beside the tensors that the schedule is about.
LIGHT_ROLES = frozenset({Role.LOSS, Role.SCALAR, Role.UNIT_SUMMARY, *NO_TENSORS})

#: A mode, or None: training, that is modes TRAIN and GLOBAL counted together.
Count = ModeKeys | None


def count_of(run: RunState, name: str | None, mode: ModeKeys | str | None) -> Count:
    """In which count steps are given that belong to a tensor, or to the run.

    Without a mode it is that of training steps; of what was recorded in evaluation
    alone, that of evaluation.

    Args:
        run: The run.
        name: The tensor; None: the run.
        mode: The mode that a caller gives, or None.

    Raises:
        QueryError: If there is no such mode.
    """
    if mode is not None:
        return mode_key(mode)
    if name not in run.counts:
        run.counts[name] = _usual_count(run, name)
    return run.counts[name]


def _usual_count(run: RunState, name: str | None) -> Count:
    modes = run.table.column("mode")
    evaluated = ~is_training(modes)
    if not evaluated.any():
        return None
    saved = values.saved_steps(run, name, "any")
    evaluated = evaluated[np.isin(run.table.steps, saved, assume_unique=True)]
    modes = modes[np.isin(run.table.steps, saved, assume_unique=True)]
    if not len(modes) or not evaluated.all():
        return None
    return ModeKeys.EVAL if (modes == ModeKeys.EVAL.value).any() else ModeKeys.PREDICT


def in_words(mode: Count) -> str:
    """Return the count of a step as errors name it, in brackets."""
    return "" if mode is None else f" (mode {mode.name})"


def steps_of(
    run: RunState,
    name: str | None,
    mode: Count,
    what: str | None = "any",
    show_incomplete_steps: bool = False,
    worker: str | None = None,
) -> list[int]:
    """Steps, in the count of *mode*, at which something of *name* was saved.

    Raises:
        ConfigurationError: If *what* is none of "any", "values", "statistics",
            "tensors", "histograms".
    """
    found = saved_in(run, name, mode, what, show_incomplete_steps, worker)
    steps: list[int] = found.tolist()
    return steps


def saved_in(
    run: RunState,
    name: str | None,
    mode: Count,
    what: str | None = "any",
    show_incomplete_steps: bool = False,
    worker: str | None = None,
) -> NDArray[np.int64]:
    """Return the saved steps of a tensor in a mode, as an array.

    Args:
        run: The run.
        name: The tensor; None: any.
        mode: Whose steps they are.
        what: As of ``Trial.steps``.
        show_incomplete_steps: Also those for which more may come.
        worker: Only what this worker saved.
    """
    if what is None:
        return _of_tensors(run, mode, show_incomplete_steps)
    if what not in WHAT:
        msg = f"what must be one of {', '.join(WHAT)}, not {what!r}"
        raise ConfigurationError(msg)
    saved = values.saved_steps(run, name, what, worker)
    return _in_count(run, saved, mode, show_incomplete_steps)


def _of_tensors(
    run: RunState, mode: Count, show_incomplete_steps: bool
) -> NDArray[np.int64]:
    """Return the steps of raw values, or else of statistics, or else all.

    Losses and scalars, which are recorded more often than tensors, count last.
    """
    for what in ("values", "statistics"):
        saved = values.saved_steps(run, None, what, but=LIGHT_ROLES)
        found = _in_count(run, saved, mode, show_incomplete_steps)
        if len(found):
            return found
    saved = values.saved_steps(run, None, "any")
    return _in_count(run, saved, mode, show_incomplete_steps)


def _in_count(
    run: RunState, saved: NDArray[np.int64], mode: Count, show_incomplete_steps: bool
) -> NDArray[np.int64]:
    """Return those of some global steps that belong to a count, as it numbers them."""
    if mode is ModeKeys.GLOBAL:
        if not show_incomplete_steps:
            saved = _settled(run, saved)
        return saved
    steps, at = run.table.of_mode(mode)
    if not show_incomplete_steps:
        settled = run.table.column("settled")[at]
        steps, at = steps[settled], at[settled]
    found = steps[np.isin(run.table.steps[at], saved, assume_unique=True)]
    if mode is None and show_incomplete_steps:
        # Of a step that has not ended nobody knows the mode; mostly it trains.
        still_open = saved[saved > run.table.steps.max(initial=-1)]
        more = np.array(run.training_steps_at(still_open.tolist()), np.int64)
        found = np.concatenate((found, more))
    return found


def _settled(run: RunState, saved: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of *saved*, mostly few, that are settled steps of the run."""
    steps, settled = run.table.steps, run.table.column("settled")
    at = np.searchsorted(steps, saved)
    saved, at = saved[at < len(steps)], at[at < len(steps)]
    found: NDArray[np.int64] = saved[(steps[at] == saved) & settled[at]]
    return found


def global_step_of(run: RunState, step: int, mode: Count) -> int | None:
    """The global step that *step* of *mode* is, or None where it is not recorded."""
    if mode is ModeKeys.GLOBAL:
        return step
    steps, at = run.table.of_mode(mode)
    i = int(np.searchsorted(steps, step))
    if i < len(steps) and steps[i] == step:
        return int(run.table.steps[at[i]])
    if mode is None and i == len(steps):
        return _still_open(run, step)
    return None


def _still_open(run: RunState, step: int) -> int | None:
    """The global step that a training step will be if it is open, or None."""
    table = run.table
    last, trained = (
        int(each[-1]) if len(each) else -1
        for each in (table.steps, table.of_mode(None)[0])
    )
    (at_last,) = run.training_steps_at([last])
    if at_last > trained:  # The last one was of evaluation, before this one.
        at_last -= 1
    found = last + step - at_last
    return found if found > last and run.has_data(found) else None


def saved_near(
    run: RunState,
    name: str,
    step: int,
    mode: Count,
    what: str = "values",
    worker: str | None = None,
) -> int | None:
    """The step nearest to *step* at which *name* has a raw value, or what is asked."""
    steps = steps_of(run, name, mode, what, worker=worker)
    return min(steps, key=lambda found: abs(found - step), default=None)


def matching(names: Iterable[str], regex: str | Iterable[str] | None) -> set[str]:
    """Those of *names* in which one of the expressions is found.

    Raises:
        ConfigurationError: If one is not a regular expression.
    """
    if regex is None:
        return set(names)
    patterns = []
    for text in [regex] if isinstance(regex, str) else regex:
        try:
            # Names may be anybody's: whatever they are, this takes no time.
            patterns.append(NamePattern(text))
        except (re.error, TypeError) as error:
            msg = f"{text!r} is not a regular expression: {error}"
            raise ConfigurationError(msg) from error
    return {name for name in names if any(p.search(name) for p in patterns)}


# Between two looks at a run that is waited for.
SHORTEST_WAIT = 0.002
LONGEST_WAIT = 0.05


class StepState(enum.IntEnum):
    """The state of a step for a reader."""

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


def state_of(run: RunState, step: int, mode: Count) -> StepState:
    """The state of *step*, in the count of *mode*."""
    steps = run.table.numbers(mode)
    i = int(np.searchsorted(steps, step))
    if i == len(steps):
        in_range = mode is not ModeKeys.GLOBAL or run.start <= step < run.stop
        may_come = in_range and not run.ended
        return StepState.NOT_YET_AVAILABLE if may_come else StepState.UNAVAILABLE
    at = i if mode is ModeKeys.GLOBAL else int(run.table.of_mode(mode)[1][i])
    record = run.table.row(at)
    if steps[i] == step:
        if not record["settled"]:
            return StepState.NOT_YET_AVAILABLE
        saved = run.has_data(int(record["step"]))
        return StepState.AVAILABLE if saved else StepState.UNAVAILABLE
    if run.ended or run.table.last_complete() >= record["step"]:
        return StepState.UNAVAILABLE
    return StepState.NOT_YET_AVAILABLE


def missing_step(run: RunState, step: int, mode: Count) -> QueryError:
    """The error for a step at which nothing can be read."""
    where = f"step {step}{in_words(mode)}"
    steps = run.table.numbers(mode)
    last = int(steps[-1]) if len(steps) else -1
    other = "" if len(steps) else _other_modes(run)
    if state_of(run, step, mode) is StepState.NOT_YET_AVAILABLE:
        told = other or f"the last is {last}"
        return StepNotYetAvailable(f"{where} is not there yet; {told}")
    if run.ended and step > last:
        told = other or f"its last is {last}"
        return NoMoreData(f"{where} will not come: the training has ended, {told}")
    near = _nearest_steps(steps, step)
    gone = next((each for each in removed(run) if not each.values_only), None)
    if gone is not None and len(steps) and step < steps[0]:
        near += f"; {gone}"
    return StepUnavailable(f"{where} was not saved{near}")


def _other_modes(run: RunState) -> str:
    """Say which modes have steps, where the one that is asked for has none."""
    table = run.table
    if not len(table.steps):
        return "no step is recorded so far"
    numbers, modes = table.column("mode_step"), table.column("mode")
    found = [
        f"{mode.name} ({reach(int(of_mode.min()), int(of_mode.max()))})"
        for mode in ModeKeys
        if len(of_mode := numbers[modes == mode.value])
    ]
    return f"modes with steps are {conjoin(found)}"


def wait(
    run: RunState, required: Iterable[int], mode: Count, timeout: float | None
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
                with run.lock:
                    missing = missing_step(run, step, mode)
                msg = f"{missing}; it did not come in {timeout:g} s"
                raise StepNotYetAvailable(msg)
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_WAIT)


def step_range(
    given: tuple[int, int | None] | None,
) -> tuple[int, int | None] | None:
    """Return a range of steps that a user gave, as integers.

    Raises:
        ConfigurationError: If it is none, or holds no step.
    """
    if given is None:
        return None
    try:
        start, stop = given
        start = int(start)
        stop = None if stop is None else int(stop)
    except (TypeError, ValueError) as error:
        msg = (
            "range_steps must be (first, end): the first global step and the one "
            f"after the last, or None, not {given!r}"
        )
        raise ConfigurationError(msg) from error
    if stop is not None and stop <= start:
        msg = (
            f"range_steps {given!r} holds no step: the end is the step after the last, "
            f"such as ({start}, {start + 1})"
        )
        raise ConfigurationError(msg)
    return start, stop


def _nearest_steps(steps: np.ndarray[tuple[int], np.dtype[np.int64]], step: int) -> str:
    i = int(np.searchsorted(steps, step))
    near = [str(s) for s in steps[max(0, i - 1) : i + 1].tolist() if s != step]
    return f"; the nearest recorded is {' or '.join(near)}" if near else ""
