"""What the programs share: data, models, and how they report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import tdbg.keras as tk

OUT = Path(sys.argv[1])
EVERY = tk.SaveConfig(save_interval=1, statistics_interval=1)
report: dict[str, Any] = {}

_generator = np.random.default_rng(0)
X = _generator.normal(size=(70, 8)).astype("float32")
Y = _generator.integers(0, 3, 70)


def build(**compiled: Any) -> Any:
    """A classifier of three classes with a layer of every sort."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", name="d1"),
            keras.layers.BatchNormalization(name="bn"),
            keras.layers.Dropout(0.1, name="drop"),
            keras.layers.Dense(3, name="d2"),
        ]
    )
    settings = {
        "optimizer": "adam",
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }
    model.compile(**{**settings, **compiled})
    return model


def simple(**compiled: Any) -> Any:
    """Two layers, so that a step can be computed by hand."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", name="d1"),
            keras.layers.Dense(3, name="d2"),
        ]
    )
    settings = {
        "optimizer": keras.optimizers.SGD(0.1),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    }
    model.compile(**{**settings, **compiled})
    return model


def fit(model: Any, *callbacks: Any, **arguments: Any) -> dict[str, list[float]]:
    """Train with batches of 16, 16, 16, 16 and 6; return what Keras remembers."""
    settings = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0}
    history = model.fit(X, Y, callbacks=list(callbacks), **{**settings, **arguments})
    return {name: list(map(float, values)) for name, values in history.history.items()}


def on_batches(model: Any, n: int) -> None:
    """Train by hand on the first four batches, again and again."""
    for i in range(n):
        rows = slice(i % 4 * 16, i % 4 * 16 + 16)
        model.train_on_batch(X[rows], Y[rows])


def hook(name: str, **arguments: Any) -> tk.Hook:
    """A hook that captures everything at every step, if not told otherwise."""
    settings: dict[str, Any] = {"save_all": True, "save_config": EVERY}
    return tk.Hook(OUT / name, **{**settings, **arguments})


def traces(made: tk.Hook) -> dict[str, int]:
    """How often each function was traced with taps."""
    return {
        function._attribute: function.n_traces
        for functions in made._functions.values()
        for function in functions
    }


def outcome(function: Callable[[], Any]) -> str:
    """The name of what a function raises, or an empty text."""
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return ""


def finish() -> None:
    """Write the report."""
    (OUT / "report.json").write_text(json.dumps(report))
