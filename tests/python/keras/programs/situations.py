"""What trainings with Keras do: each situation is a run of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from common import EVERY, X, Y, build, finish, fit, hook, on_batches, report, simple

import tdbg.keras as tk

BACKEND = keras.backend.backend()


def run(name: str, train: Callable[[tk.Hook], Any], **arguments: Any) -> None:
    """Make one run, and report what was counted."""
    with hook(name, **arguments) as made:
        result = train(made)
        report[name] = {
            "counters": made.counters(),
            "steps": made.n_steps,
            "result": result,
        }


def fits(*, compares: bool = True, **compiled: Any) -> Callable[[tk.Hook], Any]:
    """Train the same model with a hook, and without one if these are to be equal."""

    def train(made: tk.Hook) -> Any:
        plain = fit(build(**compiled)) if compares else {}
        return [plain, fit(build(**compiled), made)]

    return train


class TwoPlayers(keras.Model):
    """A generator and a critic with an optimizer each, in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(8, name="g1")], name="generator"
        )
        self.critic = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(1, name="c1")], name="critic"
        )
        self.critic_loss = keras.metrics.Mean(name="critic_loss")
        self.generator_loss = keras.metrics.Mean(name="generator_loss")
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        self.of_generator = keras.optimizers.Adam(0.01)
        self.of_critic = keras.optimizers.SGD(0.1)

    @property
    def metrics(self) -> list[Any]:
        return [self.critic_loss, self.generator_loss]

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        real = data[0] if isinstance(data, tuple) else data
        noise = tf.random.stateless_normal(tf.shape(real), (0, 0))
        with tf.GradientTape() as tape:
            false, true = self.critic(self.generator(noise)), self.critic(real)
            loss = self.entropy(tf.ones_like(true), true)
            loss += self.entropy(tf.zeros_like(false), false)
        variables = self.critic.trainable_variables
        self.of_critic.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        with tf.GradientTape() as tape:
            false = self.critic(self.generator(noise))
            other = self.entropy(tf.ones_like(false), false)
        variables = self.generator.trainable_variables
        self.of_generator.apply_gradients(
            zip(tape.gradient(other, variables), variables, strict=True)
        )
        self.critic_loss.update_state(loss)
        self.generator_loss.update_state(other)
        return {each.name: each.result() for each in self.metrics}


class Encoder(keras.Model):
    """A subclassed model: layers inside of layers, one of them called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = keras.layers.Dense(8, activation="tanh", name="shared")
        self.head = keras.Sequential([keras.layers.Dense(3, name="out")], name="head")

    def call(self, x: Any) -> Any:
        return self.head(self.shared(self.shared(x)))


def embedded() -> Any:
    """An embedding, of which a batch uses few rows, under a recurrent layer."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(50, 4, name="table"),
            keras.layers.LSTM(6, name="memory"),
            keras.layers.Dense(3, name="out"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def images() -> Any:
    """Channels come last."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4, 4, 2)),
            keras.layers.Conv2D(5, 3, activation="relu", name="conv"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(1, name="out"),
        ]
    )
    model.compile("sgd", "mse")
    return model


def overflows(made: tk.Hook) -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=2.0**126, dynamic_growth_steps=2
    )
    model = simple(optimizer=optimizer)
    made.set_model(model)
    on_batches(model, 8)


def accumulates(made: tk.Hook) -> None:
    model = simple(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    made.set_model(model)
    on_batches(model, 10)


def clips(made: tk.Hook) -> None:
    model = simple(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=0.01))
    made.set_model(model)
    on_batches(model, 3)


def half(made: tk.Hook) -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        fit(simple(), made, epochs=1)
    finally:
        keras.config.set_dtype_policy("float32")


def frozen(made: tk.Hook) -> None:
    model = simple()
    model.get_layer("d1").trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy")
    fit(model, made, epochs=1)


def later(made: tk.Hook) -> None:
    model = simple()
    fit(model, made, epochs=1)
    made.get_collection("weights").include("d2_output")
    made.add_collection(tk.Collection("late", include_regex="d1_relu_output"))
    fit(model, made, epochs=1)


def regularized(made: tk.Hook) -> Any:
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense(3, kernel_regularizer="l2", name="d1")
    model = keras.Sequential([keras.Input((8,)), dense])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return fit(model, made, epochs=1)["loss"]


def subclassed(made: tk.Hook) -> None:
    model = Encoder()
    model.compile("sgd", "sparse_categorical_crossentropy")
    fit(model, made, epochs=1)


SEVERAL = tk.SaveConfig(save_interval=6, statistics_interval=6)
# Inductor draws other numbers for dropout than steps that are captured, uncompiled; and
# it takes a minute.
run("compiled by XLA", fits(compares=BACKEND != "torch", jit_compile=True))
run("eager", fits(run_eagerly=True))
run("overflow", overflows)
run("accumulated", accumulates)
run("clipped", clips, include_collections=["unclipped_gradients"])
run("bfloat16", half)
run("frozen", frozen)
run("later", later, save_all=False)
run("regularized", regularized)
run("subclassed", subclassed)
run("embedding", lambda made: embedded().fit(
    np.arange(70 * 5).reshape(70, 5) % 13, Y, batch_size=16, verbose=0,
    callbacks=[made],
).history["loss"], rules=["DeadEmbedding"])  # fmt: skip
run("channels", lambda made: images().fit(
    np.repeat(X, 4, axis=1).reshape(70, 4, 4, 2), X[:, :1], batch_size=16, verbose=0,
    callbacks=[made],
).history["loss"], rules=["DeadRelu"])  # fmt: skip
if BACKEND != "torch":
    run("several", fits(steps_per_execution=3), save_config=SEVERAL)
if BACKEND == "tensorflow":
    players = TwoPlayers()
    players.compile()
    run("two players", lambda made: players.fit(
        X[:64], batch_size=16, epochs=2, verbose=0, callbacks=[made]
    ).history["critic_loss"])  # fmt: skip
    assert sys.modules["tensorflow"]
report["every"] = EVERY.as_json()
finish()
