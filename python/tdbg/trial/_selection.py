"""Which steps and names a question is about.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.patterns import NamePattern
from tdbg.trial import _lookup
from tdbg.trial._run import RunState

__all__ = ["global_step_of", "matching", "nearest", "saved_near", "steps_of"]

WHAT = ("any", "values", "statistics", "histograms")


def steps_of(
    run: RunState,
    name: str | None,
    mode: ModeKeys,
    what: str = "any",
    show_incomplete_steps: bool = False,
    worker: str | None = None,
) -> list[int]:
    """Steps, in the count of *mode*, at which something of *name* was saved.

    Raises:
        ConfigurationError: If *what* is none of "any", "values", "statistics",
            "histograms".
    """
    if what not in WHAT:
        msg = f"what must be one of {', '.join(WHAT)}, not {what!r}"
        raise ConfigurationError(msg)
    saved = _lookup.saved_steps(run, name, what, worker)
    if mode is ModeKeys.GLOBAL:
        if not show_incomplete_steps:
            saved = _settled(run, saved)
        return [int(step) for step in saved]
    steps, at = run.table.of_mode(mode)
    if not show_incomplete_steps:
        settled = run.table.data["settled"][at]
        steps, at = steps[settled], at[settled]
    found = steps[np.isin(run.table.steps[at], saved, assume_unique=True)]
    return [int(step) for step in found]


def _settled(run: RunState, saved: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of *saved*, mostly few, that are settled steps of the run."""
    steps, settled = run.table.steps, run.table.data["settled"]
    at = np.searchsorted(steps, saved)
    saved, at = saved[at < len(steps)], at[at < len(steps)]
    found: NDArray[np.int64] = saved[(steps[at] == saved) & settled[at]]
    return found


def global_step_of(run: RunState, step: int, mode: ModeKeys) -> int | None:
    """The global step that *step* of *mode* is, or None where it is not recorded."""
    if mode is ModeKeys.GLOBAL:
        return step
    steps, at = run.table.of_mode(mode)
    i = int(np.searchsorted(steps, step))
    if i == len(steps) or steps[i] != step:
        return None
    return int(run.table.steps[at[i]])


def saved_near(run: RunState, name: str, step: int, mode: ModeKeys) -> int | None:
    """The step nearest to *step* at which *name* has a raw value."""
    steps = steps_of(run, name, mode, "values")
    return min(steps, key=lambda found: abs(found - step), default=None)


def matching(names: Iterable[str], regex: str | Iterable[str] | None) -> set[str]:
    """Those of *names* in which one of the expressions is found.

    Raises:
        ConfigurationError: If one is no regular expression.
    """
    if regex is None:
        return set(names)
    patterns = []
    for text in [regex] if isinstance(regex, str) else regex:
        try:
            # Names may be anybody's: whatever they are, this takes no time.
            patterns.append(NamePattern(text))
        except (re.error, TypeError) as error:
            msg = f"{text!r} is no regular expression: {error}"
            raise ConfigurationError(msg) from error
    return {name for name in names if any(p.search(name) for p in patterns)}


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that is not there."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known[:5000], n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    if not known:
        return "there is none so far"
    shown = ", ".join(map(repr, known[:5]))
    return f"there are {len(known)}: {shown}{', ...' if len(known) > 5 else ''}"
