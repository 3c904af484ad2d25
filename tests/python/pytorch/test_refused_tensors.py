"""What cannot be captured has its tensor and its reason on every surface."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from tdbg.capture import fallback
from tdbg.cli import _tdbg
from tdbg.trial import create_trial
from torch_helpers import make_hook

pytestmark = pytest.mark.torch
NAME = "gradient/table.weight"


class Bags(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(50, 4, mode="sum", sparse=sparse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.table(x)
        return result


def train(run_dir: Path, *, sparse: bool = True) -> None:
    torch.manual_seed(0)
    model = Bags(sparse=sparse)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = make_hook(run_dir, include_collections=["gradients"])
    hook.register_module(model)
    for step in range(3):
        # A row that stands there several times is added up.
        model(torch.tensor([[step, 7, 7], [7, step, 9]])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    hook.close()


def test_values_of_a_sparse_gradient_are_those_of_the_dense_one(tmp_path: Path) -> None:
    found = []
    for sparse in (True, False):
        train(tmp_path / str(sparse), sparse=sparse)
        trial = create_trial(tmp_path / str(sparse))
        assert not trial.lost_records()
        found.append(np.stack([trial.tensor(NAME).value(i) for i in trial.steps()]))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_what_cannot_be_captured_is_named_with_its_reason(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fallback, "MOST_DENSE_BYTES", 100)
    with caplog.at_level(logging.WARNING, "tdbg"):
        train(run_dir)
    said = f"{NAME}: {fallback.TOO_SPARSE}"
    assert said in caplog.text
    lost = create_trial(run_dir).lost_records()
    assert [(each.tensor, each.records) for each in lost.refused] == [(NAME, 3)]
    assert said in str(lost)

    def told(*arguments: str) -> str:
        return CliRunner().invoke(_tdbg, list(arguments)).output

    for verb in ("ls", "check", "fsck"):
        assert said in " ".join(told(verb, str(run_dir)).split())
    listed = json.loads(told("ls", "--json", str(run_dir)))
    assert listed["lost_records"]["refused"][0]["reason"] == fallback.TOO_SPARSE
    page = run_dir / "page.html"
    told("report", str(run_dir), "-o", str(page))
    assert said in page.read_text()
