"""When the program of a training began."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import json, sys, time
{before}
from tdbg.capture.opening import program_start_ns
print(json.dumps([program_start_ns(), program_start_ns(), time.monotonic_ns()]))
"""


def asked(folder: Path, *options: str, before: str = "") -> list[int | None]:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(before=before))
    done = subprocess.run(
        [sys.executable, *options, str(program)],
        capture_output=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    found: list[int | None] = json.loads(done.stdout)
    return found


def test_a_program_tells_when_it_began(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    began, _, now = asked(tmp_path, before="time.sleep(0.2)")
    assert began is not None
    assert now is not None
    # The kernel counts in hundredths of a second.
    assert before - 20_000_000 <= began <= now - 200_000_000


def test_a_second_run_of_a_process_did_not_begin_with_it(tmp_path: Path) -> None:
    assert asked(tmp_path)[1] is None


def test_a_notebook_or_a_session_was_there_before_the_training(tmp_path: Path) -> None:
    kernel = "sys.modules['ipykernel'] = sys"
    assert asked(tmp_path, before=kernel)[0] is None
    assert asked(tmp_path, "-i")[0] is None
