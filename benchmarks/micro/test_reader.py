"""Opening a finished run, and the first answers; each checks itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.reader.open_run import build, questions

TENSORS, STEPS = 100, 100
ASKED = (
    "open",
    "open, names",
    "open, mean of one tensor at one step",
    "open, history of one tensor",
    "open, all statistics",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 rows."""
    path = tmp_path_factory.mktemp("reader") / "run"
    build(path, TENSORS, STEPS, close=True)
    return path


@pytest.mark.parametrize("question", ASKED)
def test_question(benchmark: BenchmarkFixture, run: Path, question: str) -> None:
    benchmark(questions(run, TENSORS, STEPS)[question])
