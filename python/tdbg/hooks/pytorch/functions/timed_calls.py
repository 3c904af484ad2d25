"""Calls of functions that are phases of a training: losses and backward passes.

A ``CountedCall`` of the core is called in place of each function.  It enters the phase
in the clocks of all trainings of the process that measure their steps: a clock takes no
time but that of its own thread.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdbg._core import CountedCall, StepClock

__all__ = ["add_clock", "remove_clock", "time_call", "untime_call"]

_clocks: list[StepClock] = []
_calls: list[CountedCall] = []


def add_clock(clock: StepClock) -> None:
    """Measure all these calls by a clock, too."""
    _clocks.append(clock)
    _tell()


def remove_clock(clock: StepClock) -> None:
    """Measure nothing by a clock any longer."""
    if clock in _clocks:
        _clocks.remove(clock)
        _tell()


def time_call(call: CountedCall) -> CountedCall:
    """Measure a call from now on; return it."""
    _calls.append(call)
    call.clocks = tuple(_clocks)
    return call


def untime_call(call: CountedCall) -> None:
    """Measure a call no longer."""
    call.clocks = ()
    _calls[:] = [each for each in _calls if each is not call]


def _tell() -> None:
    clocks = tuple(_clocks)
    for call in _calls:
        call.clocks = clocks
