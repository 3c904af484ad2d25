"""Two small models in plain JAX, with taps that do nothing outside of a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tdbg.jax as tj

__all__ = ["MODELS", "Model", "batches", "step_of"]

RATE = 1e-3


class Model(NamedTuple):
    """A model.

    Attributes:
        init: Returns the parameters.
        loss: Of parameters, inputs and labels.
        shape: Of the inputs of a batch.
        n_words: They are numbers below; 0: they are floats.
        labels: Shape of the labels.
    """

    init: Callable[[], Any]
    loss: Callable[..., Any]
    shape: tuple[int, ...]
    n_words: int
    labels: tuple[int, ...]

    def of_batches(self, n: int) -> Model:
        """The same model, with batches of *n* rows."""
        shape, labels = (n, *self.shape[1:]), (n, *self.labels[1:])
        return self._replace(shape=shape, labels=labels)


def _normal(key: int, *shape: int) -> Any:
    fan_in = np.prod(shape[:-1])
    return jax.random.normal(jax.random.key(key), shape) * np.float32(fan_in**-0.5)


def _cnn() -> Any:
    layers = {
        f"conv{i}": {"kernel": _normal(i, 3, 3, n_in, n_out), "bias": jnp.zeros(n_out)}
        for i, (n_in, n_out) in enumerate([(3, 32), (32, 64), (64, 64), (64, 128)])
    }
    dense = {"kernel": _normal(9, 128, 10), "bias": jnp.zeros(10)}
    return {**layers, "dense": dense}


def _cnn_loss(params: Any, x: Any, y: Any) -> Any:
    for i in range(4):
        layer = params[f"conv{i}"]
        x = jax.lax.conv_general_dilated(
            x,
            layer["kernel"],
            (2, 2) if i else (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = tj.tap(jax.nn.relu(x + layer["bias"]), f"conv{i}", kind="relu")
    logits = x.mean((1, 2)) @ params["dense"]["kernel"] + params["dense"]["bias"]
    return _cross_entropy(tj.tap(logits, "logits"), y)


_WIDTH, _HEADS, _LAYERS, _WORDS, _LENGTH = 128, 4, 3, 256, 64


def _transformer() -> Any:
    width = _WIDTH
    return {
        "embedding": _normal(0, _WORDS, width),
        "position": _normal(1, _LENGTH, width),
        **{
            f"layer{i}": {
                "scale1": jnp.ones(width),
                "qkv": _normal(10 * i + 2, width, 3 * width),
                "bias_qkv": jnp.zeros(3 * width),
                "out": _normal(10 * i + 3, width, width),
                "scale2": jnp.ones(width),
                "up": _normal(10 * i + 4, width, 4 * width),
                "bias_up": jnp.zeros(4 * width),
                "down": _normal(10 * i + 5, 4 * width, width),
                "bias_down": jnp.zeros(width),
            }
            for i in range(_LAYERS)
        },
        "scale": jnp.ones(width),
        "head": _normal(99, width, _WORDS),
    }


def _norm(x: Any, scale: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return (
        scale * centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    )


def _attention(x: Any, layer: Any) -> Any:
    qkv = x @ layer["qkv"] + layer["bias_qkv"]
    q, k, v = jnp.split(qkv.reshape(*x.shape[:2], _HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return mixed.reshape(*x.shape[:2], -1) @ layer["out"]


def _transformer_loss(params: Any, words: Any, y: Any) -> Any:
    x = params["embedding"][words] + params["position"]
    for i in range(_LAYERS):
        layer = params[f"layer{i}"]
        attention = _attention(_norm(x, layer["scale1"]), layer)
        x = x + tj.tap(attention, f"layer{i}/attention")
        up = _norm(x, layer["scale2"]) @ layer["up"] + layer["bias_up"]
        hidden = tj.tap(jax.nn.gelu(up), f"layer{i}/hidden")
        x = x + tj.tap(hidden @ layer["down"] + layer["bias_down"], f"layer{i}/mlp")
    return _cross_entropy(_norm(x, params["scale"]) @ params["head"], y)


def _cross_entropy(logits: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


MODELS = {
    "cnn": Model(_cnn, _cnn_loss, (16, 32, 32, 3), 0, (16,)),
    "transformer": Model(
        _transformer, _transformer_loss, (4, _LENGTH), _WORDS, (4, _LENGTH)
    ),
}


def batches(model: Model) -> Iterator[tuple[Any, Any]]:
    """Batches of random numbers, always the same."""
    generator = np.random.default_rng(0)
    n_classes = model.n_words or 10
    while True:
        y = generator.integers(0, n_classes, model.labels).astype(np.int32)
        if model.n_words:
            yield generator.integers(0, n_classes, model.shape).astype(np.int32), y
        else:
            yield generator.normal(size=model.shape).astype(np.float32), y


def step_of(model: Model, tx: Any, shows: Callable[..., Any] | None = None) -> Any:
    """A step of training; *shows* is given weights and gradients inside of it."""

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(model.loss)(params, x, y)
        if shows is not None:
            shows(params, grads)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return step
