"""The training in TensorFlow, by a loop with a tape: its name and the run are given."""

from __future__ import annotations

import sys

import keras
import tensorflow as tf

import tdbg.tensorflow as tt
from benchmarks.frameworks.programs.keras_fit import build
from benchmarks.frameworks.trainings import by_name


def main(name: str, run: str) -> None:
    """Train, watched."""
    training = by_name(name)
    model = build(training)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(training.rate)
    images, labels = training.validation()
    with tt.watch(
        model, optimizer, loss=criterion, out=run, rules="default", budget="off"
    ):
        for _ in range(training.n_epochs):
            for x, y in training.batches():
                with tf.GradientTape() as tape:
                    loss = criterion(y, model(x, training=True))
                trained = model.trainable_variables
                optimizer.apply_gradients(
                    zip(tape.gradient(loss, trained), trained, strict=True)
                )
            criterion(labels, model(images, training=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
