"""The last lines of ``tdbg run``: what it captured, or why it captured nothing.

This module imports no framework, because the program may not have imported one.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tdbg.capture.process import after_close
from tdbg.config.quantities import plural
from tdbg.errors import TrainingStopped
from tdbg.launch import LAUNCH_VARIABLE
from tdbg.launch.family import Place, family_of
from tdbg.remote import is_url

__all__ = [
    "HAS_A_HOOK",
    "CapturedRun",
    "Facts",
    "captured",
    "end_quietly",
    "explain_no_framework",
    "why",
    "why_of_boosting",
    "why_of_gluon",
    "why_of_jax",
    "why_of_keras",
]

_log = logging.getLogger("tdbg")

#: Why tdbg leaves a script alone.
HAS_A_HOOK = "the script has its own hook, which continues"
# So many backward passes of something else are worth a line.
_MANY = 10
# So many runs are named one by one in the command to type next.
_MOST_NAMED = 4
# Other frameworks, by the module that a program imports.
_OTHERS = ("tensorflow",)


@dataclass(slots=True)
class Facts:
    """The findings of a search.

    Attributes:
        n_optimizers: How many optimizers were made.
        n_backwards: How many backward passes began at a single number.
        n_unseen: How many of these followed no captured forward, and reached no
            parameter of a captured model.
        n_gradients: How often JAX has differentiated something outside of steps.
        n_left_out: How many trainings were not captured because there were too many.
        n_transforms: How often a transform of ``torch.func`` has computed gradients of
            anything but parameters of modules.
        has_given_up: Whether the search ended with a warning.
    """

    n_optimizers: int = 0
    n_backwards: int = 0
    n_unseen: int = 0
    n_gradients: int = 0
    n_left_out: int = 0
    n_transforms: int = 0
    has_given_up: bool = False


@dataclass(frozen=True, slots=True)
class CapturedRun:
    """A training that was captured.

    Attributes:
        path: Where the run is.
        n_steps: How many training steps it has.
        n_left_out: How many further models of the training were not captured.
    """

    path: Place
    n_steps: int
    n_left_out: int = 0


def captured(runs: Sequence[CapturedRun], facts: Facts) -> list[str]:
    """Return the lines about the runs of a process; there is at least one run."""
    lines = []
    if len(runs) == 1:
        (run,) = runs
        lines.append(
            f"captured {plural(run.n_steps, 'step')}; the run is in {_shown(run.path)}"
        )
    else:
        names = ", ".join(
            f"{_shown(run.path)} ({plural(run.n_steps, 'step')})" for run in runs
        )
        lines.append(f"captured {len(runs)} trainings, each in its own run: {names}")
    if facts.n_left_out:
        lines.append(
            f"{plural(facts.n_left_out, 'more training')} "
            f"{_were(facts.n_left_out)} not captured: "
            f"a process has at most {len(runs)} runs"
        )
    n_models = sum(run.n_left_out for run in runs)
    if n_models:
        n_calls = plural(n_models, "call")
        lines.append(f"{n_calls} of other models {_were(n_models)} not captured")
    if facts.n_unseen >= _MANY and 2 * facts.n_unseen > facts.n_backwards:
        lines.append(
            f"{facts.n_unseen} of {facts.n_backwards} backward passes followed no "
            "captured forward: tdbg does not see a model if you call its forward() "
            "instead of model(...). To capture such a model, call "
            "tdbg.pytorch.watch(layer)"
        )
    paths = [shlex.quote(_shown(run.path)) for run in runs]
    if len(paths) > _MOST_NAMED:
        paths = [paths[0], shlex.quote(f"{_shown(runs[0].path)}-*")]
    lines[-1] += f"; next: tdbg check {' '.join(paths)}"
    if len(runs) == 1 and not is_url(runs[0].path):
        # Its last steps are on disk when it is closed.  In a store they are later: the
        # launcher waits for that, and says the same.
        after_close(partial(_print_time, runs[0].path))
    return lines


def _print_time(path: Place) -> None:
    """Print where the time of a run went, and what to change; nothing if unreadable.

    Whoever judges the run says at the end of that what to change.
    """
    # After an interrupt any import would change how the interpreter ends.
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        return
    try:
        from tdbg.view.time import lines_at_end

        lines = lines_at_end(str(path), is_judged=_launch().get("is_judged") is True)
    except Exception as error:  # The program has ended as it would without tdbg.
        _log.debug("no line about time: %s", error)
        return
    sys.stderr.write("".join(f"tdbg: {line}\n" for line in lines))


def _launch() -> dict[str, Any]:
    """Return the settings of the launch; none without one."""
    settings: dict[str, Any] = json.loads(os.environ.get(LAUNCH_VARIABLE, "{}"))
    return settings


def why(facts: Facts) -> list[str]:
    """Return the line about a program with torch of which nothing was captured."""
    if facts.has_given_up:
        return []  # The warning said why.
    advice = "call tdbg.pytorch.watch(model) in your program to capture a model"
    if facts.n_transforms and not facts.n_backwards:
        reason = (
            f"torch.func computed gradients {plural(facts.n_transforms, 'time')}, but "
            "of no parameters that a module was called with"
        )
        advice = (
            "call torch.func.functional_call(model, parameters, inputs) inside the "
            "function that you differentiate, so that tdbg knows the parameters"
        )
    elif facts.n_optimizers:
        reason = "the program called no module with an optimizer's parameters"
    elif facts.n_backwards:
        reason = "the program computed gradients, but called no module twice"
    else:
        reason = "the program created no optimizer and began no backward pass"
    return _nothing(f"{reason}; {advice}")


def why_of_keras() -> list[str]:
    """Return the line about a program with Keras of which nothing was captured."""
    reason = (
        "the program imported keras, but trained no model by fit, train_on_batch or "
        "a loop that tdbg can capture"
    )
    return _nothing(reason)


def why_of_boosting(framework: str, entries: Sequence[str]) -> list[str]:
    """Return the line about a program with boosted trees of which nothing was captured.

    Args:
        framework: The name of the framework.
        entries: The names of its functions that train.
    """
    reason = (
        f"the program imported {framework}, but never called {' or '.join(entries)}"
    )
    return _nothing(reason)


def why_of_gluon() -> list[str]:
    """Return the line about a program with MXNet of which nothing was captured."""
    reason = (
        "the program imported mxnet, but created no gluon.Trainer for the parameters "
        "of a block"
    )
    return _nothing(reason)


def why_of_jax(facts: Facts) -> list[str]:
    """Return the line about a program with JAX of which nothing was captured."""
    if facts.n_gradients:
        reason = (
            f"the program computed gradients {plural(facts.n_gradients, 'time')}, but "
            "not in a function that jax.jit compiles and that gets the parameters"
        )
        advice = (
            "compile the whole step with step = jax.jit(step), or name the parameters "
            "with tdbg.jax.Hook(...).jit(step, params=...)"
        )
    else:
        reason = (
            "no function that jax.jit, nnx.jit or equinox.filter_jit has compiled "
            "computes gradients (pmap is not searched)"
        )
        advice = "call tdbg.jax.Hook(...).jit(step) in your program to capture a step"
    return _nothing(f"{reason}; {advice}")


def end_quietly() -> None:
    """Print one line, and no traceback, if a stop ends the program; once is enough."""
    before = sys.excepthook
    if getattr(before, "_is_of_tdbg", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, TrainingStopped):
            sys.stderr.write(f"tdbg: stopped at step {error.step}: {error.reason}\n")
        else:
            before(kind, error, trace)

    hook._is_of_tdbg = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def explain_no_framework() -> None:
    """Print why nothing was captured of a program without a framework.

    It prints nothing if processes of the program have trained.
    """
    if family_of(_launch()).appeared():
        return
    error = _error()
    if error:
        reason = f"the program ended with {error} before it imported a framework"
    else:
        reason = "the program imported no framework that tdbg run searches"
        others = [name for name in _OTHERS if name in sys.modules]
        if others:
            reason += f"; tdbg run finds no trainings of {others[0]}"
    sys.stderr.write(f"tdbg: nothing was captured: {reason}\n")


def _error() -> str:
    """Return the name of the exception that ends the program; empty if none does."""
    # Set by the interpreter when it has printed the traceback.
    kind = getattr(sys, "last_type", None)
    return "" if kind is None else kind.__name__


# The exception that was last reported to have ended the program.
_told: list[BaseException | None] = []


def _nothing(reason: str) -> list[str]:
    """Return the line about a program of which nothing was captured.

    An error that has ended the program is always the reason.  It is reported once, even
    if the program has imported several frameworks.
    """
    error = _error()
    if error:
        if _told and _told[-1] is sys.last_value:
            return []
        _told[:] = [sys.last_value]
        reason = f"the program ended with {error} before it trained"
    return [f"nothing was captured: {reason}"]


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _shown(path: Place) -> str:
    """Return the path in its shortest form, to be typed."""
    if is_url(path):
        return str(path)
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
