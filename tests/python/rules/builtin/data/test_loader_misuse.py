"""LoaderMisuse, on loaders that deliver other samples than a program means."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.data.loader_misuse import LoaderMisuse
from tdbg.run.findings import Severity

pytestmark = pytest.mark.torch
INFO, WARNING = Severity.INFO, Severity.WARNING
WIDTH, N = 8, 96
Batches = Iterator[Any]
Said = list[tuple[Severity, str]]


@pytest.fixture(autouse=True)
def _child_handler() -> Iterator[None]:
    """PyTorch handles the ends of workers, and goes on to."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def data() -> TensorDataset:
    torch.manual_seed(0)
    x = torch.randn(N, WIDTH)
    return TensorDataset(x, x[:, :3].argmax(1))


def judged(out: Path, batches: Batches) -> Said:
    model, criterion = nn.Sequential(nn.Linear(WIDTH, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, criterion, out=out)
    for x, labels in batches:
        optimizer.zero_grad()
        criterion(model(x), labels).backward()
        optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    found = check(out, [LoaderMisuse()], record=False).findings
    return [(each.severity, each.message) for each in found]


def epochs(loader: DataLoader[Any], n: int = 4) -> Batches:
    for _ in range(n):
        yield from loader


class Noisy(Dataset[Any]):
    """Adds noise from NumPy's generator, or from its own."""

    def __init__(self, own: np.random.Generator | None = None) -> None:
        self._data, self.own = data(), own

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        x, label = self._data[index]
        noise = np.random if self.own is None else self.own
        return x + torch.from_numpy(noise.normal(size=WIDTH)).float(), label


class OfIndex(Noisy):
    """Seeds a generator for each sample."""

    def __getitem__(self, index: int) -> Any:
        x, label = self._data[index]
        own = np.random.default_rng(index)
        return x + torch.from_numpy(own.normal(size=WIDTH)).float(), label


def by_five(_: int) -> None:
    np.random.seed(5)  # noqa: NPY002


def by_worker(worker: int) -> None:
    np.random.seed(worker)  # noqa: NPY002


# ---- random numbers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "init", "source"),
    [
        (Noisy, by_five, "numpy.random"),
        (lambda: Noisy(np.random.default_rng(0)), None, "its own generator"),
        (
            lambda: Subset(Noisy(np.random.default_rng(0)), [*range(80)]),
            None,
            "its own generator",
        ),
    ],
    ids=["seeded alike", "copied generator", "of a subset"],
)
def test_workers_that_draw_alike(
    tmp_path: Path,
    dataset: Callable[[], Dataset[Any]],
    init: Callable[[int], None] | None,
    source: str,
) -> None:
    loader = DataLoader(dataset(), 8, True, num_workers=2, worker_init_fn=init)
    ((severity, message),) = judged(tmp_path / "run", epochs(loader, 2))
    assert severity is WARNING
    assert (
        f"2 workers of the data loader draw the same random numbers from {source}"
        in (message)
    )


@pytest.mark.parametrize(
    ("dataset", "init"),
    [
        (Noisy, None),
        (OfIndex, None),
        # No random numbers are drawn.
        (data, by_five),
    ],
    ids=["seeded by PyTorch", "by index", "no augmentation"],
)
def test_workers_that_draw_apart(
    tmp_path: Path,
    dataset: Callable[[], Dataset[Any]],
    init: Callable[[int], None] | None,
) -> None:
    loader = DataLoader(dataset(), 8, True, num_workers=2, worker_init_fn=init)
    assert judged(tmp_path / "run", epochs(loader)) == []


def test_epochs_that_draw_alike(tmp_path: Path) -> None:
    def loader(*, shuffle: bool) -> DataLoader[Any]:
        return DataLoader(Noisy(), 8, shuffle, num_workers=2, worker_init_fn=by_worker)

    ((severity, message),) = judged(tmp_path / "one", epochs(loader(shuffle=False)))
    assert severity is WARNING
    assert "draws the same random numbers from numpy.random in each epoch" in message
    assert "in the same order, too" in message
    ((severity, message),) = judged(tmp_path / "other", epochs(loader(shuffle=True)))
    assert severity is INFO


def test_epochs_are_seeded_in_the_loop(tmp_path: Path) -> None:
    def seeded(seed: Callable[[int], int]) -> Batches:
        loader = DataLoader(Noisy(), 16)
        for epoch in range(4):
            np.random.seed(seed(epoch))  # noqa: NPY002
            yield from loader

    ((severity, message),) = judged(tmp_path / "sick", seeded(lambda _: 3))
    assert severity is WARNING
    assert "it began 3 epochs in the same state" in message
    assert judged(tmp_path / "twin", seeded(lambda epoch: epoch)) == []


# ---- batches and samples -------------------------------------------------------------


def always_first(loader: DataLoader[Any]) -> Batches:
    for _ in range(30):
        yield next(iter(loader))


def left_early(loader: DataLoader[Any]) -> Batches:
    """The generator holds the iterator while its batch is used."""
    for _ in range(30):
        for batch in loader:
            yield batch
            break


def test_a_loader_that_begins_anew_for_each_batch(tmp_path: Path) -> None:
    loader = DataLoader(data(), 16)
    ((severity, message),) = judged(tmp_path / "run", always_first(loader))
    assert severity is WARNING
    assert "uses only the first of 6 batches" in message


@pytest.mark.parametrize(
    "batches",
    [
        lambda: always_first(DataLoader(data(), 16, shuffle=True)),
        lambda: left_early(DataLoader(data(), 16)),
        lambda: always_first(DataLoader(data(), N)),
        lambda: epochs(DataLoader(data(), 16), 24),
    ],
    ids=["random batches", "overfits one", "all samples", "epochs"],
)
def test_batches_that_are_meant(tmp_path: Path, batches: Callable[[], Batches]) -> None:
    assert judged(tmp_path / "run", batches()) == []


def test_weights_of_classes_draw_the_first_samples_only(tmp_path: Path) -> None:
    every = data()
    labels = every.tensors[1]
    weights = 1 / torch.bincount(labels).double()

    def drawn(weights: torch.Tensor) -> Batches:
        sampler = WeightedRandomSampler(weights.tolist(), N)
        return epochs(DataLoader(every, 16, sampler=sampler), 2)

    ((severity, message),) = judged(tmp_path / "sick", drawn(weights))
    assert severity is WARNING
    assert "has 3 weights, and TensorDataset has 96 samples" in message
    assert judged(tmp_path / "twin", drawn(weights[labels])) == []


class Stored(Dataset[Any]):
    """Holds samples in memory, and does something when it gives one."""

    def __init__(self, give: Callable[[Any, int], Any], *, as_list: bool) -> None:
        x, self.labels = data().tensors
        self.x: Any = [*x.numpy().copy()] if as_list else x.clone()
        self.cache, self.counts = torch.zeros(N, WIDTH), torch.zeros(N, 2)
        self._give = give

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self._give(self, index)).clone(), self.labels[index]


def adds_noise(own: Stored, index: int) -> Any:
    own.x[index] += 0.1
    return own.x[index]


def standardizes(own: Stored, index: int) -> Any:
    x = own.x[index]
    x -= x.mean()
    x /= x.std() + 0.1
    return x


def adds_to_a_copy(own: Stored, index: int) -> Any:
    return own.x[index] + 0.1


def fills_a_cache(own: Stored, index: int) -> Any:
    if not own.cache[index].any():
        own.cache[index] = torch.as_tensor(own.x[index])
    return own.cache[index]


def counts_draws(own: Stored, index: int) -> Any:
    own.counts[index] += 1
    return own.x[index]


@pytest.mark.parametrize("as_list", [False, True], ids=["tensor", "arrays"])
@pytest.mark.parametrize("give", [adds_noise, standardizes])
def test_a_dataset_that_changes_its_samples(
    tmp_path: Path, give: Callable[[Any, int], Any], as_list: bool
) -> None:
    part = Subset(Stored(give, as_list=as_list), [*range(10, 90)])
    found = judged(tmp_path / "run", epochs(DataLoader(part, 8, shuffle=True)))
    ((severity, message),) = found
    assert severity is WARNING
    assert "writes to the array in Stored.x" in message


@pytest.mark.parametrize("give", [adds_to_a_copy, fills_a_cache, counts_draws])
def test_a_dataset_that_keeps_its_samples(
    tmp_path: Path, give: Callable[[Any, int], Any]
) -> None:
    stored = Stored(give, as_list=False)
    loader = DataLoader(stored, 8, shuffle=True)
    assert judged(tmp_path / "run", epochs(loader)) == []


# ---- parts of a dataset --------------------------------------------------------------


class Counted(Noisy):
    """Counts the samples that it gives."""

    n_given = 0

    def __getitem__(self, index: int) -> Any:
        self.n_given += 1
        return super().__getitem__(index)


class Wraps(Dataset[Any]):
    """Gives the samples of another dataset."""

    def __init__(self) -> None:
        self.inner = Counted()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


def test_a_dataset_in_another_gives_no_sample_more(tmp_path: Path) -> None:
    """It would take random numbers from the training."""
    dataset = Wraps()
    judged(tmp_path / "run", epochs(DataLoader(dataset, 8, shuffle=True)))
    assert dataset.inner.n_given == 4 * N


def evaluated(out: Path, training: Any, evaluation: Any) -> Said:
    model, criterion = nn.Sequential(nn.Linear(WIDTH, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with td.watch(model, criterion, out=out):
        for _ in range(3):
            for x, labels in training:
                optimizer.zero_grad()
                criterion(model(x), labels).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, labels in evaluation:
                    criterion(model(x), labels)
            model.train()
    found = check(out, [LoaderMisuse()], record=False).findings
    return [(each.severity, each.message) for each in found]


@pytest.mark.parametrize("by_sampler", [False, True])
def test_parts_that_overlap(tmp_path: Path, by_sampler: bool) -> None:
    every = Noisy()
    if by_sampler:
        training = DataLoader(every, 8, sampler=SubsetRandomSampler(range(80)))
        evaluation = DataLoader(every, 8, sampler=SubsetRandomSampler(range(64, 96)))
    else:
        training = DataLoader(Subset(every, [*range(80)]), 8, shuffle=True)
        evaluation = DataLoader(Subset(every, [*range(64, 96)]), 8)
    ((severity, message),) = evaluated(tmp_path / "run", training, evaluation)
    assert severity is WARNING
    assert "16 of the 32 indices" in message


@pytest.mark.parametrize(
    ("trained", "told"),
    [
        (range(64), range(64, 96)),
        (range(64), range(16)),
        (range(64), range(96)),
        (range(64), range(62, 96)),
    ],
    ids=["apart", "training data", "all data", "two"],
)
def test_parts_that_are_meant(tmp_path: Path, trained: range, told: range) -> None:
    every = Noisy()
    training = DataLoader(Subset(every, [*trained]), 8, shuffle=True)
    evaluation = DataLoader(Subset(every, [*told]), 8)
    assert evaluated(tmp_path / "run", training, evaluation) == []


def test_folds_are_apart(tmp_path: Path) -> None:
    every, model, criterion = data(), nn.Linear(WIDTH, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with td.watch(model, criterion, out=tmp_path / "run"):
        for fold in np.arange(N).reshape(4, -1):
            rest = np.setdiff1d(np.arange(N), fold)
            for x, labels in DataLoader(Subset(every, rest.tolist()), 8, shuffle=True):
                optimizer.zero_grad()
                criterion(model(x), labels).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, labels in DataLoader(Subset(every, fold.tolist()), 8):
                    criterion(model(x), labels)
            model.train()
    assert check(tmp_path / "run", [LoaderMisuse()], record=False).findings == ()


# ---- caches ----------------------------------------------------------------------


def add_noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(WIDTH)


class Cached(Dataset[Any]):
    """Keeps its samples in a dictionary, before or after a transform."""

    def __init__(self, *, is_transform_kept: bool) -> None:
        self._data, self._cache = data(), dict[int, Any]()
        self.transform, self._is_kept = add_noise, is_transform_kept

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index not in self._cache:
            x, label = self._data[index]
            self._cache[index] = self.transform(x) if self._is_kept else x, label
        x, label = self._cache[index]
        return x if self._is_kept else self.transform(x), label


class Remembering(Dataset[Any]):
    """The same by ``lru_cache``, and its transform has another name."""

    def __init__(self) -> None:
        self._data, self.augmentation = data(), add_noise
        self._get = functools.lru_cache(None)(self._make)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self._get(index)

    def _make(self, index: int) -> Any:
        x, label = self._data[index]
        return self.augmentation(x), label


class MadeUp(Dataset[Any]):
    """Samples that are drawn when they are asked for first."""

    def __init__(self) -> None:
        self._made = dict[int, Any]()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index not in self._made:
            self._made[index] = torch.randn(WIDTH), index % 3
        return self._made[index]


class SeededLater(Noisy):
    """Draws in the first batch only, to choose what it leaves out."""

    left_out: frozenset[int] = frozenset()

    def __getitem__(self, index: int) -> Any:
        if not self.left_out:
            self.left_out = frozenset({int(torch.randint(N, ()))})
        return self._data[index]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cached(is_transform_kept=True),
        lambda: Subset(Cached(is_transform_kept=True), range(64)),
        Remembering,
    ],
)
def test_samples_that_are_augmented_once(
    tmp_path: Path, make: Callable[[], Dataset[Any]]
) -> None:
    loader = DataLoader(make(), 8, shuffle=True)
    ((severity, message),) = judged(tmp_path / "run", epochs(loader))
    assert severity is WARNING
    assert "is augmented once" in message


def test_samples_that_are_made_up_once_are_a_note(tmp_path: Path) -> None:
    loader = DataLoader(MadeUp(), 8, shuffle=True)
    ((severity, message),) = judged(tmp_path / "run", epochs(loader))
    assert severity is INFO
    assert "fine if your dataset makes its samples up" in message


@pytest.mark.parametrize(
    "make",
    [lambda: Cached(is_transform_kept=False), Noisy, SeededLater, data],
)
def test_samples_that_are_augmented_anew(
    tmp_path: Path, make: Callable[[], Dataset[Any]]
) -> None:
    loader = DataLoader(make(), 8, shuffle=True)
    assert judged(tmp_path / "run", epochs(loader)) == []
