"""Layers are frozen, or unfrozen, between two calls of fit(), without compile()."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from common import OUT, X, Y, finish, report

import tdbg.keras as tk


def weights(
    hook: tk.Hook | None, *, trains_first: bool, hooked_from: int
) -> list[float]:
    """Train twice, and return the sums of the weights."""
    keras.utils.set_random_seed(0)
    body = keras.layers.Dense(16, "relu", trainable=trains_first)
    head = keras.layers.Dense(3, "softmax")
    model = keras.Sequential([keras.Input((8,)), body, head])
    model.compile("adam", "sparse_categorical_crossentropy")
    for i in range(2):
        callbacks: list[Any] = [] if hook is None or i < hooked_from else [hook]
        model.fit(X, Y, verbose=0, epochs=2, shuffle=False, callbacks=callbacks)
        body.trainable = not trains_first
    return [float(np.sum(each)) for each in model.get_weights()]


for trains_first in (True, False):
    expected = weights(None, trains_first=trains_first, hooked_from=0)
    for interval in (1, 3):
        for hooked_from in (0, 1):
            name = f"{trains_first}, every {interval}, from {hooked_from}"
            with tk.Hook(
                OUT / name,
                include_collections=["weights", "gradients"],
                save_config=tk.SaveConfig(save_interval=interval),
                min_free_bytes=0,
            ) as hook:
                found = weights(
                    hook, trains_first=trains_first, hooked_from=hooked_from
                )
            errors = hook.counters()["internal_errors"]
            report[name] = [expected, found, errors]
finish()
