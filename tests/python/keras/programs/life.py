"""What may happen to a model with a hook: copies, ends, errors, stops."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
from common import (
    EVERY,
    OUT,
    X,
    build,
    finish,
    fit,
    hook,
    outcome,
    report,
    simple,
)

import tdbg.keras as tk
from tdbg.hooks.keras.losses import LossRecords
from tdbg.hooks.keras.taps import ModelTaps
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.run.requests import request_stop

# ---- copies --------------------------------------------------------------------------

model = build()
with hook("copies") as made:
    fit(model, made, epochs=1)
    expected = model.predict(X, verbose=0)
    copies = {
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),  # noqa: S301
        "clone": keras.models.clone_model(model),
    }
    copies["clone"].set_weights(model.get_weights())
    model.save(OUT / "model.keras")
    copies["save"] = keras.models.load_model(OUT / "model.keras")
    report["copies"] = {
        name: bool(np.array_equal(each.predict(X, verbose=0), expected))
        for name, each in copies.items()
    }
    before = made.n_steps
    for each in copies.values():
        each.compile("sgd", "sparse_categorical_crossentropy")
        fit(each, epochs=1)
    report["steps of copies"] = made.n_steps - before
    report["a copied hook"] = [
        copy.copy(made).n_steps,
        pickle.loads(pickle.dumps(made)).counters()["offered"],  # noqa: S301
    ]

# ---- compiled again, two models, closed in mid-training ------------------------------

with hook("again") as again:
    model = simple()
    fit(model, again, epochs=1)
    model.compile("adam", "sparse_categorical_crossentropy")
    fit(model, again, epochs=1)
    report["compiled again"] = again.n_steps
with hook("two") as two:
    first, second = simple(), build()
    fit(first, two, epochs=1)
    fit(second, two, epochs=1)
    fit(first, two, epochs=1)
    report["two models"] = two.n_steps
with hook("newest") as newest:
    older = hook("older")
    fit(first, older, epochs=1)
    fit(first, newest, epochs=1)
    report["newest"] = [older.is_closed, newest.n_steps]


class Closing(keras.callbacks.Callback):
    """Closes a hook in the middle of an epoch."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
        if batch == 2:
            closed.close()


closed = hook("closed")
plain = fit(simple(), epochs=2)
history = fit(simple(), closed, Closing(), epochs=2)
report["closed"] = [closed.n_steps, bool(np.allclose(history["loss"], plain["loss"]))]

# ---- errors of tdbg's ----------------------------------------------------------------

PLACES = {
    "_tap_calls": ModelTaps,
    "_tap_layer": ModelTaps,
    "_gradient_key": ModelTaps,
    "key": ModelTaps,
    "_select": ModelTaps,
    "install": WatchedModel,
    "make_taps": WatchedModel,
    "is_due": WatchedModel,
    "ends_step": WatchedModel,
    "begin": WatchedModel,
    "end": WatchedModel,
    "before_plain": WatchedModel,
    "after_plain": WatchedModel,
    "capture_variables": WatchedModel,
    "step_begins": LossRecords,
    "step_ended": LossRecords,
}


def fails(*_: object, **__: object) -> None:
    msg = "a fault of tdbg's"
    raise RuntimeError(msg)


report["faults"] = {}
for name, owner in PLACES.items():
    original = getattr(owner, name)
    setattr(owner, name, fails)
    every_second = tk.SaveConfig(save_interval=2, statistics_interval=2)
    with hook(f"fault {name}", save_config=every_second) as faulty:
        history = fit(simple(), faulty, epochs=2)
        errors = faulty.counters()["internal_errors"]
    setattr(owner, name, original)
    same = np.allclose(history["loss"], plain["loss"], rtol=1e-5)
    report["faults"][name] = [bool(same), errors]

# ---- errors of the training ----------------------------------------------------------


class Failing(keras.Model):
    """Fails in the third step."""

    def __init__(self) -> None:
        super().__init__()
        self.d1 = keras.layers.Dense(3, name="d1")
        self.n_calls = 0

    def call(self, x: object) -> object:
        return self.d1(x)

    def train_step(self, *args: object) -> object:
        self.n_calls += 1
        if self.n_calls == 3:
            msg = "the user's"
            raise KeyError(msg)
        return super().train_step(*args)


with hook("failing") as failing:
    broken = Failing()
    broken.compile("sgd", "mse", run_eagerly=True)
    report["a failing step"] = outcome(
        lambda: broken.fit(X, X[:, :3], batch_size=16, verbose=0, callbacks=[failing])
    )
    report["steps until it failed"] = broken.n_calls

# ---- stops ---------------------------------------------------------------------------


class Asking(keras.callbacks.Callback):
    """Asks for a stop in the third batch."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
        if batch == 2:
            request_stop(self.run, reason="enough")


def stopped_by(on_stop: str) -> list[object]:
    run = f"stop {on_stop}"
    with hook(run, on_stop=on_stop, save_config=EVERY) as stopped:
        asking = Asking(str(OUT / run))
        name = outcome(lambda: fit(simple(), asking, stopped, epochs=99))
        return [name, stopped.n_steps, stopped.stop_reason]


report["stops"] = {each: stopped_by(each) for each in ("raise", "flag")}
finish()
