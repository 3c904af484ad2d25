"""Trains on slow data with Keras or in a loop: ``waiting_keras.py KIND OUT``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

KIND, OUT = sys.argv[1:]
N_BATCHES, SECONDS = 6, 0.03


def batch(i: int) -> tuple[Any, Any]:
    time.sleep(SECONDS)
    return np.full((4, 3), i, np.float32), np.zeros((4, 1), np.float32)


class Slow(keras.utils.PyDataset):
    """Batches that take a while."""

    def __len__(self) -> int:
        return N_BATCHES

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return batch(i)


def generated() -> Iterator[tuple[Any, Any]]:
    for i in range(N_BATCHES):
        yield batch(i)


def torch_loader() -> Any:
    import torch

    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4 * N_BATCHES

        def __getitem__(self, i: int) -> tuple[Any, Any]:
            time.sleep(SECONDS / 4)
            return np.full(3, i, np.float32), np.zeros(1, np.float32)

    return torch.utils.data.DataLoader(Samples(), batch_size=4)


def dataset() -> Any:
    import tensorflow as tf

    shapes = tf.TensorSpec((4, 3), tf.float32), tf.TensorSpec((4, 1), tf.float32)
    return tf.data.Dataset.from_generator(generated, output_signature=shapes)


def fit(data: Any) -> None:
    import tdbg.keras as tk

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with tk.Hook(OUT) as hook:
        model.fit(data, epochs=2, verbose=0, callbacks=[hook])


def loop(batches: Any) -> None:
    import tensorflow as tf
    from tensorflow.python.data.ops import iterator_ops

    import tdbg.tensorflow as tt

    before = iterator_ops.OwnedIterator._next_internal
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    with tt.watch(model, optimizer, out=OUT):
        for _ in range(2):
            for x, y in batches:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
                grads = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(
                    zip(grads, model.trainable_variables, strict=True)
                )
        assert iterator_ops.OwnedIterator._next_internal is not before
    assert iterator_ops.OwnedIterator._next_internal is before
    assert len(list(batches)) == N_BATCHES


if KIND == "loop":
    loop(dataset())
elif KIND == "fit_loader":
    fit(torch_loader())
else:
    fit(Slow())
