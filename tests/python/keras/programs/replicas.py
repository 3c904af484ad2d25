"""Trainings of two replicas on two logical CPUs, and the same with one."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import EVERY, OUT, X, Y, finish, hook, outcome, report

import tdbg.tensorflow as tt

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
messages: list[str] = []


class Listening(logging.Handler):
    """Keeps what tdbg says."""

    def emit(self, record: logging.LogRecord) -> None:
        messages.append(record.getMessage())


logging.getLogger("tdbg").addHandler(Listening())
# A hook that is there before the strategy; of that there is one, since collective
# operations of several strategies in one process may be taken for each other.
early = hook("fit two")
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def scope(strategy: Any) -> Any:
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def build() -> Any:
    """With a layer whose replicas wait for each other inside of its call."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", name="d1"),
            keras.layers.BatchNormalization(name="bn", synchronized=True),
            keras.layers.Dense(3, name="d2"),
        ]
    )


def data(x: Any = X[:64], n_epochs: int = 2) -> Any:
    batches = tf.data.Dataset.from_tensor_slices((x, Y[: len(x)])).batch(16)
    return batches.repeat(n_epochs)


def loop(name: str, strategy: Any, way: str = "graph", *, watched: bool = True) -> None:
    """A loop whose loss is the mean over the whole batch."""
    with scope(strategy):
        model, optimizer = build(), keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="sum"
        )
        made = tt.Hook(OUT / name, save_all=True, save_config=EVERY)
        if watched:
            made.register(model, optimizer, loss=loss_of)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / 16
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return loss

    def whole(x: Any, y: Any) -> Any:
        if strategy is None:
            return step(x, y)
        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    ways = {"graph": tf.function, "function": made.function, "eager": lambda each: each}
    compiled = ways[way](whole)
    batches = data()
    if strategy is not None:
        batches = strategy.experimental_distribute_dataset(batches)
    losses = [float(compiled(x, y)) for x, y in batches]
    report[name] = {"losses": losses, "counters": made.counters()}
    made.close()


def flat() -> Any:
    """A model whose replicas do not wait for each other."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, name="d1")])


def fit(
    name: str,
    *,
    is_mirrored: bool,
    make: Any = build,
    x: Any = X[:64],
    config: Any = EVERY,
) -> None:
    """A call of ``fit``."""
    with early if name == "fit two" else hook(name, save_config=config) as made:
        with scope(mirrored if is_mirrored else None):
            model = make()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss, metrics=["accuracy"])
        callbacks = [] if name == "fit plain" else [made]
        history = model.fit(
            x, Y[: len(x)], batch_size=16, epochs=2, shuffle=False, verbose=0,
            validation_data=(X[:32], Y[:32]), validation_batch_size=16,
            callbacks=callbacks,
        ).history  # fmt: skip
        report[name] = {
            "losses": [float(each) for each in history["loss"]],
            "counters": made.counters(),
            "patched": ["call" in vars(each) for each in model.layers],
        }


def small(name: str, batches: Any, config: tt.SaveConfig) -> None:
    """A loop of two replicas that do not wait for each other."""
    with mirrored.scope():
        model = flat()
        optimizer = keras.optimizers.SGD(0.1)
        loss_of = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="sum"
        )
        made = tt.Hook(
            OUT / name,
            save_all=True,
            include_collections=["local_gradients"],
            save_config=config,
        )
        made.register(model, optimizer, loss=loss_of)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)

    @tf.function
    def whole(x: Any, y: Any) -> None:
        mirrored.run(step, args=(x, y))

    for x, y in mirrored.experimental_distribute_dataset(batches):
        whole(x, y)
    report[name] = {"counters": made.counters()}
    made.close()


class Elsewhere:
    """A model that was made under a strategy of several processes."""

    class ParameterServerStrategyV2:
        pass

    distribute_strategy = ParameterServerStrategyV2()

    def _flatten_layers(self) -> None:
        raise AssertionError


loop("one", None)
loop("plain", mirrored, watched=False)
loop("two", mirrored)
loop("two by function", mirrored, "function")
loop("two eagerly", mirrored, "eager")
fit("fit one", is_mirrored=False)
fit("fit plain", is_mirrored=True)
fit("fit two", is_mirrored=True)
small("uneven", data(X[:33], 1), EVERY)
poisoned = X[:49].copy()
poisoned[25:27, 0] = np.nan  # In the share of the second replica of the second batch.
every_other = tt.SaveConfig(save_interval=2, statistics_interval=2)
small("poisoned", data(poisoned, 1), every_other)
small("broken", data(poisoned, 1), EVERY)
seldom = tt.SaveConfig(save_interval=100, statistics_interval=100)
poisoned[25:27], poisoned[44] = X[25:27], np.nan
for each, config in (("fit often", EVERY), ("fit seldom", seldom)):
    fit(each, is_mirrored=True, make=flat, x=poisoned, config=config)
with tt.Hook(OUT / "elsewhere") as elsewhere:
    report["elsewhere"] = outcome(
        lambda: elsewhere.register(Elsewhere(), keras.optimizers.SGD())
    )

report["messages"] = messages
finish()
