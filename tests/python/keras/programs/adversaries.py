"""Two optimizers in one step, or by turns; what a watched loop records by default."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import EVERY, OUT, finish, report
from keras import layers, losses, optimizers

import tdbg.tensorflow as tt
from tdbg.modes import TRAIN
from tdbg.rules import resolve
from tdbg.rules.testing import judge
from tdbg.trial import create_trial

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")


def train(name: str, *, compiled: bool, every: int = 1) -> None:
    """Train the adversaries of TensorFlow's tutorial for six calls."""
    keras.utils.set_random_seed(0)
    makes = keras.Sequential([keras.Input((4,)), layers.Dense(6, name="g1")])
    tells = keras.Sequential([keras.Input((6,)), layers.Dense(1, name="d1")])
    of_makes, of_tells = optimizers.SGD(0.1), optimizers.SGD(0.1)
    loss_of = losses.BinaryCrossentropy(from_logits=True)
    hook = tt.Hook(
        OUT / name,
        include_collections=["weights", "gradients", "outputs"],
        save_config=tt.SaveConfig(save_interval=every, statistics_interval=every),
    )
    hook.register(makes, of_makes)
    hook.register(tells, of_tells)

    def step(noise: Any, x: Any) -> None:
        with tf.GradientTape() as one, tf.GradientTape() as other:
            made = tells(makes(noise, training=True), training=True)
            given = tells(x, training=True)
            true, false = tf.ones_like(made), tf.zeros_like(made)
            of_made = loss_of(true, made)
            of_given = loss_of(true, given) + loss_of(false, made)
        trained = makes.trainable_variables
        grads = one.gradient(of_made, trained)
        of_makes.apply_gradients(zip(grads, trained, strict=True))
        trained = tells.trainable_variables
        grads = other.gradient(of_given, trained)
        of_tells.apply_gradients(zip(grads, trained, strict=True))

    called = tf.function(step) if compiled else step
    for _ in range(6):
        called(tf.random.normal((8, 4)), tf.constant(X))
    hook.close()
    trial = create_trial(OUT / name)
    report[name] = {
        "steps": hook.n_steps,
        "recorded": {
            each: trial.tensor(each).steps(mode=TRAIN) for each in trial.tensor_names()
        },
    }


def take_turns(name: str, *, compiled: bool) -> None:
    """Train two models by turns, each with a forward of its own, for six iterations."""
    keras.utils.set_random_seed(0)
    models = [
        keras.Sequential([keras.Input((6,)), layers.Dense(1, name=each)])
        for each in ("first", "second")
    ]
    hook = tt.Hook(OUT / name, include_collections=["gradients"], save_config=EVERY)
    turns, given = [], {}
    for model in models:
        optimizer = optimizers.SGD(0.1)
        hook.register(model, optimizer)

        def turn(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            trained = model.trainable_variables
            grads = tape.gradient(loss, trained)
            optimizer.apply_gradients(zip(grads, trained, strict=True))
            return grads[0]

        turns.append(tf.function(turn) if compiled else turn)
    for _ in range(6):
        for model, turn in zip(models, turns, strict=True):
            layer = model.layers[0].name
            given.setdefault(layer, []).append(turn(tf.constant(X)).numpy())
    hook.close()
    trial = create_trial(OUT / name)
    tensors = {
        layer: next(trial.tensor(n) for n in trial.tensor_names() if f"{layer}/k" in n)
        for layer in given
    }
    report[name] = {
        "steps": hook.n_steps,
        "are_of_their_iteration": {
            layer: [
                bool(np.allclose(tensor.value(step, mode=TRAIN), given[layer][step]))
                for step in tensor.steps(mode=TRAIN)
            ]
            for layer, tensor in tensors.items()
        },
    }


def explode() -> None:
    """Watch a loop with defaults, and train it far too fast."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).random((32, 64)).astype("float32")
    y = np.arange(32) % 10
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(32, "relu"), layers.Dense(10)]
    )
    optimizer = optimizers.SGD(100.0)
    loss_of = losses.SparseCategoricalCrossentropy(from_logits=True)
    hook = tt.watch(
        model, optimizer, loss=loss_of, out=OUT / "default", save_config=EVERY
    )

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        trained = model.trainable_variables
        grads = tape.gradient(loss, trained)
        optimizer.apply_gradients(zip(grads, trained, strict=True))

    for _ in range(20):
        step(tf.constant(x), tf.constant(y))
    hook.close()
    trial = create_trial(OUT / "default")
    report["default"] = {
        "collections": sorted(
            name for name in trial.collections() if trial.tensor_names(collection=name)
        ),
        "rules": [each.rule for each in judge(OUT / "default", *resolve("default"))],
    }


train("eager", compiled=False)
train("graph", compiled=True)
train("every other", compiled=True, every=2)
take_turns("turns, eager", compiled=False)
take_turns("turns, graph", compiled=True)
explode()
finish()
