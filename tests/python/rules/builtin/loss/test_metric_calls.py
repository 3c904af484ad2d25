"""MetricMisuse, on real trainings: what metrics of libraries are given, and hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sklearn.metrics
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from sklearn.utils import _param_validation
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_compiled")]

CRITERION = nn.BCEWithLogitsLoss()
X = torch.randn(220, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] + X[:, 1] > 0).float()
ORIGINAL = _param_validation.validate_parameter_constraints


def found(run_dir: Path, evaluate: Callable[[nn.Module], object]) -> list[Finding]:
    """Train, and evaluate five times."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(31):
            loss = CRITERION(model(X[:140]), Y[:140])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 1:
                model.eval()
                with torch.no_grad():
                    evaluate(model)
                model.train()
    assert hook.counters()["internal_errors"] == 0
    assert _param_validation.validate_parameter_constraints is ORIGINAL
    return list(tdbg.rules.check(run_dir, rules=[tdbg.rules.MetricMisuse()]).findings)


def area_of_classes(model: nn.Module) -> None:
    roc_auc_score(Y[140:], (model(X[140:]) > 0).long())


def area_of_booleans(model: nn.Module) -> None:
    predictions = (torch.sigmoid(model(X[140:])) > 0.5).numpy()
    sklearn.metrics.average_precision_score(Y[140:].numpy(), predictions)


def area_of_rounded(model: nn.Module) -> None:
    scores = [model(part).sigmoid().round() for part in X[140:].split(16)]
    roc_auc_score(y_true=Y[140:], y_score=torch.cat(scores))


@pytest.mark.parametrize(
    "evaluate", [area_of_classes, area_of_booleans, area_of_rounded]
)
def test_a_ranking_of_classes_is_named(
    evaluate: Callable[[nn.Module], object], run_dir: Path
) -> None:
    (finding,) = found(run_dir, evaluate)
    assert "classes where it expects scores: each of 80 values is 0 or 1" in (
        finding.message
    )
    assert finding.severity is Severity.WARNING


def area_of_scores(model: nn.Module) -> None:
    scores = model(X[140:])
    roc_auc_score(Y[140:], scores)
    average_precision_score(Y[140:], torch.sigmoid(scores))


def classes_for_their_own_metrics(model: nn.Module) -> None:
    f1_score(Y[140:], model(X[140:]) > 0)
    sklearn.metrics.balanced_accuracy_score(Y[140:], model(X[140:]) > 0)


def by_group(model: nn.Module) -> None:
    """The score of each group of samples, beside that of all."""
    classes = model(X[140:]) > 0
    for rows in torch.arange(80).split(20):
        f1_score(Y[140:][rows], classes[rows])
    f1_score(Y[140:], classes)


def by_threshold(model: nn.Module) -> None:
    scores = torch.cat([model(part) for part in X[140:].split(20)])
    for threshold in (-0.5, 0.0, 0.5):
        f1_score(Y[140:], scores > threshold)


def collected(model: nn.Module) -> None:
    f1_score(Y[140:], torch.cat([model(part) for part in X[140:].split(16)]) > 0)


@pytest.mark.parametrize(
    "evaluate",
    [
        area_of_scores, by_group, by_threshold, classes_for_their_own_metrics,
        collected,
    ],
)  # fmt: skip
def test_metrics_that_are_given_what_they_expect_are_left_alone(
    evaluate: Callable[[nn.Module], object], run_dir: Path
) -> None:
    assert found(run_dir, evaluate) == []


def score_by_batch(model: nn.Module) -> Tensor:
    parts = zip(X[140:].split(16), Y[140:].split(16), strict=True)
    return torch.tensor([f1_score(y, model(x) > 0) for x, y in parts]).mean()


def score_by_batch_from_a_list(model: nn.Module) -> float:
    outputs = [model(x) for x in X[140:].split(30)]
    scores = []
    for answer, y in zip(outputs, Y[140:].split(30), strict=True):
        scores.append(sklearn.metrics.f1_score(y.tolist(), (answer > 0).tolist()))
    return sum(scores) / len(scores)


@pytest.mark.parametrize(
    ("evaluate", "n"), [(score_by_batch, 5), (score_by_batch_from_a_list, 3)]
)
def test_a_score_of_each_batch_is_named(
    evaluate: Callable[[nn.Module], object], n: int, run_dir: Path
) -> None:
    (finding,) = found(run_dir, evaluate)
    assert f"f1_score for each of {n} batches, and never for all" in finding.message


@pytest.mark.needs("torchmetrics")
@pytest.mark.parametrize("way", ["never", "reset", "of training", "anew", "mean"])
def test_a_metric_that_is_never_reset_is_named(way: str, run_dir: Path) -> None:
    from torchmetrics.aggregation import MeanMetric
    from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

    metric = MeanMetric() if way == "mean" else BinaryAccuracy()
    score = BinaryF1Score()

    def evaluate(model: nn.Module) -> float:
        nonlocal metric
        if way == "anew":
            metric = BinaryAccuracy()
        for x, y in zip(X[140:].split(16), Y[140:].split(16), strict=True):
            outputs = model(x)
            if way == "mean":
                metric.update(CRITERION(outputs, y))
            else:
                metric.update(outputs.sigmoid(), y.long())
            score.update(outputs.sigmoid(), y.long())
        score.compute()
        score.reset()
        value = float(metric.compute())
        if way == "reset":
            metric.reset()
        if way == "of training":
            metric.update(model(X[:8]).sigmoid(), Y[:8].long())
        return value

    findings = found(run_dir, evaluate)
    assert [each.tensor for each in findings] == (["metric"] if way == "never" else [])
    if findings:
        assert "it holds the 15 batches of three evaluations" in findings[0].message
