"""A failing disk costs data, which is counted, and never changes a training."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "train_under_faults.py"


def train(folder: Path, shim: dict[str, str], cases: list[Any]) -> list[dict[str, Any]]:
    """The results of these trainings, one process each."""
    folder.mkdir()
    result = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env={**os.environ, **shim},
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    results = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(results) == len(cases), result.stderr
    assert not [each for each in results if "status" in each], result.stderr
    return results


@pytest.mark.torch
@pytest.mark.stress
def test_no_disk_fault_changes_a_training_or_goes_uncounted(
    tmp_path: Path, io_fault: dict[str, str]
) -> None:
    """Sabotage that it caught: Accounts not counting what the disk refused."""
    none = {"at": 0, "errno": 0, "forever": 0}
    without, healthy = train(tmp_path / "healthy", io_fault, [None, none])
    assert healthy["digest"] == without["digest"]
    assert healthy["closed"]
    counters = healthy["counters"]
    assert counters["offered"] == counters["written"] > 500
    assert counters["internal_errors"] == 0
    n = healthy["calls"]
    assert n > 20

    sample = sorted({1, 3, 6, 8, 11, n // 4, n // 2, 3 * n // 4, n - 1})
    cases = [
        {"at": at, "errno": number, "forever": forever}
        for at in sample
        for number in (errno.ENOSPC, errno.EIO)
        for forever in (0, 1)
    ]
    results = train(tmp_path / "faults", io_fault, cases)
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
    assert hit >= len(cases) - 8, "too few faults were met"
    assert lost >= len(cases) // 6, "too few lost anything"
    assert refused >= 2, "no fault met the construction"
    print(f"{n} calls, {len(cases)} faults: {hit} met, {lost} lost data")
    print(f"{refused} of them at the opening")
