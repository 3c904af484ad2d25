"""MetricMisuse, on real trainings: what evaluations add up, and what is the best."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_compiled")]

CRITERION = nn.CrossEntropyLoss()
Evaluate = Callable[[nn.Module, "DataLoader[Any]"], Any]


def samples() -> TensorDataset:
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :3].argmax(1))


def held_out(**settings: Any) -> DataLoader[Any]:
    """A loader of 60 samples of 200, in batches of 16."""
    sampler = SubsetRandomSampler(range(140, 200))
    return DataLoader(samples(), 16, sampler=sampler, **settings)


def found(
    run_dir: Path,
    evaluate: Evaluate,
    loader: DataLoader[Any],
    keep: Callable[[Any, nn.Module], Any] = lambda *_: None,
) -> list[Finding]:
    """Train and evaluate five times; the program calls the result its accuracy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = samples().tensors
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(31):
            loss = CRITERION(model(x[:140]), y[:140])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 1:
                model.eval()
                with torch.no_grad():
                    accuracy = evaluate(model, loader)
                keep(accuracy, model)
                model.train()
    assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=[tdbg.rules.MetricMisuse()]).findings)


def of_whole_dataset(model: nn.Module, loader: DataLoader[Any]) -> float:
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader.dataset)  # type: ignore[arg-type]


def of_its_samples(model: nn.Module, loader: DataLoader[Any]) -> float:
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader.sampler)  # type: ignore[arg-type]


def of_what_it_counts(model: nn.Module, loader: DataLoader[Any]) -> float:
    correct, total = 0, 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return 100.0 * correct / total


def of_batches(model: nn.Module, loader: DataLoader[Any]) -> float:
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader)


def of_another_loader(model: nn.Module, loader: DataLoader[Any]) -> float:
    train_loader, correct = DataLoader(samples(), 32), 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(train_loader.dataset)  # type: ignore[arg-type]


@pytest.mark.parametrize("evaluate", [of_whole_dataset, of_another_loader])
def test_a_count_of_the_whole_dataset_is_found(
    tmp_path: Path, evaluate: Evaluate
) -> None:
    (said,) = found(tmp_path, evaluate, held_out())
    assert "by 200" in said.message
    assert "60 samples" in said.message
    assert "len(loader.sampler)" in said.advice


def test_samples_that_a_loader_drops_are_counted(tmp_path: Path) -> None:
    (said,) = found(
        tmp_path, of_whole_dataset, DataLoader(samples(), 64, drop_last=True)
    )
    assert "192 samples" in said.message


def test_a_count_of_the_batches_is_found(tmp_path: Path) -> None:
    (said,) = found(tmp_path, of_batches, held_out())
    assert "divides accuracy by 4" in said.message


@pytest.mark.parametrize("evaluate", [of_its_samples, of_what_it_counts])
def test_a_count_of_the_samples_is_right(tmp_path: Path, evaluate: Evaluate) -> None:
    assert not found(tmp_path, evaluate, held_out())


def test_a_loader_without_a_sampler_has_the_whole_dataset(tmp_path: Path) -> None:
    assert not found(tmp_path, of_whole_dataset, DataLoader(samples(), 64))


class Counts:
    """Right answers, and all, of evaluations."""

    def __init__(self, *, is_kept: bool) -> None:
        self.is_kept, self.right, self.n = is_kept, 0, 0

    def __call__(self, model: nn.Module, loader: DataLoader[Any]) -> float:
        if not self.is_kept:
            self.right = self.n = 0
        for x, y in loader:
            self.right += int((model(x).argmax(1) == y).sum())
            self.n += len(y)
        return self.right / self.n


def of_cells(model: nn.Module, loader: DataLoader[Any]) -> float:
    return share_of_cells(model, loader, lambda equal: equal)


def of_rows(model: nn.Module, loader: DataLoader[Any]) -> float:
    return share_of_cells(model, loader, lambda equal: equal.all(1))


def share_of_cells(
    model: nn.Module,
    loader: DataLoader[Any],
    read: Callable[[Tensor], Tensor],
    more: int = 0,
) -> float:
    parts = []
    for x, y in loader:
        labels = nn.functional.one_hot(y, 3).float()
        labels[:, more:] *= 1 if not more else 0
        outputs = model(x)
        answers = (torch.sigmoid(outputs) > 0.5).float()
        parts.append(read(answers == labels).float())
    return float(torch.cat(parts).mean())


def of_attributes(model: nn.Module, loader: DataLoader[Any]) -> float:
    return share_of_cells(model, loader, lambda equal: equal, more=1)


def test_cells_of_labels_with_one_class_are_no_samples(tmp_path: Path) -> None:
    (said,) = found(tmp_path, of_cells, held_out())
    assert "it counts cells, not samples" in said.message
    assert "all 0 would have 66.7%" in said.message
    assert "argmax(1)" in said.advice


@pytest.mark.parametrize("evaluate", [of_rows, of_attributes])
def test_rows_may_be_compared_and_attributes_counted(
    tmp_path: Path, evaluate: Evaluate
) -> None:
    assert not found(tmp_path, evaluate, held_out())


def test_counts_that_nobody_sets_to_zero_are_found(tmp_path: Path) -> None:
    (said,) = found(tmp_path, Counts(is_kept=True), held_out())
    assert "of all 3 evaluations so far" in said.message
    assert "metric.reset()" in said.advice


def test_counts_of_one_evaluation_are_right(tmp_path: Path) -> None:
    assert not found(tmp_path, Counts(is_kept=False), held_out())


def test_a_mean_over_ever_new_samples_may_be_meant(tmp_path: Path) -> None:
    class EverNew(Counts):
        def __call__(self, model: nn.Module, _: DataLoader[Any]) -> float:
            x = torch.randn(32, 4)
            self.right += int((model(x).argmax(1) == x[:, :3].argmax(1)).sum())
            self.n += 32
            return self.right / self.n

    assert not found(tmp_path, EverNew(is_kept=True), held_out())


# ---- what a loop makes of its batches ------------------------------------------------


def last_loss(model: nn.Module, loader: DataLoader[Any]) -> Any:
    for x, y in loader:
        loss = CRITERION(model(x), y)
    return loss


def last_share(model: nn.Module, loader: DataLoader[Any]) -> Any:
    for x, y in loader:
        out = model(x)
        acc = (out.argmax(1) == y).float().mean().item()
        print(acc)
    return acc


def f1_of_batches(model: nn.Module, loader: DataLoader[Any]) -> Any:
    scores = []
    for x, y in loader:
        answers = model(x).argmax(1)
        score = f1_score(y, answers, average="macro")
        scores.append(score)
    return sum(scores) / len(scores)


def perplexity_of_batches(model: nn.Module, loader: DataLoader[Any]) -> Any:
    ppl = 0.0
    for x, y in loader:
        ppl += math.exp(CRITERION(model(x), y).item())
    return ppl / len(loader)


@pytest.mark.parametrize(
    ("evaluate", "words"),
    [
        (last_loss, "loss is that of the last one alone"),
        (last_share, "acc is that of the last one alone"),
        (f1_of_batches, "averages f1_score over 4 batches"),
        (perplexity_of_batches, "the exponential of each batch's mean"),
    ],
)
def test_what_a_loop_makes_of_its_batches_is_found(
    tmp_path: Path, evaluate: Evaluate, words: str
) -> None:
    (said,) = found(tmp_path, evaluate, held_out())
    assert words in said.message


def running(model: nn.Module, loader: DataLoader[Any]) -> Any:
    right = n = 0
    for x, y in loader:
        right += int((model(x).argmax(1) == y).sum())
        n += len(y)
        acc = right / n
    return acc


def summed(model: nn.Module, loader: DataLoader[Any]) -> Any:
    total = 0.0
    for x, y in loader:
        loss = CRITERION(model(x), y)
        total += loss.item() * len(y)
    return total / len(loader.sampler), loss  # type: ignore[arg-type]


def one_batch(model: nn.Module, loader: DataLoader[Any]) -> Any:
    for i, (x, y) in enumerate(loader):
        loss = CRITERION(model(x), y)
        if i == 1:
            break
    return loss


def collected(model: nn.Module, loader: DataLoader[Any]) -> Any:
    labels, answers = [], []
    for x, y in loader:
        answers += model(x).argmax(1).tolist()
        labels += y.tolist()
    return f1_score(labels, answers, average="macro")


def mean_accuracy(model: nn.Module, loader: DataLoader[Any]) -> Any:
    scores = []
    for x, y in loader:
        scores.append(accuracy_score(y, model(x).argmax(1)))
    return sum(scores) / len(scores)


def asked_for(model: nn.Module, loader: DataLoader[Any]) -> Any:
    by_batch, scores = False, []
    for x, y in loader:
        out = model(x)
        scores.append(f1_score(y, out.argmax(1)) if by_batch else float(out.mean()))
    return sum(scores)


def last_outputs(model: nn.Module, loader: DataLoader[Any]) -> Any:
    for x, _ in loader:
        outputs = model(x)
    return outputs


@pytest.mark.parametrize(
    "evaluate",
    [running, summed, one_batch, collected, mean_accuracy, asked_for, last_outputs],
)
def test_what_may_be_meant_of_batches_is_silent(
    tmp_path: Path, evaluate: Evaluate
) -> None:
    assert not found(tmp_path, evaluate, held_out())


def test_a_batch_of_one_sample_has_its_own_score(tmp_path: Path) -> None:
    assert not found(tmp_path, f1_of_batches, DataLoader(samples(), 1))


def test_a_plateau_that_gets_the_last_loss_is_found(tmp_path: Path) -> None:
    class Scheduler:
        def step(self, value: Tensor) -> None:
            pass

    scheduler = Scheduler()

    def evaluate(model: nn.Module, loader: DataLoader[Any]) -> None:
        total = 0.0
        for x, y in loader:
            val_loss = CRITERION(model(x), y)
            total += val_loss.item()
        scheduler.step(val_loss)

    (said,) = found(tmp_path, evaluate, held_out())
    assert "val_loss" in said.message


# ---- the best ------------------------------------------------------------------------


class Saver:
    """Keeps the weights of the best model, and forgets how good it was."""

    def __init__(self) -> None:
        self.best_of_saver, self.weights = -math.inf, {}

    def __call__(self, value: Any, model: nn.Module) -> None:
        if value > self.best_of_saver:
            self.weights = copy.deepcopy(model.state_dict())


class GoodSaver(Saver):
    """Remembers how good it was."""

    def __init__(self) -> None:
        super().__init__()
        self.best_of_good = -math.inf

    def __call__(self, value: Any, model: nn.Module) -> None:
        if value > self.best_of_good + 1.0:
            self.best_of_good = value
            self.weights = copy.deepcopy(model.state_dict())


def test_a_best_that_nobody_sets_is_found(tmp_path: Path) -> None:
    (said,) = found(tmp_path, of_its_samples, held_out(), Saver())
    assert "still -inf" in said.message
    assert "the last model" in said.message


def test_a_best_that_has_not_changed_yet_is_silent(tmp_path: Path) -> None:
    keeper = GoodSaver()
    del keeper.best_of_saver
    keeper.best_of_good = 1e9
    assert not found(tmp_path, of_its_samples, held_out(), keeper)
