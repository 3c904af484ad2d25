"""Data that fit is given: scaled by themselves, windows, folds, labels and bytes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from common import finish, hook, report

luck = np.random.default_rng(1)
X = luck.gamma(2.0, size=(240, 8))
Y = (X[:, 0] + X[:, 1] > 4).astype("int32")
L = keras.layers


def standardized(x: Any, by: Any = None) -> Any:
    by = x if by is None else by
    return ((x - by.mean(0)) / by.std(0)).astype("float32")


def ranged(x: Any, by: Any = None) -> Any:
    by = x if by is None else by
    return ((x - by.min(0)) / (by.max(0) - by.min(0))).astype("float32")


def net(width: int = 8, *, name: str | None = None) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((width,)), L.Dense(2, "softmax")], name=name)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def series() -> Any:
    model = keras.Sequential([keras.Input((16, 1)), L.Flatten(), L.Dense(1)])
    model.compile("adam", "mse")
    return model


def trained(name: str, fit: Any) -> None:
    made = hook(name, save_all=False, save_config=None, rules=["default"])
    fit({"epochs": 1, "verbose": 0, "callbacks": [made]})
    made.close()
    report[name] = made.counters()["internal_errors"]


def once(name: str, model: Any, *data: Any, **options: Any) -> None:
    trained(name, lambda given: model.fit(*data, **given, **options))


first, last = X[:160], X[160:]
for name, scale in (("mean", standardized), ("range", ranged)):
    held_back = {"validation_data": (scale(last), Y[160:])}
    once(f"own_{name}", net(), scale(first), Y[:160], **held_back)
    held_back = {"validation_data": (scale(last, first), Y[160:])}
    once(f"training_{name}", net(), scale(first), Y[:160], **held_back)
pixels = luck.integers(0, 256, size=(240, 64)).astype("float32") / 255
pixels[:, 0], pixels[:, 1] = 0, 1
held_back = {"validation_data": (pixels[160:], Y[160:])}
once("pixels", net(64), pixels[:160], Y[:160], **held_back)
all_rows = standardized(X)
held_back = {"validation_data": (all_rows[160:], Y[160:])}
once("scaled_together", net(), all_rows[:160], Y[:160], **held_back)
held_back = {"validation_data": (last * 255, Y[160:])}
once("not_divided", net(), first, Y[:160], **held_back)
held_back = {"validation_data": (last * 2, Y[160:])}
once("larger", net(), first, Y[:160], **held_back)

walk = np.cumsum(luck.normal(size=456)).astype("float32")
windows = np.stack([walk[i : i + 16] for i in range(440)])[..., np.newaxis]
order = luck.permutation(440)
for name, rows in (("windows_at_random", order), ("windows_by_time", np.arange(440))):
    one, other = rows[:340], rows[340:]
    held_back = {"validation_data": (windows[other], walk[other + 16])}
    once(name, series(), windows[one], walk[one + 16], **held_back)

labelled = np.concatenate([X, Y[:, np.newaxis]], 1).astype("float32")
once("label_in_inputs", net(9), labelled, Y)
once("label_apart", net(), X.astype("float32"), Y)

folds = [np.arange(240) % 3 == i for i in range(3)]


def cross_validated(kind: str) -> Any:
    def fit(given: Any) -> None:
        model = net()
        begun = model.get_weights()
        for fold in folds:
            if kind == "new":
                model = net()
            if kind == "set_back":
                model.set_weights(begun)
            rest, held_back = ~fold, (all_rows[fold], Y[fold])
            model.fit(all_rows[rest], Y[rest], validation_data=held_back, **given)

    return fit


for kind in ("goes_on", "new", "set_back"):
    trained(f"folds_{kind}", cross_validated(kind))


def continual(given: Any) -> None:
    """Learn one part after the other, and see what is forgotten."""
    model, before = net(), None
    for rows in np.array_split(np.arange(240), 3):
        held_back = None if before is None else (all_rows[before], Y[before])
        model.fit(all_rows[rows], Y[rows], validation_data=held_back, **given)
        before = rows


trained("continual", continual)


def renewed(kind: str) -> Any:
    def fit(given: Any) -> None:
        model = net()
        for i in range(6):
            if kind != "once":
                rate = 0.01 if kind == "same" else 0.01 / (1 + i)
                optimizer = keras.optimizers.Adam(rate)
                model.compile(optimizer, "sparse_categorical_crossentropy")
            model.fit(all_rows, Y, **given)

    return fit


for kind in ("same", "slower", "once"):
    trained(f"compiled_{kind}", renewed(kind))


def images(*layers: Any) -> Any:
    keras.utils.set_random_seed(0)
    ends = [L.Flatten(), L.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *ends])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


squares = pixels.reshape(-1, 8, 8, 1)
inner = keras.Sequential([keras.Input((8, 8, 1)), L.Rescaling(1 / 127.5, offset=-1.0)])
once("rescaled_twice", images(L.Rescaling(1 / 255)), squares, Y)
once("rescaled_inside", images(inner), squares, Y)
once("rescaled_once", images(L.Rescaling(1 / 255)), squares * 255, Y)
once("to_two_sides", images(L.Rescaling(2.0, offset=-1.0)), squares, Y)
finish()
