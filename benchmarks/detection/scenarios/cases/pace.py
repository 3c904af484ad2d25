"""Some steps take longer than others, or all of them from some step on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.detection.scenarios.cases.data import Vectors
from benchmarks.detection.scenarios.cases.loading import MANY
from benchmarks.detection.scenarios.kit import Device, Play, fault, healthy, network

__all__: list[str] = []

CHANGE = 600


@fault("StepTimeRegression", mends=True)
def slower_since(play: Play) -> None:
    """From step 600 on steps take 1.5 times as long. Twin: the learning rate falls."""
    model = network(0.025)
    device = next(each for each in model if isinstance(each, Device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Vectors(MANY), batch_size=8)
    for step, (inputs, labels) in enumerate(play.batches(loader)):
        if step == CHANGE and play.ill:
            device.seconds *= 1.5
        if step == CHANGE and not play.sick:
            optimizer.param_groups[0]["lr"] = 0.005
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
    durations = play.durations()
    before, after = median(durations[100:CHANGE]), median(durations[CHANGE + 50 :])
    play.figures.update(before_ms=1e3 * before, after_ms=1e3 * after)
    play.shows(after > 1.2 * before)


@healthy()
def longer_batches(play: Play) -> None:
    """From step 600 on a batch holds twice as much, and takes twice as long."""
    model = network(0.02)
    device = next(each for each in model if isinstance(each, Device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    samples, size = Vectors(10_000), 8
    for step in play.steps():
        if step == CHANGE:
            device.seconds, size = 0.04, 16
        chosen = [samples[(step * size + i) % len(samples)] for i in range(size)]
        inputs = torch.stack([values for values, _ in chosen])
        labels = torch.tensor([label for _, label in chosen])
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()


@fault("CheckpointStall", mends=True)
def saves_often(play: Play) -> None:
    """A checkpoint of 128 MB each 60 steps. Twin: each 10,000."""
    every = 60 if play.ill else 10_000
    state = {"big": torch.zeros(32 << 20)}
    model = network(0.025)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Vectors(MANY), batch_size=8)
    with tempfile.TemporaryDirectory() as folder:
        for step, (inputs, labels) in enumerate(play.batches(loader), 1):
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
            if step % every == 0:
                with play.clock("checkpoint"):
                    torch.save(state, Path(folder) / "checkpoint.pt")
    play.shows(play.share("checkpoint") > 0.07)


@healthy()
def evaluates_each_epoch(play: Play) -> None:
    """An evaluation of a second after each 100 steps: no outlier among steps."""
    model = network(0.025)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Vectors(800), batch_size=8)
    held_out = DataLoader(Vectors(320), batch_size=8)
    for step, (inputs, labels) in enumerate(play.batches(loader), 1):
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                for inputs_, _ in held_out:
                    model(inputs_)
            model.train()
