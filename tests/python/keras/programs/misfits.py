"""Losses and metrics that do not fit the last layer, and statistics that move."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from common import finish, hook, report

luck = np.random.default_rng(1)
X = luck.normal(size=(64, 8)).astype("float32")
CLASSES = np.digitize(X[:, 0], [-0.5, 0.5]).astype("int32")
SHARES = np.eye(3, dtype="float32")[CLASSES]
BITS = (X[:, 0] > 0).astype("float32")
MEASURES = X[:, 0] * 1.5
L, M, LOSSES = keras.layers, keras.metrics, keras.losses
SPARSE, SHARED = "sparse_categorical_crossentropy", "categorical_crossentropy"
BINARY = "binary_crossentropy"


def trained(name: str, units: int, ends: Any, loss: Any, y: Any, metric: Any) -> None:
    keras.utils.set_random_seed(0)
    ends = (
        [L.Dense(units), ends] if isinstance(ends, L.Layer) else [L.Dense(units, ends)]
    )
    model = keras.Sequential([keras.Input((8,)), L.Dense(8, "tanh"), *ends])
    model.compile("adam", loss, metrics=[metric])
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    model.fit(X, y, epochs=1, verbose=0, callbacks=[made])
    made.close()
    report[name] = made.counters()["internal_errors"]


scores = LOSSES.SparseCategoricalCrossentropy(from_logits=True)
of_bits = LOSSES.BinaryCrossentropy(from_logits=True)
trained("sigmoid_for_classes", 3, "sigmoid", SPARSE, CLASSES, "accuracy")
trained("sigmoid_for_shares", 3, "sigmoid", SHARED, SHARES, "accuracy")
trained("relu_for_classes", 3, "relu", SPARSE, CLASSES, "accuracy")
trained("relu_for_scores", 3, "relu", scores, CLASSES, "accuracy")
trained("softmax_of_samples", 3, L.Softmax(axis=0), SPARSE, CLASSES, "accuracy")
trained("softmax", 3, L.Softmax(), SPARSE, CLASSES, M.SparseTopKCategoricalAccuracy(2))
trained("scores", 3, None, scores, CLASSES, M.SparseCategoricalAccuracy())
trained("several_labels", 3, "sigmoid", BINARY, SHARES, M.BinaryAccuracy())

trained("equality", 1, "sigmoid", BINARY, BITS, M.Accuracy())
trained("bits", 3, "softmax", SHARED, SHARES, M.BinaryAccuracy())
trained("one_label", 3, "softmax", SPARSE, CLASSES, M.CategoricalAccuracy())
trained("truncated", 1, "sigmoid", BINARY, BITS, M.MeanIoU(num_classes=2))
trained("auc_of_scores", 1, None, of_bits, BITS, M.AUC())
trained("recall_of_scores", 1, None, of_bits, BITS, M.Recall())
trained("measures", 1, None, "mse", MEASURES, "accuracy")
trained("shares", 3, "softmax", SHARED, SHARES, M.CategoricalAccuracy())
trained("iou_of_bits", 1, "sigmoid", BINARY, BITS, M.BinaryIoU())
trained("auc", 1, "sigmoid", BINARY, BITS, M.AUC())
trained("auc_that_knows", 1, None, of_bits, BITS, M.AUC(from_logits=True))
trained("recall", 1, "sigmoid", BINARY, BITS, M.Recall())
trained("recall_above_zero", 1, None, of_bits, BITS, M.Recall(thresholds=0.0))
trained("classes_as_numbers", 1, None, "mse", BITS, "accuracy")
trained("distance", 1, None, "mse", MEASURES, "mae")


class Normalized(keras.Model):
    """A model whose normalization is told in which mode to work."""

    def __init__(self, mode: bool | None) -> None:
        super().__init__()
        self.mode = mode
        self.hidden, self.head = L.Dense(8), L.Dense(3)
        self.bn = L.BatchNormalization(name="bn")

    def call(self, x: Any, training: Any = None) -> Any:
        """Return scores."""
        mode = training if self.mode is None else self.mode
        return self.head(self.bn(self.hidden(x), training=mode))


def normalized(name: str, mode: bool | None, *, is_frozen: bool = False) -> None:
    keras.utils.set_random_seed(0)
    model = Normalized(mode)
    model.bn.trainable = not is_frozen
    model.compile("adam", scores)
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    held_back = X[32:], CLASSES[32:]
    given = {"verbose": 0, "epochs": 2, "validation_data": held_back}
    model.fit(X[:32], CLASSES[:32], callbacks=[made], **given)
    made.close()
    report[name] = made.counters()["internal_errors"]


normalized("statistics_move", mode=True)
normalized("statistics_stay", mode=None)
normalized("frozen_statistics", mode=True, is_frozen=True)
finish()
