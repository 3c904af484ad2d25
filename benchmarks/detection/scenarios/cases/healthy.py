"""Trainings of many kinds in which nothing is wrong with the time."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.detection.scenarios.cases.data import Sleeping, Streamed, Vectors
from benchmarks.detection.scenarios.cases.loading import MANY, train
from benchmarks.detection.scenarios.kit import Play, healthy, network

__all__: list[str] = []


@healthy()
def iterable_dataset(play: Play) -> None:
    """Samples come one after the other, from 2 workers."""
    loader = DataLoader(Streamed(4000), batch_size=8, num_workers=2)
    train(play, loader, network(0.03))


@healthy()
def spawned_workers(play: Play) -> None:
    """Workers that take seconds to start, once."""
    loader = DataLoader(
        Vectors(MANY), batch_size=8, num_workers=2, multiprocessing_context="spawn"
    )
    train(play, loader, network(0.03))


@healthy()
def killed_worker(play: Play) -> None:
    """A worker is killed after 20 s, and the training goes on with another loader."""
    model, is_killed = network(0.03), False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()

    def loader() -> DataLoader[tuple[torch.Tensor, int]]:
        return DataLoader(Vectors(MANY), batch_size=8, num_workers=2)

    def step() -> None:
        inputs, labels = next(batches)
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()

    batches = iter(loader())
    for _ in play.steps():
        try:
            step()
        except RuntimeError:  # PyTorch raises it wherever the training is.
            batches = iter(loader())
            step()
        if play.elapsed > 20 and not is_killed:
            is_killed = True
            os.kill(batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    play.figures["killed"] = is_killed


@healthy()
def nested_loaders(play: Play) -> None:
    """Each step takes a batch of one loader and one of another."""
    model = network(0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    others = iter(DataLoader(Sleeping(MANY, 0.001), batch_size=4, num_workers=1))
    for inputs, labels in play.batches(DataLoader(Vectors(MANY), batch_size=8)):
        more, more_labels = next(others)
        optimizer.zero_grad()
        outputs = model(torch.cat([inputs, more]))
        criterion(outputs, torch.cat([labels, more_labels])).backward()
        optimizer.step()


@healthy()
def gradient_accumulation(play: Play) -> None:
    """The optimizer steps after each fourth batch."""
    model = network(0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Vectors(MANY), batch_size=8)
    for i, (inputs, labels) in enumerate(play.batches(loader), 1):
        (criterion(model(inputs), labels) / 4).backward()
        if i % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@healthy()
def two_optimizers(play: Play) -> None:
    """Two networks take turns at each batch."""
    models = [network(0.015), network(0.015)]
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in models]
    criterion = nn.CrossEntropyLoss()
    for inputs, labels in play.batches(DataLoader(Vectors(MANY), batch_size=8)):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()


@healthy()
def lbfgs(play: Play) -> None:
    """An optimizer that asks for the loss several times a step."""
    model = network(0.005)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    criterion = nn.CrossEntropyLoss()
    for inputs, labels in play.batches(DataLoader(Vectors(MANY), batch_size=64)):

        def closure(inputs: torch.Tensor = inputs, labels: torch.Tensor = labels):  # type: ignore[no-untyped-def]
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)


@healthy()
def no_loader(play: Play) -> None:
    """Batches are slices of a tensor."""
    model = network(0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    inputs, labels = torch.randn(4096, 32), torch.randint(10, (4096,))
    for step in play.steps():
        at = slice(step * 32 % 4096, step * 32 % 4096 + 32)
        optimizer.zero_grad()
        criterion(model(inputs[at]), labels[at]).backward()
        optimizer.step()
