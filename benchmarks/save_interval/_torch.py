"""The figures of PyTorch: a ResNet18, and a transformer as large as BERT.

python -m benchmarks.save_interval._torch resnet [--device cuda] [--seconds 60]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks._harness import check_equal, options
from benchmarks.overhead.contenders import Capture, load
from benchmarks.overhead.run import PRUNE_ABOVE, folder_bytes
from benchmarks.overhead.training import Training
from benchmarks.save_interval import _measure
from benchmarks.save_interval._measure import EVERY, Clocks, Figure, Line, clocks

ALL, WITHOUT_GRADIENTS, WEIGHTS = "all", "weights, inputs and outputs", "weights"
#: The contender's names of what is captured.
CAPTURES = {ALL: "all", WITHOUT_GRADIENTS: "model", WEIGHTS: "weights"}
UNDER = {200: "< 1.2", 500: "< 1.2"}
FIGURES = {
    "resnet": Figure(
        "resnet",
        "figure 4, ResNet18",
        {ALL: {10: "1.9", **UNDER}, WITHOUT_GRADIENTS: UNDER},
        "The paper trained on one GPU; it saves weights alone at every 10th step at "
        "1.1.",
    ),
    "bert": Figure(
        "bert",
        "figure 10, a transformer as large as BERT",
        {WEIGHTS: {10: "< 1.5"}},
        "12 layers of width 768, 30,522 words, 2 x 64 tokens a step, AdamW.",
    ),
}
LINES = {"resnet": (ALL, WITHOUT_GRADIENTS), "bert": (ALL, WEIGHTS)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the figure")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = LINES[given.figure]
    given.seconds /= len(chosen)
    lines = [line_of(given, what) for what in chosen]
    device = device_name(given.device)
    _measure.report(FIGURES[given.figure], lines, given, device).save()


def device_name(device: str) -> str:
    return "CPU" if device == "cpu" else torch.cuda.get_device_name(device)


def line_of(given: argparse.Namespace, what: str) -> Line:
    """Measure a line; what was recorded first and last is checked."""
    folder = Path(tempfile.mkdtemp(prefix="save-interval-"))
    try:
        return _Trainings(given, what, folder).line()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Trainings:
    """Three equal trainings, one of them watched."""

    def __init__(self, given: argparse.Namespace, what: str, folder: Path) -> None:
        self._given, self._what, self._folder = given, what, folder
        names = ("plain", "control", "watched")
        self._trainings = {name: Training(given.figure, given.device) for name in names}
        capture = Capture(CAPTURES[what], EVERY)
        self._watcher: Any = load("tdbg")(self._trainings["watched"], capture, folder)
        self._n_pruned = 0

    def line(self) -> Line:
        """Measure, and check."""
        try:
            first = self._snapshot()
            samples = _measure.measure(
                {name: self._step_of(name) for name in self._trainings},
                self._given,
                self._check,
            )
            last = self._snapshot()
        finally:
            self._watcher.close()
        n_saves = (self._trainings["watched"].n_steps + 1) // EVERY
        n_bytes = folder_bytes(self._folder) + self._n_pruned
        for snapshot in (first, last):
            self._watcher.verify(snapshot)
        return Line(self._what, samples, n_bytes / n_saves / 1e6)

    def _snapshot(self) -> Any:
        """Do a save and a step without; return what the save must hold."""
        snapshot = self._trainings["plain"].step_with_snapshot()
        self._trainings["plain"].step()
        for name in ("control", "watched"):
            for _ in range(EVERY):
                self._step_of(name)()
        return snapshot

    def _step_of(self, name: str) -> Any:
        training = self._trainings[name]
        is_watched = name == "watched"

        def step() -> tuple[float, Clocks, Clocks]:
            before = clocks()
            loss = training.step()
            if is_watched:
                self._watcher.drain()
            if self._given.device != "cpu":
                torch.cuda.synchronize()
            return loss, before, clocks()

        return step

    def _check(self, answers: Any) -> None:
        for name in ("control", "watched"):
            check_equal(answers[name], answers["plain"], f"losses of {name}")
        if folder_bytes(self._folder) > PRUNE_ABOVE:
            self._n_pruned += self._watcher.prune()


if __name__ == "__main__":
    main()
