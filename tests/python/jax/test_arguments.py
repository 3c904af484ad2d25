"""What a step is called with: its program shows it, or Python reads it before."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import tdbg.jax as tj
from jax_trainings import batch, make_step, parameters, train

ROWS = {
    "include_collections": ["weights", "biases", "gradients"],
    "reduction_config": tj.ReductionConfig(),  # No values.
}
COPY = re.compile(r" copy\(%params__params____(\w+?)__\.")


def norms(tx: Any, n_steps: int) -> list[float]:
    """The norm of one weight before each step, without tdbg."""
    step = jax.jit(make_step(tx, tapped=False))
    params, state = parameters(), tx.init(parameters())
    found = []
    for i in range(n_steps):
        kernel = np.asarray(params["params"]["d1"]["kernel"], np.float64)
        found.append(float(np.linalg.norm(kernel)))
        params, state, _ = step(params, state, *batch(i))
    return found


@pytest.mark.parametrize("donated", [(), (0, 1)])
def test_rows_of_parameters_are_those_before_the_step_though_it_takes_them_over(
    make_hook: Any, read: Any, donated: Any
) -> None:
    tx = optax.adam(1e-1)
    hook = make_hook(**ROWS, save_config=tj.SaveConfig(save_interval=1))
    train(hook.jit(make_step(tj.optax(tx)), donate_argnums=donated), tx, 4)
    tensor = read(hook).tensor("d1/kernel")
    found = [tensor.reduction_value(i, "l2") for i in range(4)]
    assert found == pytest.approx(norms(tx, 4), rel=1e-5)
    assert len(set(found)) == 4


def test_memory_that_a_step_takes_over_is_shown_without_a_copy(make_hook: Any) -> None:
    tx = optax.sgd(1e-2)
    hook = make_hook(**ROWS, save_config=tj.SaveConfig(save_interval=1))
    step = hook.jit(make_step(tj.optax(tx)), donate_argnums=(0, 1))
    train(step, tx, 1)
    arguments = (parameters(), tx.init(parameters()), *batch(0))
    tapped = step._tapped.made.function.lower(
        np.zeros(2, np.int32), *arguments
    ).compile()
    assert "tdbg_tap_all" in tapped.as_text()
    plain = step.plain.lower(*arguments).compile()
    copied = set(COPY.findall(tapped.as_text()))
    assert copied == set(COPY.findall(plain.as_text()))


def test_parameters_of_several_devices_are_read_once_at_every_step(
    make_hook: Any, read: Any
) -> None:
    mesh = jax.make_mesh((4,), ("d",))
    kernel = np.arange(16, dtype=np.float32).reshape(8, 2)
    params = {
        "kernel": jax.device_put(kernel, NamedSharding(mesh, PartitionSpec("d"))),
        "scale": jax.device_put(kernel[0], NamedSharding(mesh, PartitionSpec())),
    }
    hook = make_hook(**ROWS, save_config=tj.SaveConfig(save_interval=1))
    step = hook.jit(lambda p: p["kernel"].sum() + p["scale"].sum())
    for _ in range(3):
        step(params)
    trial = read(hook)
    for name, n in (("kernel", 16), ("scale", 2)):
        assert trial.tensor(name).steps() == [0, 1, 2]
        assert trial.statistics([name]).count[0].tolist() == [n] * 3


def test_parameters_that_come_to_lie_on_several_devices_are_captured_from_then_on(
    make_hook: Any, read: Any
) -> None:
    mesh = jax.make_mesh((4,), ("d",))
    kernel = np.arange(16, dtype=np.float32).reshape(8, 2)
    divided = jax.device_put(kernel, NamedSharding(mesh, PartitionSpec("d")))
    hook = make_hook(**ROWS, save_config=tj.SaveConfig(save_interval=1))
    step = hook.jit(lambda p: p["kernel"].sum())
    for array in (jax.numpy.asarray(kernel), jax.numpy.asarray(kernel), divided):
        step({"kernel": array})
    step({"kernel": divided})
    assert hook.counters()["refused_tensors"] == 1  # Of the step that was divided.
    trial = read(hook)
    assert trial.tensor("kernel").steps() == [0, 1, 3]
    assert trial.statistics(["kernel"]).count[0].tolist() == [16] * 3


def test_what_no_step_captures_is_no_part_of_the_program_until_one_does(
    make_hook: Any, read: Any
) -> None:
    tx = optax.sgd(1e-2)
    hook = make_hook(**ROWS, save_config=tj.SaveConfig(save_interval=1))
    step = hook.jit(make_step(tj.optax(tx)))
    arguments = (parameters(), tx.init(parameters()), *batch(0))

    def n_taps() -> int:
        tapped = step._tapped.made.function.lower(np.zeros(2, np.int32), *arguments)
        text: str = tapped.as_text()
        return text.count("@tdbg_tap_v1(")

    train(step, tx, 2)
    n_gradients = len(jax.tree_util.tree_leaves(parameters()))
    assert step.n_traces == 1
    assert n_taps() == n_gradients
    hook.get_collection("weights").include("^update/")
    train(step, tx, 1)
    assert step.n_traces == 2
    assert n_taps() == 2 * n_gradients
    assert read(hook).tensor("update/d1/kernel").steps() == [2]
