"""Rows of steps in JAX: their batches, waiting for results, and compilations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_trainings import batch, make_step, parameters, train
from tdbg.hooks.compiled.batches import samples_in
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import PHASE_COLUMNS


@pytest.mark.parametrize(
    ("shapes", "samples"),
    [
        ([(32, 784), (32,)], 32),
        ([(32, 3, 8, 8), (32, 10), ()], 32),
        ([(32, 128), (32, 128)], 32),
        ([(32, 1, 8, 8), (32, 1)], 32),
        ([(7, 3, 3)], 7),
        # A weight of each class; a key; micro-batches; nothing.
        ([(32, 784), (10,)], -1),
        ([(4, 32, 784), (4, 32)], -1),
        ([(4, 32, 784), (4, 32, 10)], -1),
        ([], -1),
        ([()], -1),
        ([(None, 3)], -1),
    ],
)
def test_the_samples_are_the_first_dimension_on_which_arrays_agree(
    shapes: Any, samples: int
) -> None:
    assert samples_in(shapes) == samples


def rows_of(trial: Any, mode: ModeKeys = ModeKeys.TRAIN) -> Any:
    rows = trial.profile.steps(mode)
    total = sum(rows[column] for column in PHASE_COLUMNS.values())
    assert (total == rows["duration_ns"]).all()
    return rows


def test_each_row_has_the_samples_of_its_batch(make_hook: Any, read: Any) -> None:
    tx = optax.adam(1e-2)
    hook = make_hook()
    step = hook.jit(make_step(tx))
    params = parameters()
    state = tx.init(params)
    sizes = [16] * 8 + [5] * 4 + [16] * 8
    for i, size in enumerate(sizes):
        params, state, _ = step(params, state, *batch(i, size))
    assert list(rows_of(read(hook))["samples"]) == sizes


def test_a_batch_is_found_beside_states_and_keys(make_hook: Any, read: Any) -> None:
    def grow(params: Any, averages: Any, key: Any, *, data: Any, weights: Any) -> Any:
        noise = jax.random.normal(key, (3,))
        loss = jnp.mean((data["x"] @ params["w"] - data["y"]) ** 2 * weights[0])
        return {"w": params["w"] - 0.1 * loss * noise}, averages + 1, loss

    hook = make_hook()
    step = hook.jit(grow)
    params, averages = {"w": jnp.zeros(3)}, jnp.zeros((9, 2))
    data = {"x": np.ones((6, 3), np.float32), "y": np.ones(6, np.float32)}
    for i in range(6):
        key = jax.random.PRNGKey(i)
        weights = np.ones(6, np.float32)
        params, averages, _ = step(params, averages, key, data=data, weights=weights)
    assert list(rows_of(read(hook))["samples"]) == [6] * 6


def test_samples_that_nothing_tells_are_unknown(make_hook: Any, read: Any) -> None:
    def step(params: Any, x: Any, of_classes: Any) -> Any:
        loss = jnp.mean(x @ params["w"]) * of_classes[0]
        return {"w": params["w"] - 0.1 * loss}, loss

    hook = make_hook()
    compiled = hook.jit(step)
    params = {"w": jnp.ones(3)}
    for _ in range(8):
        params, _ = compiled(params, jnp.ones((4, 3)), jnp.ones(10))
    assert list(rows_of(read(hook))["samples"]) == [-1] * 8


def test_an_evaluation_has_its_own_samples(make_hook: Any, read: Any) -> None:
    tx = optax.sgd(1e-2)
    hook = make_hook()
    step = hook.jit(make_step(tx))
    evaluate = hook.jit(
        lambda params, x, y: jnp.mean(x @ params["params"]["d1"]["kernel"]) + y.sum(),
        mode=ModeKeys.EVAL,
    )
    params = parameters()
    state = tx.init(params)
    for i in range(4):
        params, state, _ = step(params, state, *batch(i))
        evaluate(params, *batch(i, 5))
    trial = read(hook)
    rows = rows_of(trial)
    assert list(rows["samples"]) == [16] * 4
    # A step has no parts: what has no time is shown nowhere.
    assert not rows["forward_ns"].any()
    assert not rows["optimizer_ns"].any()
    assert list(rows_of(trial, ModeKeys.EVAL)["samples"]) == [5] * 4


def test_waiting_for_a_result_is_time_of_the_step(make_hook: Any, read: Any) -> None:
    def heavy(params: Any, x: Any) -> Any:
        for _ in range(12):
            x = jnp.tanh(x @ params["w"])
        return {"w": params["w"] * 0.999}, x.mean()

    wait = type(jnp.zeros(())).__dict__["block_until_ready"]
    hook = make_hook()
    step = hook.jit(heavy)
    params, x = {"w": jnp.ones((700, 700)) / 700}, jnp.ones((700, 700))
    for i in range(16):
        params, loss = step(params, x)
        if i % 4 == 0:
            float(loss)
        elif i % 4 == 1:
            loss.block_until_ready()
        elif i % 4 == 2:
            jax.block_until_ready((params, loss))
        else:
            jax.device_get(loss)
    rows = rows_of(read(hook))[2:]
    # Apart from its own calls, the program does nothing but wait.
    assert (rows["compute_ns"] > 0.6 * rows["duration_ns"]).mean() > 0.8
    assert type(jnp.zeros(())).__dict__["block_until_ready"] is wait


def test_what_tdbg_compiles_for_itself_is_no_compilation_of_the_training(
    make_hook: Any, read: Any
) -> None:
    tx = optax.sgd(1e-2)
    hook = make_hook(include_collections=["weights", "gradients"])
    train(hook.jit(make_step(tx)), tx, 3)
    rows = rows_of(read(hook))
    # The first step has taps, and the second one is the training's own.
    assert rows["compile_ns"][0] < rows["compile_ns"][1]
    assert rows["capture_ns"][0] > rows["compile_ns"][0]
