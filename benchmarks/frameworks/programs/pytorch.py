"""The training in PyTorch: its name and the run to make are given."""

from __future__ import annotations

import sys

import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks.frameworks.trainings import Training, by_name


def build(training: Training) -> nn.Sequential:
    """The layers as they are before the first step."""
    activation = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}[training.activation]
    model = nn.Sequential()
    for layer in training.layers():
        if len(model):
            model.append(activation())
        linear = nn.Linear(*layer.kernel.shape)
        linear.weight.data = torch.from_numpy(layer.kernel.T.copy())
        linear.bias.data = torch.from_numpy(layer.bias)
        linear.requires_grad_(layer.is_trained)
        model.append(linear)
    return model


def main(name: str, run: str) -> None:
    """Train, watched."""
    training = by_name(name)
    model, criterion = build(training), nn.CrossEntropyLoss()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=training.rate)
    images, labels = map(torch.from_numpy, training.validation())
    with td.watch(model, criterion, out=run, rules="default", budget="off"):
        for _ in range(training.n_epochs):
            model.train()
            for x, y in training.batches():
                optimizer.zero_grad()
                loss = criterion(model(torch.from_numpy(x)), torch.from_numpy(y))
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                criterion(model(images), labels)


if __name__ == "__main__":
    main(*sys.argv[1:])
