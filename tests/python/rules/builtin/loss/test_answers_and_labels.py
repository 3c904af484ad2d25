"""MetricMisuse, on real trainings: answers that meet other labels than their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    precision_score,
    r2_score,
    recall_score,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_compiled")]

Evaluate = Callable[[nn.Module, "DataLoader[Any]"], Any]
CLASSES, BITS, NUMBERS = nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(), nn.MSELoss()
SUMS = nn.CrossEntropyLoss(reduction="sum")
X = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(1)
Y_TEST, Y_ARRAY = Y[140:], Y[140:].numpy()
SUM = X.sum(1) / 2
SUM_TEST = SUM[140:].numpy()


def loader_of(*, shuffle: bool, labels: Tensor = Y) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X[140:], labels[140:]), 16, shuffle=shuffle)


def found(
    run_dir: Path,
    evaluate: Evaluate,
    loader: DataLoader[Any],
    criterion: nn.Module = CLASSES,
    labels: Tensor = Y,
) -> list[Finding]:
    """Train and evaluate five times."""
    torch.manual_seed(0)
    head = nn.Linear(16, 3) if criterion is CLASSES else nn.Linear(16, 1)
    last = [] if criterion is CLASSES else [nn.Flatten(0)]
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), head, *last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(31):
            loss = criterion(model(X[:140]), labels[:140])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 1:
                model.eval()
                with torch.no_grad():
                    evaluate(model, loader)
                model.train()
    assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=[tdbg.rules.MetricMisuse()]).findings)


# ---- labels and answers in each other's place ----------------------------------------


def both(model: nn.Module, loader: DataLoader[Any]) -> tuple[Any, Any]:
    true, predicted = [], []
    for x, y in loader:
        true.append(y.numpy())
        predicted.append(model(x).argmax(1).cpu().numpy())
    return np.concatenate(true), np.concatenate(predicted)


def exchanged_precision(model: nn.Module, loader: DataLoader[Any]) -> None:
    true, predicted = both(model, loader)
    precision_score(predicted, true, average="macro")


def exchanged_matrix_of_lists(model: nn.Module, loader: DataLoader[Any]) -> None:
    true, predicted = [], []
    for x, y in loader:
        true += y.tolist()
        predicted += model(x).max(1)[1].tolist()
    confusion_matrix(predicted, true)


def exchanged_in_numpy(model: nn.Module, loader: DataLoader[Any]) -> None:
    outputs = np.concatenate([model(x).numpy() for x, _ in loader])
    recall_score(outputs.argmax(1), Y_ARRAY, average="macro")


@pytest.mark.parametrize(
    "evaluate", [exchanged_precision, exchanged_matrix_of_lists, exchanged_in_numpy]
)
def test_answers_in_the_place_of_labels_are_named(
    evaluate: Evaluate, run_dir: Path
) -> None:
    (finding,) = found(run_dir, evaluate, loader_of(shuffle=False))
    assert "answers as y_true" in finding.message
    assert "each of 60 samples" in finding.message
    assert finding.severity is Severity.WARNING


def exchanged_numbers(model: nn.Module, loader: DataLoader[Any]) -> None:
    r2_score(torch.cat([model(x) for x, _ in loader]).numpy(), SUM_TEST)


def numbers_in_place(model: nn.Module, loader: DataLoader[Any]) -> None:
    r2_score(SUM_TEST, torch.cat([model(x) for x, _ in loader]).numpy())


def test_outputs_of_a_regression_in_the_place_of_targets_are_named(
    run_dir: Path,
) -> None:
    loader = loader_of(shuffle=False, labels=SUM)
    (finding,) = found(run_dir / "1", exchanged_numbers, loader, NUMBERS, SUM)
    assert "r2_score the model's answers as y_true" in finding.message
    assert found(run_dir / "2", numbers_in_place, loader, NUMBERS, SUM) == []


def in_place(model: nn.Module, loader: DataLoader[Any]) -> None:
    true, predicted = both(model, loader)
    precision_score(true, predicted, average="macro")
    confusion_matrix(true, predicted)


def where_it_does_not_matter(model: nn.Module, loader: DataLoader[Any]) -> None:
    true, predicted = both(model, loader)
    accuracy_score(predicted, true)
    f1_score(predicted, true, average="macro")


def answers_of_two_models(model: nn.Module, loader: DataLoader[Any]) -> None:
    """How far a model agrees with another one of itself."""
    _, predicted = both(model, loader)
    confusion_matrix(predicted, predicted)


@pytest.mark.parametrize(
    "evaluate", [answers_of_two_models, in_place, where_it_does_not_matter]
)
def test_metrics_that_may_have_their_arguments_so_are_left_alone(
    evaluate: Evaluate, run_dir: Path
) -> None:
    assert found(run_dir, evaluate, loader_of(shuffle=False)) == []


# ---- the order of answers ------------------------------------------------------------


def collected(model: nn.Module, loader: DataLoader[Any]) -> float:
    predictions = []
    for x, _ in loader:
        predictions.extend(model(x).argmax(1).tolist())
    return float(accuracy_score(Y_ARRAY, predictions))


def compared_in_numpy(model: nn.Module, loader: DataLoader[Any]) -> float:
    every = []
    for i, batch in enumerate(loader):
        every.append(model(batch[0]).argmax(1))
        assert i < 60
    answers = torch.cat(every).numpy()
    return float((answers == Y_ARRAY).mean())


def predictions_of(model: nn.Module, loader: DataLoader[Any]) -> list[int]:
    out: list[int] = []
    for inputs, _labels in loader:
        out += model(inputs).argmax(1).tolist()
    return out


def returned(model: nn.Module, loader: DataLoader[Any]) -> float:
    return float(accuracy_score(Y_ARRAY, predictions_of(model, loader)))


ORDERED = [collected, compared_in_numpy, returned]


@pytest.mark.parametrize("evaluate", ORDERED)
def test_answers_from_a_shuffled_loader_beside_fixed_labels_are_named(
    evaluate: Evaluate, run_dir: Path
) -> None:
    (finding,) = found(run_dir, evaluate, loader_of(shuffle=True))
    assert "from loader, which shuffles" in finding.message
    assert "shuffle=False" in finding.advice
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("evaluate", ORDERED)
def test_answers_in_the_order_of_their_labels_are_left_alone(
    evaluate: Evaluate, run_dir: Path
) -> None:
    assert found(run_dir, evaluate, loader_of(shuffle=False)) == []


def with_their_labels(model: nn.Module, loader: DataLoader[Any]) -> None:
    true, predicted = both(model, loader)
    accuracy_score(true, predicted)


def as_a_distribution(model: nn.Module, loader: DataLoader[Any]) -> Any:
    """How often each class is the answer: no order matters."""
    predictions = []
    for x, _ in loader:
        predictions.extend(model(x).argmax(1).tolist())
    return np.bincount(predictions, minlength=3) / len(predictions)


def at_their_places(model: nn.Module, loader: DataLoader[Any]) -> float:
    answers = np.zeros(60, int)
    parts = []
    for x, places in loader:
        answers[places.numpy()] = model(x).argmax(1).numpy()
        parts.append(len(x))
    assert sum(parts) == 60
    return float(accuracy_score(Y_ARRAY, answers))


@pytest.mark.parametrize("evaluate", [as_a_distribution, with_their_labels])
def test_a_shuffled_loader_may_be_meant(evaluate: Evaluate, run_dir: Path) -> None:
    assert found(run_dir, evaluate, loader_of(shuffle=True)) == []


def test_answers_that_are_put_back_in_their_places_are_left_alone(
    run_dir: Path,
) -> None:
    places = torch.cat([torch.zeros(140, dtype=torch.long), torch.arange(60)])
    loader = loader_of(shuffle=True, labels=places)
    assert found(run_dir, at_their_places, loader) == []


# ---- fractions -----------------------------------------------------------------------


def probabilities_equal_labels(model: nn.Module, loader: DataLoader[Any]) -> float:
    right = 0
    for x, y in loader:
        right += (torch.sigmoid(model(x)) == y).sum().item()
    return right / 60


def rounded_equal_labels(model: nn.Module, loader: DataLoader[Any]) -> float:
    right = 0
    for x, y in loader:
        right += (torch.sigmoid(model(x)).round() == y).sum().item()
    return right / 60


def the_same_twice(model: nn.Module, loader: DataLoader[Any]) -> None:
    """Whether the model answers alike, which nobody takes for a metric."""
    (x, _), *_ = loader
    first = [model(x).clone() for x, _ in loader]
    for each, (x, _) in zip(first, loader, strict=True):
        assert bool((model(x) == each).all())


def test_probabilities_that_are_to_equal_labels_are_named(run_dir: Path) -> None:
    labels = (SUM > 0).float()
    loader = loader_of(shuffle=False, labels=labels)
    (finding,) = found(run_dir, probabilities_equal_labels, loader, BITS, labels)
    assert "44 are fractions" in finding.message
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("evaluate", [rounded_equal_labels, the_same_twice])
def test_other_equalities_are_left_alone(evaluate: Evaluate, run_dir: Path) -> None:
    labels = (SUM > 0).float()
    loader = loader_of(shuffle=False, labels=labels)
    assert found(run_dir, evaluate, loader, BITS, labels) == []


# ---- means of batches ----------------------------------------------------------------


def by_samples(model: nn.Module, loader: DataLoader[Any]) -> float:
    running_loss = 0.0
    for x, y in loader:
        loss = CLASSES(model(x), y)
        running_loss += loss.item()
    return running_loss / len(loader.dataset)  # type: ignore[arg-type]


def by_counted_samples(model: nn.Module, loader: DataLoader[Any]) -> float:
    total, count = 0.0, 0
    for x, y in loader:
        total += functional.cross_entropy(model(x), y).item()
        count += y.size(0)
    total /= count
    return total


def weighed_by_batches(model: nn.Module, loader: DataLoader[Any]) -> float:
    val_loss = 0.0
    for x, y in loader:
        val_loss += CLASSES(model(x), y).item() * x.size(0)
    return val_loss / len(loader)


@pytest.mark.parametrize(
    ("evaluate", "says"),
    [
        (by_samples, "running_loss adds up the mean loss of each of 4 batches"),
        (by_counted_samples, "It is 0.0667 times the mean loss"),
        (weighed_by_batches, "the number of batches. It is 15 times the mean loss"),
    ],
)
def test_means_that_are_divided_by_another_count_are_told(
    evaluate: Evaluate, says: str, run_dir: Path
) -> None:
    (finding,) = found(run_dir, evaluate, loader_of(shuffle=False))
    assert says in finding.message
    assert finding.severity is Severity.INFO


def means_by_batches(model: nn.Module, loader: DataLoader[Any]) -> float:
    total = 0.0
    for x, y in loader:
        total += CLASSES(model(x), y).item()
    return total / len(loader)


def sums_by_samples(model: nn.Module, loader: DataLoader[Any]) -> float:
    total = other = 0.0
    for x, y in loader:
        total += functional.cross_entropy(model(x), y, reduction="sum").item()
        other += SUMS(model(x), y).item()
    return (total / 60 + other) / len(loader.dataset)  # type: ignore[arg-type, no-any-return]


def weighed_by_samples(model: nn.Module, loader: DataLoader[Any]) -> float:
    total = 0.0
    for x, y in loader:
        total += CLASSES(model(x), y).item() * len(y)
    return total / len(loader.dataset)  # type: ignore[arg-type, no-any-return]


@pytest.mark.parametrize(
    "evaluate", [means_by_batches, sums_by_samples, weighed_by_samples]
)
def test_means_over_what_was_added_up_are_left_alone(
    evaluate: Evaluate, run_dir: Path
) -> None:
    assert found(run_dir, evaluate, loader_of(shuffle=False)) == []


# ---- what the loss ignores -----------------------------------------------------------


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 16, padding_idx=0), nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(tokens)))  # type: ignore[no-any-return]


def padded(n: int, ignored: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(1, 9, (n, 8), generator=generator)
    lengths = torch.randint(3, 9, (n, 1), generator=generator)
    tokens[torch.arange(8) >= lengths] = 0
    return TensorDataset(tokens, torch.where(tokens == 0, ignored, tokens % 4 + 1))


def of_all(answers: Tensor, labels: Tensor, _: int) -> tuple[int, int]:
    return int((answers == labels).sum()), labels.numel()


def below_the_line(answers: Tensor, labels: Tensor, ignored: int) -> tuple[int, int]:
    mask = labels != ignored
    return int(((answers == labels) & mask).sum()), int(mask.sum())


def selected(answers: Tensor, labels: Tensor, ignored: int) -> tuple[int, int]:
    mask = labels != ignored
    return int((answers[mask] == labels[mask]).sum()), int(mask.sum())


@pytest.mark.parametrize("way", ["sums", "means"])
@pytest.mark.parametrize("ignored", [-100, 0])
@pytest.mark.parametrize("count", [below_the_line, of_all, selected])
def test_an_accuracy_with_padding_is_named(
    count: Callable[[Tensor, Tensor, int], tuple[int, int]],
    ignored: int,
    way: str,
    run_dir: Path,
) -> None:
    torch.manual_seed(0)
    model, criterion = Tagger(), nn.CrossEntropyLoss(ignore_index=ignored)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    held = DataLoader(padded(30, ignored), 8)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        for _ in range(4):
            for tokens, labels in DataLoader(padded(64, ignored), 16):
                loss = criterion(model(tokens).transpose(1, 2), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            right, total, shares = 0, 0, []
            with torch.no_grad():
                for tokens, labels in held:
                    answers = model(tokens).argmax(-1)
                    hits, n = count(answers, labels, ignored)
                    right, total = right + hits, total + n
                    shares.append(hits / n)
            accuracy = right / total if way == "sums" else sum(shares) / len(shares)
            model.train()
    assert 0 < accuracy <= 1
    report = tdbg.rules.check(run_dir, rules=[tdbg.rules.MetricMisuse()])
    says = [each.message for each in report.findings]
    if count is of_all:
        assert "accuracy counts places that your loss ignores" in says[0]
    else:
        assert says == []
