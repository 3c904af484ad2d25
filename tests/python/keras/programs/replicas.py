"""Trainings of two replicas on two logical CPUs, and the same with one."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import keras
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


def data() -> Any:
    return tf.data.Dataset.from_tensor_slices((X[:64], Y[:64])).batch(16).repeat(2)


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


def fit(name: str, strategy: Any) -> None:
    with scope(strategy):
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    with hook(name) as made:
        callbacks = [] if name == "fit plain" else [made]
        history = model.fit(
            X[:64], Y[:64], batch_size=16, epochs=2, shuffle=False, verbose=0,
            validation_data=(X[:32], Y[:32]), validation_batch_size=16,
            callbacks=callbacks,
        ).history  # fmt: skip
        report[name] = {
            "losses": [float(each) for each in history["loss"]],
            "counters": made.counters(),
            "patched": ["call" in vars(each) for each in model.layers],
        }


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
fit("fit one", None)
fit("fit plain", mirrored)
fit("fit two", mirrored)
with tt.Hook(OUT / "elsewhere") as elsewhere:
    report["elsewhere"] = outcome(
        lambda: elsewhere.register(Elsewhere(), keras.optimizers.SGD())
    )

report["messages"] = messages
finish()
