"""Steps of one's own, as programs write them for TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import finish, hook, report

luck = np.random.default_rng(1)
X = luck.normal(size=(64, 8)).astype("float32")
Y = np.digitize(X[:, 0], [-0.5, 0.5]).astype("int32")
T = X[:, 0] * X[:, 1] + 0.1
L = keras.layers
crossentropy = keras.losses.sparse_categorical_crossentropy


class Stepping(keras.Model):
    """A model whose step takes a loss from a function."""

    def __init__(self, body: Any, loss_of: Callable[..., Any], mode: bool | None):
        super().__init__()
        self.body, self.loss_of, self.mode = body, loss_of, mode

    def call(self, x: Any, training: Any = None) -> Any:
        """Return what the body makes."""
        return self.body(x, training=training)

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self(x) if self.mode is None else self(x, training=self.mode)
            loss = self.loss_of(self, y, outputs, weights)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        return {"loss": loss}


class Judging(Stepping):
    """A model that means to train without dropout."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, self(x, training=False)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        return {"loss": loss}


class Coder(keras.Model):
    """A variational autoencoder."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.encoder, self.decoder, self.how = L.Dense(4), L.Dense(8), how

    def call(self, x: Any) -> Any:
        """Return what the mean of a code means."""
        return self.decoder(self.encoder(x)[:, :2])

    def train_step(self, data: Any) -> Any:
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, scale = tf.split(self.encoder(x), 2, axis=1)
            noise = tf.random.normal(tf.shape(mean))
            variance = 2 * scale if self.how == "deviation" else scale
            deviation = tf.exp(scale if self.how != "variance" else 0.5 * scale)
            outputs = self.decoder(mean + deviation * noise)
            divergence = 1 + variance - tf.square(mean) - tf.exp(variance)
            loss = tf.reduce_mean(tf.square(x - outputs))
            loss -= 0.05 * tf.reduce_mean(tf.reduce_sum(divergence, 1))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        return {"loss": loss}


def net(units: int = 3, ends: Any = "softmax", *layers: Any, decay: Any = None) -> Any:
    hidden = L.Dense(8, "tanh", kernel_regularizer=decay)
    return keras.Sequential([keras.Input((8,)), hidden, *layers, L.Dense(units, ends)])


def trained(
    name: str, model: Any, *data: Any, rate: Any = "adam", **given: Any
) -> None:
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    model.compile(rate)
    model.fit(*data, epochs=2, verbose=0, callbacks=[made], **given)
    made.close()
    report[name] = made.counters()["internal_errors"]


def of_classes(model: Any, y: Any, outputs: Any, weights: Any) -> Any:
    del model, weights
    return tf.reduce_mean(crossentropy(y, outputs))


def with_weights(model: Any, y: Any, outputs: Any, weights: Any) -> Any:
    del model
    losses = crossentropy(y, outputs)
    return tf.reduce_mean(losses if weights is None else losses * weights)


def with_losses(model: Any, y: Any, outputs: Any, weights: Any) -> Any:
    return of_classes(model, y, outputs, weights) + sum(model.losses)


def scaled(model: Any, y: Any, outputs: Any, weights: Any) -> Any:
    return model.optimizer.scale_loss(of_classes(model, y, outputs, weights))


def stepping(
    loss_of: Callable[..., Any], *, mode: bool | None = True, body: Any = None
) -> Any:
    keras.utils.set_random_seed(0)
    return Stepping(net() if body is None else body, loss_of, mode)


def _sign(y: Any) -> Any:
    return tf.sign(y[:, None] - y[None, :])


def regression(name: str, loss_of: Callable[[Any, Any], Any]) -> None:
    def of_numbers(model: Any, y: Any, outputs: Any, weights: Any) -> Any:
        del model, weights
        return loss_of(y, outputs)

    trained(name, stepping(of_numbers, body=net(1, None)), X, T)


trained("plain", stepping(of_classes), X, Y)
dropping = net(3, "softmax", L.Dropout(0.3))
trained("without_mode", stepping(of_classes, mode=None, body=dropping), X, Y)
dropping = net(3, "softmax", L.Dropout(0.3))
trained("with_mode", stepping(of_classes, body=dropping), X, Y)
dropping = net(3, "softmax", L.Dropout(0.3))
trained("mode_is_meant", Judging(dropping, of_classes, None), X, Y)
trained("nothing_to_drop", stepping(of_classes, mode=None), X, Y)

balance = {"class_weight": {0: 1.0, 1: 2.0, 2: 3.0}}
trained("weights_left_out", stepping(of_classes), X, Y, **balance)
trained("weights", stepping(with_weights), X, Y, **balance)

trained("losses_left_out", stepping(of_classes, body=net(decay="l2")), X, Y)
trained("losses", stepping(with_losses, body=net(decay="l2")), X, Y)

rate = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
trained("not_scaled", stepping(of_classes), X, Y, rate=rate)
rate = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
trained("scaled", stepping(scaled), X, Y, rate=rate)

regression("all_pairs", lambda y, p: tf.reduce_mean((y - p) ** 2))
regression("all_pairs_reversed", lambda y, p: tf.reduce_mean(tf.abs(p - y)))
regression("aligned", lambda y, p: tf.reduce_mean(tf.square(y - p[:, 0])))
regression("by_keras", keras.losses.MeanSquaredError())
regression(
    "pairs_on_purpose", lambda y, p: tf.reduce_mean(tf.square(y - p[:, 0][:, None]))
)
regression(
    "ranks",
    lambda y, p: tf.reduce_mean(tf.nn.relu(1 - (p - tf.transpose(p)) * _sign(y))),
)


def twice(ends: Any) -> Any:
    def loss_of(model: Any, y: Any, outputs: Any, weights: Any) -> Any:
        del model, weights
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
        return tf.reduce_mean(found)

    return stepping(loss_of, body=net(3, ends))


def bits(ends: Any) -> Any:
    def loss_of(model: Any, y: Any, outputs: Any, weights: Any) -> Any:
        del model, weights
        labels = tf.cast(y > 0, tf.float32)
        found = tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs[:, 0])
        return tf.reduce_mean(found)

    return stepping(loss_of, body=net(1, ends))


class Squared(keras.losses.Loss):
    """A loss of one's own that Keras does not align."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred))


def compiled(name: str, *data: Any) -> None:
    keras.utils.set_random_seed(0)
    model = net(1, None)
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    model.compile("adam", Squared())
    model.fit(*data, epochs=2, verbose=0, callbacks=[made])
    made.close()
    report[name] = made.counters()["internal_errors"]


trained("softmax_twice", twice("softmax"), X, Y)
trained("softmax_once", twice(None), X, Y)
trained("sigmoid_twice", bits("sigmoid"), X, Y)
trained("sigmoid_once", bits(None), X, Y)
compiled("loss_of_pairs", X, T)
compiled("loss_of_columns", X, T[:, None])
for how in ("wrong", "variance", "deviation"):
    keras.utils.set_random_seed(0)
    trained(f"coder_{how}", Coder(how), X)
finish()
