"""DropoutInEvaluation, on real trainings: who says that dropout trains, and who not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.modes import ModeKeys
from tdbg.rules import DropoutInEvaluation, Engine
from tdbg.run.findings import Finding, Severity
from torch_helpers import digits


class Net(nn.Module):
    """A classifier that drops without saying whether it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.module = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.dropped(F.relu(self.first(x))))
        return logits

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2)


class Parts(nn.Module):
    """Drops as a module inside of a model."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout1d(x[:, None], p=0.2)[:, 0]


class Training:
    """Trains, with an evaluation now and then."""

    def __init__(self, model: nn.Module, out: Path) -> None:
        torch.manual_seed(0)
        self.model, self.batches = model, digits(16)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(model.parameters(), 0.05)
        self.hook = td.watch(model, self.criterion, out=out, min_free_bytes=0)

    def loss(self) -> Tensor:
        inputs, labels = next(self.batches)
        loss: Tensor = self.criterion(self.model(inputs), labels)
        return loss

    def epoch(self) -> None:
        self.model.train()
        for _ in range(4):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()
        self.model.eval()
        with torch.no_grad():
            for _ in range(3):
                self.loss()


def judged(model: nn.Module, run_dir: Path, n_epochs: int = 2) -> list[Finding]:
    training = Training(model, run_dir)
    for _ in range(n_epochs):
        training.epoch()
    training.hook.close()
    assert training.hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, DropoutInEvaluation(), record=False).findings)


@pytest.mark.parametrize("n_epochs", [1, 3])
def test_dropout_that_was_not_told_is_named(run_dir: Path, n_epochs: int) -> None:
    """Also where the only evaluation comes last."""
    (finding,) = judged(Net(), run_dir, n_epochs)
    assert (finding.tensor, finding.mode) == ("Net_output_0", ModeKeys.EVAL)
    assert (finding.severity, finding.step) == (Severity.WARNING, 4)
    assert "Net calls a dropout function" in finding.message
    assert "training=self.training" in finding.advice


def test_a_part_of_the_model_is_named(run_dir: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 16), Parts(), nn.Linear(16, 10))
    (finding,) = judged(model, run_dir)
    assert "Parts calls a dropout function" in finding.message


def test_it_is_told_while_the_training_goes_on(run_dir: Path) -> None:
    training = Training(Net(), run_dir)
    engine = Engine(run_dir, DropoutInEvaluation(), record=False)
    training.epoch()
    training.epoch()
    training.hook.flush()
    (finding,) = engine.poll()
    assert finding.step == 4
    training.hook.close()
    assert engine.poll() == []


class Told(Net):
    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, training=self.training)


class ToldByPosition(Net):
    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, self.training)


class OnPurpose(Net):
    """Monte Carlo dropout."""

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, training=True)


class ByModule(Net):
    def dropped(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.module(x)
        return dropped


@pytest.mark.parametrize("model", [Told, ToldByPosition, OnPurpose, ByModule])
def test_dropout_that_was_told_is_silent(run_dir: Path, model: type[Net]) -> None:
    assert judged(model(), run_dir) == []


def test_functions_are_put_back(run_dir: Path) -> None:
    code = F.dropout.__code__
    judged(Net(), run_dir)
    assert F.dropout.__code__ is code
