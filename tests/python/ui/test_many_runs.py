"""What the server answers about many runs: records, curves, herds, and its cache."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard import dashboard
from planted import add_findings, finding
from run_builder import RunBuilder, simple_run
from run_rows import listed, told
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.findings import Severity
from tdbg.trial import create_trial
from tdbg.ui.packing import unpack
from tdbg.ui.rows import list_runs
from tdbg.ui.run_cache import RunCache
from tdbg.ui.runs import Runs
from tdbg.ui.series import curve


def write(path: Path, rate: float, *, evaluates: bool = False) -> None:
    step = 0
    with RunBuilder(path) as run:
        for i in range(20):
            run.scalar(step, "scalar/optimizer/group_0/lr", rate)
            run.scalar(step, "scalar/optimizer/group_0/momentum", 0.9)
            loss = np.array(2 / (1 + rate * i), np.float32)
            run.save(step, "loss_output_0", loss, what="statistics", role=Role.LOSS)
            run.end_step(step)
            step += 1
            if evaluates and i % 5 == 4:
                again = np.array(loss + 1)
                run.save(step, "loss_output_0", again, role=Role.LOSS)
                run.end_step(step, ModeKeys.EVAL)
                step += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "runs" / "a", 0.1)
    write(tmp_path / "runs" / "b", 0.2, evaluates=True)
    simple_run(tmp_path / "runs" / "c")
    return tmp_path / "runs"


def test_settings_that_all_runs_share_are_sent_once(folder: Path) -> None:
    shutil.rmtree(folder / "c")
    runs = Runs([str(folder)])
    told(runs)
    found = list_runs(runs)
    assert found["common"]["optimizer/group_0/momentum"] == 0.9
    b, a = (each["record"] for each in found["runs"])
    assert a["settings"] == {"optimizer/group_0/lr": 0.1}
    assert b["settings"] == {"optimizer/group_0/lr": 0.2}
    assert b["last"].keys() == {"loss_output_0", "loss_output_0 (EVAL)"}


def test_rows_come_as_lines_of_which_each_holds_some_runs(folder: Path) -> None:
    with dashboard(folder) as served:
        names = {n: served.run_id(n) for n in "abc"}
        query = "&".join(f"run={id_}" for id_ in [*names.values(), "unknown"])
        answer = served.ask(f"/api/rows_of_runs?{query}")
        parts = [json.loads(line) for line in answer.body.splitlines()]
        rows = [row for part in parts for row in part["runs"]]
        assert {row["id"] for row in rows} == {*names.values(), "unknown"}
        assert ["no such run" in row.get("error", "") for row in rows].count(True) == 1
        assert sum("record" in row for row in rows) == 3


def test_curves_of_runs_are_those_of_each_by_itself(folder: Path) -> None:
    with dashboard(folder) as served:
        names = {n: served.run_id(n) for n in "abc"}
        query = "&".join(f"run={id_}" for id_ in names.values())
        path = f"/api/curves?{query}&name=loss_output_0&start=0&stop=20&columns=7"
        answer = served.ask(path)
        assert answer.header["names"] == list(names.values())
        for i, name in enumerate("ab"):
            alone = curve(
                create_trial(folder / name),
                "loss_output_0",
                mode=ModeKeys.TRAIN,
                start=0,
                stop=20,
                columns=7,
            )
            for part in ("low", "high", "mean", "rows", "bad"):
                np.testing.assert_array_equal(
                    answer.arrays[part][i], getattr(alone, part)
                )
        assert answer.arrays["rows"][2].sum() == 0
        # Evaluation after the last step of training stands behind it.
        path = path.replace("output_0", "output_0%20(EVAL)").replace("20&c", "21&c")
        evaluated = served.ask(path)
        assert evaluated.arrays["rows"].sum(axis=1).tolist() == [20, 4, 0]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/curves?run={a}&start=0&stop=9", 400),
        ("/api/curves?run=none&name=loss_output_0&start=0&stop=9", 404),
        ("/api/curves?name=loss_output_0", 400),
        ("/api/herd?run={a}&role=weight&field=rms&start=0&stop=9", 404),
        ("/api/herd?run={a}&of=other&role=weight&field=rms&start=0&stop=9", 400),
        ("/api/herd?run={a}&healthy={a}&role=weight&field=mean&start=0&stop=9", 400),
        ("/api/rows_of_runs", 400),
    ],
)
def test_what_can_never_be_drawn_is_refused(
    folder: Path, path: str, status: int
) -> None:
    with dashboard(folder) as served:
        answer = served.ask(path.format(a=served.run_id("a")))
        assert answer.status == status
        assert answer.json["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("annotate", {"runs": [], "note": "x"}),
        ("annotate", {"note": "x"}),
        ("annotate", {"runs": "all", "note": "x"}),
        ("annotate", {"runs": ["1"], "add_tags": "word"}),
        ("annotate", {"runs": ["1"], "color": "red"}),
        ("delete", {"runs": ["1"]}),
        ("delete", {"runs": ["1"], "confirmed": "yes"}),
        ("delete", {"runs": ["1"], "confirmed": False}),
        ("delete", []),
    ],
)
def test_what_is_no_request_changes_nothing(folder: Path, path: str, body: Any) -> None:
    with dashboard(folder) as served:
        found = served.ask(f"/api/{path}", method="POST", body=body)
        assert found.status == 400
        assert sorted(each.name for each in folder.iterdir()) == ["a", "b", "c"]


def test_one_run_that_cannot_be_changed_keeps_no_other(folder: Path) -> None:
    with dashboard(folder) as served:
        body = {"runs": ["unknown", served.run_id("a")], "note": "said"}
        found = served.ask("/api/annotate", method="POST", body=body).json["runs"]
        assert [bool(each["error"]) for each in found] == [True, False]
        (note,) = (
            each["note"]
            for each in served.ask("/api/runs").json["runs"]
            if each["name"] == "a"
        )
        assert note == "said"


# --- The cache ------------------------------------------------------------------


def test_another_server_opens_no_run_that_has_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache" / "runs.sqlite"
    first = told(Runs([str(folder)], file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700

    def never(*_: object) -> None:
        raise AssertionError

    second = Runs([str(folder)], file)
    for module in ("runs", "row"):
        monkeypatch.setattr(f"tdbg.ui.{module}.create_trial", never)
    assert listed(second) == told(second) == first


def test_a_run_that_has_changed_is_read_again(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    told(Runs([str(folder)], file))
    error = finding("DeadRelu", "fc.weight", 3, Severity.ERROR)
    add_findings(folder / "c", error)
    second = Runs([str(folder)], file)
    assert "verdict" not in listed(second)["c"]
    assert told(second)["c"]["counts"]["error"] == 1


@pytest.mark.parametrize("content", [b"", b"no database", bytes(5000)])
def test_a_cache_that_cannot_be_read_is_one_that_holds_nothing(
    folder: Path, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "runs.sqlite"
    file.write_bytes(content)
    runs = Runs([str(folder)], file)
    assert all("verdict" in each for each in told(runs).values())


def test_rows_that_are_none_count_as_missing(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    cache = RunCache(file)
    cache.put("run", 1, {"state": "closed"})
    assert cache.get("run", 1) == {"state": "closed"}
    assert cache.get("run", 2) is None
    with sqlite3.connect(file) as database:
        database.execute("UPDATE runs SET row = '[1'")
    assert cache.get("run", 1) is None
    assert RunCache(None).get("run", 1) is None


def test_the_arrays_of_a_herd_belong_to_its_names(tmp_path: Path) -> None:
    folder = tmp_path / "herd"
    for i in range(6):
        with RunBuilder(folder / f"run{i}") as run:
            for step in range(30):
                array = np.full(2, 1 + i / 10, np.float32)
                run.step(step, {"a.weight": array, "b.weight": 2 * array})
    with dashboard(folder) as served:
        found = [each["id"] for each in served.ask("/api/runs").json["runs"]]
        query = "&".join(f"run={x}&healthy={x}" for x in found)
        path = f"/api/herd?{query}&role=weight&field=rms&start=0&stop=30&columns=10"
        header, arrays = unpack(served.ask(path).body)
        assert header["names"] == ["a.weight", "b.weight"]
        assert header["departures"] == []
        for name in ("deviation", "low", "center", "high", "value"):
            assert arrays[name].shape == (2, 10)
        np.testing.assert_allclose(arrays["center"][1], 2.5, rtol=1e-2)
