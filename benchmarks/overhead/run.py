"""Three equal trainings in step with each other, one of them watched.

Blocks of their steps take turns; that is what is timed.  Every step counts, what the
contender wants called in the loop, the wait at the end of a block until everything is
in the page cache, and the close, shared out over a training of 1,000 steps.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks._harness import (
    CONTROL,
    Measured,
    Ratio,
    Samples,
    check_equal,
    interleave,
    options,
)
from benchmarks.overhead.contenders import Capture, Watcher, load
from benchmarks.overhead.models import recipe
from benchmarks.overhead.sweep import sweep
from benchmarks.overhead.training import Snapshot, Training

__all__ = ["PACKAGES", "Run", "longer_intervals", "new_run", "parser"]

#: Those whose versions matter; each environment has some of them.
PACKAGES = ("torch", "numpy", "tdbg", "smdebug", "wandb", "tensorboard", "safetensors")

STEPS_OF_A_TRAINING = 1000
PRUNE_ABOVE = 2 * 2**30


class Run:
    """The trainings of a model, and what watches one of them."""

    def __init__(self, model: str, name: str, capture: Capture, folder: Path) -> None:
        self.capture, self.folder = capture, folder
        block, interval = recipe(model).block, capture.interval
        # Whole intervals: every block has its share of the saves.
        self.block = block if interval == 1 else interval * max(1, block // interval)
        self.plain, self.control = Training(model), Training(model)
        self.watched = Training(model)
        started = time.perf_counter()
        self.watcher: Watcher = load(name)(self.watched, capture, folder)
        self.attach_seconds = time.perf_counter() - started
        self.close_seconds = 0.0
        self._n_bytes_pruned = 0
        self._snapshots: list[Snapshot] = []

    @property
    def halves(self) -> bool:
        """Whether a block is timed in halves, of which only the first has a save."""
        return self.block == self.capture.interval >= 10

    def measure(self, given: argparse.Namespace) -> Samples:
        """The rounds, the close, and the verification of both.

        Raises:
            WrongAnswer: If the trainings differ or what was captured is wrong.
        """
        first, interval = self.watcher.first_save(), self.capture.interval
        self._keep_snapshot(first)
        if interval <= 10:
            self._keep_snapshot(first + interval)
        for training in (self.plain, self.control, self.watched):
            self._advance(training, (first - training.n_steps) % interval)
        samples = interleave(
            {
                "plain": self._block_of(self.plain),
                CONTROL: self._block_of(self.control),
                "watched": self._block_of(self.watched),
                "sweep": sweep,
            },
            baseline="plain",
            rounds=given.rounds or (3 if given.quick else 1000),
            seed=given.seed,
            at_most_seconds=given.seconds,
            until_resolved=given.rounds is None,
            verify=self._check_round,
        )
        self._close()
        share = self.close_seconds * self.block / STEPS_OF_A_TRAINING
        samples.seconds["watched"] = [t + share for t in samples.seconds["watched"]]
        return samples

    def megabytes_a_save(self) -> float:
        """Written bytes by captured steps."""
        first, interval = self.watcher.first_save(), self.capture.interval
        n_saves = 1 + (self.watched.n_steps - 1 - first) // interval
        return (folder_bytes(self.folder) + self._n_bytes_pruned) / n_saves / 1e6

    def _advance(self, training: Training, n_steps: int) -> list[float]:
        if training is not self.watched:
            return [training.step() for _ in range(n_steps)]
        losses = []
        for _ in range(n_steps):
            losses.append(training.step())
            self.watcher.after_step(training.n_steps - 1, losses[-1])
        self.watcher.drain()
        return losses

    def _block_of(self, training: Training) -> Callable[[], Measured]:
        parts = [self.block // 2, self.block - self.block // 2]

        def run() -> Measured:
            losses, times = [], [clocks()]
            for n_steps in parts if self.halves else [self.block]:
                losses += self._advance(training, n_steps)
                times.append(clocks())
            ends = zip(times[0], times[-1], strict=True)
            wall, thread, process = (after - before for before, after in ends)
            also = {"thread": thread, "process": process}
            if self.halves:
                also["first"] = times[1][0] - times[0][0]
                also["second"] = times[2][0] - times[1][0]
            return Measured(wall, losses, also)

        return run

    def _keep_snapshot(self, until: int) -> None:
        """Advance all to *until*, which is captured, and keep what it must be."""
        for training in (self.control, self.watched):
            self._advance(training, until + 1 - training.n_steps)
        self._advance(self.plain, until - self.plain.n_steps)
        self._snapshots.append(self.plain.step_with_snapshot())

    def _check_round(self, answers: Mapping[str, Any]) -> None:
        for name in (CONTROL, "watched"):
            check_equal(answers[name], answers["plain"], f"losses of {name}")
        if folder_bytes(self.folder) > PRUNE_ABOVE:
            self._n_bytes_pruned += self.watcher.prune()

    def _close(self) -> None:
        started = time.perf_counter()
        self.watcher.close()
        self.close_seconds = time.perf_counter() - started
        for snapshot in self._snapshots:
            self.watcher.verify(snapshot)


def longer_intervals(samples: Samples, run: Run) -> dict[int, Ratio]:
    """Slowdown at intervals beyond the measured one, by interval.

    A longer interval is a half block with a save, and for all other steps half blocks
    without; both are measured, and so none needs 500 steps for one sample.
    """
    if not run.halves:
        return {}
    also, half, found = samples.also, run.block // 2, {}
    plain = [
        sum(also[name][part][number] for name in ("plain", CONTROL) for part in HALVES)
        / 4
        for number in range(len(samples.seconds["plain"]))
    ]
    saves, others = (also["watched"][part] for part in HALVES)
    for interval in (20, 50, 100, 200, 500):
        if interval > run.capture.interval:
            n = interval / half
            columns = zip(saves, others, plain, strict=True)
            found[interval] = Ratio.of(
                [(a + (n - 1) * b) / (n * c) for a, b, c in columns]
            )
    return found


HALVES = ("first", "second")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The arguments of programs that measure a Run."""
    made = options(doc)
    made.add_argument(
        "--seconds",
        type=float,
        default=math.nan,
        help="end after that, resolved or not (default 180)",
    )
    made.add_argument("--scratch", type=Path, help="folder for what is written")
    return made


@contextlib.contextmanager
def new_run(model: str, name: str, capture: Capture, given: Any) -> Iterator[Run]:
    """A Run in a folder of its own, which is deleted in the end."""
    torch.set_num_threads(1)
    if math.isnan(given.seconds):
        given.seconds = 180.0
    folder = Path(tempfile.mkdtemp(prefix="overhead-", dir=given.scratch))
    try:
        yield Run(model, name, capture, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clocks() -> tuple[float, float, float]:
    """Wall time, and processor time of this thread and of the process."""
    return time.perf_counter(), time.thread_time(), time.process_time()


def folder_bytes(folder: Path) -> int:
    """Of all files, as far as they are used: reserved space does not count."""
    n_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if path.is_file():
                n_bytes += min(status.st_size, 512 * status.st_blocks)
    return n_bytes
