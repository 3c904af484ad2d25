"""What ``tdbg run`` prints when a program ends: what was captured, or why nothing was.

It imports no framework: it is also for programs that never imported one.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.errors import TrainingStopped
from tdbg.launch import LAUNCH_VARIABLE, family

__all__ = [
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

# So many backward passes of something else are worth a line.
_MANY = 10
# So many runs are named one by one in the command to type next.
_MOST_NAMED = 4
# Other frameworks, by the module that a program imports.
_OTHERS = ("tensorflow",)


@dataclass(slots=True)
class Facts:
    """What a search has seen.

    Attributes:
        n_optimizers: How many optimizers were made.
        n_backwards: How many backward passes began at a single number.
        n_unseen: How many of these followed no forward that was captured, and reached
            no parameter of a model that is.
        n_gradients: Of JAX: how often something was differentiated in what is no step.
        n_left_out: How many trainings were not captured because there were too many.
        n_transforms: How often a transform of ``torch.func`` has computed gradients of
            something else than parameters of modules.
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
        path: The directory of the run.
        n_steps: How many training steps it has.
        n_left_out: How many further models of the training were not captured.
    """

    path: Path
    n_steps: int
    n_left_out: int = 0


def captured(runs: Sequence[CapturedRun], facts: Facts) -> list[str]:
    """The lines about the runs of a process, of which there is at least one."""
    lines = []
    if len(runs) == 1:
        (run,) = runs
        lines.append(
            f"captured {_steps(run.n_steps)}; the run is in {_shown(run.path)}"
        )
    else:
        names = ", ".join(f"{_shown(run.path)} ({_steps(run.n_steps)})" for run in runs)
        lines.append(f"captured {len(runs)} trainings, a run each: {names}")
    if facts.n_left_out:
        lines.append(
            f"{facts.n_left_out} more trainings were not captured: "
            f"a process has at most {len(runs)} runs"
        )
    n_models = sum(run.n_left_out for run in runs)
    if n_models:
        lines.append(f"{n_models} calls of further models were not captured")
    if facts.n_unseen >= _MANY and 2 * facts.n_unseen > facts.n_backwards:
        lines.append(
            f"{facts.n_unseen} of {facts.n_backwards} backward passes followed no "
            "forward that was captured: a model whose forward() is called by itself, "
            "and not model(...), is not seen; tdbg.pytorch.watch(layer) captures one "
            "that is called otherwise"
        )
    paths = [shlex.quote(_shown(run.path)) for run in runs]
    if len(paths) > _MOST_NAMED:
        paths = [paths[0], shlex.quote(f"{_shown(runs[0].path)}-*")]
    lines[-1] += f"; next: tdbg check {' '.join(paths)}"
    return lines


def why(facts: Facts) -> list[str]:
    """The line about a program that imported torch, where nothing was captured."""
    if facts.has_given_up:
        return []  # The warning said why.
    advice = "tdbg.pytorch.watch(model) in the program captures what was not found"
    if facts.n_transforms and not facts.n_backwards:
        reason = (
            f"torch.func computed gradients {_times(facts.n_transforms)}, but of no "
            "parameters that a module was called with"
        )
        advice = (
            "torch.func.functional_call(model, parameters, inputs) inside the function "
            "that is differentiated shows tdbg which they are"
        )
    elif facts.n_optimizers:
        reason = "no module was called that has parameters of an optimizer"
    elif facts.n_backwards:
        reason = "gradients were computed, but of no module that was called twice"
    else:
        reason = "no optimizer was made, and no backward pass began"
    return _nothing(f"{reason}; {advice}")


def why_of_keras() -> list[str]:
    """The line about a program that imported Keras, where nothing was captured."""
    reason = (
        "keras was imported, and no model was trained by fit, train_on_batch or a loop "
        "that can be captured"
    )
    return _nothing(reason)


def why_of_boosting(framework: str, entries: Sequence[str]) -> list[str]:
    """The line about a program that imported a framework of boosted trees.

    Args:
        framework: Its name.
        entries: The names of its functions that train.
    """
    reason = f"{framework} was imported, and neither {' nor '.join(entries)} was called"
    return _nothing(reason)


def why_of_gluon() -> list[str]:
    """The line about a program that imported MXNet, where nothing was captured."""
    reason = (
        "mxnet was imported, and no gluon.Trainer was made for the parameters of a "
        "block"
    )
    return _nothing(reason)


def why_of_jax(facts: Facts) -> list[str]:
    """The line about a program that imported JAX, where nothing was captured."""
    if facts.n_gradients:
        reason = (
            f"gradients were computed {facts.n_gradients} times, but not in a function "
            "that jax.jit compiles and that is called with the parameters"
        )
        advice = (
            "compile the whole step by step = jax.jit(step), or say which the "
            "parameters are: tdbg.jax.Hook(...).jit(step, params=...)"
        )
    else:
        reason = (
            "no function that jax.jit, nnx.jit or equinox.filter_jit has compiled "
            "computes gradients (pmap is not searched)"
        )
        advice = "tdbg.jax.Hook(...).jit(step) in the program captures a step"
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
    """Print why nothing was captured of a program that imported no framework.

    Unless processes that it started have trained.
    """
    settings = json.loads(os.environ[LAUNCH_VARIABLE])
    if family.appeared(Path(settings["out_dir"]), settings["existing"]):
        return
    error = _error()
    if error:
        reason = f"the program ended by {error} before it imported a framework"
    else:
        reason = "the program imported no framework that is searched"
        others = [name for name in _OTHERS if name in sys.modules]
        if others:
            reason += f"; tdbg run finds no trainings of {others[0]}"
    sys.stderr.write(f"tdbg: nothing was captured: {reason}\n")


def _error() -> str:
    """The exception that ends the program; empty: none does."""
    # Set by the interpreter when it has printed the traceback.
    kind = getattr(sys, "last_type", None)
    return "" if kind is None else kind.__name__


# The exception of which it was said that it ended the program.
_told: list[BaseException | None] = []


def _nothing(reason: str) -> list[str]:
    """The line about a program of which nothing was captured.

    An error that has ended the program is the reason whatever else is, and is said
    once: the program may have imported several frameworks.
    """
    error = _error()
    if error:
        if _told and _told[-1] is sys.last_value:
            return []
        _told[:] = [sys.last_value]
        reason = f"the program ended by {error} before it trained"
    return [f"nothing was captured: {reason}"]


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _times(number: int) -> str:
    return "1 time" if number == 1 else f"{number} times"


def _shown(path: Path) -> str:
    """The path as it is shortest for whoever types it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
