"""Asks a run about random things, over and over, and compares each answer.

Usage: check_answers.py RUN SEED SECONDS MAP_FILES; the folder of run_builder.py is in
PYTHONPATH.  `write` makes the run whose every answer `Truth` knows.  Ends SECONDS after
the training did, and prints how often each question was asked, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from run_builder import RunBuilder
from tdbg.stats.histogram import Histogram
from tdbg.trial import Trial, create_trial

TENSORS = ("fc.weight", "gradient/fc.weight", "relu_output_0")
LOSS = "loss"
RAW_EVERY = 3  # Steps at which values are saved.


def array_of(step: int, name: str) -> NDArray[np.float32]:
    """What was saved."""
    dice = np.random.default_rng((step, TENSORS.index(name)))
    return dice.standard_normal((20, 3 + step % 2)).astype(np.float32)


def write(path: Path, n_steps: int, pause: float = 0.0) -> None:
    """A run in shards of 64 KiB."""
    with RunBuilder(path, shard_bytes=1 << 16, flush_interval=0.005) as run:
        for step in range(n_steps):
            for name in TENSORS:
                array = array_of(step, name)
                what = "any" if step % RAW_EVERY == 0 else "statistics"
                run.save(step, name, array, what=what)
                run.histogram(step, name, array)
            run.scalar(step, LOSS, step / 4)
            run.end_step(step)
            time.sleep(pause)


class Truth:
    """Questions to a trial; each fails when the answer is not what was saved."""

    def __init__(self, seed: int) -> None:
        self.dice = np.random.default_rng(seed)

    def ask(self, trial: Trial) -> str:
        """Ask one of them; returns its name."""
        names = [name for name in dir(self) if name.startswith("check_")]
        name = names[self.dice.integers(len(names))]
        steps = trial.steps("global", what="any")
        assert steps == list(range(len(steps))), steps
        if steps:
            check: Callable[[Trial, int], None] = getattr(self, name)
            check(trial, int(self.dice.integers(len(steps))))
        return name

    def tensor(self) -> str:
        return TENSORS[self.dice.integers(len(TENSORS))]

    def check_value(self, trial: Trial, step: int) -> None:
        step -= step % RAW_EVERY
        name = self.tensor()
        found = trial.tensor(name).value(step)
        assert np.array_equal(found, array_of(step, name)), (name, step)

    def check_row(self, trial: Trial, step: int) -> None:
        name = self.tensor()
        found = trial.tensor(name).reduction_value(step, "max")
        assert found == array_of(step, name).max(), (name, step)

    def check_histogram(self, trial: Trial, step: int) -> None:
        name = self.tensor()
        found = trial.tensor(name).histogram(step)
        assert found == Histogram.of(array_of(step, name)), (name, step)

    def check_scalar(self, trial: Trial, step: int) -> None:
        found = trial.scalars()[LOSS]
        assert found.values[found.steps.tolist().index(step)] == step / 4

    def check_column(self, trial: Trial, step: int) -> None:
        name = self.tensor()
        first = max(0, step - 40)
        table = trial.statistics([name], start=first, end=step + 1)
        right = [float(array_of(at, name).min()) for at in range(first, step + 1)]
        assert table.present.all()
        assert table.min.ravel().tolist() == right, (name, first, step)

    def check_envelope(self, trial: Trial, step: int) -> None:
        name, first = self.tensor(), max(0, step - 140)
        columns = int(self.dice.choice([1, 2, 3, 200]))
        found = trial.tensor(name).envelope(
            start=first, stop=step + 1, columns=columns, fields="abs_max"
        )
        assert found.rows.sum() == step + 1 - first, (name, first, step)
        for i, (start, stop) in enumerate(pairwise(found.edges.tolist())):
            right = [np.abs(array_of(at, name)).max() for at in range(start, stop)]
            bounds = found.low["abs_max"][0, i], found.high["abs_max"][0, i]
            assert bounds == (min(right), max(right)), (name, start, stop)

    def check_names(self, trial: Trial, step: int) -> None:
        assert trial.tensor_names(step=step) == sorted((*TENSORS, LOSS))
        found = trial.tensor(self.tensor()).steps(what="values")
        assert found == list(range(0, found[-1] + 1, RAW_EVERY))
        assert found[-1] >= step - RAW_EVERY

    def check_steps(self, trial: Trial, step: int) -> None:
        table = trial.step_table(step)
        assert table["step"].tolist() == list(range(step, step + len(table)))
        assert not table["dropped"].any()


def main() -> None:
    path, seed, seconds, map_files = sys.argv[1:5]
    truth, asked = Truth(int(seed)), Counter[str]()
    deadline: float | None = None
    while deadline is None or time.monotonic() < deadline:
        options: dict[str, Any] = {"map_files": map_files == "1"}
        trial = create_trial(path, wait=60.0, **options)
        asked["opened"] += 1
        for _ in range(int(truth.dice.integers(1, 60))):
            asked[truth.ask(trial)] += 1
        assert trial.problems() == [], trial.problems()
        if deadline is None and trial.loaded_all_steps:
            deadline = time.monotonic() + float(seconds)
    print(json.dumps(asked))


if __name__ == "__main__":
    main()
