"""A failing disk costs data, which is counted, and never changes a training."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "train_under_faults.py"


Train = Callable[[list[Any]], list[dict[str, Any]]]


@pytest.fixture
def train(tmp_path: Path, io_fault: dict[str, str]) -> Iterator[Train]:
    """Gives the results of trainings, one process each; PyTorch is loaded once."""
    errors = tmp_path / "errors"
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path)],
            env={**os.environ, **io_fault},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        given, said = program.stdin, program.stdout

        def run(cases: list[Any]) -> list[dict[str, Any]]:
            print(json.dumps(cases), file=given, flush=True)
            lines = [said.readline() for _ in cases]
            assert all(lines), errors.read_text()
            results = [json.loads(line) for line in lines]
            assert not [each for each in results if "status" in each], results
            return results

        yield run
        given.close()
        assert program.wait(60) == 0, errors.read_text()


@pytest.mark.torch
@pytest.mark.stress
def test_no_disk_fault_changes_a_training_or_goes_uncounted(train: Train) -> None:
    """Sabotage that it caught: Accounts not counting what the disk refused."""
    none = {"at": 0, "errno": 0, "forever": 0}
    without, healthy = train([None, none])
    assert healthy["digest"] == without["digest"]
    assert healthy["closed"]
    counters = healthy["counters"]
    assert counters["offered"] == counters["written"] > 500
    assert counters["internal_errors"] == 0
    n = healthy["calls"]
    assert n > 20

    sample = sorted({1, 3, 6, 8, 11, n // 4, n // 2, 3 * n // 4, n - 1})
    # Each number with each duration, at every second call of the sample.
    cases = [
        {"at": at, "errno": number, "forever": (i + j) % 2}
        for i, at in enumerate(sample)
        for j, number in enumerate((errno.ENOSPC, errno.EIO))
    ]
    results = train(cases)
    hit = lost = refused = 0
    for case, result in zip(cases, results, strict=True):
        assert result["digest"] == without["digest"], case
        hit += result["failed"] > 0
        if not result["opened"]:
            refused += 1
            continue
        counters = result["counters"]
        assert counters["internal_errors"] == 0, case
        total = counters["written"] + counters["dropped"] + counters["failed"]
        assert counters["offered"] == total, case
        assert counters["offered"] > 100, case
        if counters["written"] < counters["offered"]:
            lost += 1
            assert counters["io_errors"] > 0, case
    assert hit >= len(cases) - 4, "too few faults were met"
    assert lost >= len(cases) // 6, "too few lost anything"
    assert refused >= 1, "no fault met the construction"
    print(f"{n} calls, {len(cases)} faults: {hit} met, {lost} lost data")
    print(f"{refused} of them at the opening")
