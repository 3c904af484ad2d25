"""Steps that ``hook.jit`` compiles: what is captured, and what the training notices."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tdbg.jax as tj
from jax_trainings import batch, hidden, loss_of, make_step, parameters, train
from tdbg.errors import ConfigurationError, TrainingStopped
from tdbg.modes import ModeKeys
from tdbg.run.requests import request_stop

ALL = {
    "include_collections": ["weights", "biases", "gradients", "outputs"],
    "include_regex": ["^optimizer/", "^update/"],
}


RAW = tj.ReductionConfig(save_raw_tensor=True)


def every(n: int, **more: Any) -> dict[str, Any]:
    return {"save_config": tj.SaveConfig(save_interval=n), **ALL, **more}


def test_the_program_of_steps_that_capture_nothing_is_that_without_tdbg(
    make_hook: Any,
) -> None:
    tx = optax.adam(1e-2)
    hook = make_hook(**every(1))
    tapped = hook.jit(make_step(tj.optax(tx)))
    train(tapped, tx, 2)  # Both variants have been traced, one with taps.
    arguments = (parameters(), tx.init(parameters()), *batch(0))
    with_hook = tapped.trace(*arguments).jaxpr
    without = jax.jit(make_step(tx, tapped=False)).trace(*arguments).jaxpr

    def text(jaxpr: Any) -> str:
        return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))

    assert text(with_hook) == text(without)
    assert "tdbg" not in text(with_hook)


def test_losses_are_bit_equal_without_capture_and_close_with_it(make_hook: Any) -> None:
    tx = optax.adam(1e-2)
    plain = train(jax.jit(make_step(tx)), tx, 12)
    idle = make_hook()
    assert train(idle.jit(make_step(tj.optax(tx))), tx, 12) == plain
    busy = make_hook(**every(2))
    captured = train(busy.jit(make_step(tj.optax(tx))), tx, 12)
    np.testing.assert_allclose(captured, plain, rtol=1e-5)


def test_captured_values_are_those_of_an_eager_computation(
    make_hook: Any, read: Any
) -> None:
    tx = optax.adam(1e-2)
    hook = make_hook(**every(3), reduction_config=RAW)
    train(hook.jit(make_step(tj.optax(tx)), donate_argnums=(0, 1)), tx, 7)
    trial = read(hook)

    params, state = parameters(), tx.init(parameters())
    for i in range(7):
        x, y = batch(i)
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, new_state = tx.update(grads, state, params)
        if i % 3 == 0:
            first = {
                "d1/kernel": params["params"]["d1"]["kernel"],
                "gradient/d1/kernel": grads["params"]["d1"]["kernel"],
                "update/d2/bias": updates["params"]["d2"]["bias"],
                "optimizer/mu/d1/kernel": state[0].mu["params"]["d1"]["kernel"],
                "hidden": hidden(params, x),
            }
            for name, expected in first.items():
                found = trial.tensor(name).value(i)
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(trial.tensor("loss").value(i), loss, rtol=1e-5)
        params, state = optax.apply_updates(params, updates), new_state


def test_rows_are_those_of_the_values(make_hook: Any, read: Any) -> None:
    tx = optax.sgd(1e-2)
    hook = make_hook(**every(1), reduction_config=RAW)
    train(hook.jit(make_step(tj.optax(tx))), tx, 2)
    trial = read(hook)
    for name in ("d1/kernel", "gradient/d1/kernel", "hidden"):
        tensor = trial.tensor(name)
        value = np.asarray(tensor.value(1), np.float64)
        assert tensor.reduction_value(1, "mean") == pytest.approx(
            value.mean(), rel=1e-6
        )
        assert tensor.reduction_value(1, "max") == value.max()


def test_steps_are_captured_when_they_are_due_and_each_variant_is_traced_once(
    make_hook: Any, read: Any
) -> None:
    tx = optax.adam(1e-2)
    hook = make_hook(**every(4))
    step = hook.jit(make_step(tj.optax(tx)))
    train(step, tx, 10)
    assert step.n_traces == 1
    assert step.plain._cache_size() == 1
    trial = read(hook)
    for name in (
        "d1/kernel",
        "d2/bias",
        "gradient/d2/kernel",
        "hidden",
        "update/d1/bias",
    ):
        assert trial.tensor(name).steps() == [0, 4, 8]
    assert trial.tensor("loss").steps() == list(range(10))
    roles = {name: trial.tensor(name).role for name in ("d1/kernel", "d1/bias", "loss")}
    assert list(roles.values()) == ["weight", "bias", "loss"]


def test_a_smaller_last_batch_is_another_shape_of_the_same_tensor(
    make_hook: Any, read: Any
) -> None:
    tx = tj.optax(optax.sgd(1e-2))
    hook = make_hook(**every(1))
    step = hook.jit(make_step(tx))
    params, state = parameters(), tx.init(parameters())
    for i, size in enumerate((16, 16, 5)):
        params, state, _ = step(params, state, *batch(i, size))
    trial = read(hook)
    assert step.n_traces == 2
    assert trial.statistics(["hidden"]).count[0].tolist() == [128, 128, 40]


def test_functions_of_other_modes_count_steps_of_their_own(
    make_hook: Any, read: Any
) -> None:
    tx = tj.optax(optax.sgd(1e-2))
    hook = make_hook(**every(1))
    step = hook.jit(make_step(tx))
    evaluate = hook.jit(loss_of, mode=ModeKeys.EVAL, static_argnums=3)
    params, state = parameters(), tx.init(parameters())
    for i in range(3):
        params, state, _ = step(params, state, *batch(i))
        evaluate(params, *batch(100 + i), True)
    trial = read(hook)
    assert trial.tensor("loss").steps(ModeKeys.TRAIN) == [0, 1, 2]
    assert trial.tensor("hidden").steps(ModeKeys.EVAL) == [0, 1, 2]
    assert trial.tensor("gradient/d1/kernel").steps(ModeKeys.EVAL) == []


def test_the_loss_is_found_or_chosen(make_hook: Any, read: Any) -> None:
    hook = make_hook()
    chosen = hook.jit(
        lambda x: {"total": x.sum(), "n": 1}, loss=lambda out: out["total"]
    )
    chosen(jnp.ones(3))
    with_aux = hook.jit(lambda x: ({"state": x}, (x.mean(), {"accuracy": x.max()})))
    with_aux(jnp.full(3, 5.0))
    without = hook.jit(lambda x: {"state": x})
    without(jnp.ones(3))
    trial = read(hook)
    assert trial.tensor("loss").steps() == [0, 1]
    assert [float(trial.tensor("loss").value(i)) for i in (0, 1)] == [3.0, 5.0]


def test_the_learning_rate_is_recorded_where_optax_has_it(
    make_hook: Any, read: Any
) -> None:
    schedule = optax.linear_schedule(1.0, 0.0, 10)
    tx = tj.optax(optax.inject_hyperparams(optax.sgd)(learning_rate=schedule))
    hook = make_hook(
        include_collections=["scalars"], save_config=tj.SaveConfig(save_interval=2)
    )
    train(hook.jit(make_step(tx)), tx, 5)
    trial = read(hook)
    rates = trial.tensor("scalar/optimizer/group_0/lr")
    assert [round(float(rates.value(i)), 3) for i in rates.steps()][:2] == [1.0, 0.9]


def test_a_stop_ends_the_training_before_the_next_step(
    make_hook: Any, tmp_path: Path
) -> None:
    hook = make_hook()
    step = hook.jit(lambda x: x.sum())
    step(jnp.ones(2))
    request_stop(tmp_path / "run0", reason="enough")

    def go_on() -> None:
        while True:
            step(jnp.ones(2))

    with pytest.raises(TrainingStopped, match="enough"):
        go_on()


def test_a_stop_sets_a_flag_where_the_training_asks_for_that(
    make_hook: Any, tmp_path: Path
) -> None:
    hook = make_hook(on_stop="flag")
    step = hook.jit(lambda x: x.sum())
    step(jnp.ones(2))
    request_stop(tmp_path / "run0", reason="enough")
    while not hook.should_stop:
        step(jnp.ones(2))
    assert hook.stop_reason == "enough"
    assert step(jnp.ones(2)) == 2.0


def test_a_step_that_cannot_be_compiled_with_taps_runs_without(
    make_hook: Any, read: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from tdbg.hooks.jax import primitive

    def refuse(*_: Any, **__: Any) -> Any:
        msg = "no such custom call"
        raise NotImplementedError(msg)

    monkeypatch.setattr(primitive, "_call", refuse)
    tx = tj.optax(optax.sgd(1e-2))
    plain = train(jax.jit(make_step(tx)), tx, 4)
    hook = make_hook(**every(1))
    with caplog.at_level(logging.WARNING, "tdbg"):
        assert train(hook.jit(make_step(tx)), tx, 4) == plain
    assert "no such custom call" in caplog.text
    assert hook.counters()["refused_tensors"] >= 3
    trial = read(hook)
    assert trial.tensor("d1/kernel").steps() == [0, 1, 2, 3]
    assert "gradient/d1/kernel" not in trial.tensor_names()


def test_a_step_has_another_chance_when_other_tensors_are_captured(
    make_hook: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdbg.hooks.jax import primitive

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    tx = tj.optax(optax.sgd(1e-2))
    hook = make_hook(**every(1, include_collections=["gradients"]))
    step = hook.jit(make_step(tx))
    with monkeypatch.context() as refusing:
        refusing.setattr(primitive, "_call", refuse)
        train(step, tx, 2)
    assert step.is_given_up
    late = tj.Collection("late")
    late.include("hidden")
    hook.add_collection(late)
    train(step, tx, 2)
    assert not step.is_given_up
    assert read(hook).tensor("hidden").steps() == [2, 3]


def test_an_error_of_the_training_gives_no_step_up(make_hook: Any, read: Any) -> None:
    tx = tj.optax(optax.sgd(1e-2))
    hook = make_hook(**every(1))
    step = hook.jit(make_step(tx))
    train(step, tx, 1)
    images, labels = batch(1)
    with pytest.raises(TypeError):
        step(parameters(), tx.init(parameters()), images[:, :3], labels)
    assert not step.is_given_up
    train(step, tx, 1)
    assert read(hook).tensor("gradient/d1/kernel").steps() == [0, 2]


def test_the_second_compilation_is_charged_to_capture(make_hook: Any) -> None:
    tx = optax.sgd(1e-2)
    hook = make_hook(**every(1))
    slow = make_step(tx)

    def sleeps(*args: Any) -> Any:
        time.sleep(0.2)  # Only while it is traced.
        return slow(*args)

    step = hook.jit(sleeps)
    train(step, tx, 2)
    assert step.n_traces == 1
    assert hook.overhead().capture_seconds >= 0.2


def test_an_error_of_the_training_is_its_own(make_hook: Any) -> None:
    hook = make_hook(**every(1))

    def wrong(x: Any) -> Any:
        return tj.tap(x, "x") @ jnp.ones(7)

    with pytest.raises(TypeError, match="dot_general"):
        hook.jit(wrong)(jnp.ones(3))


def test_a_closed_hook_leaves_the_plain_step(make_hook: Any) -> None:
    tx = tj.optax(optax.sgd(1e-2))
    hook = make_hook(**every(1))
    step = hook.jit(make_step(tx))
    losses = train(step, tx, 2)
    hook.close()
    assert train(step, tx, 2) == pytest.approx(losses, rel=1e-5)
    assert step.n_traces == 1


def test_jit_refuses_what_cannot_work(make_hook: Any) -> None:
    hook = make_hook()
    with pytest.raises(ConfigurationError, match="needs a function"):
        hook.jit(3)
    with pytest.raises(ConfigurationError, match="'squares'"):
        hook.jit(lambda x: x, loss_kind="squares")


def test_a_tap_outside_of_a_step_is_nothing() -> None:
    x = np.ones(3)
    assert tj.tap(x, "x") is x
    assert str(jax.make_jaxpr(lambda x: tj.tap(x, "x") + 1)(1.0)) == str(
        jax.make_jaxpr(lambda x: x + 1)(1.0)
    )


def test_a_step_may_record_from_inside(make_hook: Any, read: Any) -> None:
    """Sabotaged: the callback waits for a loss that waits for the callback."""
    hook = make_hook()

    def record(loss: Any) -> None:
        hook.save_scalar("inside", float(loss))

    def step(weights: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((w @ w) ** 2))(weights)
        jax.debug.callback(record, loss)
        return weights - gradient, loss

    captured, weights = hook.jit(step), jnp.full((256, 256), 1e-3)
    for _ in range(100):
        weights, _ = captured(weights)
    jax.block_until_ready(weights)
    assert hook.n_steps == 100
    assert hook.counters()["internal_errors"] == 0
    assert len(read(hook).tensor("scalar/inside").steps()) > 1
