"""``tdbg sql``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder, simple_run
from tdbg.cli import _tdbg


def run(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, ["sql", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        simple_run(tmp_path / f"run{i}", range(4), seed=i)
    return tmp_path


QUERY = "select run, tensor, count(*) n from statistics group by all order by all"


def test_a_terminal_gets_a_table(folder: Path) -> None:
    done = run(folder, QUERY)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["run", "tensor", "n"]
    assert lines[1].split() == ["run0", "fc.weight", "4"]
    assert len(lines) == 7


def test_runs_may_be_several(folder: Path) -> None:
    done = run(folder / "run0", folder / "run2", "select run from runs", "--json")
    rows = json.loads(done.output)["rows"]
    assert rows == [{"run": "run0"}, {"run": "run2"}]


def test_json_has_columns_and_rows(folder: Path) -> None:
    query = "select run, created, 0/0::double as x, last from runs limit 1"
    document = json.loads(run(folder, query, "--json").output)
    assert document["columns"] == ["run", "created", "x", "last"]
    (row,) = document["rows"]
    assert row["run"] == "run0"
    assert row["created"].endswith("+00:00")
    assert row["x"] in (None, "nan")


def test_csv_has_all_rows(folder: Path) -> None:
    done = run(folder, "select i, null as none from range(500) t(i)", "--csv")
    rows = list(csv.reader(done.output.splitlines()))
    assert rows[0] == ["i", "none"]
    assert len(rows) == 501


def test_a_table_has_an_end(folder: Path) -> None:
    done = run(folder, "select i from range(500) t(i)")
    assert "and 300 more rows" in done.output.splitlines()[-1]


def test_the_runs_are_those_of_the_folder_runs_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple_run(tmp_path / "runs" / "a")
    monkeypatch.chdir(tmp_path)
    assert run("select run from runs").output.split() == ["run", "a"]


def test_a_wrong_query_names_what_there_is(folder: Path) -> None:
    done = run(folder, "select l3 from statistics")
    assert done.exit_code == 3
    assert 'Candidate bindings: "l1", "l2"' in done.output


def test_names_from_a_run_control_no_terminal(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as writer:
        writer.step(0, {"w\x1b[2Jx": np.ones(2, np.float32)})
    assert "\x1b" not in run(tmp_path, "select tensor from statistics").output


def test_a_run_that_cannot_be_read_is_told(folder: Path) -> None:
    (folder / "run1" / "RUN.json").write_text("{")
    done = run(folder, "select distinct run from statistics order by 1")
    assert done.exit_code == 3
    assert done.stdout.split() == ["run", "run0", "run2"]
    assert "could not read run1: " in done.stderr
