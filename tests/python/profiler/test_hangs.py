"""A rank of three hangs: who asks is told which one, where, and why."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tdbg.run.stack_groups import say_where
from tdbg.run.stacks import ask_for_stacks

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "hanging_rank.py"
HANGS = re.compile(
    r"Ranks 0, 2 wait for other ranks in (all_reduce|backward) at "
    r"hanging_rank\.py:\d+ \((communicate|train)\); "
    r"rank 1 is at hanging_rank\.py:\d+ \(stand_still\)\."
)


@pytest.fixture(params=["c", "locked", "ddp"])
def hanging(request: pytest.FixtureRequest, run_dir: Path) -> Iterator[Path]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with ExitStack() as stack:
        for rank in range(3):
            arguments = [str(rank), port, str(run_dir), request.param]
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), *arguments],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )
            stack.callback(process.kill)
        yield run_dir


def test_the_rank_its_line_and_what_the_others_wait_for_are_named(
    hanging: Path,
) -> None:
    deadline, said = time.monotonic() + 120, ""
    while not HANGS.fullmatch(said):
        assert time.monotonic() < deadline, said
        if (hanging / "RUN.json").is_file():
            processes = ask_for_stacks(hanging)
            said = say_where(processes)
    assert {each.step for each in processes} == {20}
    assert said in finding_of(hanging)


def finding_of(run: Path) -> str:
    """Return what StalledTraining finds in a live run."""
    rule = "StalledTraining(threshold=1)"
    command = [sys.executable, "-m", "tdbg", "watch", str(run), "--rule", rule]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        found = next(line for line in watching.stdout if "StalledTraining at" in line)
        watching.kill()
        return found
