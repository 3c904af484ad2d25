"""Outputs of modules of Flax and Equinox, and what is left of it afterwards."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import equinox
import jax
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState

import tdbg.jax as tj
from jax_trainings import batch
from tdbg.config.kinds import Kind
from tdbg.errors import ConfigurationError

ALL = {
    "include_collections": ["weights", "biases", "gradients", "inputs", "outputs"],
    "include_regex": ["^optimizer/", "^buffer/"],
    "reduction_config": tj.ReductionConfig(save_raw_tensor=True),
    "save_config": tj.SaveConfig(save_interval=2),
}
X, Y = batch(0)


class Nnx(nnx.Module):
    """Two layers and a normalization."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.l = nnx.List([nnx.Linear(4, 8, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(nnx.relu(self.norm(self.l[0](x))))


class Linen(linen.Module):
    """Two layers, the second of which is called twice."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.relu(linen.Dense(8, name="first")(x))
        again = linen.Dense(8, name="again")
        return linen.Dense(1, name="out")(again(again(x)))


def nnx_step(model: Nnx, optimizer: Any, x: Any, y: Any) -> Any:
    def loss_of(model: Nnx) -> Any:
        return ((model(x) - y) ** 2).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def train_nnx(step: Any, tx: Any, n_steps: int = 3) -> tuple[Nnx, list[float]]:
    model = Nnx()
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    losses = [step(model, optimizer, *batch(i)) for i in range(n_steps)]
    return model, [float(each) for each in losses]


def test_modules_of_nnx_are_named_by_their_paths(make_hook: Any, read: Any) -> None:
    hook = make_hook(**ALL)
    hook.watch(Nnx())
    train_nnx(hook.jit(nnx_step, jit=nnx.jit), tj.optax(optax.adam(1e-2)))
    trial = read(hook)
    names = set(trial.tensor_names())
    outputs = {"l/0_output_0", "norm_output_0", "norm_relu_output_0", "out_output_0"}
    assert outputs | {"Nnx_input_0", "Nnx_output_0", "l/0_input_0"} <= names
    parameters = {"l/0/kernel", "l/0/bias", "norm/scale", "out/kernel"}
    assert parameters | {f"gradient/{name}" for name in parameters} <= names
    assert {"buffer/norm/mean", "optimizer/nu/out/bias"} <= names
    first = Nnx()
    np.testing.assert_array_equal(
        trial.tensor("l/0/kernel").value(0), first.l[0].kernel[...]
    )
    np.testing.assert_allclose(
        trial.tensor("l/0_output_0").value(0), first.l[0](X), rtol=1e-5, atol=1e-6
    )
    assert trial.tensor("out_output_0").steps() == [0, 2]


def test_kinds_of_modules_are_known(make_hook: Any, read: Any) -> None:
    hook = make_hook(**ALL)
    hook.watch(Nnx())
    step = hook.jit(nnx_step, jit=nnx.jit, loss_kind="mse")
    train_nnx(step, tj.optax(optax.adam(1e-2)))
    (model_info, *_) = reversed(read(hook).model_info())
    assert model_info.kind_of("l/0/kernel") == Kind.LINEAR
    assert model_info.kind_of("gradient/out/bias") == Kind.LINEAR
    assert model_info.kind_of("norm_relu_output_0") == Kind.RELU
    assert model_info.kind_of("norm_output_0") == Kind.BATCH_NORM
    assert model_info.parameters["out/kernel"].module == "Linear"
    assert model_info.parameters["out/kernel"].optimizer == 0
    assert model_info.complete


def test_a_watched_training_learns_what_another_does_and_leaves_no_trace(
    make_hook: Any,
) -> None:
    plain, losses = train_nnx(nnx.jit(nnx_step), optax.adam(1e-2), 6)
    hook = make_hook(**ALL)
    hook.watch(Nnx())
    tx = tj.optax(optax.adam(1e-2))
    model, watched = train_nnx(hook.jit(nnx_step, jit=nnx.jit), tx, 6)
    np.testing.assert_allclose(watched, losses, rtol=1e-5)
    assert type(model) is Nnx
    assert type(model.l[0]) is type(plain.l[0]) is nnx.Linear
    assert model.__dict__.keys() == plain.__dict__.keys()
    assert nnx.graphdef(model) == nnx.graphdef(plain)
    assert nnx.relu is jax.nn.relu
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))  # noqa: S301
    np.testing.assert_array_equal(copied(X), model(X))


def test_modules_of_linen_are_named_by_their_paths(make_hook: Any, read: Any) -> None:
    model = Linen()
    hook = make_hook(**ALL)
    hook.watch(model)
    state = TrainState.create(
        apply_fn=model.apply,
        params=model.init(jax.random.key(0), X)["params"],
        tx=tj.optax(optax.adam(1e-2)),
    )

    @hook.jit
    def step(state: TrainState, x: Any, y: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return ((state.apply_fn({"params": params}, x) - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=grads), loss

    for i in range(3):
        state, _ = step(state, *batch(i))
    trial = read(hook)
    names = set(trial.tensor_names())
    outputs = {"first_output_0", "first_relu_output_0", "out_output_0"}
    assert outputs | {"again_output_0", "again_output_0@2"} <= names
    assert {"first/kernel", "gradient/out/bias", "optimizer/mu/first/kernel"} <= names
    hidden = trial.tensor("first_relu_output_0").value(0)
    assert (hidden >= 0).all()
    assert (hidden == 0).any()


def test_modules_of_equinox_are_named_by_their_paths(make_hook: Any, read: Any) -> None:
    model = equinox.nn.MLP(4, 1, 8, 2, key=jax.random.key(0))
    hook = make_hook(**ALL)
    hook.watch(model)
    tx = tj.optax(optax.adam(1e-2))
    state = tx.init(equinox.filter(model, equinox.is_array))

    @hook.jit(jit=equinox.filter_jit)
    def step(model: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_of(model: Any) -> Any:
            return ((jax.vmap(model)(x) - y) ** 2).mean()

        loss, grads = equinox.filter_value_and_grad(loss_of)(model)
        arrays = equinox.filter(model, equinox.is_array)
        updates, state = tx.update(grads, state, arrays)
        return equinox.apply_updates(model, updates), state, loss

    for i in range(3):
        model, state, _ = step(model, state, *batch(i))
    assert type(model) is equinox.nn.MLP
    assert type(model.layers[0]) is equinox.nn.Linear
    names = set(read(hook).tensor_names())
    assert {"layers/0_output_0", "layers/2_output_0", "MLP_output_0"} <= names
    assert {"layers/0/weight", "gradient/layers/1/bias"} <= names


def test_watch_refuses_what_is_no_module(make_hook: Any) -> None:
    with pytest.raises(ConfigurationError, match="use `tap` inside the step"):
        make_hook().watch({"kernel": X})
    tj.del_hook()
    with pytest.raises(ConfigurationError, match="needs a hook"):
        tj.watch(Nnx())
