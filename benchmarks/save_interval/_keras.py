"""The figure of Keras: a ResNet18 that ``fit`` trains, on TensorFlow.

python -m benchmarks.save_interval._keras [--seconds 60]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

# Before Keras and TensorFlow are loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import tdbg.keras as tk
from benchmarks._harness import (
    check_close,
    check_closed,
    check_equal,
    options,
)
from benchmarks.overhead.run import folder_bytes
from benchmarks.save_interval import _measure
from benchmarks.save_interval._measure import EVERY, Clocks, Figure, Line, clocks
from tdbg.trial import create_trial

BATCH, SIDE = 16, 32
ALL, WEIGHTS = "all", "weights"
FIGURE = Figure(
    "keras",
    "figure 9, ResNet18 of Keras",
    {ALL: {10: "2.5"}, WEIGHTS: {10: "1.6"}},
    f"Batches of {BATCH} x {SIDE} x {SIDE} x 3. The paper trained a ResNet50 on four "
    "GPUs.",
)
COLLECTIONS = {
    ALL: ["weights", "biases", "gradients", "outputs"],
    WEIGHTS: ["weights", "biases"],
}


def resnet() -> keras.Model:
    """ResNet18 for small images: 11.2 million parameters."""
    layers = keras.layers
    image = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(64, 7, 2, padding="same", use_bias=False, name="first")(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for width in (64, 128, 256, 512):
        for stride in (1 if width == 64 else 2, 1):
            beside = x
            if stride == 2:
                beside = layers.Conv2D(width, 1, 2, use_bias=False)(x)
            x = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.Add()([layers.BatchNormalization()(x), beside]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(10, activation="softmax")(x))


class Training:
    """A training by ``fit`` whose steps are timed from inside."""

    def __init__(self, hook: tk.Hook | None) -> None:
        keras.utils.set_random_seed(0)
        self.model = resnet()
        self.model.compile("sgd", "sparse_categorical_crossentropy")
        dice = np.random.default_rng(0)
        self._x = dice.normal(size=(BATCH, SIDE, SIDE, 3)).astype(np.float32)
        self._y = dice.integers(10, size=BATCH)
        self._hook = hook
        self._timer = _Timer(hook)

    def step(self) -> tuple[float, Clocks, Clocks]:
        """Do one step by ``fit``; only what is between its callbacks counts."""
        timer = self._timer
        hooks = [] if self._hook is None else [self._hook]
        self.model.fit(
            self._x,
            self._y,
            batch_size=BATCH,
            verbose=0,
            callbacks=[timer.first, *hooks, timer.last],
        )
        return timer.loss, timer.began, timer.ended


class _Timer:
    """Callbacks before and after all others."""

    def __init__(self, hook: tk.Hook | None) -> None:
        self.began = self.ended = clocks()
        self.loss = 0.0
        self.first = keras.callbacks.LambdaCallback(on_train_batch_begin=self._begin)
        self.last = keras.callbacks.LambdaCallback(on_train_batch_end=self._end)
        self._hook = hook

    def _begin(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self.began = clocks()

    def _end(self, batch: int, logs: Any = None) -> None:
        del batch
        self.loss = float(logs["loss"])
        if self._hook is not None:
            self._hook.flush()
        self.ended = clocks()


def line_of(given: argparse.Namespace, what: str) -> Line:
    """Measure a line; what was recorded at its first save is checked."""
    folder = Path(tempfile.mkdtemp(prefix="save-interval-"))
    hook = tk.Hook(
        folder / "run",
        include_collections=COLLECTIONS[what],
        save_config=tk.SaveConfig(save_interval=EVERY, statistics_interval=EVERY),
        budget="off",
        min_free_bytes=0,
    )
    try:
        runs = {n: Training(hook if n == "watched" else None) for n in NAMES}
        kernel = runs["watched"].model.trainable_variables[0].numpy()
        steps = {name: run.step for name, run in runs.items()}
        # Compiles, with and without a save.
        warm = {n: [step()[0] for _ in range(2 * EVERY)] for n, step in steps.items()}
        # Later ones part: a compiled step that returns more rounds otherwise.
        check_close(warm["watched"][0], warm["plain"][0], 1e-4, "first loss")
        n_rounds = 0

        def check(answers: Any) -> None:
            nonlocal n_rounds
            n_rounds += 1
            check_equal(answers["control"], answers["plain"], "losses of control")

        samples = _measure.measure(steps, given, check)
        n_bytes = folder_bytes(folder)
        check_closed(hook, what)
        n_saves = n_rounds + 2
        _check_run(folder / "run", what, kernel, n_saves)
        return Line(what, samples, n_bytes / n_saves / 1e6)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


NAMES = ("plain", "control", "watched")


def _check_run(path: Path, what: str, kernel: Any, n_saves: int) -> None:
    """A run has every save of all collections, and the very values."""
    trial = create_trial(path)
    expected = list(range(0, EVERY * n_saves, EVERY))
    for collection in COLLECTIONS[what]:
        names = trial.tensor_names(collection=collection)
        check_equal(bool(names), True, collection)
        for name in names:
            check_equal(trial.tensor(name).steps(what="values"), expected, name)
    first = trial.tensor("first/kernel").value(0)
    check_equal(np.asarray(first), kernel, "the first kernel")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the figure")
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given.seconds /= len(COLLECTIONS)
    lines = [line_of(given, what) for what in COLLECTIONS]
    _measure.report(FIGURE, lines, given, "CPU").save()


if __name__ == "__main__":
    main()
