"""Healthy image models of many architectures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)

from benchmarks.detection.kit.case import second
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import accuracy, descend
from benchmarks.detection.kit.training import Training


def classify(
    t: Training,
    model: nn.Module,
    optimizer: Optimizer,
    criterion: nn.Module | None = None,
    schedule: LRScheduler | None = None,
    *,
    n_steps: int = 200,
    batch_size: int = 64,
    evaluate_every: int = 0,
    at_least: float = 0.9,
) -> None:
    """Epochs over the digits, validated now and then."""
    split = digits()
    criterion = criterion or nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, batch in t.batches(n_steps, len(split.x), batch_size):
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]), schedule)
        if evaluate_every and (step + 1) % evaluate_every == 0:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right >= at_least)


@second.healthy
def lenet_adamw(t: Training) -> None:
    """Convolutions and pooling, AdamW, validated after each epoch of 22 batches."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(24 * 16, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )
    optimizer = AdamW(model.parameters(), 2e-3)
    classify(t, model, optimizer, n_steps=220, evaluate_every=22)


class BasicBlock(nn.Module):
    """The block of ResNet-18, with a projection where the width changes."""

    def __init__(self, n_in: int, n_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out")
        nn.init.kaiming_normal_(self.conv2.weight, mode="fan_out")
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + self.shortcut(x))


@second.healthy
def resnet_zero_gamma(t: Training) -> None:
    """ResNet whose last normalization of each block begins at zero (Goyal 2017).

    SGD with Nesterov momentum, weight decay and a cosine to zero.
    """
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        BasicBlock(8, 8),
        BasicBlock(8, 16, 2),
        BasicBlock(16, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    optimizer = SGD(
        model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = CosineAnnealingLR(optimizer, 240)
    classify(t, model, optimizer, None, schedule, n_steps=240, evaluate_every=40)


class MixerLayer(nn.Module):
    """Mixes patches, then channels (Tolstikhin 2021)."""

    def __init__(self, n_patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches = nn.Sequential(
            nn.Linear(n_patches, 32), nn.GELU(), nn.Linear(32, n_patches)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Of 16 patches of 2 x 2 pixels."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, 2)
        self.layers = nn.Sequential(*(MixerLayer(16, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.view(-1, 1, 8, 8)).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


@second.healthy
def mlp_mixer_zero_head(t: Training) -> None:
    """MLP-Mixer; its head begins at zero, as in the authors' code."""
    model = Mixer()
    classify(t, model, Adam(model.parameters(), 3e-3), n_steps=250)


class ViT(nn.Module):
    """A class token and 16 patches; normalization comes first."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(17, width), 0, 0.02)
        )
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(patches)], 1)
        return self.head(self.norm(self.encoder(tokens + self.place)[:, 0]))


@second.healthy
def vit_warmup_cosine(t: Training) -> None:
    """Vision transformer: label smoothing, AdamW, decay of 0.05, warm-up, cosine."""
    model = ViT()
    optimizer = AdamW(model.parameters(), 3e-3, weight_decay=0.05)
    rise = LinearLR(optimizer, 0.01, total_iters=40)
    fall = CosineAnnealingLR(optimizer, 260)
    schedule = SequentialLR(optimizer, [rise, fall], [40])
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    classify(
        t, model, optimizer, smooth, schedule,
        n_steps=300, evaluate_every=50, at_least=0.85,
    )  # fmt: skip


@second.healthy
def groupnorm_silu_rmsprop(t: Training) -> None:
    """Convolutions with GroupNorm and SiLU, RMSprop."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for n_in, n_out in ((1, 8), (8, 16), (16, 16)):
        layers += [
            nn.Conv2d(n_in, n_out, 3, padding=1),
            nn.GroupNorm(4, n_out),
            nn.SiLU(),
        ]
    model = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, 10))
    classify(t, model, RMSprop(model.parameters(), 1e-3), n_steps=250)


@second.healthy
def prelu_one_cycle(t: Training) -> None:
    """PReLU, SGD with the one-cycle schedule up to 0.5 (Smith 2018)."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.PReLU(16),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.PReLU(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = SGD(model.parameters(), 0.02, momentum=0.9)
    schedule = OneCycleLR(optimizer, 0.5, total_steps=220)
    classify(t, model, optimizer, None, schedule, n_steps=220, evaluate_every=44)


class Inverted(nn.Module):
    """Inverted residual with a gate by hard sigmoid, as in MobileNetV3."""

    def __init__(self, width: int, expansion: int = 3) -> None:
        super().__init__()
        inner = width * expansion
        self.expand = nn.Conv2d(width, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.act = nn.ReLU6()
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inner, 6, 1),
            nn.ReLU(),
            nn.Conv2d(6, inner, 1),
            nn.Hardsigmoid(),
        )
        self.project = nn.Conv2d(inner, width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.norm1(self.expand(x)))
        h = self.act(self.norm2(self.depthwise(h)))
        return x + self.norm3(self.project(h * self.squeeze(h)))


@second.healthy
def mobilenet_relu6(t: Training) -> None:
    """Depthwise convolutions, expansion, ReLU6 and squeeze-and-excitation."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        Inverted(8),
        Inverted(8),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = Adam(model.parameters(), 5e-3)
    classify(t, model, optimizer, n_steps=220, batch_size=32)


@second.healthy
def mixup_leaky(t: Training) -> None:
    """Mixup of pictures and of labels (Zhang 2018), LeakyReLU, no other regularizer."""
    split = digits()
    model = nn.Sequential(
        nn.Linear(64, 96),
        nn.LeakyReLU(),
        nn.Linear(96, 96),
        nn.LeakyReLU(),
        nn.Linear(96, 10),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(300, len(split.x), 64, drop_last=True):
        x, y = split.x[batch], nn.functional.one_hot(split.y[batch], 10).float()
        share = float(torch.distributions.Beta(0.4, 0.4).sample())
        other = torch.randperm(len(x), generator=t.order)
        mixed = share * x + (1 - share) * x[other]
        descend(optimizer, criterion(model(mixed), share * y + (1 - share) * y[other]))
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right >= 0.93)


class TanhBlock(nn.Module):
    """x + tanh(Wx) at a quarter, so that thirty of them stay in the middle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.tanh = nn.Linear(width, width), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.25 * self.tanh(self.linear(x))


@second.healthy
def deep_residual_tanh(t: Training) -> None:
    """Thirty residual layers of tanh."""
    model = nn.Sequential(
        nn.Linear(64, 32), *(TanhBlock(32) for _ in range(30)), nn.Linear(32, 10)
    )
    classify(t, model, Adam(model.parameters(), 1e-3), n_steps=220)


@second.healthy
def noisy_and_dropped(t: Training) -> None:
    """Noise on the pixels, dropout of a half, 3 % of the labels wrong: a high loss."""
    split = digits()
    split_y = split.y.clone()
    wrong = torch.rand(len(split_y), generator=t.order) < 0.03
    split_y[wrong] = torch.randint(10, (int(wrong.sum()),), generator=t.order)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10),
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 2e-3, weight_decay=1e-3)
    t.watch(model, criterion, optimizer=optimizer)
    for step, batch in t.batches(400, len(split.x), 32):
        x = split.x[batch]
        x = x + 0.2 * torch.randn(x.shape, generator=t.order)
        descend(optimizer, criterion(model(x), split_y[batch]))
        if step % 42 == 41:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right >= 0.9)
