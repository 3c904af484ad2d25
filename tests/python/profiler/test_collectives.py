"""Collective operations of two real ranks, by gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdbg.profiler.collectives import KINDS
from tdbg.run.profile_tables import Phase

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = Path(__file__).parent.parent / "helpers" / "programs" / "collective_rank.py"
WORDS = [*dict.fromkeys(KINDS.values()), "ddp_all_reduce"]
LATE_NS = 100_000_000


def ranks(what: str) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), port, what],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def kinds(rank: Any) -> list[str]:
    return [WORDS[row["kind"]] for row in rank["rows"]]


def test_the_rank_that_comes_late_waits_least() -> None:
    found = ranks("calls")
    expected = ["all_reduce"] * 3 + ["barrier", "all_gather", "broadcast"]
    assert [kinds(rank) for rank in found] == [expected] * 2
    first, second = (rank["rows"] for rank in found)
    assert first[1]["exposed_ns"] > LATE_NS > second[1]["exposed_ns"]
    # What lies between the call and the wait is not exposed.
    for rows in (first, second):
        assert rows[2]["duration_ns"] >= rows[2]["exposed_ns"] + 10_000_000
        assert [row["sequence"] for row in rows] == [0, 1, 2, 3, 4, 0]
        assert len({row["group"] for row in rows[:5]}) == 1
        assert rows[5]["group"] != rows[0]["group"]
        assert [row["bytes"] for row in rows[:3]] == [4000] * 3
        assert (rows[4]["bytes"], rows[5]["bytes"]) == (40, 12)
    arrivals = [row["time"] - row["duration_ns"] for row in (first[1], second[1])]
    assert arrivals[1] - arrivals[0] > LATE_NS
    groups = [each for each in found[0]["events"] if each["what"] == "collectives"]
    assert [each["kinds"] for each in groups] == [WORDS] * 2
    assert [each["size"] for each in groups] == [2, 2]
    log = found[0]["log"]
    assert {phase for _, phase in log} == {Phase.COMMUNICATION}
    assert [what for what, _ in log] == ["enter", "leave"] * (len(log) // 2)


@pytest.mark.parametrize("what", ["older", "hook"])
def test_the_wait_for_the_gradients_of_others_is_measured(what: str) -> None:
    """The first backward shows which gradient is the last; no_sync waits for none."""
    found = ranks(what)
    for rank in found:
        rows = [row for row in rank["rows"] if WORDS[row["kind"]] == "ddp_all_reduce"]
        assert len(rows) == 5
        assert {row["bytes"] for row in rows} == {(64 + 8 + 8 + 1) * 4}
        assert rank["hooks"] == 0
        log = rank["log"]
        assert log.count(["enter", 5]) == log.count(["leave", 5])
    waits = [
        sorted(
            row["exposed_ns"]
            for row in rank["rows"]
            if WORDS[row["kind"]] == "ddp_all_reduce"
        )
        for rank in found
    ]
    # Rank 1 sleeps 50 ms before two backwards at least.
    assert waits[0][-2] > 25_000_000 > waits[1][2]
