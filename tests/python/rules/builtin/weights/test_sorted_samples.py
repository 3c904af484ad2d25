"""BatchDependence, on real trainings: models that sort their samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Severity

pytestmark = pytest.mark.torch


class SortedReader(nn.Module):
    """Sorts samples by their length, and answers in that order."""

    def __init__(self, *, puts_back: bool) -> None:
        super().__init__()
        self.puts_back = puts_back
        self.embedding = nn.Embedding(20, 8)
        self.recurrent = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths, order = (tokens != 0).sum(1).sort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens[order]), lengths, batch_first=True
        )
        outputs: Tensor = self.head(self.recurrent(packed)[1][-1])
        return outputs[order.argsort()] if self.puts_back else outputs


@pytest.mark.parametrize("puts_back", [True, False])
def test_a_model_that_sorts_samples_must_put_answers_back(
    tmp_path: Path, puts_back: bool
) -> None:
    torch.manual_seed(0)
    model = SortedReader(puts_back=puts_back)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run_dir = tmp_path / "run"
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        for width in (10, 10, 12, 12, 12, 12):
            lengths = torch.randint(3, width + 1, (16, 1))
            tokens = torch.randint(1, 20, (16, width))
            tokens = tokens * (torch.arange(width) < lengths)
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), tokens[:, 0] % 2).backward()
            optimizer.step()
    rules = [tdbg.rules.BatchDependence(), tdbg.rules.MaskLeak()]
    findings = tdbg.rules.check(run_dir, rules=rules).findings
    named = {each.rule: each.severity for each in findings}
    assert named == ({} if puts_back else {"BatchDependence": Severity.WARNING})
    for each in findings:
        assert "returns its answers in another one" in each.message
        assert "outputs[order.argsort()]" in (each.advice or "")
