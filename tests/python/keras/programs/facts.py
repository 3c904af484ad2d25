"""What ``fit`` is given, and layers for training only that evaluations call."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from common import finish, hook, report

luck = np.random.default_rng(1)
WIDE = luck.normal(size=(320, 8)).astype("float32")
CLASSES = np.digitize(WIDE[:, 0], [-0.5, 0.5]).astype("int32")
# One class has most of the labels.
UNEVEN = np.digitize(WIDE[:, 0], [-1.3, 0.9]).astype("int32")
BITS = (WIDE[:, 0] > 0.2).astype("float32")
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
SORTED = np.argsort(CLASSES, kind="stable")
SORTED_BITS = np.argsort(BITS, kind="stable")
IMAGES = luck.random((96, 8, 8, 1)).astype("float32")
L = keras.layers
SPARSE, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"


def trained(name: str, model: Any, loss: str, x: Any, y: Any, **options: Any) -> None:
    model.compile("adam", loss)
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    model.fit(x, y, 16, 3, verbose=0, callbacks=[made], **options)
    made.close()
    report[name] = made.counters()["internal_errors"]


def net(*layers: Any) -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((8,)), L.Dense(16, "relu"), *layers])


def softmax() -> Any:
    return net(L.Dense(3, "softmax"))


def sigmoid() -> Any:
    return net(L.Dense(1, "sigmoid"))


def weighted(name: str, labels: Any, weights: dict[Any, float]) -> None:
    n = int(labels.max()) + 1
    model = net(L.Dense(n, "softmax"))
    trained(name, model, SPARSE, WIDE, labels, class_weight=weights)


class Own(keras.Model):  # type: ignore[misc]
    """Drops units by the mode, or always."""

    def __init__(self, layer: Any, always: bool) -> None:
        super().__init__()
        self.first = keras.Sequential([L.Flatten(), L.Dense(16, "relu")])
        self.last = L.Dense(3, "softmax")
        self.noise, self.always = layer, always

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.noise(self.first(x), training=self.always or training))


class Turns(keras.Model):  # type: ignore[misc]
    """Turns images by the mode, or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.turn = L.RandomRotation(0.2, name="turn")
        self.rest = keras.Sequential([L.Flatten(), L.Dense(3, "softmax")])
        self.always = always

    def call(self, x: Any, training: bool = False) -> Any:
        return self.rest(self.turn(x, training=self.always or training))


class Judged(Turns):
    """Evaluates augmented images on purpose."""

    def test_step(self, *args: Any) -> Any:
        return super().test_step(*args)


def of_images(layer: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1))
    hidden = L.Flatten()(layer(inputs, **options))
    return keras.Model(inputs, L.Dense(3, "softmax")(hidden))


def part() -> Any:
    return keras.Sequential([L.Dense(16, "relu"), L.Dropout(0.5, name="drop")])


def validated(name: str, model: Any, x: Any = WIDE) -> None:
    y = CLASSES[: len(x)]
    trained(name, model, SPARSE, x, y, validation_data=(x, y))


weighted("texts_as_keys", CLASSES, {"0": 1.0, "1": 2.0, "2": 3.0})
weighted("keys_from_zero", CLASSES + 1, {0: 1.0, 1: 2.0, 2: 3.0})
counts = np.bincount(UNEVEN)
weighted("upside_down", UNEVEN, {i: float(n / 320) for i, n in enumerate(counts)})
weighted("balanced", UNEVEN, {i: float(320 / n) for i, n in enumerate(counts)})
weighted("some_classes", CLASSES, {2: 3.0})
weighted("one_key_more", CLASSES, {0: 1.0, 1: 1.0, 2: 3.0, 3: 1.0})
weighted("numbers_as_keys", CLASSES, {0.0: 1.0, np.int64(1): 2.0, 2: 3.0})
weighted("all_alike", UNEVEN, {0: 1.0, 1: 1.0, 2: 1.0})

for name, order in (("sorted", SORTED), ("shuffled", np.arange(320))):
    given = WIDE[order], CLASSES[order]
    trained(f"{name}_classes", softmax(), SPARSE, *given, validation_split=0.4)
    given = WIDE[order], ONE_HOT[order]
    loss = "categorical_crossentropy"
    trained(f"{name}_one_hot", softmax(), loss, *given, validation_split=0.2)
for name, order in (("sorted", SORTED_BITS), ("shuffled", np.arange(320))):
    given = WIDE[order], BITS[order]
    trained(f"{name}_bits", sigmoid(), BINARY, *given, validation_split=0.2)
numbers = WIDE[SORTED], WIDE[SORTED, 0]
trained("sorted_numbers", net(L.Dense(1)), "mse", *numbers, validation_split=0.2)
later = WIDE[SORTED], CLASSES[SORTED]
first = tuple(each[:200] for each in later)
trained("classes_come_later", softmax(), SPARSE, *first, validation_data=later)
few = (np.arange(320) % 160 == 0).astype("float32")
trained("rare_bits", sigmoid(), BINARY, WIDE, few, validation_split=0.2)

validated("augments_always", Turns(always=True), IMAGES)
validated("augments", Turns(always=False), IMAGES)
# Keras hands the mode of a functional model on, whatever its layers were called with.
turned = of_images(L.RandomRotation(0.2), training=True)
validated("overruled_by_keras", turned, IMAGES)
hues = keras.Sequential([L.RandomZoom(0.2), L.RandomSharpness(0.5)])
validated("augments_in_a_part", of_images(hues), IMAGES)
validated("evaluates_on_purpose", Judged(always=True), IMAGES)
validated("drops_always", Own(L.Dropout(0.5, name="drop"), always=True))
validated("drops", Own(L.Dropout(0.5), always=False))
validated("a_part_in_training_mode", Own(part(), always=True))
validated("a_part", Own(part(), always=False))
validated("noise_always", Own(L.GaussianNoise(0.5, name="noise"), always=True))
validated("noise", Own(L.GaussianNoise(0.5), always=False))
finish()
