"""What models end with, and what callbacks and schedules follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from common import finish, hook, report

luck = np.random.default_rng(1)
WIDE = luck.normal(size=(128, 8)).astype("float32")
CLASSES = (WIDE[:, 0] > 0).astype("int32") + (WIDE[:, 1] > 0)
BITS = (WIDE[:, 0] > 0).astype("float32")
NUMBERS = WIDE[:, 0] + 0.5 * WIDE[:, 1]
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
N_EPOCHS = 5
L, C = keras.layers, keras.callbacks
SPARSE = keras.losses.SparseCategoricalCrossentropy
BINARY = keras.losses.BinaryCrossentropy


def net(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((8,)), L.Dense(16, "relu"), *layers])


def softmax(n: int = 3) -> Any:
    return net(L.Dense(n, "softmax"))


class Own(keras.Model):  # type: ignore[misc]
    """Hands the argument training on, or does not."""

    def __init__(self, hands_on: bool, momentum: float = 0.9) -> None:
        super().__init__()
        self.first = L.Dense(16, "relu")
        self.bn = L.BatchNormalization(momentum=momentum, name="bn")
        self.last = L.Dense(3, "softmax")
        self.hands_on = hands_on

    def call(self, x: Any, training: bool = False) -> Any:
        given = training if self.hands_on else False
        return self.last(self.bn(self.first(x), training=given))


class Adds(C.Callback):  # type: ignore[misc]
    """Adds a metric behind the hook."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["val_mine"] = 1.0 / (epoch + 1)


class Stops(C.EarlyStopping):  # type: ignore[misc]
    """Stops as its base class does, and prints more."""

    def on_train_end(self, logs: Any = None) -> None:
        super().on_train_end(logs)


class StopsByItsOwn(C.EarlyStopping):  # type: ignore[misc]
    """Watches a number that Keras does not know."""

    def get_monitor_value(self, logs: Any) -> Any:
        return logs["loss"] + 1.0


class Hands(C.Callback):  # type: ignore[misc]
    """Calls the hook itself, and has a property that nobody else may read."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made
        self.n_reads = 0

    @property
    def callbacks(self) -> list[Any]:
        self.n_reads += 1
        return [self.made]

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.made.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self.made.on_train_begin(logs)


def adapted(is_adapted: bool) -> Any:
    layer = L.Normalization(name="norm")
    if is_adapted:
        layer.adapt(WIDE)
    return keras.Sequential([keras.Input((8,)), layer, L.Dense(3, "softmax")])


def frozen() -> Any:
    model = Own(hands_on=False)
    model.bn.trainable = False
    return model


def trained(
    name: str,
    make: Callable[[], Any],
    labels: Any,
    loss: Any,
    *others: Any,
    metrics: Any = (),
    validates: bool = True,
    optimizer: Any = "adam",
    **options: Any,
) -> None:
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(optimizer, loss, metrics=list(metrics))
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    given = {"validation_data": (WIDE, labels)} if validates else {}
    model.fit(
        WIDE,
        labels,
        16,
        N_EPOCHS,
        verbose=0,
        callbacks=[made, *others],
        **given,
        **options,
    )
    made.close()
    report[name] = made.counters()["internal_errors"]


def cosine(steps: int) -> Any:
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, steps))


CROSS = "sparse_categorical_crossentropy"
OF_BITS = BINARY(from_logits=True)
HALF = keras.metrics.BinaryAccuracy

trained("scores", lambda: net(L.Dense(3)), CLASSES, SPARSE())
trained("scores_of_bits", lambda: net(L.Dense(1)), BITS, BINARY())
trained("probabilities", softmax, CLASSES, SPARSE())
trained("logits", lambda: net(L.Dense(3)), CLASSES, SPARSE(from_logits=True))
trained("lambda", lambda: net(L.Dense(3), L.Activation("softmax")), CLASSES, SPARSE())
trained("softmax_for_bits", softmax, ONE_HOT, BINARY())
trained("several_bits", lambda: net(L.Dense(3, "sigmoid")), ONE_HOT, BINARY())
two = np.stack([BITS, 1 - BITS], 1)
trained("two_of_one", lambda: softmax(2), two, BINARY())
trained("metric", lambda: net(L.Dense(1)), BITS, OF_BITS, metrics=["accuracy"])
trained(
    "metric_at_zero",
    lambda: net(L.Dense(1)),
    BITS,
    OF_BITS,
    metrics=[HALF(threshold=0.0)],
)
trained(
    "metric_of_sigmoid",
    lambda: net(L.Dense(1, "sigmoid")),
    BITS,
    BINARY(),
    metrics=["accuracy"],
)
trained(
    "metric_of_classes",
    lambda: net(L.Dense(3)),
    CLASSES,
    SPARSE(from_logits=True),
    metrics=["accuracy"],
)
trained("below_relu", lambda: net(L.Dense(1, "relu")), NUMBERS, "mse")
trained("beyond_sigmoid", lambda: net(L.Dense(1, "sigmoid")), 10 * NUMBERS, "mse")
trained("above_relu", lambda: net(L.Dense(1, "relu")), np.abs(NUMBERS), "mse")
trained("within_tanh", lambda: net(L.Dense(1, "tanh")), np.tanh(NUMBERS), "mse")
trained("linear", lambda: net(L.Dense(1)), 10 * NUMBERS, "mse")
trained("in_inference_mode", lambda: Own(hands_on=False), CLASSES, CROSS)
trained("never_adapted", lambda: adapted(is_adapted=False), CLASSES, CROSS)
trained("in_training_mode", lambda: Own(hands_on=True), CLASSES, CROSS)
trained("frozen", frozen, CLASSES, CROSS)
trained("adapted", lambda: adapted(is_adapted=True), CLASSES, CROSS)
known = L.Normalization(mean=0.0, variance=1.0)
trained(
    "given",
    lambda: keras.Sequential([keras.Input((8,)), known, L.Dense(3, "softmax")]),
    CLASSES,
    CROSS,
)
stop = C.EarlyStopping("val_loss", patience=9, mode="max")
trained("stops_wrong_way", softmax, CLASSES, CROSS, stop)
plateau = C.ReduceLROnPlateau("val_accuracy", patience=9, mode="min")
trained(
    "lowers_wrong_way",
    softmax,
    CLASSES,
    CROSS,
    plateau,
    metrics=["accuracy"],
    optimizer=keras.optimizers.Adam(1e-2),
)
trained(
    "stops_by_nothing",
    softmax,
    CLASSES,
    CROSS,
    C.EarlyStopping("val_loss", patience=9),
    validates=False,
)
trained(
    "subclass_stops_by_nothing",
    softmax,
    CLASSES,
    CROSS,
    Stops("val_loss", patience=9),
    validates=False,
)
trained(
    "stops_by_its_own_number",
    softmax,
    CLASSES,
    CROSS,
    StopsByItsOwn("val_loss", patience=9, mode="max"),
    validates=False,
)
trained("stops", softmax, CLASSES, CROSS, C.EarlyStopping("val_loss", patience=9))
trained(
    "stops_and_restores",
    softmax,
    CLASSES,
    CROSS,
    C.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
)
trained(
    "restores_by_training",
    softmax,
    CLASSES,
    CROSS,
    C.EarlyStopping("loss", patience=9, restore_best_weights=True),
)
trained(
    "stops_by_accuracy",
    softmax,
    CLASSES,
    CROSS,
    C.EarlyStopping("val_accuracy", patience=9),
    metrics=["accuracy"],
)
trained(
    "stops_by_its_own",
    softmax,
    CLASSES,
    CROSS,
    C.EarlyStopping("val_mine", patience=9, mode="min"),
    Adds(),
)
trained(
    "validates_later",
    softmax,
    CLASSES,
    CROSS,
    C.EarlyStopping("val_loss", patience=9),
    validation_freq=5,
)
trained("in_epochs", softmax, CLASSES, CROSS, optimizer=cosine(N_EPOCHS))
trained("in_steps", softmax, CLASSES, CROSS, optimizer=cosine(8 * N_EPOCHS))
trained("longer", softmax, CLASSES, CROSS, optimizer=cosine(1000))
trained("constant", softmax, CLASSES, CROSS, optimizer="sgd")
made = hook("handed", save_all=False, save_config=None, rules=["default"])
hands, model = Hands(made), softmax()
model.compile("adam", CROSS)
model.fit(WIDE, CLASSES, 16, 1, verbose=0, callbacks=[hands])
made.close()
report["reads of a property"] = hands.n_reads
finish()
