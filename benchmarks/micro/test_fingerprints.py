"""Hashing the samples of a batch, as a root's call does in each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

import tdbg.pytorch as td
from benchmarks._harness import check
from tdbg._core import Fingerprints
from tdbg.run.profile_tables import FINGERPRINT

#: Shapes of usual batches: rows of a table, digits, images, tokens.
BATCHES: dict[str, Any] = {
    "table": (256, 20),
    "digits": (64, 784),
    "images": (32, 3, 224, 224),
    "tokens": (16, 1024),
}


@pytest.mark.parametrize("name", BATCHES)
def test_take_inputs(benchmark: BenchmarkFixture, name: str, tmp_path: Path) -> None:
    shape = BATCHES[name]
    batch = torch.randint(0, 50_000, shape) if name == "tokens" else torch.randn(shape)
    with td.Hook(tmp_path / "run") as hook:
        hook.register_module(nn.Identity())
        prints = Fingerprints(hook._session.recorder.direct, 1 << 40, 0, 1)
        event = object()
        prints.add_root(event, "Net")

        def take() -> None:
            if prints.take_inputs(event, 0, 1, (batch,)):
                prints.take()

        prints.take_inputs(event, 0, 1, (batch,))
        ((_, rows),) = prints.take()
        table = np.frombuffer(rows, FINGERPRINT)
        hashes = {each for row in table for each in row["hashes"][: row["n"]]}
        check(len(hashes) == shape[0], "each sample has a hash of its own")
        benchmark(take)
