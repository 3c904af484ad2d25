"""The rules find in Flax what they find in PyTorch, and nothing in a sound training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import tdbg.jax as tj
from tdbg import rules
from tdbg.modes import ModeKeys

DATA = load_digits()
X = (DATA.data / 16).astype(np.float32)
Y = DATA.target.astype(np.int32)
N_TRAINED = 1400
BATCH = 64


class Net(nnx.Module):
    """A perceptron."""

    def __init__(self, widths: tuple[int, ...], function: str, bias: float) -> None:
        rngs = nnx.Rngs(0)
        start = nnx.initializers.constant(bias)
        self.layers = nnx.List(
            [
                nnx.Linear(n_in, n_out, rngs=rngs, bias_init=start)
                for n_in, n_out in zip((64, *widths), widths, strict=False)
            ]
        )
        self.head = nnx.Linear(widths[-1], 10, rngs=rngs)
        self.function = function

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = getattr(nnx, self.function)(layer(x))
        return self.head(x)


def loss_of(model: Net, x: Any, y: Any) -> Any:
    logits = tj.tap(model(x), "logits", role=tj.Role.PREDICTION)
    labels = tj.tap(y, "labels", role=tj.Role.LABEL)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def findings(
    run: Path,
    n_steps: int,
    widths: tuple[int, ...] = (64, 64),
    function: str = "relu",
    bias: float = 0.0,
    tx: Any = None,
    trained: Any = nnx.Param,
    data: tuple[Any, Any] = (X[:N_TRAINED], Y[:N_TRAINED]),
) -> dict[str, int]:
    """Train, and judge the run; return the first step of what each rule has found."""
    model = Net(widths, function, bias)
    tx = tx or optax.adam(1e-3)
    with tj.Hook(run, rules=["default"], min_free_bytes=0) as hook:
        tj.watch(model)
        optimizer = nnx.Optimizer(model, tj.optax(tx), wrt=trained)

        @hook.jit(jit=nnx.jit, loss_kind="cross_entropy")
        def step(model: Net, optimizer: Any, x: Any, y: Any) -> Any:
            of_trained = nnx.DiffState(0, trained)
            graded = nnx.value_and_grad(loss_of, argnums=of_trained)
            loss, grads = graded(model, x, y)
            optimizer.update(model, grads)
            return loss

        evaluate = hook.jit(loss_of, jit=nnx.jit, mode=ModeKeys.EVAL)
        generator = np.random.default_rng(0)
        x, y = data
        for i in range(n_steps):
            at = generator.integers(0, len(x), BATCH)
            step(model, optimizer, x[at], y[at])
            if i % 10 == 9:
                evaluate(model, X[N_TRAINED:], Y[N_TRAINED:])
        assert hook.close(timeout=60)
        counters = hook.counters()
    assert counters["internal_errors"] == counters["refused_tensors"] == 0
    found: dict[str, int] = {}
    for each in rules.check(run).findings:
        found.setdefault(each.rule, each.step)
    return found


def test_nothing_is_found_in_a_sound_training(tmp_path: Path) -> None:
    assert findings(tmp_path, 120) == {}


def test_gradients_vanish_in_deep_sigmoids(tmp_path: Path) -> None:
    found = findings(tmp_path, 30, widths=(32,) * 10, function="sigmoid")
    assert found["VanishingGradient"] <= 20


def test_relus_that_are_never_active_are_dead(tmp_path: Path) -> None:
    found = findings(tmp_path, 20, bias=-3.0)
    assert found["DeadRelu"] <= 15


def test_a_rate_that_is_far_too_high_explodes(tmp_path: Path) -> None:
    found = findings(tmp_path, 20, tx=optax.sgd(200.0))
    assert found["WeightUpdateRatio"] <= 5
    assert found["ExplodingGradient"] <= 10


def test_layers_that_are_frozen_as_they_were_initialized_are_found(
    tmp_path: Path,
) -> None:
    head = nnx.All(nnx.Param, nnx.PathContains("head"))
    found = findings(tmp_path, 30, trained=head)
    assert found["NotInOptimizer"] <= 15


def test_a_class_that_is_nearly_missing_is_found(tmp_path: Path) -> None:
    x, y = X[:N_TRAINED], Y[:N_TRAINED]
    kept = np.concatenate([np.flatnonzero(y != 3), np.flatnonzero(y == 3)[:3]])
    found = findings(tmp_path, 30, data=(x[kept], y[kept]))
    assert found["ClassImbalance"] <= 15


def test_a_training_that_learns_noise_by_heart_overfits(tmp_path: Path) -> None:
    labels = np.random.default_rng(1).permutation(Y[:40])
    found = findings(tmp_path, 200, widths=(256, 256), data=(X[:40], labels))
    assert found["Overfit"] <= 150
