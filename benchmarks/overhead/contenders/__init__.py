"""What watches a training: one file a contender, one class ``Watcher`` in each.

How to add one: a module here with a subclass of ``Watcher`` of that very name; the
line of its configurations in ``benchmarks/overhead/matrix.py``; and, if it gets along
with none of the environments, a file in ``benchmarks/environments``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.overhead.training import Snapshot, Training

__all__ = ["Capture", "Watcher", "load"]


@dataclass(frozen=True)
class Capture:
    """What is captured, and how often.

    Attributes:
        what: ``all`` raw values of every tensor; raw ``weights`` (biases included) or
            ``gradients``; raw weights, inputs and outputs of the ``model``;
            ``statistics`` of every tensor, all that the contender offers;
            ``histograms`` or raw values of ``parameters``, as far as the contender
            knows only these; ``losses``; the contender's ``defaults``; ``nothing``
            but being registered.
        interval: In steps.
    """

    what: str
    interval: int

    def __str__(self) -> str:
        return f"{self.what}@{self.interval}"

    def at(self, step: int) -> bool:
        """Whether *step* is captured."""
        return step % self.interval == 0


class Watcher:
    """Watches a training.  What is not said to be untimed is timed.

    Args:
        training: Watched from now on, which is its step 0.
        capture: What and when.
        directory: An empty folder for what is written.

    Raises:
        ValueError: If the contender cannot capture that.
    """

    #: Values of ``Capture.what`` that it knows.
    captures: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, training: Training, capture: Capture, directory: Path) -> None:
        if capture.what not in self.captures:
            msg = f"no {capture.what!r} here, only {sorted(self.captures)}"
            raise ValueError(msg)
        self.training, self.capture, self.directory = training, capture, directory
        self.attach()

    def attach(self) -> None:
        """Register with the training."""

    def after_step(self, step: int, loss: float) -> None:
        """What the contender wants its user to call in the training loop."""

    def drain(self) -> None:
        """Wait until what was captured is written to the page cache, if it can be.

        Called at the end of every block of steps: what goes on in the background
        must be paid for in the block that caused it, and not in the next one.
        """

    def close(self) -> None:
        """End the capture."""

    def first_save(self) -> int:
        """The first step that is captured.  Untimed."""
        return 0

    def prune(self) -> int:
        """Delete some of what was written so long ago that it is needed no more.

        Untimed; keeps the first and the last steps.  Returns bytes.
        """
        return 0

    def verify(self, snapshot: Snapshot) -> None:
        """Read back what was captured at a step.  Untimed; after ``close``.

        Raises:
            WrongAnswer: If it is not what the plain training saw.
        """
        raise NotImplementedError


def load(name: str) -> type[Watcher]:
    """The Watcher of a contender."""
    module = importlib.import_module(f"{__name__}.{name}")
    watcher: type[Watcher] = module.Watcher
    return watcher


def remove_all_but_ends(paths: list[Path], ends: int = 2) -> int:
    """Delete files but the first and last *ends*; returns the bytes of the deleted."""
    n_bytes = 0
    for path in sorted(paths)[ends:-ends]:
        n_bytes += path.stat().st_size
        path.unlink()
    return n_bytes
