"""Short trainings on real data that go well, in parts that a fault may change.

All are watched as a user would do it: ``td.watch`` with everything at its default.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

import tdbg.pytorch as td
from tdbg.rules import Engine, Report
from trainings import digits

__all__ = [
    "Batch",
    "Optimizers",
    "Parts",
    "adam",
    "captured",
    "evaluated",
    "float16",
    "float32",
    "layers",
    "of_digits",
    "of_rectifiers",
    "of_tanh",
    "of_text",
    "of_wine",
    "sgd",
    "trained",
    "wine",
]

Optimizers = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
Batch = tuple[Tensor, Tensor]

# How often the training is judged while it goes on.
LOOK_EVERY = 37


@dataclass(kw_only=True)
class Parts:
    """What a training is made of.

    Attributes:
        model: Trained.
        data: All inputs and targets.
        optimizer: Makes one for parameters.
        trained: Which parameters it is given.
        criterion: The loss, a module.
        batch: What is made of the batch of a step.
        n_steps: Steps of training.
        batch_size: Samples of each.
        held_out: Evaluated on at every tenth step; None: no evaluation.
    """

    model: nn.Module
    data: Batch
    optimizer: Optimizers
    trained: Callable[[nn.Module], Iterator[nn.Parameter]] = nn.Module.parameters
    criterion: nn.Module
    batch: Callable[[int, Tensor, Tensor], Batch] = lambda _, x, y: (x, y)
    n_steps: int = 60
    batch_size: int = 64
    held_out: Batch | None = None


def trained(parts: Parts, run: Path) -> Report:
    """Train; what the default rules have said while it was going on."""
    with with_one_thread():
        optimizer = parts.optimizer(parts.trained(parts.model))
        hook = td.watch(parts.model, parts.criterion, optimizer, run, min_free_bytes=0)
        engine = Engine(run, record=False)
        _train(parts, optimizer, hook, engine.poll)
    for _ in engine.follow(0.001):
        pass
    return engine.finish()


def captured(parts: Parts, run: Path, rule: str) -> None:
    """Train, with nothing captured but what a rule asks for."""
    with with_one_thread():
        optimizer = parts.optimizer(parts.trained(parts.model))
        hook = td.Hook(run, rules=[rule], min_free_bytes=0)
        hook.register_module(parts.model)
        hook.register_loss(parts.criterion)
        _train(parts, optimizer, hook, lambda: None)


@contextmanager
def with_one_thread() -> Iterator[None]:
    """More threads than idle cores make small operations slower by far."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def _train(
    parts: Parts,
    optimizer: torch.optim.Optimizer,
    hook: td.Hook,
    look: Callable[[], object],
) -> None:
    model, criterion = parts.model, parts.criterion
    inputs, targets = parts.data
    with hook:
        for step in range(parts.n_steps):
            chosen = torch.randint(len(inputs), (parts.batch_size,))
            x, y = parts.batch(step, inputs[chosen], targets[chosen])
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            if parts.held_out is not None and step % 10 == 9:
                model.eval()
                with torch.no_grad():
                    criterion(model(parts.held_out[0]), parts.held_out[1])
                model.train()
            if step % LOOK_EVERY == LOOK_EVERY - 1:
                look()
        assert hook.counters()["internal_errors"] == 0
        assert hook.counters()["refused_tensors"] == 0


def adam(rate: float) -> Optimizers:
    return lambda parameters: torch.optim.Adam(parameters, rate)


def sgd(rate: float) -> Optimizers:
    return lambda parameters: torch.optim.SGD(parameters, rate)


def layers(*widths: int, between: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between them."""
    modules: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        modules += [nn.Linear(n_in, n_out), between()]
    return nn.Sequential(*modules[:-1])


def of_digits(model: nn.Module | None = None) -> Parts:
    """Images of handwritten digits."""
    return Parts(
        model=model or layers(64, 32, 32, 10),
        data=digits(),
        optimizer=adam(1e-2),
        criterion=nn.CrossEntropyLoss(),
    )


def of_tanh() -> Parts:
    """The same with other activations."""
    return of_digits(layers(64, 32, 32, 10, between=nn.Tanh))


def of_rectifiers() -> Parts:
    """Eight layers of ReLUs that have a beginning as He et al. say."""
    model = layers(64, *[32] * 8, 10)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    parts = of_digits(model)
    parts.optimizer = adam(1e-3)
    return parts


def evaluated() -> Parts:
    """Half of the digits are learned, and some others held out."""
    parts = of_digits()
    images, labels = parts.data
    parts.data = images[:900], labels[:900]
    parts.held_out = images[900:], labels[900:]
    parts.optimizer = adam(1e-3)
    return parts


class Scaled(nn.Module):
    """Cross entropy in the precision of its inputs, divided by a number."""

    by = 1.0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets) / self.by


def float16() -> Parts:
    """All in half precision; its gradients are large enough for that."""
    parts = of_digits(layers(64, 32, 10, between=nn.Tanh).half())
    parts.data = (parts.data[0].half(), parts.data[1])
    parts.criterion = Scaled()
    parts.optimizer = sgd(0.2)
    return parts


def float32() -> Parts:
    """Weights of at least 0.07, and steps that are small beside them."""
    parts = of_digits()
    with torch.no_grad():
        for parameter in parts.model.parameters():
            parameter.add_(0.07 * torch.sign(parameter))
    parts.optimizer = adam(1e-4)
    return parts


@cache
def wine() -> Batch:
    """Thirteen measurements of wines, and their kind; not normalized."""
    measured, kinds = load_wine(return_X_y=True)
    return torch.tensor(measured, dtype=torch.float32), torch.tensor(kinds)


def of_wine() -> Parts:
    """Measurements, each with mean 0 and deviation 1."""
    measured, kinds = wine()
    return Parts(
        model=layers(13, 16, 3),
        data=((measured - measured.mean(0)) / measured.std(0), kinds),
        optimizer=adam(1e-2),
        criterion=nn.CrossEntropyLoss(),
    )


@cache
def text() -> tuple[Tensor, int]:
    """A long text as numbers of its characters, from 1 on; how many these are."""
    written = inspect.getsource(argparse)
    known = {character: i + 1 for i, character in enumerate(sorted(set(written)))}
    return torch.tensor([known[character] for character in written]), len(known) + 1


class NextCharacter(nn.Module):
    """Guesses what comes after a few characters."""

    def __init__(self, n_characters: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_characters, 8)
        self.head = nn.Linear(8 * length, n_characters)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(tokens).flatten(1))
        return out


def of_text() -> Parts:
    """Stretches of eight characters and the next."""
    characters, n_characters = text()
    windows = characters.unfold(0, 9, 1)
    return Parts(
        model=NextCharacter(n_characters, 8),
        data=(windows[:, :8], windows[:, 8]),
        optimizer=adam(1e-2),
        criterion=nn.CrossEntropyLoss(),
        batch_size=128,
    )
