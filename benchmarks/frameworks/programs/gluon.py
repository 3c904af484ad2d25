"""The training in Gluon: its name and the run to make are given."""

from __future__ import annotations

import sys

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

import tdbg.mxnet as tm
from benchmarks.frameworks.trainings import Training, by_name

COLLECTIONS = ["weights", "biases", "gradients", "losses", "outputs", "scalars"]


def build(training: Training) -> nn.HybridSequential:
    """The layers as they are before the first step."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for i, layer in enumerate(training.layers()):
            if i:
                net.add(nn.Activation(training.activation))
            n_in, n_out = layer.kernel.shape
            net.add(nn.Dense(n_out, in_units=n_in))
    net.initialize()
    layers = (each for each in net if isinstance(each, nn.Dense))
    for dense, layer in zip(layers, training.layers(), strict=True):
        dense.weight.set_data(mx.nd.array(layer.kernel.T))
        dense.bias.set_data(mx.nd.array(layer.bias))
    return net


def main(name: str, run: str) -> None:
    """Train, watched."""
    training = by_name(name)
    net, criterion = build(training), gluon.loss.SoftmaxCrossEntropyLoss()
    trained = [
        parameter
        for dense, layer in zip(
            (each for each in net if isinstance(each, nn.Dense)),
            training.layers(),
            strict=True,
        )
        for parameter in (dense.weight, dense.bias)
        if layer.is_trained
    ]
    for parameter in net.collect_params().values():
        if not any(parameter is each for each in trained):
            parameter.grad_req = "null"
    rate = {"learning_rate": training.rate}
    trainer = gluon.Trainer(trained, "sgd", rate)
    images, labels = map(mx.nd.array, training.validation())
    with tm.Hook(run, include_collections=COLLECTIONS, rules="default") as hook:
        hook.register_block(net)
        hook.register_loss(criterion)
        for _ in range(training.n_epochs):
            for x, y in training.batches():
                with autograd.record():
                    loss = criterion(net(mx.nd.array(x)), mx.nd.array(y))
                loss.backward()
                trainer.step(len(x))
            criterion(net(images), labels)


if __name__ == "__main__":
    main(*sys.argv[1:])
