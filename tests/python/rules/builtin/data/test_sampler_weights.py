"""LoaderMisuse, on samplers whose weights are wrong, and on iterators at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.data.loader_misuse import LoaderMisuse

pytestmark = pytest.mark.torch

COUNTS = torch.tensor([60, 24, 12])
N = int(COUNTS.sum())


def data() -> TensorDataset:
    torch.manual_seed(0)
    labels = torch.arange(3).repeat_interleave(COUNTS)[torch.randperm(N)]
    return TensorDataset(torch.randn(N, 4), labels)


def labels_of(dataset: TensorDataset) -> Tensor:
    return dataset.tensors[1]


def told(out: Path, batches: Iterator[Any]) -> list[str]:
    torch.manual_seed(0)
    model, criterion = nn.Sequential(nn.Linear(4, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, criterion, out=out)
    for x, labels in batches:
        optimizer.zero_grad()
        criterion(model(x), labels).backward()
        optimizer.step()
    hook.close()
    found = check(out, [LoaderMisuse()], record=False).findings
    return [each.message for each in found]


def drawn(
    dataset: Any, weights: Tensor, n: int = N, *, replacement: bool = True
) -> Iterator[Any]:
    sampler = WeightedRandomSampler(weights.tolist(), n, replacement=replacement)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for _ in range(2):
        yield from loader


BALANCED = 1 / COUNTS
OTHERS: dict[str, Tensor] = {
    "grow with the number": COUNTS / N,
    "of another class": BALANCED[torch.tensor([1, 0, 2])],
}


@pytest.mark.parametrize("words", OTHERS)
def test_weights_of_other_classes_are_found(tmp_path: Path, words: str) -> None:
    dataset = data()
    (said,) = told(tmp_path, drawn(dataset, OTHERS[words][labels_of(dataset)]))
    assert words in said


def test_weights_of_a_part_are_compared_with_its_labels(tmp_path: Path) -> None:
    dataset = data()
    part = Subset(dataset, range(0, N, 2))
    labels = labels_of(dataset)[::2]
    shares = labels.bincount() / len(labels)
    assert told(tmp_path / "sick", drawn(part, shares[labels], N // 2))
    assert not told(tmp_path / "healthy", drawn(part, (1 / shares)[labels], N // 2))


def test_weights_in_another_order_are_found(tmp_path: Path) -> None:
    dataset = data()
    before = torch.arange(3).repeat_interleave(COUNTS)
    (said,) = told(tmp_path, drawn(dataset, BALANCED[before]))
    assert "in another order" in said


def test_weights_without_replacement_are_found(tmp_path: Path) -> None:
    dataset = data()
    weights = BALANCED[labels_of(dataset)]
    (said,) = told(tmp_path, drawn(dataset, weights, replacement=False))
    assert "change only the order" in said


MEANT: dict[str, Callable[[TensorDataset], Iterator[Any]]] = {
    "balanced": lambda each: drawn(each, BALANCED[labels_of(each)]),
    "half way": lambda each: drawn(each, BALANCED.sqrt()[labels_of(each)]),
    "chosen": lambda each: drawn(each, torch.tensor([1.0, 2, 5])[labels_of(each)]),
    "equal": lambda each: drawn(each, torch.ones(N), replacement=False),
    "some": lambda each: drawn(
        each, BALANCED[labels_of(each)], N // 3, replacement=False
    ),
    "of each sample": lambda each: drawn(each, torch.rand(N)),
}


@pytest.mark.parametrize("name", MEANT)
def test_weights_that_are_meant_are_silent(tmp_path: Path, name: str) -> None:
    assert not told(tmp_path, MEANT[name](data()))


def test_an_iterator_at_its_end_is_found(tmp_path: Path) -> None:
    def epochs() -> Iterator[Any]:
        batches = iter(DataLoader(data(), batch_size=8, shuffle=True))
        for _ in range(5):
            yield from batches

    (said,) = told(tmp_path, epochs())
    assert "come to its end" in said


def test_an_iterator_that_begins_anew_is_silent(tmp_path: Path) -> None:
    loader = DataLoader(data(), batch_size=8, shuffle=True)

    def steps() -> Iterator[Any]:
        batches = iter(loader)
        for _ in range(60):
            try:
                yield next(batches)
            except StopIteration:
                batches = iter(loader)

    assert not told(tmp_path, steps())
