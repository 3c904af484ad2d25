"""LoaderMisuse, on trainings that go through the loader of validation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.data.loader_misuse import LoaderMisuse

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_compiled")]


class Trainer:
    """A small network, two parts of its data, and a hook."""

    def __init__(self, out: Path) -> None:
        torch.manual_seed(0)
        x = torch.randn(120, 4)
        data = TensorDataset(x, x[:, :3].argmax(1))
        self.parts = random_split(data, [80, 40])
        self.model, self.criterion = (
            nn.Sequential(nn.Linear(4, 3)),
            nn.CrossEntropyLoss(),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.out, self.hook = out, td.watch(self.model, self.criterion, out=out)

    def loaders(self) -> tuple[DataLoader[Any], DataLoader[Any]]:
        return DataLoader(self.parts[0], 20, shuffle=True), DataLoader(
            self.parts[1], 20
        )

    def step(self, x: Tensor, y: Tensor) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        self.criterion(self.model(x), y).backward()
        self.optimizer.step()

    def evaluate(self, loader: DataLoader[Any]) -> None:
        self.model.eval()
        with torch.no_grad():
            for x, y in loader:
                self.criterion(self.model(x), y)

    def said(self) -> list[str]:
        assert self.hook.counters()["internal_errors"] == 0
        self.hook.close()
        found = check(self.out, [LoaderMisuse()], record=False).findings
        return [each.message for each in found]


def test_a_training_on_the_loader_of_validation_is_found(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    idle_train_loader, val_loader = trainer.loaders()
    train_dl = idle_train_loader
    print(len(train_dl), len(idle_train_loader))
    for _ in range(3):
        for x, y in val_loader:
            trainer.step(x, y)
        trainer.evaluate(val_loader)
    (said,) = trainer.said()
    assert "goes through val_loader" in said
    assert "nothing in your program uses train_dl" in said


def test_a_training_on_its_own_loader_is_right(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    train_loader, val_loader = trainer.loaders()
    for _ in range(3):
        for x, y in train_loader:
            trainer.step(x, y)
        trainer.evaluate(val_loader)
    assert not trainer.said()


def test_validation_data_may_train_after_the_training_data(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    training_loader, test_loader = trainer.loaders()
    for x, y in training_loader:
        trainer.step(x, y)
    for _ in range(3):
        for x, y in test_loader:
            trainer.step(x, y)
        trainer.evaluate(test_loader)
    assert not trainer.said()


def test_one_loader_with_two_names_is_that_of_training(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    tr_loader, _ = trainer.loaders()
    eval_loader = tr_loader
    for _ in range(3):
        for x, y in eval_loader:
            trainer.step(x, y)
        trainer.evaluate(eval_loader)
    assert not trainer.said()


class Images(Dataset[Any]):
    """Samples that go through a transform."""

    def __init__(self, transform: Any) -> None:
        self.x = torch.randn(120, 4, generator=torch.Generator().manual_seed(1))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        x = self.x[index]
        return self.transform(x), int(x[:3].argmax())


def noisy(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


def plain(x: Tensor) -> Tensor:
    return x.clone()


def said_of(out: Path, train_set: Any, test_set: Any, **named: Any) -> list[str]:
    trainer, _ = Trainer(out), named
    if named:
        train_transform, test_transform = named["train"], named["test"]
        assert train_transform is not test_transform
    training, testing = DataLoader(train_set, 20), DataLoader(test_set, 20)
    for _ in range(3):
        for x, y in training:
            trainer.step(x, y)
        trainer.evaluate(testing)
    return trainer.said()


def test_a_transform_of_evaluation_that_both_parts_have_is_found(
    tmp_path: Path,
) -> None:
    train_set, test_set = random_split(Images(noisy), [80, 40])
    test_set.dataset.transform = plain  # type: ignore[attr-defined]
    said = said_of(tmp_path, train_set, test_set, train=noisy, test=plain)
    (text,) = (each for each in said if "transform" in each)
    assert "whose transform is test_transform" in text
    assert "not through train_transform" in text


def test_parts_with_datasets_of_their_own_are_right(tmp_path: Path) -> None:
    train_set = Subset(Images(noisy), range(80))
    test_set = Subset(Images(plain), range(80, 120))
    assert not said_of(tmp_path, train_set, test_set, train=noisy, test=plain)


def test_a_transform_for_both_parts_may_be_meant(tmp_path: Path) -> None:
    train_set, test_set = random_split(Images(plain), [80, 40])
    assert not said_of(tmp_path, train_set, test_set)


def test_parts_that_have_the_transform_of_training_are_not_meant_here(
    tmp_path: Path,
) -> None:
    train_set, test_set = random_split(Images(noisy), [80, 40])
    assert not said_of(tmp_path, train_set, test_set, train=noisy, test=plain)


# ---- cycles --------------------------------------------------------------------------


def cycled(out: Path, loader: DataLoader[Any], n_steps: int = 12) -> list[str]:
    trainer = Trainer(out)
    _, testing = trainer.loaders()
    batches = itertools.cycle(loader)
    for step in range(n_steps):
        trainer.step(*next(batches))
        if step % 3 == 1:
            trainer.evaluate(testing)
    return [each for each in trainer.said() if "cycle" in each]


def many(*, shuffle: bool) -> DataLoader[Any]:
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 20, shuffle=shuffle)


def test_batches_that_a_cycle_keeps_are_found(tmp_path: Path) -> None:
    (said,) = cycled(tmp_path, many(shuffle=True))
    assert "keeps the 4 batches of the first epoch" in said


def test_a_cycle_without_an_order_to_change_may_be_meant(tmp_path: Path) -> None:
    assert not cycled(tmp_path, many(shuffle=False))


def test_a_cycle_in_its_first_epoch_has_kept_nothing(tmp_path: Path) -> None:
    assert not cycled(tmp_path, many(shuffle=True), n_steps=4)


def test_a_loader_that_begins_anew_is_right(tmp_path: Path) -> None:
    def cycle(loader: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from loader

    trainer = Trainer(tmp_path)
    train_loader, testing = trainer.loaders()
    batches = cycle(train_loader)
    for step in range(12):
        trainer.step(*next(batches))
        if step % 3 == 1:
            trainer.evaluate(testing)
    assert not trainer.said()
