"""What steps do with running statistics, and modules that are in the wrong mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import tdbg
import tdbg.jax as tj
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity

N_STEPS = 12


def batch(step: int, size: int = 16) -> tuple[Any, Any]:
    x = 3 * np.random.default_rng(step).normal(size=(size, 4)).astype(np.float32) + 2
    return x, x[:, :1]


def findings(run: Path) -> list[Finding]:
    rules = [tdbg.rules.RunningStatistics()]
    return list(tdbg.rules.check(run, rules, record=False).findings)


class Net(nn.Module):
    """One hidden layer with batch normalization."""

    momentum: float = 0.9

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        norm = nn.BatchNorm(use_running_average=not train, momentum=self.momentum)
        return nn.Dense(1)(nn.relu(norm(nn.Dense(8)(x))))


def train(
    hook: Any,
    *,
    momentum: float = 0.9,
    trains: bool = True,
    evaluates: bool = True,
    is_fed: bool = False,
) -> None:
    """Train a network of Linen.

    Args:
        hook: Compiles its steps.
        momentum: That of its normalization.
        trains: Whether training calls it in training mode.
        evaluates: Whether evaluations call it in evaluation mode.
        is_fed: Whether its statistics come from another training.
    """
    net = Net(momentum)
    variables = net.init(jax.random.key(0), batch(0)[0], False)
    params, statistics = variables["params"], variables["batch_stats"]
    if is_fed:
        statistics = jax.tree.map(lambda each: each + 0.1, statistics)
    tx = tj.optax(optax.adam(1e-2))
    state = tx.init(params)

    def answer(params: Any, statistics: Any, x: Any, mode: bool) -> Any:
        given = {"params": params, "batch_stats": statistics}
        out, new = net.apply(given, x, mode, mutable=["batch_stats"])
        return out, new.get("batch_stats", statistics)

    @hook.jit
    def step(params: Any, state: Any, statistics: Any, x: Any, y: Any) -> Any:
        def loss_of(params: Any) -> Any:
            out, new = answer(params, statistics, x, trains)
            return jnp.mean((out - y) ** 2), new

        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, new, loss

    @hook.jit(mode=ModeKeys.EVAL)
    def evaluate(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        out, _ = answer(params, statistics, x, not evaluates)
        return jnp.mean((out - y) ** 2)

    for i in range(N_STEPS):
        params, state, statistics, _ = step(params, state, statistics, *batch(i))
        if i % 4 == 3:
            evaluate(params, statistics, *batch(99))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.1}, "momentum is 0.1, the weight of the past"),
        ({"trains": False}, "BatchNorm_0 normalizes nothing: the training step uses"),
        ({"evaluates": False}, "and normalizes by those of its own batch"),
    ],
)
def test_statistics_that_are_used_wrongly_are_told(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with tj.Hook(tmp_path / "run") as hook:
        train(hook, **options)
    (finding,) = findings(tmp_path / "run")
    assert finding.severity is Severity.WARNING
    assert message in finding.message
    assert finding.tensor == "BatchNorm_0"


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.99}, {"trains": False, "is_fed": True}]
)
def test_statistics_that_are_used_rightly_are_not_told(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Those of a layer that was trained before may stand still."""
    with tj.Hook(tmp_path / "run") as hook:
        train(hook, **options)
    assert not findings(tmp_path / "run")


# ---- modules of NNX ------------------------------------------------------------------


class Module(nnx.Module):
    """One hidden layer with batch normalization and dropout."""

    def __init__(self, momentum: float) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=momentum, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Any, **modes: bool) -> Any:
        off = modes.get("off")
        hidden = self.norm(self.first(x), use_running_average=off)
        return self.last(self.drop(nnx.relu(hidden), deterministic=off))


def train_nnx(
    hook: Any,
    *,
    momentum: float = 0.9,
    calls_train: bool = True,
    calls_eval: bool = True,
    is_told: bool = False,
) -> None:
    """Train a module of NNX.

    Args:
        hook: Compiles its steps.
        momentum: That of its normalization.
        calls_train: Whether training goes on in training mode after an evaluation.
        calls_eval: Whether evaluations are in evaluation mode.
        is_told: Whether the calls themselves say so, in spite of the flags.
    """
    model = Module(momentum)
    tx = tj.optax(optax.adam(1e-2))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        def loss_of(model: Any) -> Any:
            given = {"off": False} if is_told else {}
            return jnp.mean((model(x, **given) - y) ** 2)

        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return loss

    def evaluate(model: Any, x: Any, y: Any) -> Any:
        given = {"off": True} if is_told else {}
        return jnp.mean((model(x, **given) - y) ** 2)

    step = hook.jit(step, jit=nnx.jit)
    evaluate = hook.jit(evaluate, jit=nnx.jit, mode=ModeKeys.EVAL)
    for i in range(N_STEPS):
        step(model, optimizer, *batch(i))
        if i % 6 == 4:
            if calls_eval:
                model.eval()
            evaluate(model, *batch(99))
            if calls_train:
                model.train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.1}, "in norm, momentum is 0.1, the weight of the past"),
        ({"calls_train": False}, "The model is trained in evaluation mode: by"),
        ({"calls_eval": False}, "The model is evaluated in training mode: in"),
    ],
)
def test_modules_in_the_wrong_mode_are_told(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with tj.Hook(tmp_path / "run") as hook:
        train_nnx(hook, **options)
    (finding,) = findings(tmp_path / "run")
    assert finding.severity is Severity.WARNING
    assert message in finding.message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.99},
        {"calls_eval": False, "is_told": True},
        {"calls_train": False, "is_told": True},
    ],
)
def test_modules_in_the_right_mode_are_not_told(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Calls may say the mode, whatever the flags are."""
    with tj.Hook(tmp_path / "run") as hook:
        train_nnx(hook, **options)
    assert not findings(tmp_path / "run")
