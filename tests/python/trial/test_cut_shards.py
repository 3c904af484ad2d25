"""A shard that is cut, removed or replaced under a reader ends no process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tdbg import _core
from tdbg.run.directory import create_run

PROGRAM = Path(__file__).parent.parent / "helpers/programs/cut_shard.py"

MODES = ("0", "5000", "half", "removed", "replaced", "overwritten")


def make_run(path: Path, codec: str) -> Path:
    """Thirty steps of a tensor of 400 KB whose maximum is the step."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=b"a" * 16, codec=codec,
        min_free_bytes=0,
    )  # fmt: skip
    values = -np.abs(np.random.default_rng(0).normal(size=100_000)).astype(np.float32)
    one = np.array([0x3F80], np.uint16)  # The bin of 1.0.
    big = capture.define("big", 1, "float32", values.shape)
    for step in range(30):
        values[0] = step
        capture.statistics(step, [big], [values.ctypes.data])
        capture.histogram(step, big, one, np.array([step + 1], np.uint64))
        capture.values(step, big, values.ctypes.data)
        capture.end_step(step, 1, step)
    capture.close()
    return run.path


@pytest.mark.parametrize("codec", ["none", "auto"])
@pytest.mark.parametrize("mode", MODES)
def test_reading_goes_on_or_raises_a_typed_error(
    tmp_path: Path, mode: str, codec: str
) -> None:
    run = make_run(tmp_path / "run", codec)
    program = [sys.executable, str(PROGRAM), str(run), mode]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert set(ended.stdout.split()) <= {"CorruptionError", "StorageError"}
    # The file that is open stays what it was when its name goes.
    assert bool(ended.stdout.strip()) == (mode not in {"removed", "replaced"})
