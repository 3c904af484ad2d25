"""Losses as Keras computes them: some mend what they are given, and others do not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from common import EVERY, OUT, finish, report
from keras import layers, losses

import tdbg.keras as tk
from tdbg.rules import resolve
from tdbg.rules.testing import judge

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(320, 8)).astype("float32")
CLASSES = X[:, :3].argmax(1)
NUMBERS = X[:, 0] * 2.0 + 1.0
IN_CLASSES = "sparse_categorical_crossentropy"
GIVEN = ["losses", "predictions", "labels"]


class Compared(losses.MeanSquaredError):
    """A loss whose class is not in Keras, and that aligns nothing."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_true - y_pred)


# A loss of the program's own that is called like one of Keras.
Huber = type("Huber", (Compared,), {})


def train(name: str, last: Any, loss: Any, labels: Any) -> None:
    """Train a model that ends with these layers; report what is said of the loss."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), *last])
    model.compile(keras.optimizers.Adam(0.05), loss)
    hook = tk.Hook(OUT / name, include_collections=GIVEN, save_config=EVERY)
    model.fit(X, labels, batch_size=32, epochs=4, verbose=0, callbacks=[hook])
    hook.close()
    found = judge(OUT / name, *resolve("LossMisuse"))
    report[name] = [each.message for each in found]


def column() -> list[Any]:
    return [layers.Dense(1)]


def scaled() -> list[Any]:
    return [layers.Dense(3, "softmax"), layers.Rescaling(1.0)]


def of_scores() -> Any:
    return losses.SparseCategoricalCrossentropy(from_logits=True)


# A column of outputs and a row of labels.
train("mse", column(), "mse", NUMBERS)
train("mae", column(), losses.MeanAbsoluteError(), NUMBERS)
train("huber", column(), losses.Huber(), NUMBERS)
train("a function", column(), lambda y, p: keras.ops.square(y - p), NUMBERS)
train("a class", column(), Compared(), NUMBERS)
train("a name", column(), Huber(), NUMBERS)
train("a row of outputs", [*column(), layers.Flatten()], "mse", NUMBERS[:, None])
train("three ranks", [*column(), layers.Reshape((1, 1))], "mse", NUMBERS)
# Outputs of a softmax or sigmoid for losses that expect scores.
train("softmax", [layers.Dense(3, "softmax")], of_scores(), CLASSES)
train("scaled", scaled(), of_scores(), CLASSES)
train(
    "sigmoid",
    [layers.Dense(1, "sigmoid")],
    losses.BinaryCrossentropy(from_logits=True),
    (CLASSES == 0).astype("float32"),
)
# Scores for losses that expect probabilities, and probabilities.
train("scores", [layers.Dense(3)], IN_CLASSES, CLASSES)
train("a score", column(), "binary_crossentropy", (CLASSES == 0).astype("float32"))
train("probabilities", [layers.Dense(3, "softmax")], IN_CLASSES, CLASSES)
finish()
