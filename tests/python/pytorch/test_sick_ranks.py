"""One rank is killed or stopped: the others obey, and it is said who did not answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tdbg.cli import _tdbg

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "train_as_a_rank.py"
LONG = 100.0


class Ranks:
    """A training of several ranks, each of which goes on by itself."""

    def __init__(self, folder: Path, n_ranks: int, stack: ExitStack) -> None:
        self.run, self.notes = folder / "run", folder / "notes"
        self.notes.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "WORLD_SIZE": str(n_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        self.processes = []
        for rank in range(n_ranks):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.run), str(self.notes)],
                env={**shared, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            self.processes.append(process)
        for rank in range(n_ranks):
            self.until(rank, lambda note: note.isdecimal() and int(note) > 5)

    def note(self, rank: int) -> str:
        file = self.notes / str(rank)
        return file.read_text() if file.exists() else ""

    def until(self, rank: int, is_so: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + LONG
        while not is_so(note := self.note(rank)):
            assert time.monotonic() < deadline, f"rank {rank} hangs: {note!r}"
            time.sleep(0.02)
        return note

    def goes_on(self, rank: int, n_steps: int = 20) -> None:
        start = int(self.note(rank) or "0")
        self.until(rank, lambda note: note != "" and int(note) >= start + n_steps)

    def stops(self, rank: int) -> None:
        assert self.until(rank, lambda note: " " in note).endswith(" enough")

    def signal(self, rank: int, number: signal.Signals) -> None:
        self.processes[rank].send_signal(number)

    def ask(self, verb: str, *words: str) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(_tdbg, [verb, str(self.run), *words, "--json"])
        assert done.exit_code in (0, 1), done.output
        return done.exit_code, json.loads(done.output)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Ranks]]:
    with ExitStack() as stack:
        yield lambda n_ranks: Ranks(tmp_path, n_ranks, stack)


def test_a_rank_that_is_stopped_or_killed_holds_no_other_up_and_is_named(
    start: Callable[[int], Ranks],
) -> None:
    ranks = start(3)
    weights = ("--collection", "weights", "--for", "5", "--wait")
    code, answer = ranks.ask("attach", *weights, "60")
    assert (code, answer["state"]) == (0, "accepted")
    assert "silent" not in answer

    ranks.signal(2, signal.SIGSTOP)
    code, answer = ranks.ask("attach", *weights, "3")
    assert (code, answer["state"]) == (1, "accepted")
    assert list(answer["silent"]) == ["worker_2"]
    for rank in (0, 1):
        ranks.goes_on(rank)

    ranks.signal(1, signal.SIGKILL)
    ranks.processes[1].wait(LONG)
    code, answer = ranks.ask("stop", "--reason", "enough", "--wait", "3")
    assert (code, answer["state"]) == (1, "unanswered")
    assert list(answer["silent"]) == ["worker_2"]
    assert answer["gone"] == ["worker_1"]
    ranks.stops(0)
    # It obeys as soon as it goes on, although who keeps the store has stopped.
    ranks.signal(2, signal.SIGCONT)
    ranks.stops(2)


def test_a_leader_that_is_stopped_keeps_no_rank_from_training_or_stopping(
    start: Callable[[int], Ranks],
) -> None:
    ranks = start(2)
    ranks.signal(0, signal.SIGSTOP)
    ranks.goes_on(1)
    code, answer = ranks.ask("stop", "--reason", "enough", "--wait", "4")
    assert code == 1
    assert list(answer["silent"]) == ["worker_0"]
    ranks.stops(1)
    ranks.signal(0, signal.SIGCONT)
    ranks.stops(0)


def test_ranks_whose_store_died_with_its_keeper_obey_alone(
    start: Callable[[int], Ranks],
) -> None:
    ranks = start(2)
    ranks.signal(0, signal.SIGKILL)
    ranks.processes[0].wait(LONG)
    ranks.goes_on(1)
    code, answer = ranks.ask("stop", "--reason", "enough", "--wait", "60")
    assert (code, answer["state"], answer["gone"]) == (0, "stopped", ["worker_0"])
    ranks.stops(1)
