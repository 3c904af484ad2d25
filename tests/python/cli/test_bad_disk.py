"""Verbs that read a run from a sick disk say so: no traceback, and never "sound"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bad_disk import BadDisk, build_bad_disk
from run_builder import simple_run

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "read_on_bad_disk.py"


def answers(output: str) -> list[str]:
    """The lines about tensors, and about how much was judged."""
    lines = [line.rstrip() for line in output.splitlines()]
    return [
        line
        for line in lines
        if line.startswith(("fc.", "gradient/", "[", " [")) or "judged" in line
    ]


@pytest.mark.slow
def test_no_verb_calls_what_it_could_not_read_sound(
    run_dir: Path, tmp_path: Path
) -> None:
    library = build_bad_disk(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    simple_run(run_dir, range(8))
    disk = BadDisk(tmp_path / "control")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(run_dir), str(disk.path)],
        env=disk.environment(library, run_dir)
        | {"PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)
    assert sum(case["failed"] > 0 for case in cases) > len(cases) // 2
    for case in cases:
        assert "Traceback" not in case["output"], case
        assert "a bug in tdbg" not in case["output"], case
        assert case["code"] in (0, 1, 3), case
        if case["every"] == 1:
            assert case["code"] == 3, case
        if case["code"] == 0:
            assert answers(case["output"]) == answers(case["healthy"]), case
        if case["verb"] == "fsck" and " is sound" in case["output"]:
            # What was refused once was read at another time, or nobody needs it.
            assert case["output"] == case["healthy"], case
