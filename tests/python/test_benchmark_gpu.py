"""``make gpu-check`` where there is no GPU: every program of it runs on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def check(repository: Path, results: Path, *arguments: str) -> int:
    settings = {
        "PYTHONPATH": os.pathsep.join([str(repository), str(repository / "python")]),
        "TDBG_BENCH_RESULTS": str(results),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.gpu.check"),
            *("--device", "cpu", "--small", "--seconds", "120", *arguments),
        ],
        cwd=repository,
        env={**os.environ, **settings},
        timeout=200,
        check=False,
    )
    return done.returncode


def test_all_stages_but_the_build(repository: Path, tmp_path: Path) -> None:
    stages = "tests,bandwidth,table,training"
    assert check(repository, tmp_path, "--stages", stages) == 0
    document = json.loads((tmp_path / "gpu" / "check.json").read_text())
    (table,) = document["tables"]
    measured = [line[0] for line in table["rows"]]
    for what in ("statistics of bfloat16", "weights and gradients", "smdebug style"):
        assert any(what in line for line in measured), what
    verdicts = {line[3] for line in table["rows"]}
    assert verdicts == {""}, "a figure of the CPU was judged"
    training = document["data"]["stages"]["training"]["data"]
    assert training["device"]["name"] == "none: the CPU stood in"
    assert training["rows"]["bytes_read_a_step"] > 0


def test_a_stage_that_fails_is_named(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "gpu" / "table.json").mkdir(parents=True)
    assert check(repository, tmp_path, "--stages", "table") == 8
    document = json.loads((tmp_path / "gpu" / "check.json").read_text())
    assert "table" in document["data"]["failed"]
