"""Taps inside everything that JAX transforms, and on several devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tdbg.jax as tj

CAPTURE = {
    "include_collections": ["outputs", "weights", "gradients"],
    "save_config": tj.SaveConfig(save_interval=1),
    "reduction_config": tj.ReductionConfig(save_raw_tensor=True),
}
X = np.arange(8, dtype=np.float32).reshape(4, 2) - 3
COLLECTIVES = re.compile("all-gather|all-to-all|collective-permute")


@pytest.fixture
def capture(make_hook: Any, read: Any) -> Callable[..., Any]:
    """Capture one step of a function."""

    def run(function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        hook = make_hook(**{**CAPTURE, **settings})
        step = hook.jit(function)
        step(*args)
        assert not step.is_given_up
        return read(hook)

    return run


def doubled(x: Any) -> Any:
    return tj.tap(2 * x, "doubled")


def test_grad_of_a_tap_is_that_of_the_identity(capture: Any) -> None:
    found = []

    def step(x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda x: jnp.sum(doubled(x) ** 2))(x)
        found.append(gradient)
        return value, gradient

    trial = capture(step, X)
    np.testing.assert_array_equal(trial.tensor("doubled").value(0), 2 * X)


def test_a_step_can_be_differentiated_as_a_whole(make_hook: Any) -> None:
    """The program shows the arguments, which has no derivative."""
    every = tj.SaveConfig(save_interval=100, statistics_interval=1)
    hook = make_hook(include_collections=["weights"], save_config=every)
    step = hook.jit(lambda parameters: jnp.sum(parameters["w"] ** 2))
    parameters = {"w": jnp.asarray(X)}
    for _ in range(3):
        step(parameters)
    gradients = jax.grad(step)(parameters)
    np.testing.assert_array_equal(gradients["w"], 2 * X)


def test_a_batch_of_vmap_is_one_tensor(capture: Any) -> None:
    trial = capture(jax.vmap(lambda row: doubled(row).sum()), X)
    np.testing.assert_array_equal(trial.tensor("doubled").value(0), 2 * X)


def test_each_iteration_of_a_scan_is_a_call(capture: Any) -> None:
    def step(x: Any) -> Any:
        return jax.lax.scan(lambda c, row: (c, doubled(row + c).sum()), 0.0, x)

    trial = capture(step, X)
    names = ["doubled", "doubled@2", "doubled@3", "doubled@4"]
    assert [name for name in trial.tensor_names() if "doubled" in name] == names
    for i, name in enumerate(names):
        np.testing.assert_array_equal(trial.tensor(name).value(0), 2 * X[i])


def test_what_checkpoint_computes_again_counts_once(capture: Any) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jnp.sin(doubled(jnp.cos(x))))

    trial = capture(jax.value_and_grad(jax.checkpoint(loss)), X)
    np.testing.assert_allclose(trial.tensor("doubled").value(0), 2 * np.cos(X), 1e-5)
    assert "doubled@2" not in trial.tensor_names()
    assert trial.statistics(["doubled"]).count[0].tolist() == [8]


def test_what_only_the_second_pass_of_checkpoint_computes_is_captured(
    capture: Any,
) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jnp.sin(doubled(jnp.cos(x))))

    trial = capture(jax.grad(jax.checkpoint(loss)), X)
    np.testing.assert_allclose(trial.tensor("doubled").value(0), 2 * np.cos(X), 1e-5)


def test_a_policy_that_saves_all_is_obeyed(capture: Any) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jnp.sin(doubled(jnp.cos(x))))

    policy = jax.checkpoint_policies.everything_saveable
    saved = jax.checkpoint(loss, policy=policy)
    trial = capture(jax.value_and_grad(saved), X)
    np.testing.assert_allclose(trial.tensor("doubled").value(0), 2 * np.cos(X), 1e-5)


def test_a_branch_that_is_not_taken_shows_nothing(capture: Any) -> None:
    def step(x: Any) -> Any:
        return jax.lax.cond(
            x[0, 0] > 0,
            lambda x: tj.tap(x, "above").sum(),
            lambda x: tj.tap(x, "below").sum(),
            x,
        )

    names = capture(step, X).tensor_names()
    assert "below" in names
    assert "above" not in names


@jax.jit
def _inner(x: Any) -> Any:
    return doubled(x)


def test_a_function_that_is_compiled_before_is_traced_again_for_its_taps(
    capture: Any,
) -> None:
    _inner(X)
    for number in range(2):
        step = capture(lambda x: _inner(x).sum(), X) if number == 0 else None
        if step is not None:
            assert "doubled" in step.tensor_names()
    assert "tdbg" not in str(jax.make_jaxpr(_inner)(X))


def test_a_tap_of_a_tree_follows_its_paths(capture: Any) -> None:
    def step(x: Any) -> Any:
        tree = tj.tap({"a": x, "b": [x + 1, 3]}, "state")
        return tree["a"].sum() + tree["b"][0].sum() * tree["b"][1]

    names = capture(step, X).tensor_names()
    assert {"state/a", "state/b/0"} <= set(names)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "bool"]
)
def test_elements_of_each_type_are_read_where_they_lie(
    capture: Any, dtype: str
) -> None:
    x = jnp.asarray(np.abs(X), dtype)
    trial = capture(lambda x: tj.tap(x, "x").astype("float32").sum(), x)
    found = np.asarray(trial.tensor("x").value(0), np.float64)
    np.testing.assert_array_equal(found, np.asarray(x, np.float64))
    assert trial.statistics(["x"]).max[0][0] == found.max()


def test_keys_of_random_numbers_are_refused(make_hook: Any) -> None:
    hook = make_hook(**CAPTURE)
    step = hook.jit(lambda key: jax.random.normal(tj.tap(key, "key")))
    step(jax.random.key(0))
    assert hook.counters()["refused_tensors"] == 1


# ---- several devices ---------------------------------------------------------------


@pytest.fixture
def mesh() -> Any:
    assert jax.device_count() == 4
    return jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))


def text_of(step: Any, *args: Any) -> str:
    ticket = np.zeros(2, np.int32)
    return step._tapped.made.function.lower(ticket, *args).compile().as_text()  # type: ignore[no-any-return]


@pytest.mark.parametrize("spec", [P("d"), P(None, "d"), P("d", None), P()])
def test_parts_merge_to_the_whole_and_no_part_moves(
    make_hook: Any, read: Any, mesh: Any, spec: Any
) -> None:
    x = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    sharded = jax.device_put(x, NamedSharding(mesh, spec))
    hook = make_hook(**CAPTURE)
    step = hook.jit(doubled)
    result = step(sharded)
    text = text_of(step, sharded)
    assert "tdbg_tap" in text
    assert not COLLECTIVES.search(text)
    assert result.sharding.is_equivalent_to(sharded.sharding, 2)
    trial = read(hook)
    np.testing.assert_array_equal(trial.tensor("doubled").value(0), 2 * x)
    row = trial.statistics(["doubled"])
    assert row.count[0].tolist() == [96]
    assert row.min[0][0] == 2 * x.min()
    assert row.max[0][0] == 2 * x.max()
    assert row.mean[0][0] == pytest.approx(2 * x.astype("f8").mean(), rel=1e-7)


def test_gradients_of_sharded_parameters_stay_where_they_are(
    make_hook: Any, read: Any, mesh: Any
) -> None:
    x = jax.device_put(X, NamedSharding(mesh, P("d")))
    w = jax.device_put(np.ones((2, 8), np.float32), NamedSharding(mesh, P(None, "d")))
    hook = make_hook(**CAPTURE)

    def step(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        return value, tj.tap(gradient, "gradient/w", role=tj.Role.GRADIENT)

    compiled = hook.jit(step)
    compiled(w, x)
    plain = jax.jit(step).lower(w, x).compile().as_text()
    tapped = text_of(compiled, w, x)
    assert len(COLLECTIVES.findall(tapped)) == len(COLLECTIVES.findall(plain))
    expected = 2 * X.T @ (X @ np.ones((2, 8), np.float32))
    found = read(hook).tensor("gradient/w").value(0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_sharded_and_replicated_parameters_are_read_once(
    make_hook: Any, read: Any, mesh: Any
) -> None:
    params = {
        "kernel": jax.device_put(X, NamedSharding(mesh, P("d"))),
        "scale": jax.device_put(np.ones(2, np.float32), NamedSharding(mesh, P())),
    }
    hook = make_hook(**CAPTURE)
    hook.jit(lambda p: p["kernel"].sum() + p["scale"].sum())(params)
    trial = read(hook)
    np.testing.assert_array_equal(trial.tensor("kernel").value(0), X)
    assert trial.statistics(["kernel"]).count[0].tolist() == [8]
    assert trial.statistics(["scale"]).count[0].tolist() == [2]


def test_parts_of_shard_map_merge_and_what_all_devices_have_counts_once(
    make_hook: Any, read: Any, mesh: Any
) -> None:
    def body(w: Any, x: Any) -> Any:
        h = tj.tap(x * w, "h")
        return tj.tap(jax.lax.psum(h.sum(), "d"), "total")

    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    hook = make_hook(**{**CAPTURE, "reduction_config": None})

    def step(w: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: mapped(w, x).sum())(w)

    compiled = hook.jit(step)
    args = (np.float32(3), jax.device_put(X, NamedSharding(mesh, P("d"))))
    compiled(*args)
    assert not COLLECTIVES.search(text_of(compiled, *args))
    assert not compiled.is_given_up
    row = read(hook).statistics(["h", "total"])
    assert row.count.ravel().tolist() == [8, 1]
    assert row.max[0][0] == 3 * X.max()
    assert row.mean[0][0] == pytest.approx(3 * X.mean())
    assert row.mean[1][0] == 3 * X.sum()


def test_the_callback_shows_the_same_where_xla_takes_no_handler(
    make_hook: Any, read: Any, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdbg.hooks.jax import primitive

    monkeypatch.setattr(primitive, "calls_handler", lambda: False)
    for number, x in enumerate((X, jax.device_put(X, NamedSharding(mesh, P("d"))))):
        hook = make_hook(**CAPTURE)
        hook.jit(doubled)(x)
        trial = read(hook, number)
        np.testing.assert_array_equal(trial.tensor("doubled").value(0), 2 * X)
