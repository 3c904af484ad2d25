"""Small trainings in JAX that several tests capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tdbg.jax as tj

BATCH = 16


def parameters(seed: int = 0) -> dict[str, Any]:
    """A perceptron of two layers, 4 to 8 to 1."""
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "params": {
            "d1": {
                "kernel": jax.random.normal(first, (4, 8)) * 0.5,
                "bias": jnp.zeros(8),
            },
            "d2": {
                "kernel": jax.random.normal(second, (8, 1)) * 0.5,
                "bias": jnp.zeros(1),
            },
        }
    }


def hidden(params: Any, x: Any) -> Any:
    """What the first layer returns, before and after the activation."""
    layer = params["params"]["d1"]
    return jax.nn.relu(x @ layer["kernel"] + layer["bias"])


def loss_of(params: Any, x: Any, y: Any, tapped: bool = True) -> Any:
    """The mean squared error, with a tap on the hidden layer or without."""
    h = hidden(params, x)
    if tapped:
        h = tj.tap(h, "hidden")
    layer = params["params"]["d2"]
    return jnp.mean((h @ layer["kernel"] + layer["bias"] - y) ** 2)


def batch(step: int, size: int = BATCH) -> tuple[Any, Any]:
    """The batch of a step."""
    generator = np.random.default_rng(step)
    x = generator.normal(size=(size, 4)).astype(np.float32)
    return x, x[:, :1] - 0.5 * x[:, 1:2]


def make_step(tx: Any, tapped: bool = True) -> Callable[..., Any]:
    """A step of training: parameters, state, batch."""

    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y, tapped)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return train_step


def train(step: Callable[..., Any], tx: Any, n_steps: int) -> list[float]:
    """Train; return the losses."""
    params = parameters()
    state = tx.init(params)
    losses = []
    for i in range(n_steps):
        params, state, loss = step(params, state, *batch(i))
        losses.append(loss)
    return [float(each) for each in losses]
