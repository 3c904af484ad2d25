"""The models that are trained: two that people know, and three awkward ones.

Data are random but always the same: what is measured is time, and a download would
need a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODELS", "Recipe", "recipe"]


@dataclass(frozen=True)
class Recipe:
    """A model and how it is trained."""

    make: Callable[[], nn.Module]
    #: One batch of inputs and targets.
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    #: Steps in a block of the measurement: some tenths of a second.
    block: int
    #: What its tables are titled.
    title: str


class Block(nn.Module):
    """A residual block of ResNet18."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        beside = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x += beside
        return self.relu(x)


class ResNet(nn.Module):
    """ResNet18 in torchvision's layout and names: 11.18 million parameters."""

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Attention(nn.Module):
    """Causal self-attention of four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.qkv(x).view(n, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        x = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(x.transpose(1, 2).reshape(n, length, width))


class Layer(nn.Module):
    """A pre-LN transformer layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class LanguageModel(nn.Module):
    """Four layers of width 256, a vocabulary of 2000: 4.22 million parameters."""

    def __init__(
        self, width: int = 256, vocabulary: int = 2000, n_layers: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(128, width)
        self.layers = nn.Sequential(*(Layer(width, 4 * width) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.layers(x))).flatten(0, 1)


class ManySmall(nn.Module):
    """A thousand layers of 16 units: 2,000 parameters of at most a KiB."""

    def __init__(self, n_layers: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(n_layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 0.01 * layer(x)
        return x


def cnn() -> nn.Module:
    """Four convolutions: a third of a million parameters, large activations."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def tiny() -> nn.Module:
    """Two convolutions on 8x8 digits: a step of about a millisecond."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class OneTensor(nn.Module):
    """One parameter of any size, and one output of the same size."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.only = nn.Linear(1, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x)


def images(n: int, channels: int, size: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def batch(dice: torch.Generator) -> tuple[Tensor, Tensor]:
        pixels = torch.rand(n, channels, size, size, generator=dice)
        return pixels, torch.randint(10, (n,), generator=dice)

    return batch


def text(n: int, length: int, vocabulary: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def batch(dice: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (n, length + 1), generator=dice)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    return batch


def bert() -> nn.Module:
    """Twelve layers of width 768, as BERT has: 109 million parameters."""
    model = LanguageModel(768, 30_522, 12)
    model.head = Tied(model.tokens)
    return model


class Tied(nn.Module):
    """A head whose weight is that of the embedding."""

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self.weight = tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


def numbers(dice: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(1, 1, generator=dice), torch.zeros(1, dtype=torch.long)


def vectors(dice: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(8, 16, generator=dice), torch.randint(16, (8,), generator=dice)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4)


MODELS = {
    "resnet": Recipe(
        ResNet, images(32, 3, 32), sgd, 5, "ResNet18, batch 32 of 3x32x32"
    ),
    "lm": Recipe(
        LanguageModel,
        text(8, 128, 2000),
        adamw,
        2,
        "transformer, 4 layers, batch 8 x 128",
    ),
    "cnn": Recipe(cnn, images(256, 3, 32), sgd, 2, "CNN, batch 256 of 3x32x32"),
    "many": Recipe(ManySmall, vectors, sgd, 10, "2,000 small parameters, batch 8"),
    "tiny": Recipe(tiny, images(64, 1, 8), sgd, 50, "tiny CNN, a millisecond a step"),
}


#: Not among MODELS, all of which every contender watches: a step takes a second.
BERT = Recipe(bert, text(2, 64, 30_522), adamw, 1, "as large as BERT")


def recipe(name: str) -> Recipe:
    """One of MODELS, ``bert``, or ``layers-N`` of N small layers, ``bytes-N`` of one.

    Raises:
        KeyError: If it is none of these.
    """
    kind, _, size = name.partition("-")
    if kind == "layers" and size.isdecimal():
        n = int(size)
        block = max(1, 5000 // n)
        return Recipe(lambda: ManySmall(n), vectors, sgd, block, f"{n:,} layers")
    if kind == "bytes" and size.isdecimal():
        n = int(size) // 4
        block = max(1, min(500, 10_000_000 // n))
        return Recipe(lambda: OneTensor(n), numbers, sgd, block, f"{n:,} elements")
    return BERT if name == "bert" else MODELS[name]
