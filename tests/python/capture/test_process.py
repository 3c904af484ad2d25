"""The end of a process that captures: what is to be called is, however it began."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# As a worker that imports its framework itself: nothing was there before the fork.
PROGRAM = """
import multiprocessing, sys

def work():
    from tdbg.capture import process
    process.at_exit(lambda: print("the end", flush=True))

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    child.start()
    child.join()
    assert "tdbg" not in sys.modules
    raise SystemExit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_that_imports_what_captures_by_itself_ends_in_order(
    tmp_path: Path, method: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), method],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "the end\n"
