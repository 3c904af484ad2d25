"""A step of JAX, compiled by a hook in the place of ``jax.jit``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import tdbg.jax as tj

if TYPE_CHECKING:
    from tdbg.demo.data import Digits
    from tdbg.rules import Rule

__all__ = ["LOOK_AT", "SICK", "Training", "first_parameters", "forward", "make_hook"]

SICK = "14 layers of sigmoids"
LOOK_AT = "gradient/dense1/kernel"

BATCH_SIZE = 64
SEED = 7
_WIDTH = 64
_RATE, _MOMENTUM = 0.05, 0.9


def first_parameters(depth: int) -> dict[str, Any]:
    """Draw the first parameters as Glorot did: *depth* layers, then one of 10."""
    draw = jax.nn.initializers.glorot_uniform()
    names = [f"dense{i}" for i in range(1, depth + 1)] + ["last"]
    keys = jax.random.split(jax.random.key(SEED), len(names))
    widths = {"last": 10}
    return {
        name: {
            "kernel": draw(key, (_WIDTH, widths.get(name, _WIDTH))),
            "bias": jnp.zeros(widths.get(name, _WIDTH)),
        }
        for name, key in zip(names, keys, strict=True)
    }


def forward(params: dict[str, Any], pixels: Any, *, is_sick: bool) -> Any:
    """Compute the scores of the classes; the taps are all that tdbg needs."""
    kind, activation = ("sigmoid", jax.nn.sigmoid) if is_sick else ("relu", jax.nn.relu)
    hidden = pixels
    for i in range(1, len(params)):
        layer = params[f"dense{i}"]
        hidden = activation(hidden @ layer["kernel"] + layer["bias"])
        hidden = tj.tap(hidden, f"dense{i}", kind=kind)
    return hidden @ params["last"]["kernel"] + params["last"]["bias"]


def make_hook(run: Path, rules: Sequence[Rule]) -> tj.Hook:
    """Make a hook that captures statistics of every step."""
    return tj.Hook(
        run,
        save_all=True,
        rules=rules,
        save_config=tj.SaveConfig(statistics_interval=1, save_interval=100),
    )


class Training:
    """A loop around a compiled step.

    Args:
        digits: What is learned.
        hook: Compiles the step, and captures it.
        is_sick: Which network.
    """

    def __init__(self, digits: Digits, hook: tj.Hook, *, is_sick: bool) -> None:
        self._digits = digits
        self._forward = functools.partial(forward, is_sick=is_sick)
        self._params = first_parameters(14 if is_sick else 4)
        self._velocity = jax.tree.map(jnp.zeros_like, self._params)
        # Here `jax.jit(self._step, ...)` would stand otherwise.
        self._compiled = hook.jit(
            self._step, loss_kind="cross_entropy", donate_argnums=(0, 1)
        )

    def _loss(self, params: Any, pixels: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(self._forward(params, pixels))
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    def _step(self, params: Any, velocity: Any, pixels: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(self._loss)(params, pixels, labels)
        gradients = tj.tap(gradients, "gradient", role=tj.Role.GRADIENT)
        velocity = jax.tree.map(lambda v, g: _MOMENTUM * v + g, velocity, gradients)
        params = jax.tree.map(lambda p, v: p - _RATE * v, params, velocity)
        return params, velocity, loss

    def fit(self, n_steps: int, on_step: Callable[[int], None]) -> None:
        """Train: ``frameworks.Training`` says how."""
        batches = self._digits.batches(BATCH_SIZE, SEED)
        for done in range(1, n_steps + 1):
            images, labels = next(batches)
            self._params, self._velocity, _ = self._compiled(
                self._params,
                self._velocity,
                images.reshape(-1, _WIDTH),
                labels.astype(np.int32),
            )
            on_step(done)

    def accuracy(self) -> float:
        """The share of right answers on the test images."""
        _, test = self._digits.rows()
        answers = self._forward(self._params, test).argmax(axis=1)
        return float((answers == self._digits.test_labels).mean())
