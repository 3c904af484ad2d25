"""LabelMisuse, on models of transformers that compute a regression by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tdbg.pytorch as td
from tdbg.rules import LabelMisuse, check
from tdbg.run.findings import Severity

pytestmark = [pytest.mark.torch, pytest.mark.needs("transformers")]


@pytest.mark.parametrize("kind", ["auto", "meant", "bits", "numbers", "two"])
def test_labels_of_two_classes_in_a_regression_are_named(
    run_dir: Path, kind: str
) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    problems = {"meant": "regression", "bits": "multi_label_classification"}
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=2 if kind == "two" else 1,
        problem_type=problems.get(kind),
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for _ in range(10):
            tokens = torch.randint(1, 20, (16, 8))
            classes = tokens[:, 0] > 9
            labels = classes.long() if kind == "two" else classes.float()[:, None]
            if kind == "numbers":
                labels = labels + 0.1 * torch.randn(16, 1)
            optimizer.zero_grad()
            model(input_ids=tokens, labels=labels).loss.backward()
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    found = check(run_dir, rules=[LabelMisuse()]).findings
    if kind == "auto":
        (finding,) = found
        assert finding.severity is Severity.WARNING
        assert "computes a regression: with num_labels=1" in finding.message
        assert "multi_label_classification" in finding.advice
    else:
        assert found == ()
