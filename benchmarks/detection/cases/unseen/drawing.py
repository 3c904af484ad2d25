"""Batches that are not drawn as somebody believes: ranks, workers, seeds, restarts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import N_CHARACTERS, digits, lines
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.models import Convolved, cnn, mlp
from benchmarks.detection.kit.training import Shadow, Training

Example = tuple[Tensor, Tensor]
RANKS = 4


def loader_of_rank(
    dataset: Dataset[Example], rank: int, seed: int, *, shared: bool
) -> DataLoader[Example]:
    """What each process builds for itself."""
    if shared:
        luck = torch.Generator().manual_seed(seed)
        sampler = RandomSampler(dataset, generator=luck)  # type: ignore[arg-type]
    else:
        sampler = DistributedSampler(dataset, RANKS, rank, seed=seed)  # type: ignore[assignment]
    return DataLoader(dataset, batch_size=16, sampler=sampler, drop_last=True)


def for_ever(loader: DataLoader[Example]) -> Iterator[Example]:
    """Epoch after epoch."""
    for epoch in itertools.count():
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader


@ninth.silent("same random numbers", "all ranks draw the same batches")
def ranks_draw_the_same_batches(t: Training) -> None:
    """Each of four processes has a RandomSampler, seeded alike; none a share.

    Gradients of the processes, which are played by one here, are averaged.
    Source: github.com/openspeech-team/openspeech/issues/149 ("Same batch in distributed
    backends"), k2-fsa/icefall/issues/1616 ("Identical Batches Across Multiple GPUs").
    Visible: the four batches of a step are one batch.
    """
    split = digits()
    dataset = TensorDataset(split.x, split.y)
    seed = 20 + t.seed
    ranks = [
        for_ever(loader_of_rank(dataset, rank, seed, shared=t.sick))  # type: ignore[arg-type]
        for rank in range(RANKS)
    ]
    model = mlp([64, 64, 10])
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    same = 0
    for _ in t.steps(160):
        batches = [next(rank) for rank in ranks]
        optimizer.zero_grad()
        for x, y in batches:
            (criterion(model(x), y) / RANKS).backward()
        optimizer.step()
        same += all(torch.equal(x, batches[0][0]) for x, _ in batches)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(same=same, accuracy=accuracy)
    conclude(t, fault=same > 100, reached=accuracy > 0.9, harms=False)


class Is8(Dataset[Example]):
    """Whether an image is an 8: one in ten is."""

    def __init__(self) -> None:
        split = digits()
        self.x = torch.cat((split.x, split.x_val))
        self.labels = (torch.cat((split.y, split.y_val)) == 8).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Example:
        return self.x[i], self.labels[i]


@ninth.silent("weights of other rows", "the sampler's weights are those of other rows")
def sampler_weighs_other_rows(t: Training) -> None:
    """Weights are made of the whole dataset's labels, the loader reads a Subset.

    Source: the documentation of WeightedRandomSampler (it draws 0 .. len(weights) - 1,
    places in what the loader reads).
    Visible: fewer than a quarter of what is drawn are 8s, where half should be.
    """
    dataset = Is8()
    order = torch.randperm(
        len(dataset), generator=torch.Generator().manual_seed(9)
    ).tolist()
    train_set, test_set = Subset(dataset, order[:1300]), Subset(dataset, order[1300:])
    labels = dataset.labels if t.sick else dataset.labels[train_set.indices]
    weights = (1.0 / torch.bincount(labels).float())[labels][: len(train_set)]
    sampler = WeightedRandomSampler(weights.tolist(), len(train_set), generator=t.order)
    loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    model = cnn(4)
    model[-1] = nn.Linear(64, 2)
    optimizer, criterion = Adam(model.parameters(), lr=2e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    steps = t.steps(5 * len(loader))
    eights, drawn = 0, 0
    for _ in range(5):
        for x, y in loader:
            next(steps)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            eights, drawn = eights + int(y.sum()), drawn + len(y)
    next(steps, None)
    x, y = (torch.stack(part) for part in zip(*test_set, strict=True))
    accuracy = held_out(model, x, y)
    found = held_out(model, x[y == 1], y[y == 1])
    t.note(share=eights / drawn, found=found, accuracy=accuracy)
    conclude(t, fault=eights / drawn < 0.25, reached=accuracy > 0.9, harms=False)


class Stream(IterableDataset[Example]):
    """Lines of code and their module, one after the other."""

    def __init__(self, x: Tensor, y: Tensor, seed: int, *, sharded: bool) -> None:
        self.x, self.y, self.seed, self.sharded = x, y, seed, sharded
        self.worker, self.n_workers = 0, 1

    def __iter__(self) -> Iterator[Example]:
        for epoch in itertools.count():
            luck = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(len(self.x), generator=luck).tolist()
            if self.sharded:
                order = order[self.worker :: self.n_workers]
            for i in order:
                yield self.x[i], self.y[i]


def of_workers(stream: Stream, n: int, size: int) -> Iterator[Example]:
    """Batches of n worker processes in turn; each has a copy of the dataset."""
    iterators = []
    for worker in range(n):
        mine = copy.deepcopy(stream)
        mine.worker, mine.n_workers = worker, n
        iterators.append(iter(mine))
    for iterator in itertools.cycle(iterators):
        batch = list(itertools.islice(iterator, size))
        yield torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])


@ninth.silent("same random numbers", "each worker reads the whole stream")
def workers_repeat_the_stream(t: Training) -> None:
    """An IterableDataset that does not ask ``get_worker_info()``, and 4 workers.

    Workers are copies in one process here.
    Source: github.com/huggingface/datasets/issues/3423 ("data duplicate when setting
    num_works > 1"), pytorch/pytorch/issues/30599, vahidk/tfrecord/issues/78,
    huggingface/finetrainers/pull/415.
    Visible: most batches are the one before, again.
    """
    split = lines(24)
    stream = Stream(split.x, split.y, 100 * t.seed, sharded=not t.sick)
    loader = of_workers(stream, n=4, size=32)
    model = Convolved(N_CHARACTERS, 5)
    optimizer, criterion = Adam(model.parameters(), lr=4e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    repeated, before = 0, torch.empty(0)
    for _ in t.steps(200):
        x, y = next(loader)
        repeated += torch.equal(x, before)
        before = x
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(repeated=repeated, accuracy=accuracy)
    conclude(t, fault=repeated > 100, reached=accuracy > 0.52, harms=False)


class Denoiser(nn.Module):
    """Says what noise was added to an image, given how much."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([65, 160, 160, 64], nn.SiLU)

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        return self.body(torch.cat((noisy, level), 1))


@torch.no_grad()
def sampled(model: nn.Module, noise: Tensor) -> Tensor:
    """Some images, by ten steps from noise."""
    x = noise
    for level in torch.linspace(1, 0.1, 10):
        told = model(x, level.expand(len(x), 1))
        clean = (x - level * told) / (1 - level).clamp(min=0.1)
        x = (1 - (level - 0.1)) * clean.clamp(-1, 1) + (level - 0.1) * told
    return x


@ninth.silent("same random numbers", "showing samples seeds the training's noise anew")
def samples_seed_the_training(t: Training) -> None:
    """``generator = torch.manual_seed(0)`` for the samples that are shown at times.

    Source: github.com/huggingface/diffusers/issues/175 (noise and timesteps are
    sampled with the global seed: every time samples are made it starts anew).
    Visible: fewer than a tenth of the noise of 400 steps is new, and the loss on fresh
    noise is a quarter above that on the noise of the training.
    """
    split = digits().inputs(lambda x: 2 * x - 1)
    model = Denoiser()
    optimizer, criterion = Adam(model.parameters(), lr=2e-3), nn.MSELoss()
    shown = Shadow(model)
    t.watch(model, criterion)
    seen: set[float] = set()
    last: list[tuple[Tensor, Tensor]] = []
    for step, rows in t.batches(400, len(split.x), 32, drop_last=True):
        x = split.x[rows]
        noise, level = torch.randn(x.shape), torch.rand(len(x), 1)
        seen.add(float(noise[0, 0]))
        last = [*last[-9:], (noise, level)]
        told = model((1 - level) * x + level * noise, level)
        loss = criterion(told, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            luck = torch.Generator().manual_seed(0)
            if t.sick:
                luck = torch.manual_seed(0)
            sampled(shown(), torch.randn(8, 64, generator=luck))

    def error(noise: Tensor, level: Tensor) -> float:
        x = split.x_val[: len(noise)]
        mixed = (1 - level) * x + level * noise
        return float(
            in_evaluation(model, lambda: criterion(model(mixed, level), noise))
        )

    luck = torch.Generator().manual_seed(5)
    fresh = sum(
        error(torch.randn(32, 64, generator=luck), torch.rand(32, 1, generator=luck))
        for _ in range(10)
    )
    known = sum(error(noise, level) for noise, level in last)
    t.note(seen=len(seen), fresh=fresh / 10, known=known / 10)
    told_apart = fresh > 1.25 * known
    conclude(t, fault=len(seen) < 40, reached=fresh / 10 < 0.45 and not told_apart)


class Job:
    """A training on a machine that is taken away; another goes on from the file."""

    def __init__(self, seed: int) -> None:
        self.model = mlp([64, 96, 10])
        self.optimizer = Adam(self.model.parameters(), lr=2e-3)
        self.split, self.seed, self.done = digits(), seed, 0
        self.rows: set[int] = set()

    def save(self) -> dict[str, object]:
        """All that is written."""
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "done": self.done,
            }
        )

    def load(self, checkpoint: dict[str, object]) -> None:
        """And all that is read."""
        self.model.load_state_dict(checkpoint["model"])  # type: ignore[arg-type]
        self.optimizer.load_state_dict(checkpoint["optimizer"])  # type: ignore[arg-type]
        self.done = int(checkpoint["done"])  # type: ignore[call-overload]

    def batches(self, skip: int) -> Iterator[Tensor]:
        """The order of the whole training; its first batches are left out."""
        luck = torch.Generator().manual_seed(self.seed)
        while True:
            for rows in torch.randperm(len(self.split.x), generator=luck).split(32):
                if skip:
                    skip -= 1
                else:
                    yield rows


@ninth.silent(
    "few samples of many", "each restart begins with the first batches of the order"
)
def restarts_with_the_first_batches(t: Training) -> None:
    """The job is preempted every 10 batches; the loader begins anew, seeded alike.

    Source: github.com/kyutai-labs/pocket-tts/pull/287 ("every relaunch replays the same
    shuffle permutation from position zero"), pytorch/pytorch/issues/36650,
    facebookresearch/dinov2/issues/341.
    Visible: fewer than a third of the rows was ever seen after four epochs' worth.
    """
    job = Job(t.seed)
    criterion = nn.CrossEntropyLoss()
    t.watch(job.model, criterion)
    checkpoint, steps = job.save(), t.steps(170)
    for _ in range(17):
        job.load(checkpoint)
        drawn = job.batches(skip=0 if t.sick else job.done)
        for _ in range(10):
            next(steps)
            rows = next(drawn)
            job.rows.update(rows.tolist())
            job.optimizer.zero_grad()
            criterion(job.model(job.split.x[rows]), job.split.y[rows]).backward()
            job.optimizer.step()
            job.done += 1
        checkpoint = job.save()
    accuracy = held_out(job.model, job.split.x_val, job.split.y_val)
    seen = len(job.rows) / len(job.split.x)
    t.note(seen=seen, accuracy=accuracy)
    conclude(t, fault=seen < 1 / 3, reached=accuracy > 0.88, harms=False)
