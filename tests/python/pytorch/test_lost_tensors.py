"""What is not captured, or lost, has its tensor and its reason on every surface."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    listed = expect_everywhere(run_dir, said)
    assert listed["lost_records"]["refused"][0]["reason"] == fallback.TOO_SPARSE


def expect_everywhere(run_dir: Path, said: str) -> dict[str, Any]:
    """Look for words on every surface; return what ``ls --json`` says."""

    def told(*arguments: str) -> str:
        return CliRunner().invoke(_tdbg, list(arguments)).output

    for verb in ("ls", "check", "fsck"):
        assert said in " ".join(told(verb, str(run_dir)).split()), verb
    page = run_dir / "page.html"
    told("report", str(run_dir), "-o", str(page))
    assert said in page.read_text()
    listed: dict[str, Any] = json.loads(told("ls", "--json", str(run_dir)))
    assert said in listed["lost_records"]["text"]
    return listed


@contextlib.contextmanager
def files_up_to(n_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond this, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("options", "limit", "reason", "words"),
    [
        ({"overflow": "drop"}, None, "queue_full", "the queue was full"),
        ({}, 200_000, "io_error", "the disk refused to write"),
        (
            {"min_free_bytes": 1 << 60},
            None,
            "disk_nearly_full",
            "the disk was nearly full",
        ),
    ],
    ids=["a queue that overflows", "a limit on files", "a disk that is nearly full"],
)
def test_what_the_core_loses_is_named_with_its_reason(
    run_dir: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    limit: int | None,
    reason: str,
    words: str,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(300, 300) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    hook = make_hook(
        run_dir, include_collections=["weights"], queue_bytes=1 << 20, **options
    )
    hook.register_module(model)
    with (
        files_up_to(limit) if limit else contextlib.nullcontext(),
        caplog.at_level(logging.WARNING, "tdbg"),
    ):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 300)).square().mean().backward()
            optimizer.step()
        hook.close()
    lost = create_trial(run_dir).lost_records()
    assert set(lost.reasons) == {reason}
    assert {each.reason for each in lost.tensors} == {words}
    weights = {name for name, _ in model.named_parameters()}
    named = {each.tensor.removeprefix("weight/") for each in lost.tensors}
    assert named & weights
    listed = expect_everywhere(run_dir, words)
    assert listed["lost_records"]["tensors"][0]["tensor"] == lost.tensors[0].tensor
    assert lost.tensors[0].tensor in listed["lost_records"]["text"]
    assert lost.tensors[0].tensor in caplog.text
