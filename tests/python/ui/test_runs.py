"""The runs that a server has found: their names, and what it says of each in a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planted import add_findings, finding
from run_builder import simple_run
from tdbg.run.findings import Severity
from tdbg.ui.documents import list_runs, tell_runs
from tdbg.ui.runs import OpenRun, Runs


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are opened, one after the other."""
    found: list[str] = []

    class Counted(OpenRun):
        def __init__(self, id_: str, path: Path) -> None:
            found.append(path.name)
            super().__init__(id_, path)

    monkeypatch.setattr("tdbg.ui.runs.OpenRun", Counted)
    return found


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in document["runs"]}


def test_the_list_opens_no_run_and_names_all_of_them_the_newest_first(
    tmp_path: Path, opened: list[str]
) -> None:
    for name in "cab":
        simple_run(tmp_path / name)
    runs = Runs([str(tmp_path)])
    listed = list_runs(runs)["runs"]
    assert [each["name"] for each in listed] == ["b", "a", "c"]
    known = {"id", "name", "created", "state", "tags", "note", "archived"}
    assert all(each.keys() == known for each in listed)
    assert {each["state"] for each in listed} == {"closed"}
    assert opened == []
    told = tell_runs(runs, [listed[1]["id"]])["runs"]
    assert [each["verdict"]["tone"] for each in told] == ["unjudged"]
    assert opened == ["a"]
    # What is known is in the list from then on.
    again = by_name(list_runs(runs))
    assert again["a"] == told[0]
    assert "verdict" not in again["b"]


def test_no_run_is_opened_twice_that_has_ended_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]
) -> None:
    for name in "abcde":
        simple_run(tmp_path / name)
    monkeypatch.setattr("tdbg.ui.runs.MAX_OPEN", 2)
    # The runs that are still open are looked at whenever they are asked for.
    monkeypatch.setattr("tdbg.ui.runs.LOOK_SECONDS", 0.0)
    runs = Runs([str(tmp_path)])
    first = tell_runs(runs, list(runs.found()))
    assert sorted(opened) == [*"abcde"]
    assert tell_runs(runs, list(runs.found())) == first
    assert by_name(list_runs(runs)) == by_name(first)
    assert len(opened) == 5

    found = finding("DeadRelu", "fc.weight", 3, Severity.ERROR)
    add_findings(tmp_path / "a", found)
    listed = by_name(list_runs(runs))
    assert "verdict" not in listed["a"]
    assert listed["b"] == by_name(first)["b"]
    again = by_name(tell_runs(runs, list(runs.found())))
    assert again["a"]["counts"] != again["b"]["counts"]
    assert len(opened) <= 6


def test_a_run_that_cannot_be_read_is_listed_with_the_reason_and_hides_no_other(
    tmp_path: Path,
) -> None:
    simple_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "RUN.json").write_text("nonsense")
    listed = list_runs(Runs([str(tmp_path)]))["runs"]
    assert sorted(each["state"] for each in listed) == ["closed", "unreadable"]
    assert [bool(each["error"]) for each in listed if "error" in each] == [True]


def test_a_name_is_the_path_below_what_all_runs_have_in_common(tmp_path: Path) -> None:
    simple_run(tmp_path / "one" / "a")
    runs = Runs([str(tmp_path)])
    (only,) = runs.found()
    assert runs.name(only) == "a"
    simple_run(tmp_path / "two" / "b")
    names = [each["name"] for each in list_runs(Runs([str(tmp_path)]))["runs"]]
    assert sorted(names) == ["one/a", "two/b"]
