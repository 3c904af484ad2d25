"""Datasets of TensorFlow: caches, parts of one dataset, and calls that do nothing."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import finish, hook, report

luck = np.random.default_rng(1)
X = luck.normal(size=(160, 8)).astype("float32")
Y = np.digitize(X[:, 0], [-0.5, 0.5]).astype("int32")
rows = tf.data.Dataset.from_tensor_slices((X, Y))
others = tf.data.Dataset.from_tensor_slices((X + 1, Y)).batch(32)


def augment(x: Any, y: Any) -> Any:
    return x + tf.random.normal(tf.shape(x), stddev=0.1), y


def make_samples(x: Any, y: Any) -> Any:
    return tf.random.normal(tf.shape(x)), y


def doubled(x: Any, y: Any) -> Any:
    return 2 * x, y


def trained(name: str, data: Any, held_back: Any = others, epochs: int = 2) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    given = {"validation_data": held_back, "epochs": epochs, "verbose": 0}
    model.fit(data, callbacks=[made], **given)
    made.close()
    report[name] = made.counters()["internal_errors"]


trained("augmented_once", rows.map(augment).cache().shuffle(160).batch(32))
trained("made_up_once", rows.map(make_samples).cache().shuffle(160).batch(32))
trained("doubled_once", rows.map(doubled).cache().shuffle(160).batch(32))
trained("augmented", rows.cache().map(augment).shuffle(160).batch(32))
trained("one_epoch", rows.map(augment).cache().batch(32), epochs=1)
trained("ordered_once", rows.shuffle(160).cache().batch(32))
trained("ordered_again", rows.shuffle(160).cache().shuffle(160).batch(32))
trained("ordered", rows.cache().shuffle(160).batch(32))

trained("overlap", rows.shuffle(160).batch(32), rows.take(40).batch(32))
trained("overlap_of_parts", rows.take(120).batch(32), rows.skip(80).batch(32))
trained("apart", rows.skip(40).shuffle(120).batch(32), rows.take(40).batch(32))
batches = rows.batch(32)
trained("batches_apart", batches.skip(1), batches.take(1))
trained("all_of_it", rows.take(40).batch(32), rows.batch(32))
even = rows.enumerate().filter(lambda i, _: i % 2 == 0).map(lambda _, row: row)
odd = rows.enumerate().filter(lambda i, _: i % 2 == 1).map(lambda _, row: row)
trained("even_and_odd", even.batch(32), odd.batch(32))


def drops() -> None:
    data = rows.map(doubled)
    data.shuffle(160)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    made = hook("dropped", save_all=False, save_config=None, rules=["default"])
    model.fit(data.batch(32), epochs=2, verbose=0, callbacks=[made])
    made.close()
    report["dropped"] = made.counters()["internal_errors"]


def drops_before() -> None:
    data = rows.map(doubled)
    data.shuffle(160)
    trained("dropped_before", data.batch(32))


drops()
drops_before()
finish()
