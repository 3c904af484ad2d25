"""Slowdown of ``fit`` on TensorFlow: CPU time of a step, beside ``TensorBoard``.

    python -m benchmarks.keras.fit [--jit] [--rounds 15]

All contenders train the same network in one process, in blocks of steps that take
turns in a random order; the figure of a contender is the median over the rounds of its
CPU time beside that of the plain training in the same round.  A run that lacks a step
or a tensor ends the benchmark without figures.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tdbg.keras as tk
from tdbg.trial import create_trial

STEPS = 40  # Of a block: one epoch.
BATCH = 32
COLLECTIONS = ["weights", "biases", "gradients"]
N_TENSORS = 20


def network(*, jit: bool) -> Any:
    """A small convolutional network: ten parameters, of 156 thousand numbers."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(32, 3, activation="relu", name="c1"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu", name="c2"),
            keras.layers.Conv2D(64, 3, activation="relu", name="c3"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(110, activation="relu", name="d1"),
            keras.layers.Dense(10, name="d2"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=jit)
    return model


def contenders(folder: Path) -> dict[str, Callable[[], list[Any]]]:
    """What makes the callbacks of each contender."""

    def hook(name: str, every: int) -> list[Any]:
        schedule = tk.SaveConfig(save_interval=10**9, statistics_interval=every)
        run = folder / name
        return [tk.Hook(run, include_collections=COLLECTIONS, save_config=schedule)]

    def board() -> list[Any]:
        return [keras.callbacks.TensorBoard(str(folder / "board"), histogram_freq=1)]

    return {
        "plain": list,
        "plain again": list,
        "tdbg, losses only": lambda: [tk.Hook(folder / "losses")],
        "tdbg, every 10 steps": lambda: hook("tens", 10),
        "tdbg, every step": lambda: hook("every", 1),
        f"TensorBoard, histograms every {STEPS} steps": board,
    }


def main() -> None:
    """Measure, check what was recorded, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jit", action="store_true", help="compile by XLA")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    generator = np.random.default_rng(given.seed)
    x = generator.normal(size=(STEPS * BATCH, 16, 16, 3)).astype("float32")
    y = generator.integers(10, size=STEPS * BATCH)
    made = {name: make() for name, make in contenders(folder).items()}
    models = {name: network(jit=given.jit) for name in made}
    seconds: dict[str, list[float]] = {name: [] for name in made}

    def block(name: str) -> float:
        begin = time.process_time()
        models[name].fit(x, y, batch_size=BATCH, verbose=0, callbacks=made[name])
        return (time.process_time() - begin) / STEPS

    for name in made:
        block(name)  # Compiles.
        block(name)
    order = random.Random(given.seed)
    for _ in range(given.rounds):
        for name in order.sample(sorted(made), len(made)):
            seconds[name].append(block(name))
    for callbacks in made.values():
        for each in callbacks:
            if isinstance(each, tk.Hook):
                each.close()
    check(folder, (given.rounds + 2) * STEPS)
    rows = []
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "contender": name,
                "cpu_ms": round(1e3 * statistics.median(times), 3),
                "ratio": round(middle, 3),
                "quartiles": [round(low, 3), round(high, 3)],
            }
        )
    for row in rows:
        print(json.dumps(row))
    shutil.rmtree(folder)


def check(folder: Path, n_steps: int) -> None:
    """Raise unless each run has all that it was to have."""
    for name, every in (("every", 1), ("tens", 10)):
        trial = create_trial(folder / name)
        captured = [
            each
            for collection in COLLECTIONS
            for each in trial.tensor_names(collection=collection)
        ]
        require(len(captured) == N_TENSORS, f"{name} has {captured}")
        for each in captured:
            steps = trial.tensor(each).steps()
            require(steps == list(range(0, n_steps, every)), f"{each} lacks steps")
    losses = create_trial(folder / "losses").tensor_names(collection="losses")
    require(len(losses) == 1, f"losses are {losses}")


def require(holds: bool, otherwise: str) -> None:
    """End the benchmark where a run is not what it should be."""
    if not holds:
        raise RuntimeError(otherwise)


if __name__ == "__main__":
    main()
