"""The profiler starts its parts with the session, and ends them with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.opening import SessionSpec, open_session
from tdbg.capture.policy import Policy
from tdbg.capture.session import Session
from tdbg.config import CollectionRegistry
from tdbg.config.options import SessionOptions
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler import Profiler

ON, OFF = ProfilerConfig(), ProfilerConfig(enabled=False)


class Noted:
    """A part that notes what is done to it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name
        log.append(f"{name} starts")

    def close(self) -> None:
        """Note it, and fail."""
        self.log.append(f"{self.name} closes")
        raise OSError(self.name)

    def forked(self) -> None:
        """Note it."""
        self.log.append(f"{self.name} is in a child")


def open_one(run_dir: Path, **options: object) -> Session:
    """A session that captures nothing."""
    policy = Policy(CollectionRegistry())
    spec = SessionSpec(run_dir, policy, SessionOptions(**options))  # type: ignore[arg-type]
    return open_session(spec, FrameworkAdapter())


@pytest.fixture
def session(run_dir: Path) -> Iterator[Session]:
    """An open session."""
    session = open_one(run_dir)
    yield session
    session.close()


def test_parts_start_in_order_and_close_in_reverse_whatever_they_raise(
    session: Session,
) -> None:
    log: list[str] = []

    def broken(*_: object) -> None:
        raise RuntimeError

    starts = [
        lambda *_: Noted(log, "a"),
        broken,
        lambda *_: None,
        lambda *_: Noted(log, "b"),
    ]
    profiler = Profiler(session, ON, starts)
    assert len(profiler.parts) == 2
    assert session.counters()["internal_errors"] == 1
    session.close()
    assert log == ["a starts", "b starts", "b closes", "a closes"]


def test_nothing_starts_if_it_is_off_or_no_run_is_written(
    session: Session, run_dir: Path
) -> None:
    log: list[str] = []
    starts = [lambda *_: Noted(log, "a")]
    Profiler(session, OFF, starts)
    dry = open_one(run_dir, dry_run=True)
    Profiler(dry, ON, starts)
    dry.close()
    assert log == []


def test_a_forked_child_lets_go_of_the_parts_and_closes_none(
    session: Session,
) -> None:
    log: list[str] = []
    Profiler(session, ON, [lambda *_: Noted(log, "a")])
    pid = os.fork()
    if pid == 0:
        os._exit(log != ["a starts", "a is in a child"])
    assert os.waitpid(pid, 0)[1] == 0
    session.close()
    assert log == ["a starts", "a closes"]
