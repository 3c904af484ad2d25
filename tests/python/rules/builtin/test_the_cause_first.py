"""The finding that is told first names the cause, and its advice is the fix.

Small trainings of real data, each with one fault, watched as a user would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg.pytorch as td
from benchmarks.detection.kit.data import digits
from tdbg.rules import check
from tdbg.run.findings import Finding, Severity
from tdbg.view import diagnosis_of_report

pytestmark = [pytest.mark.torch, pytest.mark.slow]

IMAGES, CLASSES = digits().x, digits().y
NUMBERS = CLASSES.float()[:, None] / 10
Batch = tuple[Tensor, Tensor]


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def deep_sigmoids() -> nn.Sequential:
    middle = [each for _ in range(12) for each in (nn.Linear(64, 64), nn.Sigmoid())]
    return nn.Sequential(*middle, nn.Linear(64, 10))


class Standardizing(nn.Module):
    """Divides by the deviation of the batch, in evaluation of all images."""

    def __init__(self, least: float = 0.0) -> None:
        super().__init__()
        self.net, self.least = mlp(64, 32, 10), least

    def forward(self, x: Tensor) -> Tensor:
        known = x if self.training else IMAGES
        given: Tensor = self.net((x - known.mean(0)) / (known.std(0) + self.least))
        return given


class Spelling(nn.Module):
    """Classes of eight steps for each image, for CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net(x.view(-1, 8, 8))
        return scores.log_softmax(-1).transpose(0, 1)


def spelled(length: int) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        n = outputs.shape[1]
        targets = torch.randint(1, 11, (n, 12))
        lengths = torch.full((n,), 8), torch.tensor([length] + [3] * (n - 1))
        return functional.ctc_loss(outputs, targets, *lengths)

    return loss


def at(step: int, change: Callable[[Batch], Batch]) -> Callable[[Batch, int], Batch]:
    return lambda batch, now: change(batch) if now == step else batch


def holed(batch: Batch) -> Batch:
    x = batch[0].clone()
    x[0, 3] = float("nan")
    return x, batch[1]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training; by default, it is healthy."""

    model: Callable[[], nn.Module] = lambda: mlp(64, 64, 10)
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    inputs: Tensor = IMAGES
    targets: Tensor = CLASSES
    rate: float = 0.05
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    change: Callable[[Batch, int], Batch] = field(default=lambda batch, _: batch)
    n_steps: int = 45

    def report(self, run: Path) -> list[Finding]:
        torch.manual_seed(0)
        model = self.model()
        optimizer = self.optimizer(model.parameters(), lr=self.rate)
        with td.watch(model, out=run, budget="off"):
            for step in range(self.n_steps):
                rows = torch.randint(len(self.inputs), (64,))
                batch = self.change((self.inputs[rows], self.targets[rows]), step)
                optimizer.zero_grad()
                loss = self.loss(model(batch[0]), batch[1])
                loss.backward()
                optimizer.step()
        report = check(run, record=False)
        problems = diagnosis_of_report(report).problems
        return [problem.worst for problem in problems]


def too_long(n: int) -> Callable[[Tensor, Tensor], Tensor]:
    """CTC that leaves out the first n samples, whose targets are too long."""

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        targets = torch.randint(1, 11, (outputs.shape[1], 12))
        lengths = torch.full((outputs.shape[1],), 8), torch.tensor([10] * n + [3] * 64)
        given = targets, lengths[0], lengths[1][: outputs.shape[1]]
        return functional.ctc_loss(outputs, *given, zero_infinity=True)

    return loss


def of_labels(labels: Tensor) -> Tensor:
    """Numbers from 0.1 that have the mean 0 in a batch, by their deviation."""
    return (labels - labels.mean()) / labels.std()


def nowhere(outputs: Tensor, labels: Tensor) -> Tensor:
    """Depend on no weight."""
    return functional.cross_entropy(0 * outputs, labels)


class Saved(nn.Sequential):
    """A network whose weights came with a NaN from a checkpoint."""

    def __init__(self) -> None:
        super().__init__(*mlp(64, 64, 10))
        with torch.no_grad():
            self[2].weight[3, 4] = math.nan


def weighted(outputs: Tensor, labels: Tensor) -> Tensor:
    """Divide by a sum of weights, which is zero in a batch of one class."""
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    weights = (labels != 3).float()
    return (losses * weights).sum() / weights.sum()


def divided(outputs: Tensor, labels: Tensor) -> Tensor:
    scale = outputs.detach().abs().max() * (labels != 3).any()
    return functional.cross_entropy(outputs / scale, labels)


def root(outputs: Tensor, labels: Tensor) -> Tensor:
    """Root of squared errors, one of which is zero where all labels are alike."""
    errors = (outputs - functional.one_hot(labels, 10)).square().sum(1)
    return (errors * (labels != labels[0]).any()).sqrt().mean()


class Overflowing(nn.Module):
    """Computes a part in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            scores: Tensor = self.last(1e5 * self.first(x).half())
        return scores.float()


def one_class(batch: Batch) -> Batch:
    return batch[0], torch.full_like(batch[1], 3)


def is_fact(finding: Finding) -> bool:
    return finding.stage is not None and finding.stage.is_fact


IGNORED = at(12, lambda batch: (batch[0], torch.full_like(batch[1], -100)))
ONE_SAMPLE = at(12, lambda batch: (batch[0][:1], batch[1][:1]))
DECAYING = partial(torch.optim.SGD, weight_decay=1e-4)
FAULTS = {
    "raw features": (
        Training(inputs=255 * IMAGES),
        ("NotNormalizedData", "not normalized", "Subtract the training set's mean"),
    ),
    "raw targets": (
        Training(
            model=lambda: mlp(64, 32, 1),
            loss=functional.mse_loss,
            targets=1e4 * NUMBERS,
        ),
        ("NotNormalizedData", "this target is not", "Subtract the training set's mean"),
    ),
    "raw features, and a rate that is too high for any": (
        Training(inputs=20 * IMAGES, rate=50.0),
        ("WeightUpdateRatio", "as large as the weight", "Lower the learning rate"),
    ),
    "raw features, which Adam divides away, and too high a rate": (
        Training(inputs=255 * IMAGES, rate=1.0, optimizer=torch.optim.Adam),
        ("WeightUpdateRatio", "as large as the weight", "Lower the learning rate"),
    ),
    "gradients that vanish": (
        Training(model=deep_sigmoids),
        ("PoorWeightInitialization", "Gradients shrink", "Use ReLU or GELU"),
    ),
    "a rate that is too low": (
        Training(rate=1e-6),
        ("WeightUpdateRatio", "update is too small", "Raise the learning rate"),
    ),
    "NaN in a batch of which only the loss was recorded": (
        Training(change=at(63, holed), n_steps=70),
        ("ExplodingTensor", "was normal until step 62", "look at the data of this"),
    ),
    "a column without spread": (
        Training(model=Standardizing),
        ("ExplodingTensor", "input of a Sequential", "the model itself makes it"),
    ),
    "a deviation of one sample": (
        Training(model=lambda: Standardizing(0.1), change=ONE_SAMPLE),
        ("ExplodingTensor", "a single sample", "drop_last=True"),
    ),
    "a target that is longer than its input": (
        Training(model=Spelling, loss=spelled(10), rate=0.01),
        ("ExplodingTensor", "target is longer than its input", "symbol of a target"),
    ),
    "CTC that leaves out all samples": (
        Training(model=Spelling, loss=too_long(64), rate=0.01, n_steps=70),
        ("LossMisuse", "leaves out 64 of 64 samples", "an input step for each symbol"),
    ),
    "a loss of no output": (
        Training(loss=nowhere, optimizer=torch.optim.Adam, n_steps=120),
        ("VanishingGradient", "No gradient reaches any weight", "no learning rate"),
    ),
    "a loss of no output, and weight decay": (
        Training(loss=nowhere, optimizer=DECAYING, n_steps=120),
        ("VanishingGradient", "No gradient reaches any weight", "no learning rate"),
    ),
    "gradients that vanish, and weight decay": (
        Training(model=deep_sigmoids, optimizer=DECAYING, n_steps=120),
        ("PoorWeightInitialization", "Gradients shrink", "Use ReLU or GELU"),
    ),
    "a deviation of the label of one sample": (
        Training(
            model=lambda: mlp(64, 32, 1),
            loss=lambda outputs, y: functional.mse_loss(outputs, of_labels(y)),
            targets=NUMBERS,
            change=ONE_SAMPLE,
        ),
        ("ExplodingTensor", "a single sample", "drop_last=True"),
    ),
    "a checkpoint with NaN": (
        Training(model=Saved),
        ("ExplodingTensor", "like that before the first update", "the checkpoint"),
    ),
    "sample weights that add up to zero": (
        Training(loss=weighted, change=at(20, one_class)),
        ("ExplodingTensor", "computes after this loss", "the sum of a mask"),
    ),
    "a division between model and loss": (
        Training(loss=divided, change=at(20, one_class)),
        ("ExplodingTensor", "This prediction", "between the model and the loss"),
    ),
    "a root at zero": (
        Training(loss=root, change=at(20, one_class)),
        ("ExplodingTensor", "so the backward pass", "sqrt(x + 1e-8)"),
    ),
    "float16 that overflows": (
        Training(model=Overflowing),
        ("ExplodingTensor", "It has float16", "bfloat16"),
    ),
    "a class that is ignored, in a sum": (
        Training(
            loss=lambda outputs, y: (
                functional.cross_entropy(outputs, y, ignore_index=3, reduction="sum")
                / 64
            ),
            change=at(12, one_class),
        ),
        ("LabelMisuse", "ignores class 3", "Leave out ignore_index"),
    ),
    "all labels of a batch are ignored": (
        Training(change=IGNORED),
        ("LossMisuse", "ignores all 64 labels", "leave the samples out"),
    ),
}


# Of a single sample, std() warns, as it should.
@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_finding_names_the_cause_and_the_rest_follows(
    fault: str, tmp_path: Path
):
    training, (rule, message, advice) = FAULTS[fault]
    first, *others = training.report(tmp_path / "run")
    assert first.rule == rule
    assert message in first.message
    assert advice in first.advice
    assert first.cause is None
    if "rate that is too high" not in fault and "too high a rate" not in fault:
        by_themselves = [each for each in others if each.cause is None]
        # Facts follow from nothing.
        assert [each.rule for each in by_themselves if not is_fact(each)] == []


HEALTHY = {
    "as it is": Training(),
    "numbers": Training(
        model=lambda: mlp(64, 32, 1), loss=functional.mse_loss, targets=NUMBERS
    ),
    "a deviation of a batch": Training(model=lambda: Standardizing(0.1)),
    "targets that fit": Training(model=Spelling, loss=spelled(3), rate=0.01),
    "CTC that leaves out some samples": Training(
        model=Spelling, loss=too_long(4), rate=0.01
    ),
    "targets by their deviation": Training(
        model=lambda: mlp(64, 32, 1),
        loss=lambda outputs, y: functional.mse_loss(outputs, of_labels(y)),
        targets=NUMBERS,
    ),
    "a batch of one class": Training(change=at(20, one_class)),
    "some ignored labels": Training(
        change=lambda batch, _: (batch[0], batch[1].where(torch.rand(64) < 0.5, -100))
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_the_twin_without_the_fault_is_not_accused(name: str, tmp_path: Path):
    found = HEALTHY[name].report(tmp_path / "run")
    assert [each.rule for each in found if each.severity > Severity.INFO] == []


def test_an_update_above_its_weight_is_a_cause_of_its_own_beside_harmless_raw_data(
    tmp_path: Path,
):
    """Raw data explain nothing that they are not large enough for."""
    found = FAULTS["raw features, and a rate that is too high for any"][0].report(
        tmp_path / "run"
    )
    (data,) = [each for each in found if each.rule == "NotNormalizedData"]
    assert data.stage is None
    assert data.cause is None
