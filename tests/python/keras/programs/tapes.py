"""Trainings that apply the gradients of tapes: eagerly, in graphs, under XLA."""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf
from common import EVERY, OUT, X, Y, finish, report, simple

import tdbg.tensorflow as tt

messages: list[str] = []


class Listening(logging.Handler):
    """Keeps what tdbg says."""

    def emit(self, record: logging.LogRecord) -> None:
        messages.append(record.getMessage())


logging.getLogger("tdbg").addHandler(Listening())
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train(name: str, compiled: Any, *, watched: bool) -> list[Any]:
    """Train on twelve batches; return the weights, and the gradients of each step."""
    model, optimizer = simple(), keras.optimizers.SGD(0.1)
    hook = None
    if watched:
        hook = tt.watch(
            model,
            optimizer,
            out=OUT / name,
            save_config=EVERY,
            include_collections=["weights", "biases", "gradients", "updates"],
        )

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape, tf.GradientTape() as inner:
            loss = entropy(y, model(x, training=True))
        inner.gradient(loss, model.trainable_variables)  # Nobody applies these.
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return grads

    step = compiled(step)
    seen = []
    for i in range(12):
        rows = slice(i % 4 * 16, i % 4 * 16 + 16)
        grads = step(tf.constant(X[rows]), tf.constant(Y[rows]))
        seen.append([each.numpy().tolist() for each in grads])
    counters = {} if hook is None else hook.counters()
    if hook is not None:
        hook.close()
    left = "apply" in vars(optimizer)
    weights = [each.tolist() for each in model.get_weights()]
    return [weights, seen, counters, left]


WAYS = {
    "eager": lambda step: step,
    "graph": tf.function,
    "XLA": lambda step: tf.function(step, jit_compile=True),
}
for way, compiled in WAYS.items():
    report[way] = {
        "plain": train(way, compiled, watched=False),
        "watched": train(way, compiled, watched=True),
    }
report["messages"] = messages
finish()
