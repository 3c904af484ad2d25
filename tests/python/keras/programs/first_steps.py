"""Facts of the first steps: normalizations that follow batches, and late freezing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from common import finish, hook, report

generator = np.random.default_rng(1)
WIDE = 3 * generator.normal(size=(96, 8)).astype("float32") + 2
CLASSES = (WIDE[:, 0] > 2).astype("int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def net(momentum: float = 0.99) -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", name="d1"),
            keras.layers.BatchNormalization(name="bn", momentum=momentum),
            keras.layers.Dense(3, name="d2"),
        ]
    )


def train(model: Any, *callbacks: Any, epochs: int = 2, **compiled: Any) -> None:
    if compiled:
        model.compile(**compiled)
    model.fit(
        WIDE, CLASSES, 16, epochs, verbose=0, shuffle=False, callbacks=list(callbacks)
    )


def sgd(**more: Any) -> dict[str, Any]:
    return {"optimizer": keras.optimizers.SGD(0.05), "loss": LOSS, **more}


def recorded(name: str, loop: Callable[..., Any]) -> None:
    """Run a training with tdbg, and without; note whether both have equal weights."""
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    weights = [loop(made).get_weights(), loop().get_weights()]
    made.close()
    report[name] = {
        "errors": made.counters()["internal_errors"],
        "equal": all(map(np.array_equal, *weights)),
    }


def of_another_framework(*callbacks: Any) -> Any:
    model = net(0.1)
    train(model, *callbacks, **sgd())
    return model


def frozen_without_compiling(*callbacks: Any) -> Any:
    model = net()
    train(model, *callbacks, **sgd())
    model.get_layer("d1").trainable = False
    model.get_layer("bn").trainable = False
    train(model, *callbacks)
    return model


def ordinary(*callbacks: Any) -> Any:
    model = net(0.9)
    train(model, *callbacks, **sgd())
    return model


def two_phases(*callbacks: Any) -> Any:
    """Transfer learning: the head first, then everything, compiled each time."""
    model = net()
    train(model, **sgd())
    for name in ("d1", "bn"):
        model.get_layer(name).trainable = False
    train(model, *callbacks, **sgd())
    model.get_layer("d1").trainable = True
    train(model, *callbacks, **sgd())
    return model


def frozen_before_the_first_fit(*callbacks: Any) -> Any:
    model = net()
    model.compile(**sgd())
    model.get_layer("d1").trainable = False
    train(model, *callbacks)
    return model


def frozen_normalization_that_follows(*callbacks: Any) -> Any:
    """A normalization of another framework that keeps its statistics."""
    model = net(0.1)
    model.get_layer("bn").trainable = False
    train(model, *callbacks, **sgd())
    return model


def toggled(*callbacks: Any) -> Any:
    """Frozen and thawed again between two calls of fit."""
    model = net()
    train(model, *callbacks, **sgd())
    model.get_layer("d1").trainable = False
    model.get_layer("d1").trainable = True
    train(model, *callbacks)
    return model


def judged_by_a_frozen_model(*callbacks: Any) -> Any:
    """A judge that a GAN freezes, and trains by the step compiled before."""
    judge = net()
    train(judge, *callbacks, **sgd())
    judge.trainable = False
    maker = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, name="make")])
    both = keras.Sequential([keras.Input((4,)), maker, judge])
    both.compile(**sgd())
    noise = np.random.default_rng(2).normal(size=(16, 4)).astype("float32")
    for i in range(6):
        judge.train_on_batch(WIDE[:16], CLASSES[:16])
        both.train_on_batch(noise, np.full(16, i % 2))
    return judge


class Own(keras.Model):  # type: ignore[misc]
    """A training step of its own, which trains the head only."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)


def several_outputs(*callbacks: Any) -> Any:
    keras.utils.set_random_seed(0)
    x = keras.Input((8,))
    h = keras.layers.BatchNormalization(name="bn")(keras.layers.Dense(8, "relu")(x))
    first = keras.layers.Dense(3, name="first")(h)
    second = keras.layers.Dense(4, "sigmoid", name="second")(h)
    model = keras.Model(x, [first, second])
    labels = (WIDE[:, :4] > 2).astype("float32")
    model.compile("adam", loss=[LOSS, "binary_crossentropy"])
    model.fit(
        WIDE,
        [CLASSES, labels],
        16,
        2,
        verbose=0,
        shuffle=False,
        callbacks=list(callbacks),
    )
    return model


def subclassed(*callbacks: Any) -> Any:
    model = Own(net())
    train(model, *callbacks, **sgd())
    return model


def by_xla(*callbacks: Any) -> Any:
    model = net(0.5)
    train(model, *callbacks, **sgd(jit_compile=keras.backend.backend() != "torch"))
    return model


def of_one(activation: str, loss: str) -> Callable[..., Any]:
    def loop(*callbacks: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(1, activation, name="head")]
        )
        train(model, *callbacks, optimizer="sgd", loss=loss)
        return model

    return loop


def decaying(*exempt: str) -> Callable[..., Any]:
    def loop(*callbacks: Any) -> Any:
        model = net()
        optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.01)
        if exempt:
            optimizer.exclude_from_weight_decay(var_names=list(exempt))
        train(model, *callbacks, **sgd(optimizer=optimizer))
        return model

    return loop


TRAININGS = [
    of_another_framework,
    frozen_normalization_that_follows,
    subclassed,
    several_outputs,
    two_phases,
    frozen_without_compiling,
    ordinary,
    frozen_before_the_first_fit,
    toggled,
    judged_by_a_frozen_model,
    by_xla,
]
if keras.backend.backend() == "jax":  # It refuses steps whose flags have changed.
    TRAININGS = TRAININGS[:4]
recorded("softmax_of_one", of_one("softmax", "binary_crossentropy"))
recorded("sigmoid_of_one", of_one("sigmoid", "binary_crossentropy"))
recorded("regression_of_one", of_one("linear", "mse"))
recorded("decays_scales", decaying("bias"))
recorded("decays_all", decaying())
recorded("decays_kernels", decaying("bias", "gamma", "beta"))
for made in TRAININGS:
    recorded(made.__name__, made)
finish()
