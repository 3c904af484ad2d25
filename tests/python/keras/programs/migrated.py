"""Scripts for smdebug's hook of TensorFlow, after its own tests/tensorflow2."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from common import OUT, X, Y, finish, outcome, report, simple

import tdbg.compat.smdebug.tensorflow as smd

REFUSED = "set_gradients"
EVERY = smd.SaveConfig(save_interval=1)


def fit(name: str, **arguments: Any) -> smd.KerasHook:
    hook = smd.KerasHook(str(OUT / name), **arguments)
    model = simple(metrics=["accuracy"])
    hook.get_collection("custom").add_keras_layer(model.layers[0])
    model.fit(X[:64], Y[:64], batch_size=16, epochs=2, verbose=0, callbacks=[hook])
    model.evaluate(X[:32], Y[:32], batch_size=16, verbose=0, callbacks=[hook])
    model.save(OUT / f"{name}.keras")
    hook.close()
    return hook


def loop(name: str, *, is_registered: bool, compiled: Any) -> None:
    model, optimizer = simple(), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hook = smd.KerasHook(str(OUT / name), save_config=EVERY, save_all=True)
    if is_registered:
        hook.register_model(model)
        hook.register_loss(loss_of)
    assert hook.wrap_optimizer(optimizer) is optimizer

    def step(x: Any, y: Any) -> Any:
        with hook.wrap_tape(tf.GradientTape(persistent=True)) as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        return loss

    made, losses = compiled(step), []
    for i in range(4):
        rows = slice(i * 16, i * 16 + 16)
        losses.append(float(made(tf.constant(X[rows]), tf.constant(Y[rows]))))
        hook.save_scalar("accuracy", 0.5, sm_metric=True)
        hook.record_tensor_value("my_number", tf.constant(float(i)))
    report[name] = {"losses": losses, "counters": hook.counters()}
    hook.close()


fit("defaults")
captured = [
    "weights",
    "biases",
    "gradients",
    "inputs",
    "outputs",
    "optimizer_variables",
]
made = fit("all", save_config=EVERY, include_collections=[*captured, "custom"])
by_mode = smd.SaveConfig(
    {
        smd.modes.TRAIN: smd.SaveConfigMode(save_interval=3),
        smd.modes.EVAL: smd.SaveConfigMode(save_interval=1),
    }
)
fit("by mode", save_config=by_mode, include_collections=["weights"])
report["hook"] = {
    "is found": smd.get_hook() is not None,
    "refused": outcome(lambda: getattr(made, REFUSED)),
    "bad names": outcome(
        lambda: smd.KerasHook(str(OUT / "x"), include_collections=[3])
    ),
}
smd.del_hook()
report["hook"]["is gone"] = smd.get_hook() is None
loop("tape", is_registered=False, compiled=lambda step: step)
loop("model", is_registered=True, compiled=lambda step: step)
loop("graph", is_registered=True, compiled=tf.function)
finish()
