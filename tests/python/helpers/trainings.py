"""Small trainings on scikit-learn's real digits: healthy ones, and sick ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from tdbg.pytorch import Hook, SaveConfig
from tdbg.rules import default_rules

Optimizers = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images of 64 pixels from 0 to 1, and labels."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)


def mlp(
    depth: int,
    width: int = 64,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    layers: list[nn.Module] = []
    n_in = 64
    for _ in range(depth):
        layers += [nn.Linear(n_in, width), activation()]
        n_in = width
    return nn.Sequential(*layers, nn.Linear(n_in, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Residual(nn.Module):
    """Blocks with batch normalization behind convolutions that have a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.Conv2d(16, 16, 3, padding=1),
                nn.BatchNorm2d(16),
            )
            for _ in range(3)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images.view(-1, 1, 8, 8))
        for block in self.blocks:
            x = torch.relu(x + block(x))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Recurrent(nn.Module):
    """Reads an image line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(images.view(-1, 8, 8))[0][:, -1])
        return out


class Attentive(nn.Module):
    """A small transformer over the lines of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.encoder(self.embed(images.view(-1, 8, 8)))
        out: Tensor = self.head(x.mean(1))
        return out


def frozen_backbone() -> nn.Module:
    """Its weights are spread as those that have learned are, and not evenly."""
    model = cnn()
    for parameter in list(model.parameters())[:4]:
        parameter.requires_grad_(False).normal_(0.0, float(parameter.std()))
    return model


def with_dead_relus() -> nn.Module:
    """Biases so far below zero that no unit of the middle layer is ever active."""
    model = mlp(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "2.bias":
                parameter.fill_(-10.0)
    return model


def sgd(rate: float, momentum: float = 0.0) -> Optimizers:
    return lambda parameters: torch.optim.SGD(parameters, rate, momentum=momentum)


def adam(rate: float) -> Optimizers:
    return lambda parameters: torch.optim.Adam(parameters, rate)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, how, and for how long."""

    model: Callable[[], nn.Module]
    optimizer: Optimizers
    n_steps: int = 200
    batch_size: int = 64
    shuffled_labels: bool = False
    statistics_interval: int = 1
    collections: tuple[str, ...] = field(
        default=("weights", "biases", "gradients", "losses", "inputs", "outputs")
    )

    def run(self, directory: Path, seed: int) -> float:
        """Train with every default rule asked for; the last loss."""
        n_threads = torch.get_num_threads()
        # More threads than idle cores make small operations slower by far.
        torch.set_num_threads(1)
        try:
            return self._run(directory, seed)
        finally:
            torch.set_num_threads(n_threads)

    def _run(self, directory: Path, seed: int) -> float:
        torch.manual_seed(seed)
        images, labels = digits()
        if self.shuffled_labels:
            labels = labels[torch.randperm(len(labels))]
        model = self.model()
        criterion = nn.CrossEntropyLoss()
        optimizer = self.optimizer(p for p in model.parameters() if p.requires_grad)
        hook = Hook(
            directory,
            include_collections=list(self.collections),
            rules=default_rules(),
            save_config=SaveConfig(
                statistics_interval=self.statistics_interval, save_interval=50
            ),
        )
        hook.register_module(model)
        hook.register_loss(criterion)
        loss = torch.tensor(0.0)
        try:
            for _ in range(self.n_steps):
                chosen = torch.randint(len(images), (self.batch_size,))
                optimizer.zero_grad()
                loss = criterion(model(images[chosen]), labels[chosen])
                loss.backward()
                optimizer.step()
        finally:
            hook.close()
        return loss.item()


OK = {
    "cnn": Training(model=cnn, optimizer=sgd(0.05, 0.9)),
    "mlp": Training(model=lambda: mlp(3), optimizer=adam(1e-3)),
    "residual": Training(model=Residual, optimizer=adam(1e-3), n_steps=150),
    "recurrent": Training(model=Recurrent, optimizer=adam(3e-3)),
    "attentive": Training(model=Attentive, optimizer=adam(1e-3), n_steps=150),
    "slow": Training(model=lambda: mlp(2), optimizer=sgd(0.03)),
    "frozen backbone": Training(model=frozen_backbone, optimizer=adam(1e-3)),
    "converged": Training(model=lambda: mlp(2, 128), optimizer=adam(3e-3), n_steps=600),
}
SICK = {
    "VanishingGradient": Training(
        model=lambda: mlp(8, activation=nn.Sigmoid), optimizer=sgd(0.1), n_steps=20
    ),
    "DeadRelu": Training(model=with_dead_relus, optimizer=sgd(0.01), n_steps=20),
    "ExplodingTensor": Training(
        model=lambda: mlp(3, activation=nn.Identity), optimizer=sgd(100.0), n_steps=20
    ),
    "UnchangedTensor": Training(model=cnn, optimizer=sgd(0.0), n_steps=20),
    "LossNotDecreasing": Training(model=lambda: mlp(2), optimizer=sgd(1e-6)),
}
