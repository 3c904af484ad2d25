"""The training in Flax NNX: its name and the run to make are given."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import tdbg.jax as tj
from benchmarks.frameworks.trainings import Training, by_name
from tdbg.modes import ModeKeys


class Net(nnx.Module):
    """The layers as they are before the first step."""

    def __init__(self, training: Training) -> None:
        layers = []
        for layer in training.layers():
            linear = nnx.Linear(*layer.kernel.shape, rngs=nnx.Rngs(0))
            linear.kernel[...] = jnp.asarray(layer.kernel)
            linear.bias[...] = jnp.asarray(layer.bias)
            layers.append(linear)
        self.layers = nnx.List(layers)
        self.activation = training.activation

    def __call__(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = getattr(nnx, self.activation)(layer(x))
        return self.layers[-1](x)


def loss_of(model: Net, x: Any, y: Any) -> Any:
    """The cross entropy, which is shown what it is given."""
    logits = tj.tap(model(x), "logits", role=tj.Role.PREDICTION)
    labels = tj.tap(y, "labels", role=tj.Role.LABEL)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train_step(model: Net, optimizer: Any, x: Any, y: Any) -> Any:
    """A step of the parameters that the optimizer has."""
    graded = nnx.value_and_grad(loss_of, argnums=nnx.DiffState(0, optimizer.wrt))
    loss, grads = graded(model, x, y)
    optimizer.update(model, grads)
    return loss


def main(name: str, run: str) -> None:
    """Train, watched."""
    training = by_name(name)
    model = Net(training)
    frozen = [i for i, layer in enumerate(training.layers()) if not layer.is_trained]
    is_frozen = nnx.Any(*(nnx.PathContains(i) for i in frozen))
    trained = nnx.All(nnx.Param, nnx.Not(is_frozen))
    collections = ["weights", "biases", "gradients", "outputs"]
    with tj.Hook(run, include_collections=collections, rules=["default"]) as hook:
        tj.watch(model)
        sgd = tj.optax(optax.inject_hyperparams(optax.sgd)(training.rate))
        optimizer = nnx.Optimizer(model, sgd, wrt=trained)
        step = hook.jit(train_step, jit=nnx.jit, loss_kind="cross_entropy")
        evaluate = hook.jit(loss_of, jit=nnx.jit, mode=ModeKeys.EVAL)
        images, labels = training.validation()
        for _ in range(training.n_epochs):
            for x, y in training.batches():
                step(model, optimizer, x, y.astype(np.int32))
            evaluate(model, images, labels.astype(np.int32))


if __name__ == "__main__":
    main(*sys.argv[1:])
