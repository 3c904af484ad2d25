"""Models with steps of their own that return a loss, and models of several outputs."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
from common import EVERY, OUT, finish, report
from keras import layers, losses

import tdbg.keras as tk
from tdbg.modes import TRAIN
from tdbg.trial import create_trial

RANDOM = np.random.default_rng(0)
X = RANDOM.random((64, 8)).astype("float32")
Y = RANDOM.random((64, 1)).astype("float32")
BACKEND = keras.backend.backend()
seen: list[Any] = []


class Own(keras.Model):
    """A model with a step as in Keras's guides, without a metric for its loss."""

    def compute_loss_and_updates(
        self, trained: Any, others: Any, x: Any, y: Any, training: bool = False
    ) -> Any:
        predicted, others = self.stateless_call(trained, others, x, training=training)
        return self.compute_loss(x, y, predicted), (predicted, others)

    def train_step(self, *args: Any) -> Any:
        return getattr(self, f"_on_{BACKEND}")(*args)

    def _on_jax(self, state: Any, data: Any) -> Any:
        import jax

        trained, others, optimized, metrics = state
        differentiate = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, (_, others)), grads = differentiate(
            trained, others, *data, training=True
        )
        trained, optimized = self.optimizer.stateless_apply(optimized, grads, trained)
        return {"loss": loss}, (trained, others, optimized, metrics)

    def _on_tensorflow(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(grads, self.trainable_weights)
        return {"loss": loss}

    def _on_torch(self, data: Any) -> Any:
        import torch

        x, y = data
        self.zero_grad()
        loss = self.compute_loss(x, y, self(x, training=True))
        loss.backward()
        trained = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([each.value.grad for each in trained], trained)
        return {"loss": loss}


class Logs(keras.callbacks.Callback):
    """What the program is told of each batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch
        seen.append(float(logs["loss"]))


def fit(name: str, model: Any, labels: Any, *callbacks: Any) -> Any:
    """Train for two epochs of four steps; return the trial."""
    hook = tk.Hook(
        OUT / name,
        include_collections=["losses", "gradients", "outputs"],
        save_config=EVERY,
    )
    model.fit(
        X, labels, batch_size=16, epochs=2, verbose=0, callbacks=[hook, *callbacks]
    )
    hook.close()
    return create_trial(OUT / name)


given = keras.Input((8,))
own = Own(given, layers.Dense(1, name="d")(layers.Dropout(0.1)(given)))
own.compile(keras.optimizers.SGD(0.1), "mse")
trial = fit("own", own, Y, Logs())
loss = trial.tensor("loss_output_0")
report["own"] = {
    "steps": {
        name: trial.tensor(name).steps(mode=TRAIN) for name in trial.tensor_names()
    },
    "losses": [float(loss.value(step)) for step in loss.steps(mode=TRAIN)],
    "seen": seen,
}

hidden = layers.Dense(8, "relu")(given)
outputs = {
    "a": layers.Dense(1, name="a")(hidden),
    "b": layers.Dense(2, name="b")(hidden),
}
several = keras.Model(given, outputs)
entropy = losses.SparseCategoricalCrossentropy(from_logits=True)
several.compile("sgd", {"a": "mse", "b": entropy})
trial = fit("several", several, {"a": Y, "b": (Y[:, 0] > 0.5).astype("int32")})
names = trial.tensor_names(collection="losses")
report["several"] = {
    name: [
        float(trial.tensor(name).value(step))
        for step in trial.tensor(name).steps(mode=TRAIN)
    ]
    for name in names
}
told: list[str] = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("tdbg").addHandler(handler)
recurrent = keras.Sequential(
    [keras.Input((8,)), layers.Reshape((4, 2)), layers.LSTM(4), layers.Dense(1)]
)
recurrent.compile("sgd", "mse")
fit("recurrent", recurrent, Y)
report["told of loops"] = told
finish()
