"""The runs that a server has found: their names, and what it says of each in a list."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planted import add_findings, finding
from run_builder import simple_run
from run_rows import listed, told
from tdbg.errors import StorageError, TdbgError
from tdbg.run.findings import Severity
from tdbg.trial import Trial, create_trial
from tdbg.ui import rows
from tdbg.ui.row import read_row
from tdbg.ui.rows import RowReader, list_runs, readers_for, tell_runs
from tdbg.ui.runs import Runs


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are opened, one after the other."""
    found: list[str] = []

    def counted(path: str) -> Trial:
        found.append(Path(path).name)
        return create_trial(path)

    for module in ("runs", "row"):
        monkeypatch.setattr(f"tdbg.ui.{module}.create_trial", counted)
    return found


def test_the_list_opens_no_run_and_names_all_of_them_the_newest_first(
    tmp_path: Path, opened: list[str]
) -> None:
    for name in "cab":
        simple_run(tmp_path / name)
    runs = Runs([str(tmp_path)])
    found = list_runs(runs)["runs"]
    assert [each["name"] for each in found] == ["b", "a", "c"]
    said = {"tags", "note", "archived"}
    known = {"id", "name", "is_far", "created", "state", *said}
    assert all(each.keys() == known for each in found)
    assert {each["state"] for each in found} == {"closed"}
    assert opened == []
    first = told(runs, found[1]["id"])
    assert first["a"]["verdict"]["tone"] == "unjudged"
    assert opened == ["a"]
    # What is known is in the list from then on.
    assert listed(runs)["a"] == first["a"]
    assert "verdict" not in listed(runs)["b"]


def test_no_run_is_opened_twice_that_has_ended_and_not_changed(
    tmp_path: Path, opened: list[str]
) -> None:
    for name in "abcde":
        simple_run(tmp_path / name)
    runs = Runs([str(tmp_path)])
    first = told(runs)
    # For its row, its settings and its metrics, once.
    assert sorted(opened) == [*"abcde"]
    assert told(runs) == listed(runs) == first
    # Nor is one that somebody watches.
    assert all(runs.seen(id_)[0] for id_ in runs.found())
    assert len(opened) == 5

    found = finding("DeadRelu", "fc.weight", 3, Severity.ERROR)
    add_findings(tmp_path / "a", found)
    assert "verdict" not in listed(runs)["a"]
    assert listed(runs)["b"] == first["b"]
    again = told(runs)
    assert again["a"]["counts"] != again["b"]["counts"]
    assert len(opened) == 6


def test_who_watches_a_run_that_has_ended_learns_that_it_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]
) -> None:
    monkeypatch.setattr("tdbg.ui.runs.LIST_SECONDS", 0.0)
    simple_run(tmp_path / "run")
    runs = Runs([str(tmp_path)])
    (id_,) = runs.found()
    before = runs.seen(id_)
    assert runs.seen(id_) == before
    add_findings(tmp_path / "run", finding("DeadRelu", "fc.weight", 3, Severity.ERROR))
    assert runs.seen(id_) != before
    assert opened == []


def test_many_runs_are_read_by_processes_which_say_what_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(6):
        simple_run(tmp_path / f"run{i}", steps=range(1 + i))
    (tmp_path / "run3" / "RUN.json").write_text("nonsense")
    alone = told(Runs([str(tmp_path)]))
    assert alone["run3"]["state"] == "unreadable"
    monkeypatch.setattr("tdbg.ui.rows.readers_for", lambda _: 2)
    monkeypatch.setattr("tdbg.ui.rows.RUNS_EACH", 2)
    assert told(Runs([str(tmp_path)])) == alone

    def no_process() -> None:
        raise BlockingIOError

    monkeypatch.setattr("tdbg.ui.rows.RowReader", no_process)
    assert told(Runs([str(tmp_path)])) == alone


def test_a_process_that_reads_runs_answers_and_is_another_one_when_it_was_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    simple_run(path)
    reader = RowReader()
    try:
        while not reader.has_started():
            time.sleep(0.01)
        assert reader.read(str(path)) == read_row(str(path))
        with pytest.raises(TdbgError, match="is not a run"):
            reader.read(str(tmp_path / "none"))
        os.kill(reader.process, signal.SIGKILL)
        with pytest.raises(StorageError, match="run: the process that read it"):
            reader.read(str(path))
        assert reader.read(str(path)) == read_row(str(path))
    finally:
        reader.close()
    with pytest.raises(ProcessLookupError):
        os.kill(reader.process, 0)


def test_a_process_that_reads_runs_loads_no_server() -> None:
    code = "import sys, tdbg.ui.row; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {each.split(".")[0] for each in loaded.stdout.split()}
    assert not names & {"starlette", "uvicorn", "asyncio", "duckdb", "torch"}
    assert "tdbg.ui.app" not in loaded.stdout.split()


def test_rows_are_read_in_the_order_in_which_they_are_asked_for(
    tmp_path: Path, opened: list[str]
) -> None:
    for i in range(20):
        simple_run(tmp_path / f"run{i}", steps=range(2))
    runs = Runs([str(tmp_path)])
    ids = list(runs.found())[::-1]
    asked = [runs.name(each) for each in ids]
    parts = list(tell_runs(runs, ids))
    assert sorted(row["id"] for part in parts for row in part["runs"]) == sorted(ids)
    # Each once; threads may overtake each other by as many as there are.
    assert sorted(opened) == sorted(asked)
    places = [asked.index(name) for name in opened]
    assert all(at <= i + rows.OPENERS for i, at in enumerate(places))


def test_whoever_has_gone_waits_for_no_run(tmp_path: Path, opened: list[str]) -> None:
    for i in range(40):
        simple_run(tmp_path / f"run{i}", steps=range(2))
    runs = Runs([str(tmp_path)])
    parts = tell_runs(runs, list(runs.found()))
    next(parts)
    parts.close()
    assert len(opened) < 40


@pytest.mark.parametrize(("n", "most"), [(63, 0), (64, 1), (100_000, 8)])
def test_few_runs_are_worth_no_process(n: int, most: int) -> None:
    assert readers_for(n) <= most


def test_a_run_that_cannot_be_read_is_listed_with_the_reason_and_hides_no_other(
    tmp_path: Path,
) -> None:
    simple_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "RUN.json").write_text("nonsense")
    found = list_runs(Runs([str(tmp_path)]))["runs"]
    assert sorted(each["state"] for each in found) == ["closed", "unreadable"]
    assert [bool(each["error"]) for each in found if "error" in each] == [True]


def test_a_name_is_the_path_below_what_all_runs_have_in_common(tmp_path: Path) -> None:
    simple_run(tmp_path / "one" / "a")
    runs = Runs([str(tmp_path)])
    (only,) = runs.found()
    assert runs.name(only) == "a"
    simple_run(tmp_path / "two" / "b")
    names = [each["name"] for each in list_runs(Runs([str(tmp_path)]))["runs"]]
    assert sorted(names) == ["one/a", "two/b"]
