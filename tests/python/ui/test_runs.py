"""The runs that a server has found: their names, and what it says of each in a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from planted import add_findings, finding
from run_builder import simple_run
from tdbg.run.findings import Severity
from tdbg.ui.documents import list_runs
from tdbg.ui.runs import OpenRun, Runs


def test_the_list_opens_no_run_twice_that_has_ended_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcde":
        simple_run(tmp_path / name)
    opened: list[Path] = []

    class Counted(OpenRun):
        def __init__(self, id_: str, path: Path) -> None:
            opened.append(path)
            super().__init__(id_, path)

    monkeypatch.setattr("tdbg.ui.runs.OpenRun", Counted)
    monkeypatch.setattr("tdbg.ui.runs.MAX_OPEN", 2)
    runs = Runs([str(tmp_path)])
    first = list_runs(runs)
    assert sorted(path.name for path in opened) == [*"abcde"]
    assert list_runs(runs) == first
    assert len(opened) == 5

    found = finding("DeadRelu", "fc.weight", 3, Severity.ERROR)
    add_findings(tmp_path / "a", found)
    again = {each["name"]: each for each in list_runs(runs)["runs"]}
    assert again["a"]["counts"] != again["b"]["counts"]
    assert len(opened) <= 6


def test_a_name_is_the_path_below_what_all_runs_have_in_common(tmp_path: Path) -> None:
    simple_run(tmp_path / "one" / "a")
    runs = Runs([str(tmp_path)])
    (only,) = runs.found()
    assert runs.name(only) == "a"
    simple_run(tmp_path / "two" / "b")
    names = [each["name"] for each in list_runs(Runs([str(tmp_path)]))["runs"]]
    assert sorted(names) == ["one/a", "two/b"]
