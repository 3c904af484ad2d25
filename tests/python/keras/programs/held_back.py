"""Data of validation that are those of training, and layers that are freed too late."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from common import finish, hook, report

luck = np.random.default_rng(1)
X = luck.normal(size=(320, 8)).astype("float32")
Y = np.digitize(X[:, 0], [-0.5, 0.5]).astype("int32")
CODES = luck.integers(0, 2, size=(320, 8)).astype("float32")
OTHERS = luck.normal(size=(80, 8)).astype("float32"), Y[:80]
L = keras.layers


def net() -> Any:
    keras.utils.set_random_seed(0)
    body = keras.Sequential([L.Dense(16, "relu")], name="body")
    model = keras.Sequential([keras.Input((8,)), body, L.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def trained(name: str, *data: Any, **options: Any) -> None:
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    net().fit(*data, epochs=3, verbose=0, callbacks=[made], **options)
    made.close()
    report[name] = made.counters()["internal_errors"]


def twice(name: str, *, compiles: bool) -> None:
    model = net()
    body = model.layers[0]
    body.trainable = False
    model.compile("adam", "sparse_categorical_crossentropy")
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    for _ in range(2):
        model.fit(X, Y, epochs=2, verbose=0, callbacks=[made])
        body.trainable = True
        if compiles:
            model.compile("adam", "sparse_categorical_crossentropy")
    made.close()
    report[name] = made.counters()["internal_errors"]


trained("same", X, Y, validation_data=(X, Y))
trained("equal", X, Y, validation_data=(X.copy(), Y.copy()))
several = np.concatenate([X[:40], OTHERS[0]])
trained("shares", X, Y, validation_data=(several, Y[:120]))
repeated = np.tile(X[:160], (2, 1))
trained("repeated", repeated, np.tile(Y[:160], 2), validation_split=0.2)
trained("others", X, Y, validation_data=OTHERS)
trained("divided", X, Y, validation_split=0.2)
trained("codes", CODES, Y, validation_split=0.2)
trained("all_of_it", X[:200], Y[:200], validation_data=(X, Y))
scaled = (X * 2 + 1 - (X * 2 + 1).mean(0)) / (X * 2).std(0)
trained("scaled_first", scaled, Y, validation_split=0.2)
anew = (OTHERS[0] - OTHERS[0].mean(0)) / OTHERS[0].std(0)
trained("scaled_again", scaled, Y, validation_data=(anew, Y[:80]))
of_training = (OTHERS[0] - X.mean(0)) / X.std(0)
trained("scaled_once", scaled, Y, validation_data=(of_training, Y[:80]))
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    for name, again in (("drawn_anew", True), ("drawn_once", False)):
        rows = tf.data.Dataset.from_tensor_slices((X, Y))
        rows = rows.shuffle(320, reshuffle_each_iteration=again)
        parts = rows.take(240).batch(16), rows.skip(240).batch(16)
        trained(name, parts[0], validation_data=parts[1])
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    first = rows.take(240).shuffle(240).batch(16)
    trained("shuffled_later", first, validation_data=rows.skip(240).batch(16))
    twice("freed_too_late", compiles=False)
    twice("freed", compiles=True)
finish()
