"""JAX: keys that never change, so that each step draws the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tdbg
import tdbg.jax as tj
from tdbg.hooks.jax.repeated_keys import repeated_in
from tdbg.run.findings import Finding, Severity

SAMPLES, FEATURES, CLASSES = 12, 8, 3


class Net(nn.Module):
    """A hidden layer with dropout."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        hidden = nn.Dropout(0.5, deterministic=False)(nn.relu(nn.Dense(16)(x)))
        return nn.Dense(CLASSES)(hidden)


def mean_loss(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def dropped(params: Any, x: Any, y: Any, key: Any) -> Any:
    return mean_loss(Net().apply({"params": params}, x, rngs={"dropout": key}), y)


def batches(n_steps: int) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(0)
    return [
        (
            generator.normal(size=(SAMPLES, FEATURES)).astype(np.float32),
            generator.integers(0, CLASSES, SAMPLES),
        )
        for _ in range(n_steps)
    ]


class Training:
    """Trains with one loss, and keys that a function makes.

    Args:
        run_dir: The run.
        loss: Of parameters, inputs, labels and a key.
        inside: Makes the key of the step from the one that it is given, and its number.
    """

    def __init__(
        self,
        run_dir: Path,
        loss: Callable[..., Any] = dropped,
        inside: Callable[[Any, Any], Any] = lambda key, _: key,
        params: Any = None,
    ) -> None:
        self.run_dir = run_dir
        first = jax.random.key(0)
        x = np.ones((2, FEATURES), np.float32)
        self.params = params
        if params is None:
            given = {"params": first, "dropout": first}
            self.params = Net().init(given, x)["params"]
        tx = optax.adam(1e-3)
        self.state = tx.init(self.params)
        self.hook = tj.Hook(run_dir, include_collections=["losses"])

        def step(params: Any, state: Any, x: Any, y: Any, key: Any, i: Any) -> Any:
            own = inside(key, i)
            value, gradients = jax.value_and_grad(loss)(params, x, y, own)
            updates, state = tx.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        self.step = self.hook.jit(step)

    def findings(
        self, key_of: Callable[[int], Any], given: Any = None
    ) -> list[Finding]:
        for i, (x, y) in enumerate(given or batches(14)):
            self.params, self.state, _ = self.step(
                self.params, self.state, x, y, key_of(i), i
            )
        assert self.hook.counters()["internal_errors"] == 0
        self.hook.close()
        rules = [tdbg.rules.RepeatedRandomness()]
        return list(tdbg.rules.check(self.run_dir, rules, record=False).findings)


ONE_KEY, ONE_TYPED_KEY = jax.random.PRNGKey(3), jax.random.key(3)
KEYS: dict[str, Callable[[int], Any]] = {
    "one key": lambda _: ONE_KEY,
    "one typed key": lambda _: ONE_TYPED_KEY,
    "made anew of one seed": lambda _: jax.random.PRNGKey(0),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_that_is_used_again_and_again(run_dir: Path, name: str) -> None:
    (finding,) = Training(run_dir).findings(KEYS[name])
    assert finding.severity is Severity.WARNING
    assert "8 calls got the same random key" in finding.message
    assert "jax.random.bernoulli (shape 12 x 16)" in finding.message
    assert "same units are dropped" in finding.message
    assert "jax.random.split" in finding.advice


def test_a_key_that_the_step_makes_of_a_constant(run_dir: Path) -> None:
    training = Training(run_dir, inside=lambda *_: jax.random.key(42))
    (finding,) = training.findings(jax.random.key)
    assert finding.severity is Severity.WARNING
    assert "makes its random key of a constant" in finding.message


def test_noise_of_an_encoder(run_dir: Path) -> None:
    (finding,) = Training(run_dir, noisy).findings(KEYS["one key"])
    assert finding.severity is Severity.WARNING
    assert "jax.random.normal (shape 12 x 16)" in finding.message
    assert "the noise is the same for each batch" in finding.message


def test_a_mask_that_all_samples_share(run_dir: Path) -> None:
    (finding,) = Training(run_dir, dropped_units).findings(KEYS["one key"])
    assert finding.severity is Severity.WARNING
    assert "jax.random.bernoulli (shape 16)" in finding.message


def test_a_mask_of_units_with_a_constant_key_may_be_part_of_the_model(
    run_dir: Path,
) -> None:
    training = Training(run_dir, dropped_units, inside=lambda *_: jax.random.key(42))
    (finding,) = training.findings(jax.random.key)
    assert finding.severity is Severity.INFO


def test_a_mask_of_weights_is_noted(run_dir: Path) -> None:
    (finding,) = Training(run_dir, dropped_weights).findings(KEYS["one key"])
    assert finding.severity is Severity.INFO


def test_noise_for_weights_is_noted(run_dir: Path) -> None:
    (finding,) = Training(run_dir, noisy_weights).findings(KEYS["one key"])
    assert finding.severity is Severity.INFO


def dropped_units(params: Any, x: Any, y: Any, key: Any) -> Any:
    hidden = nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    hidden *= 2.0 * jax.random.bernoulli(key, 0.5, (16,))
    return mean_loss(hidden @ params["Dense_1"]["kernel"], y)


def dropped_weights(params: Any, x: Any, y: Any, key: Any) -> Any:
    kernel = params["Dense_0"]["kernel"]
    hidden = nn.relu(x @ (kernel * jax.random.bernoulli(key, 0.5, kernel.shape)))
    return mean_loss(hidden @ params["Dense_1"]["kernel"], y)


def noisy(params: Any, x: Any, y: Any, key: Any) -> Any:
    hidden = nn.relu(x @ params["Dense_0"]["kernel"])
    hidden += 0.1 * jax.random.normal(key, hidden.shape)
    return mean_loss(hidden @ params["Dense_1"]["kernel"], y)


def noisy_weights(params: Any, x: Any, y: Any, key: Any) -> Any:
    kernel = params["Dense_0"]["kernel"]
    kernel += 0.1 * jax.random.normal(key, kernel.shape)
    return mean_loss(nn.relu(x @ kernel) @ params["Dense_1"]["kernel"], y)


def projected(params: Any, x: Any, y: Any, key: Any) -> Any:
    features = jnp.cos(x @ jax.random.normal(key, (FEATURES, 16)))
    return mean_loss(features @ params["Dense_1"]["kernel"], y)


def unused(params: Any, x: Any, y: Any, key: Any) -> Any:
    jax.random.normal(key, x.shape)
    return mean_loss(nn.relu(x @ params["Dense_0"]["kernel"])[:, :CLASSES], y)


def scanned(params: Any, x: Any, y: Any, key: Any) -> Any:
    """Each row on its own, with a key that the loop splits."""

    def add(key: Any, row: Any) -> Any:
        key, own = jax.random.split(key)
        noise = jax.random.normal(own, (16,))
        return key, nn.relu(row @ params["Dense_0"]["kernel"]) + 0.1 * noise

    _, hidden = jax.lax.scan(add, key, x)
    return mean_loss(hidden @ params["Dense_1"]["kernel"], y)


def split_keys() -> Callable[[int], Any]:
    keys = jax.random.split(jax.random.key(1), 100)
    return lambda i: keys[i]


HEALTHY: dict[str, tuple[Any, Any, Any]] = {
    "keys that were split": (dropped, lambda key, _: key, split_keys),
    "folded in the step": (dropped, jax.random.fold_in, lambda: KEYS["one key"]),
    "a seed for each step": (
        dropped,
        lambda key, _: key,
        lambda: jax.random.PRNGKey,
    ),
    "a fixed projection": (projected, lambda key, _: key, lambda: KEYS["one key"]),
    "random, and not used": (unused, lambda key, _: key, lambda: KEYS["one key"]),
    "rows that split it, in a loop": (scanned, lambda key, _: key, split_keys),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_steps_with_other_numbers_are_not_accused(run_dir: Path, name: str) -> None:
    loss, inside, key_of = HEALTHY[name]
    assert Training(run_dir, loss, inside).findings(key_of()) == []


def test_noise_for_the_only_batch_is_noted(run_dir: Path) -> None:
    only = batches(1) * 14
    (finding,) = Training(run_dir, noisy).findings(KEYS["one key"], only)
    assert finding.severity is Severity.INFO


def test_a_loop_is_followed_until_its_carry_is_known() -> None:
    def step(x: Any, key: Any, start: Any) -> Any:
        def body(_: Any, carried: Any) -> Any:
            key, total = carried
            noise = jax.random.normal(key, x.shape)
            return jax.random.fold_in(key, start), total + x * noise

        return jax.lax.fori_loop(0, 3, body, (key, jnp.zeros_like(x)))[1]

    x, key = np.ones((8, 3), np.float32), jax.random.key(0)
    program = jax.make_jaxpr(step)(x, key, 1).jaxpr
    assert repeated_in(program, ["changes", "given", "changes"], {8}) == []
    (found,) = repeated_in(program, ["changes", "given", "given"], {8})
    assert (found.function, found.is_of_samples) == ("normal", True)
