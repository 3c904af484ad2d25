"""Rows that need care: zeros, integers beyond 2^53, moments that cannot be true."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tdbg import _core
from tdbg.cli import _tdbg
from tdbg.run.directory import create_run
from tdbg.stats.rows import reduction_column
from tdbg.trial import create_trial

ARRAYS = {
    "zeros": np.zeros(7, np.float32),
    "zeros16": np.zeros(70, np.float16),
    "signed": np.array([-1.0, -0.0, 0.0, -2.0] * 20, np.float32),
    "int64": np.array([2**53 + 1, -(2**60) - 1], np.int64),
    "uint64": np.array([2**64 - 1, 2**53 + 1], np.uint64),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = create_run(tmp_path / "run")
    capture = _core.Capture(
        str(made.path), run_uuid=made.uuid, attempt_uuid=b"a" * 16, min_free_bytes=0
    )
    for name, values in ARRAYS.items():
        number = capture.define(name, 1, str(values.dtype), values.shape)
        capture.statistics(0, [number], [values.ctypes.data])
    capture.end_step(0, 1, 0)
    capture.close()
    return made.path


@pytest.mark.parametrize("name", ["zeros", "zeros16", "signed"])
def test_the_greatest_of_zeros_has_no_sign(run: Path, name: str) -> None:
    trial = create_trial(run)
    tensor, table = trial.tensor(name), trial.statistics([name])
    greatest: list[Any] = [
        tensor.stats(0).max,
        tensor.reduction_value(0, "max"),
        table.max[0, 0],
        table.exact_extremes(name)[1][0],
        table.reduction("max")[0, 0],
    ]
    assert greatest == [0] * 5
    assert [math.copysign(1, each) for each in greatest] == [1] * 5


@pytest.mark.parametrize("name", ["int64", "uint64"])
def test_json_has_the_extremes_of_integers_exactly(run: Path, name: str) -> None:
    exact = [int(ARRAYS[name].min()), int(ARRAYS[name].max())]
    for verb in (["show", str(run), name], ["show", str(run), "--regex", f"^{name}$"]):
        shown = CliRunner().invoke(_tdbg, [*verb, "--json"])
        found = json.loads(shown.output)
        row = found["history"][0] if "history" in found else found["tensors"][-1]
        row = row.get("last", row)
        assert [row["min"], row["max"]] == exact
        assert [type(row["min"]), type(row["max"])] == [int, int]


def test_moments_that_cannot_be_true_have_no_spread(run: Path) -> None:
    trial = create_trial(run)
    row = replace(trial.tensor("signed").stats(0), m2=-1.0)
    assert math.isnan(row.std)
    table = trial.statistics(["signed"])
    assert np.isnan(replace(table, m2=table.m2 * 0 - 1).std).all()
    rows = {f: getattr(table, f) for f in row.__dataclass_fields__} | {"m2": -table.l2}
    assert np.isnan(reduction_column(rows, "std")).all()
