"""Trainings of Keras whose rows of steps are looked at, on any backend."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
from common import OUT, finish, report

import tdbg.keras as tk

X = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
BATCH = 16
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def model_of(kind: Any = keras.Sequential) -> Any:
    model = kind([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def fit(name: str, model: Any, **settings: Any) -> None:
    hook = tk.Hook(OUT / name, **settings)
    model.fit(X, Y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[hook],
              shuffle=False, validation_data=(X[:20], Y[:20]))  # fmt: skip
    report[name] = hook.counters()["internal_errors"]
    hook.close()


fit("plain", model_of())
fit("tapped", model_of(), include_collections=["gradients"])


class Own(keras.Sequential):
    """A model whose step counts nothing."""

    def train_step(self, *args: Any) -> Any:
        """Train, as any model does."""
        return super().train_step(*args)


fit("own step", model_of(Own))

if IS_TENSORFLOW:
    import tensorflow as tf

    import tdbg.tensorflow as tt

    batches = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in (0, 16, 32, 48)]

    def loop(name: str, way: str) -> None:
        model = model_of()
        model.build((None, 6))
        optimizer = keras.optimizers.SGD(0.1)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made = tt.watch(model, optimizer, loss=loss_of, out=OUT / name, rules=())
        gradient = tf.GradientTape.gradient
        report[f"{name} is timed"] = hasattr(gradient, "__wrapped__")

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            variables = model.trainable_variables
            grads = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return loss

        if way == "graph":
            step = tf.function(step)
        elif way == "function":
            step = made.function(step)
        for i in range(24):
            x, y = batches[i % 4]
            step(tf.constant(x), tf.constant(y))
        report[name] = made.counters()["internal_errors"]
        made.close()
        report[f"{name} is left"] = hasattr(tf.GradientTape.gradient, "__wrapped__")

    for way in ("eager", "graph", "function"):
        loop(f"loop {way}", way)

finish()
sys.exit(0)
