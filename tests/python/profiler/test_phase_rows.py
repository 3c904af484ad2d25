"""Rows of what a training waits for: written together, for sessions that live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from numpy.typing import NDArray

from tdbg.profiler.phase_rows import PhaseRows
from tdbg.run.profile_tables import COLLECTIVE, Phase

SECOND = 1_000_000_000


class FakeSession:
    """A session as far as rows know one."""

    def __init__(self) -> None:
        phases: list[tuple[str, int]] = []
        self.phases = phases
        self.clock = SimpleNamespace(
            enter=lambda phase: phases.append(("enter", phase)),
            leave=lambda phase: phases.append(("leave", phase)),
        )
        self.is_live = True
        self.written: list[tuple[str, NDArray[Any]]] = []
        self.events: list[dict[str, Any]] = []

    def write_samples(self, table: str, rows: NDArray[Any]) -> None:
        self.written.append((table, rows))

    def write_event(self, _: int, content: dict[str, Any]) -> None:
        self.events.append(content)


@pytest.fixture
def session() -> Any:
    return FakeSession()


@pytest.fixture
def rows(session: Any) -> PhaseRows:
    return PhaseRows(session, "collective", Phase.COMMUNICATION)


def row(time: int) -> tuple[int, ...]:
    return (time, *range(1, len(COLLECTIVE.names or ())))


def test_the_training_waits_in_the_phase(session: Any, rows: PhaseRows) -> None:
    rows.enter()
    rows.leave()
    assert session.phases == [
        ("enter", Phase.COMMUNICATION),
        ("leave", Phase.COMMUNICATION),
    ]


def test_rows_are_written_about_once_a_second(session: Any, rows: PhaseRows) -> None:
    began = rows._written_ns
    rows.add(row(began + 1))
    assert session.written == []
    rows.add(row(began + 2 * SECOND))
    ((table, written),) = session.written
    assert table == "collective"
    assert written.dtype == COLLECTIVE
    assert (written["time"] - began).tolist() == [1, 2 * SECOND]
    assert written["bytes"].tolist() == [7, 7]
    rows.write()
    assert len(session.written) == 1, "what was written is written again"


def test_many_rows_do_not_wait(session: Any, rows: PhaseRows) -> None:
    for _ in range(1000):
        rows.add(row(rows._written_ns))
    assert sum(len(each) for _, each in session.written) == 512


def test_a_session_that_is_gone_takes_nothing_and_is_not_kept_alive() -> None:
    rows = PhaseRows(FakeSession(), "collective", Phase.COMMUNICATION)  # type: ignore[arg-type]
    assert rows.session is None
    rows.enter()
    rows.leave()
    rows.add(row(0))
    rows.write()
    rows.write_fact({"what": "collectives"})


def test_facts_are_events_of_sessions_that_live(session: Any, rows: PhaseRows) -> None:
    rows.write_fact({"what": "collectives"})
    session.is_live = False
    rows.write_fact({"what": "loader"})
    assert session.events == [{"what": "collectives"}]
