"""What a step costs the training thread, and how long until it can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks._harness import check_equal
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run

TENSORS = 100
MODE = ModeKeys.TRAIN.value


@contextmanager
def opened(path: Path, codec: str = "auto") -> Iterator[_core.Capture]:
    """A capture in a new run; what it was offered was written, to the last record."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path),
        run_uuid=run.uuid,
        attempt_uuid=bytes(16),
        min_free_bytes=0,
        codec=codec,
    )
    yield capture
    capture.flush()
    counters = capture.counters()
    capture.close()
    check_equal(counters["written"], counters["offered"], "records written")


def steps(capture: _core.Capture, take: Callable[[int], None]) -> Callable[[], None]:
    """What is timed: the next step, from its tensors to its end."""
    step = 0

    def run() -> None:
        nonlocal step
        take(step)
        capture.end_step(step, MODE, step)
        step += 1

    return run


@pytest.mark.parametrize("elements", [16, 10_000])
def test_statistics_of_a_step(
    benchmark: BenchmarkFixture, tmp_path: Path, elements: int
) -> None:
    tensors = np.random.default_rng(0).normal(size=(TENSORS, elements))
    tensors = tensors.astype(np.float32)
    with opened(tmp_path / "run") as capture:
        ids = [
            capture.define(f"t{i}", int(Role.WEIGHT), "float32", (elements,))
            for i in range(TENSORS)
        ]
        pointers = [row.ctypes.data for row in tensors]
        step = steps(capture, lambda n: capture.statistics(n, ids, pointers))
        benchmark.pedantic(step, rounds=500, warmup_rounds=20)


@pytest.mark.parametrize("codec", ["none", "auto"])
def test_values_until_they_can_be_read(
    benchmark: BenchmarkFixture, tmp_path: Path, codec: str
) -> None:
    """4 MB: copied, compressed, written, and flushed."""
    drawn: Any = np.random.default_rng(0).normal(0, 0.02, 1_000_000)
    values = drawn.astype(np.float32)
    with opened(tmp_path / "run", codec) as capture:
        which = capture.define("x", int(Role.GRADIENT), "float32", values.shape)
        step = steps(capture, lambda n: capture.values(n, which, values.ctypes.data))

        def whole() -> None:
            step()
            capture.flush()

        benchmark.pedantic(whole, rounds=30, warmup_rounds=2)
