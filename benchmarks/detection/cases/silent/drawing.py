"""What is drawn: the order, the augmentation, the share of the data."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import Split, digits, patches
from benchmarks.detection.kit.harm import conclude, held_out
from benchmarks.detection.kit.loops import descend
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training

Example = tuple[Tensor, Tensor]


class Noisy(Dataset[Example]):
    """Images with noise of a generator that the dataset holds."""

    def __init__(self, split: Split, seed: int) -> None:
        self.x, self.y = split.x, split.y
        self.luck = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Example:
        noise = self.luck.normal(0, 0.5, 64)
        return self.x[i] + torch.as_tensor(noise, dtype=torch.float32), self.y[i]


def as_workers_do(
    dataset: Noisy, order: list[list[int]], n: int, *, seeded: bool
) -> Iterator[Example]:
    """Batches in turn from n copies of the dataset, as worker processes have them."""
    copies = [copy.deepcopy(dataset) for _ in range(n)]
    for i, mine in enumerate(copies if seeded else ()):
        mine.luck = np.random.default_rng([i, int(torch.randint(2**31, ()))])
    for i, rows in enumerate(order):
        examples = [copies[i % n][row] for row in rows]
        yield (
            torch.stack([x for x, _ in examples]),
            torch.stack([y for _, y in examples]),
        )


@sixth.silent(
    "same random numbers", "all workers draw the same noise, in each epoch again"
)
def workers_draw_alike(t: Training) -> None:
    """A dataset holds a NumPy generator: each worker gets a copy of it.

    Source: tanelp.github.io, "A bug that plagues thousands of open-source projects",
    github.com/pytorch/pytorch/pull/56488 (mended for NumPy's global state alone).
    Workers are copies in one process here.
    Visible: of 12 epochs of noise, fewer than a tenth is distinct, and new images with
    noise are recognized worse.
    """
    split = digits().take(torch.arange(160))
    dataset = Noisy(split, 3)
    model = mlp([64, 128, 10])
    optimizer, criterion = Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    noises: list[Tensor] = []

    def batches() -> Iterator[Example]:
        # The order is not shuffled, as is common with a sampler that is sorted.
        order = [list(range(i, i + 20)) for i in range(0, 160, 20)]
        while True:
            yield from as_workers_do(dataset, order, 4, seeded=not t.sick)

    drawn = batches()
    for step in t.steps(320):
        x, y = next(drawn)
        rows = torch.arange(20) + 20 * (step % 8)
        noises.append((x - split.x[rows])[0, :4])
        descend(optimizer, criterion(model(x), y))
    distinct = len(torch.stack(noises).round(decimals=3).unique(dim=0)) / len(noises)
    luck = torch.Generator().manual_seed(1)
    new = split.x_val + 0.5 * torch.randn(split.x_val.shape, generator=luck)
    accuracy = held_out(model, new, split.y_val)
    t.note(distinct=distinct, accuracy=accuracy)
    conclude(t, fault=distinct < 0.1, reached=accuracy > 0.4, harms=False)


@sixth.silent("same random numbers", "augmented images were cached")
def augmented_once_and_cached(t: Training) -> None:
    """``cache()`` stands behind the augmentation: it is drawn once.

    Source: tensorflow.org/guide/data_performance ("cache before random transforms") and
    github.com/tensorflow/tensorflow threads; the same with lru_cache in PyTorch.
    Visible: the images of all epochs are those of the first.
    """
    split = digits().take(torch.arange(160))
    dataset = Noisy(split, 3)
    model = mlp([64, 128, 10])
    optimizer, criterion = Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    cache: dict[int, Example] = {}

    def example(i: int) -> Example:
        if not t.sick:
            return dataset[i]
        if i not in cache:
            cache[i] = dataset[i]
        return cache[i]

    seen: set[float] = set()
    for _, rows in t.batches(320, 160, 20):
        examples = [example(int(i)) for i in rows]
        x = torch.stack([one for one, _ in examples])
        seen.update(x.sum(1).tolist())
        descend(optimizer, criterion(model(x), split.y[rows]))
    luck = torch.Generator().manual_seed(1)
    new = split.x_val + 0.5 * torch.randn(split.x_val.shape, generator=luck)
    accuracy = held_out(model, new, split.y_val)
    t.note(distinct=len(seen), accuracy=accuracy)
    conclude(t, fault=len(seen) <= 200, reached=accuracy > 0.58, harms=False)


@sixth.silent(
    "same order", "set_epoch is not called: each epoch has the first one's order"
)
def epochs_in_one_order(t: Training) -> None:
    """``DistributedSampler`` without ``set_epoch``.

    Source: github.com/pytorch/pytorch/issues/31771, lucidrains/DALLE-pytorch/pull/230,
    yangkky/distributed_tutorial/issues/5, kan-bayashi/ParallelWaveGAN/issues/177.
    Visible: the second epoch has the batches of the first in the same order.
    """
    split = digits()
    dataset = list(zip(split.x, split.y, strict=True))
    sampler = DistributedSampler(dataset, 1, 0, seed=t.seed)  # type: ignore[arg-type]
    loader = DataLoader(dataset, 64, sampler=sampler, drop_last=True)  # type: ignore[arg-type]
    model = mlp([64, 64, 10])
    optimizer, criterion = Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    firsts: list[Tensor] = []

    def epochs() -> Iterator[Example]:
        for epoch in itertools.count():
            if not t.sick:
                sampler.set_epoch(epoch)
            for i, batch in enumerate(loader):
                if i == 0:
                    firsts.append(batch[0])
                yield batch

    drawn = epochs()
    for _ in t.steps(140):
        x, y = next(drawn)
        descend(optimizer, criterion(model(x), y))
    same = torch.equal(firsts[0], firsts[1])
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=same, reached=accuracy > 0.9, harms=False)


@sixth.silent(
    "few samples of many", "__len__ is the number of batches: one row in 32 is used"
)
def length_counts_batches(t: Training) -> None:
    """``__len__`` returns ``len(x) // batch_size`` as a Keras Sequence's must.

    Source: forum threads on porting a keras.utils.Sequence to a Dataset ("epochs are
    suddenly fast, accuracy is low").
    Visible: fewer than a tenth of the rows is ever drawn; fewer than 80 % of new images
    are recognized.
    """
    split = digits()

    class Images(Dataset[Example]):
        """Images and labels."""

        def __len__(self) -> int:
            return len(split.x) // (32 if t.sick else 1)

        def __getitem__(self, i: int) -> Example:
            return split.x[i], split.y[i]

    dataset = Images()
    model = mlp([64, 64, 10])
    optimizer, criterion = Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    drawn: set[int] = set()
    for _, rows in t.batches(150, len(dataset), 16):
        drawn.update(rows.tolist())
        examples = [dataset[int(i)] for i in rows]
        x = torch.stack([one for one, _ in examples])
        y = torch.stack([label for _, label in examples])
        descend(optimizer, criterion(model(x), y))
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(drawn=len(drawn), accuracy=accuracy)
    conclude(t, fault=len(drawn) < len(split.x) / 10, reached=accuracy > 0.8)


@sixth.silent(
    "scrambled inputs", "reshape instead of permute: colours and rows are mixed"
)
def reshaped_not_permuted(t: Training) -> None:
    """``image.reshape(3, 16, 16)`` of an array (16, 16, 3).

    Source: discuss.pytorch.org threads on HWC and CHW ("view is not permute");
    Karpathy's most common mistakes (2018), "view() and permute() are the same thing".
    Visible: a pixel of the first channel is not red.
    """
    split = patches(size=8, n=900).inputs(lambda x: x / 127.5 - 1)

    def as_read(x: Tensor) -> Tensor:
        rows = x.permute(0, 2, 3, 1).contiguous()
        return rows.reshape(-1, 3, 8, 8) if t.sick else rows.permute(0, 3, 1, 2)

    given = split.inputs(as_read)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    optimizer, criterion = Adam(model.parameters(), 5e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(given.x), 32):
        descend(optimizer, criterion(model(given.x[rows]), given.y[rows]))
    accuracy = held_out(model, given.x_val, given.y_val)
    mixed = float((given.x - split.x).abs().mean())
    t.note(accuracy=accuracy, mixed=mixed)
    conclude(t, fault=mixed > 0.05, reached=accuracy > 0.8, harms=False)
