"""Settings that no line reads, and recurrent states that go over shuffled batches."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import tdbg
from tdbg.hooks.pytorch.checks.probes import written_faults
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

_BEGIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import tdbg.pytorch as td

torch.manual_seed(0)
"""
CLASSIFIER = """
x = torch.randn(60, 6)
y = (x[:, 0] > 0).long()
{settings}


class Net(nn.Module):
    def __init__(self, hidden, dropout=0.3):
        super().__init__()
        self.first, self.last = nn.Linear(6, hidden), nn.Linear(hidden, 2)
        {body}

    def forward(self, x, {mask}):
        h = self.first(x).relu()
        return self.last(h)


model = Net(8)
criterion = nn.CrossEntropyLoss({given})
optimizer = torch.optim.Adam(model.parameters())
with td.watch(model, out=RUN, budget="off", min_free_bytes=0):
    for _ in range(4):
        optimizer.zero_grad()
        criterion(model(x, None), y).backward()
        optimizer.step()
"""
RECURRENT = """
x = torch.randn(64, 5, 3)
loader = DataLoader(TensorDataset(x, x.sum((1, 2))), 16, shuffle={shuffle})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x, h=None):
        out, h = self.lstm(x, h)
        return self.last(out[:, -1])[:, 0], h


model = Net()
optimizer = torch.optim.Adam(model.parameters())
with td.watch(model, out=RUN, budget="off", min_free_bytes=0):
    for _ in range(2):
        hidden = None
        for inputs, targets in loader:
            {begin}
            outputs, hidden = model(inputs, hidden)
            hidden = hidden.detach()
            optimizer.zero_grad()
            nn.functional.mse_loss(outputs, targets).backward()
            optimizer.step()
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests, which this process may have run, name settings, too."""
    monkeypatch.setattr(written_faults, "_MOST_MODULES", 2)


def found(tmp_path: Path, program: str, rule: tdbg.rules.Rule) -> list[Finding]:
    file = tmp_path / "train.py"
    file.write_text(_BEGIN + program)
    runpy.run_path(str(file), {"RUN": tmp_path / "run"}, "__main__")
    return list(tdbg.rules.check(tmp_path / "run", rules=[rule]).findings)


def classifier(
    settings: str = "",
    given: str = "",
    body: str = "self.p = dropout",
    mask: str = "mask=None",
) -> str:
    return CLASSIFIER.format(settings=settings, given=given, body=body, mask=mask)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (classifier("class_weights = torch.tensor([1.0, 3.0])"), "class_weights"),
        (classifier("label_smoothing = 0.1"), "label_smoothing"),
        (classifier(body="self.epsilon_decay = dropout"), "epsilon_decay"),
        (classifier(body="pass"), "a function takes `dropout`"),
        (classifier(mask="mask"), "a function takes `mask`"),
    ],
)
def test_a_setting_that_no_line_reads_is_told(
    program: str, says: str, tmp_path: Path
) -> None:
    (finding,) = found(tmp_path, program, tdbg.rules.CodeMisuse())
    assert says in finding.message
    assert "never reads it" in finding.message or "ignores" in finding.message
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "program",
    [
        classifier(),
        classifier("weights = torch.tensor([1.0, 3.0])", "weight=weights"),
        classifier("class_weights = torch.tensor([1.0, 3.0])", "weight=class_weights"),
        classifier("weight_decay = 0.0"),
        classifier("momentum = 0.9\nprint(vars())"),
        classifier("gamma = 0.9\nprint('gamma')"),
        classifier("gamma = 0.9\nprint(f'{gamma}')"),
    ],
)
def test_settings_that_are_read_or_off_are_left_alone(
    program: str, tmp_path: Path
) -> None:
    assert found(tmp_path, program, tdbg.rules.CodeMisuse()) == []


def test_a_state_over_shuffled_batches_is_named(tmp_path: Path) -> None:
    program = RECURRENT.format(shuffle=True, begin="pass")
    (finding,) = found(tmp_path, program, tdbg.rules.LoaderMisuse())
    assert "passes `hidden` from each batch to the next" in finding.message
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("shuffle", "begin"),
    [
        (False, "pass"),
        (True, "hidden = None"),
        (True, "hidden = torch.zeros(1, 16, 8)"),
    ],
)
def test_states_of_the_same_sequences_or_new_ones_are_fine(
    shuffle: bool, begin: str, tmp_path: Path
) -> None:
    program = RECURRENT.format(shuffle=shuffle, begin=begin)
    assert found(tmp_path, program, tdbg.rules.LoaderMisuse()) == []
