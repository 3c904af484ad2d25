"""What is captured of a training, and what capture changes of it."""

from __future__ import annotations

import keras
from common import (
    OUT,
    X,
    Y,
    build,
    finish,
    fit,
    hook,
    on_batches,
    report,
    simple,
    traces,
)

import tdbg.keras as tk

report["plain"] = fit(build(), validation_split=0.2)
with tk.Hook(OUT / "losses") as losses:
    report["losses"] = fit(build(), losses, validation_split=0.2)
    report["traces of losses"] = traces(losses)
every = tk.SaveConfig(save_interval=4, statistics_interval=4)
with tk.Hook(OUT / "some losses") as some:
    some.get_collection("losses").save_config = every
    report["some losses"] = fit(build(), some, validation_split=0.2)
with hook("modes", save_config=every) as modes:
    model = build()
    attributes = set(vars(model))
    report["modes"] = fit(model, modes, validation_split=0.2)
    model.evaluate(X[:20], Y[:20], batch_size=10, verbose=0, callbacks=[modes])
    model.predict(X[:20], batch_size=10, verbose=0, callbacks=[modes])
    report["traces"] = traces(modes)
    report["counters"] = modes.counters()
OF_KERAS = {"history", "stop_evaluating", "stop_predicting", "_jax_state"}
report["left"] = sorted(set(vars(model)) - attributes - OF_KERAS)
report["functions"] = [
    type(getattr(model, f"{name}_function")).__name__
    for name in ("train", "test", "predict")
]
with hook("values") as values:
    trained = simple()
    values.set_model(trained)
    on_batches(trained, 6)
    report["refused"] = values.counters()["refused_tensors"]
with hook("predictions") as predictions:
    # Its state has no variables but those that are trained.
    simple().predict(X[:20], batch_size=10, verbose=0, callbacks=[predictions])
    report["errors of predictions"] = predictions.counters()["internal_errors"]
with hook("adam") as adam:
    trained = simple(optimizer=keras.optimizers.Adam(0.01))
    adam.set_model(trained)
    on_batches(trained, 3)
    report["state"] = {
        variable.path.rpartition("/")[2]: keras.ops.convert_to_numpy(variable).tolist()
        for variable in trained.optimizer.variables
    }
finish()
