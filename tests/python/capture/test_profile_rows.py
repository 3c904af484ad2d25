"""Rows of a profile on their way from a session to its run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg.capture import profile_rows
from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.opening import SessionSpec, open_session
from tdbg.capture.policy import Policy
from tdbg.capture.profile_rows import ProfileRows
from tdbg.capture.session import Session
from tdbg.config import CollectionRegistry, SaveConfig
from tdbg.config.options import SessionOptions
from tdbg.run.profile_tables import DISK, STEP, SYSTEM


class Records:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, bytes]] = []

    def samples(self, name: str, columns: str, rows: Any) -> bool:
        self.rows.append((name, columns, bytes(rows)))
        return True


def rows_at(*times: int, table: np.dtype[Any] = STEP) -> NDArray[Any]:
    rows = np.zeros(len(times), table)
    rows["time"] = times
    return rows


def times_in(record: tuple[str, str, bytes], table: np.dtype[Any] = STEP) -> list[int]:
    times: list[int] = np.frombuffer(record[2], table)["time"].tolist()
    return times


def opened(directory: Path) -> Session:
    spec = SessionSpec(
        directory / "run", Policy(CollectionRegistry(), SaveConfig()), SessionOptions()
    )
    return open_session(spec, FrameworkAdapter())


def test_rows_wait_and_come_in_one_record() -> None:
    records = Records()
    rows = ProfileRows(records)  # type: ignore[arg-type]
    for time in range(10):
        rows.append("step", rows_at(time))
    assert not records.rows
    rows.flush()
    (record,) = records.rows
    assert record[0] == "profile/step"
    assert times_in(record) == list(range(10))


def test_many_bytes_do_not_wait() -> None:
    records = Records()
    rows = ProfileRows(records)  # type: ignore[arg-type]
    rows.append("disk", rows_at(1, table=DISK), "sda")
    rows.append("step", rows_at(*range(400)))
    assert [record[0] for record in records.rows] == ["profile/step"]
    rows.flush()
    assert records.rows[1][0] == "profile/disk/sda"


def test_what_is_due_is_written_with_any_other_row(monkeypatch: Any) -> None:
    now = [0]
    monkeypatch.setattr(profile_rows.time, "monotonic_ns", lambda: now[0])
    records = Records()
    rows = ProfileRows(records)  # type: ignore[arg-type]
    rows.append("step", rows_at(1))
    now[0] = 999_999_999
    rows.append("system", rows_at(2, table=SYSTEM))
    assert not records.rows
    now[0] += 1
    rows.append("system", rows_at(3, table=SYSTEM))
    assert [record[0] for record in records.rows] == ["profile/step", "profile/system"]
    assert times_in(records.rows[1], SYSTEM) == [2, 3]


def test_a_table_of_two_widths_becomes_two_records() -> None:
    records = Records()
    rows = ProfileRows(records)  # type: ignore[arg-type]
    rows.append("x", rows_at(1, table=DISK))
    rows.append("x", rows_at(2, table=SYSTEM))
    rows.flush()
    assert len({columns for _, columns, _ in records.rows}) == 2


def test_no_row_is_lost_between_threads() -> None:
    records = Records()
    rows = ProfileRows(records)  # type: ignore[arg-type]

    def write(first: int) -> None:
        for i in range(500):
            rows.append("step", rows_at(first + i))

    threads = [threading.Thread(target=write, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows.flush()
    found = sorted(time for record in records.rows for time in times_in(record))
    assert found == [1000 * i + j for i in range(4) for j in range(500)]


def test_a_session_writes_its_rows_when_it_closes(tmp_path: Path) -> None:
    session = opened(tmp_path)
    session.write_samples("step", rows_at(1, 2))
    session.flush(durable=False, timeout=5.0)
    (directory,) = (tmp_path / "run" / "w").iterdir()
    reader = _core.RunReader(str(directory))
    assert reader.read_samples(1)[0].view(STEP)["time"].tolist() == [1, 2]
    session.write_samples("step", rows_at(3))
    assert session.close()
    reader.poll()
    assert reader.read_samples(1)[0].view(STEP)["time"].tolist() == [1, 2, 3]
    session.write_samples("step", rows_at(4))


def test_rows_that_are_no_table_are_borne(tmp_path: Path) -> None:
    session = opened(tmp_path)
    bad: Any = np.zeros(3)
    session.write_samples("step", bad)
    assert session.counters()["internal_errors"] == 1
    session.close()


def test_a_forked_child_writes_nothing_and_waits_for_nobody(tmp_path: Path) -> None:
    session = opened(tmp_path)
    with session._profile_rows._lock:  # Another thread was appending.
        child = os.fork()
        if child == 0:
            session.write_samples("step", rows_at(9))
            session.close()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    session.write_samples("step", rows_at(1))
    session.close()
    (directory,) = (tmp_path / "run" / "w").iterdir()
    reader = _core.RunReader(str(directory))
    assert reader.read_samples(1)[0].view(STEP)["time"].tolist() == [1]
