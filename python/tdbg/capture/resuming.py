"""How far a training is, kept in its checkpoint, so that a resumed one goes on.

The steps of a resumed training replace those that earlier attempts made from its
first step on (docs/steps.md, "Resuming").
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tdbg.capture.steps import Counters, StepMachine
from tdbg.config import nearest
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys

__all__ = ["counters_of", "parse_counters", "resume"]

VERSION = 1
# No training makes so many steps; numbers of steps are 64 bits on disk.
_MAX_STEP = 1 << 62

_log = logging.getLogger("tdbg")


def counters_of(machine: StepMachine) -> dict[str, Any]:
    """What ``parse_counters`` reads."""
    counters = machine.counters()
    modes = {mode.name: count for mode, count in counters.modes.items() if count}
    return {"version": VERSION, "step": counters.step, "modes": modes}


def parse_counters(state: object) -> Counters:
    """Counters from a checkpoint.

    Raises:
        ConfigurationError: If they are none.
    """
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        msg = f"expected what hook.state_dict() gives, not {_short(state)}"
        raise ConfigurationError(msg)
    given = state.get("modes")
    if not isinstance(given, Mapping):
        msg = f"modes must map names of modes to numbers of steps, not {_short(given)}"
        raise ConfigurationError(msg)
    modes = dict.fromkeys(ModeKeys, 0)
    for name, count in given.items():
        if name not in ModeKeys.__members__:
            msg = f"modes: unknown {name!r}; {nearest(name, ModeKeys.__members__)}"
            raise ConfigurationError(msg)
        modes[ModeKeys[name]] = _step(name, count)
    return Counters(_step("step", state.get("step")), modes)


def resume(machine: StepMachine, counters: Counters) -> bool:
    """Let the machine go on from there; False where that would be a way back."""
    if machine.continue_from(counters):
        return True
    _log.warning(
        "tdbg goes on counting at step %d: a checkpoint of step %d was loaded after "
        "steps had been made; load it before the first one",
        machine.counters().step,
        counters.step,
    )
    return False


def _step(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        msg = f"{name} must be a number of steps, not {_short(value)}"
        raise ConfigurationError(msg)
    number = int(value.__index__())
    if not 0 <= number < _MAX_STEP:
        msg = f"{name} must be a number of steps, not {number}"
        raise ConfigurationError(msg)
    return number


def _short(value: object) -> str:
    return repr(value)[:200]
