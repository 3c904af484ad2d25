"""What the demonstration needs to know of a framework before that is imported."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from tdbg.errors import TrainingStopped
from tdbg.rules import Rule

__all__ = ["FRAMEWORKS", "Framework", "Outcome", "Training", "Trainings", "train"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training went.

    Attributes:
        n_steps: Number of steps of the optimizer, or of rounds.
        seconds: Wall time of these steps.
        accuracy: Share of right answers on the test images.
        stopped: Why it was stopped early, or None.
    """

    n_steps: int
    seconds: float
    accuracy: float
    stopped: str | None


class Training(Protocol):
    """A training that is ready to begin; made of ``(digits, hook, is_sick=...)``."""

    def fit(self, n_steps: int, on_step: Callable[[int], None]) -> None:
        """Train for *n_steps*, or until somebody stops the run.

        Args:
            n_steps: Steps, or rounds of boosting.
            on_step: Called with the number of steps that are done.

        Raises:
            TrainingStopped: If somebody asked for a stop, and the framework has no way
                of its own.
        """

    def accuracy(self) -> float:
        """The share of right answers on the test images."""


class Trainings(Protocol):
    """What the module of a framework has.

    Attributes:
        SICK: What is wrong with the sick training, after "A sick one: ".
        LOOK_AT: The tensor of the sick run to look at afterwards.
        Training: Makes either training.
    """

    SICK: str
    LOOK_AT: str
    Training: Callable[..., Training]

    def make_hook(self, run: Path, rules: Sequence[Rule]) -> Any:
        """Make a hook that captures statistics of every step."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework whose trainings can be shown.

    Attributes:
        module: In this package.
        packages: What must be installed, by the names that are imported.
        extra: The extra of tdbg that installs it.
        n_steps: How long a training is, unless somebody says otherwise.
        stop_on: The least severity of a finding at which a training is stopped.
        is_measured: Whether the demonstration ends with what capture costs.
        note: What is to be said of the measured cost of these trainings.
    """

    module: str
    packages: tuple[str, ...]
    extra: str
    n_steps: int = 400
    stop_on: str = "error"
    is_measured: bool = False
    note: str = ""

    def missing(self) -> str | None:
        """Return the first package that is not installed; None if all are."""
        return next(
            (name for name in self.packages if importlib.util.find_spec(name) is None),
            self._missing_backend(),
        )

    def trainings(self) -> Trainings:
        """Import the module."""
        return cast("Trainings", import_module(f"{__package__}.{self.module}"))

    def _missing_backend(self) -> str | None:
        """A backend for Keras, where none is installed; choose one otherwise."""
        if self.module != "keras" or "KERAS_BACKEND" in os.environ:
            return None
        for name in ("tensorflow", "jax", "torch"):
            if importlib.util.find_spec(name) is not None:
                os.environ["KERAS_BACKEND"] = name
                return None
        return "tensorflow, jax or torch"


_COMPILED = (
    "Steps take less than a millisecond here, and the one compilation with taps, of a "
    "second or two, counts: tdbg docs overhead."
)

FRAMEWORKS = {
    "pytorch": Framework("pytorch", ("torch", "sklearn"), "demo", is_measured=True),
    "keras": Framework("keras", ("keras", "sklearn"), "keras", note=_COMPILED),
    "jax": Framework("jax", ("jax", "sklearn"), "jax", note=_COMPILED),
    "xgboost": Framework(
        "xgboost", ("xgboost", "sklearn"), "xgboost", n_steps=200, stop_on="warning"
    ),
}
"""By the names that users type."""


def train(
    training: Training, hook: Any, n_steps: int, on_step: Callable[[int], None]
) -> Outcome:
    """Train, and close the hook, which captures the training."""
    n_done, stopped = 0, None

    def count(done: int) -> None:
        nonlocal n_done
        n_done = done
        on_step(done)

    start = time.perf_counter()
    try:
        training.fit(n_steps, count)
        if n_done < n_steps:
            stopped = hook.stop_reason
    except TrainingStopped as stop:
        stopped = stop.reason
    seconds = time.perf_counter() - start
    hook.close()
    return Outcome(n_done, seconds, training.accuracy(), stopped)
