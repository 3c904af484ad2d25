"""A run is read at every moment of its birth, its life and its end."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "read_at_every_change.py"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows calls of x86-64")
def test_no_reader_is_wrong_between_any_two_calls_that_change_files(
    tmp_path: Path,
) -> None:
    """Two ranks, twice: their threads are stopped before each call, and all is read."""
    path = os.pathsep.join([str(PROGRAM.parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("ptrace is not allowed here")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == {}
    assert found["status"] == 0
    assert set(found["moments"]) == {"no run", "made", "written", "steps"}
    assert sum(found["moments"].values()) > 100
