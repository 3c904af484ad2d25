"""The training in Keras, by ``fit``: its name and the run to make are given."""

from __future__ import annotations

import sys
from typing import Any

import keras

import tdbg.keras as tk
from benchmarks.frameworks.trainings import Training, by_name


def build(training: Training) -> Any:
    """The layers as they are before the first step."""
    layers = training.layers()
    model = keras.Sequential([keras.Input((len(layers[0].kernel),))])
    for i, layer in enumerate(layers):
        activation = training.activation if i < len(layers) - 1 else None
        dense = keras.layers.Dense(
            layer.kernel.shape[1], activation=activation, name=f"d{i}"
        )
        model.add(dense)
        dense.set_weights([layer.kernel, layer.bias])
        dense.trainable = layer.is_trained
    model.compile(
        keras.optimizers.SGD(training.rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def main(name: str, run: str) -> None:
    """Train, watched."""
    training = by_name(name)
    model = build(training)
    x, y = training.data()
    with tk.Hook(run, rules="default", budget="off") as hook:
        model.fit(
            x,
            y,
            batch_size=training.batch_size,
            epochs=training.n_epochs,
            shuffle=False,
            validation_data=training.validation(),
            validation_batch_size=len(training.validation()[0]),
            verbose=0,
            callbacks=[hook],
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
