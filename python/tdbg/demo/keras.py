"""``fit`` of Keras, whose only part of tdbg is a callback."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras  # type: ignore[import-untyped]
import numpy as np

from tdbg.keras import Hook, SaveConfig

if TYPE_CHECKING:
    from tdbg.demo.data import Digits
    from tdbg.rules import Rule

__all__ = ["LOOK_AT", "SICK", "Training", "build", "make_hook"]

SICK = "14 layers of sigmoids"
LOOK_AT = "gradient/dense1/kernel"

BATCH_SIZE = 64
SEED = 7


def build(*, is_sick: bool) -> Any:
    """Make and compile the network: dense layers of 64 units, then one of 10."""
    depth, activation = (14, "sigmoid") if is_sick else (4, "relu")
    model = keras.Sequential(
        [
            keras.Input((64,)),
            *(
                keras.layers.Dense(64, activation=activation, name=f"dense{i}")
                for i in range(1, depth + 1)
            ),
            keras.layers.Dense(10, name="classify"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def make_hook(run: Path, rules: Sequence[Rule]) -> Hook:
    """Make a hook that captures statistics of every step."""
    return Hook(
        run,
        save_all=True,
        rules=rules,
        save_config=SaveConfig(statistics_interval=1, save_interval=100),
    )


class _Progress(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells how many steps are done after each epoch, without a batch's end."""

    def __init__(self, hook: Hook, on_step: Callable[[int], None]) -> None:
        super().__init__()
        self._hook = hook
        self._on_step = on_step

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        self._on_step(self._hook.n_steps)


class Training:
    """A ``fit`` of whole batches.

    Args:
        digits: What is learned.
        hook: Captures the training.
        is_sick: Which network.
    """

    def __init__(self, digits: Digits, hook: Hook, *, is_sick: bool) -> None:
        keras.utils.set_random_seed(SEED)
        self._digits = digits
        self._hook = hook
        self._model = build(is_sick=is_sick)

    def fit(self, n_steps: int, on_step: Callable[[int], None]) -> None:
        """Train: ``frameworks.Training`` says how."""
        pixels, _ = self._digits.rows()
        n_batches = len(pixels) // BATCH_SIZE
        used = slice(n_batches * BATCH_SIZE)
        try:
            self._model.fit(
                pixels[used],
                self._digits.train_labels[used].astype(np.int32),
                batch_size=BATCH_SIZE,
                epochs=math.ceil(n_steps / n_batches),
                callbacks=[self._hook, _Progress(self._hook, on_step)],
                verbose=0,
            )
        finally:
            on_step(self._hook.n_steps)

    def accuracy(self) -> float:
        """The share of right answers on the test images."""
        _, test = self._digits.rows()
        answers = self._model.predict(test, verbose=0).argmax(axis=1)
        return float((answers == self._digits.test_labels).mean())
