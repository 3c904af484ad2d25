"""``tdbg report``, and --report of the verbs that judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiles import LOADER_BOUND, Plan, profiled_run
from report_runs import Page
from run_builder import RunBuilder, simple_run


def tdbg(
    folder: Path, *arguments: object, **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tdbg", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def sick_run(path: Path) -> None:
    with RunBuilder(path) as run:
        for step in range(30):
            run.step(step, {"fc.weight": np.full(4, np.nan, np.float32)})


def test_a_report_is_written_beside_whoever_asks(tmp_path: Path) -> None:
    sick_run(tmp_path / "runs" / "sick")
    done = tdbg(tmp_path, "report", "runs/sick")
    assert done.returncode == 0, done.stderr
    place = tmp_path / "sick-report.html"
    assert "One thing is wrong: ExplodingTensor in fc.weight" in done.stdout
    assert done.stdout.endswith("written to sick-report.html\n")
    assert "ExplodingTensor" in Page.of(place).section("findings").text


def test_processes_write_the_same_bytes_of_a_run(tmp_path: Path) -> None:
    sick_run(tmp_path / "sick")
    for seed in ("1", "2"):
        done = tdbg(
            tmp_path,
            *("report", "sick", "-o", f"{seed}.html"),
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()


def test_json_says_what_was_written_and_the_verdict(tmp_path: Path) -> None:
    sick_run(tmp_path / "sick")
    done = tdbg(tmp_path, "report", "sick", "-o", "out.html", "--json")
    document = json.loads(done.stdout)
    assert document["runs"] == ["sick"]
    assert document["file"] == "out.html"
    assert document["bytes"] == (tmp_path / "out.html").stat().st_size
    (verdict,) = document["verdicts"]
    assert verdict["tone"] == "error"
    assert verdict["wrong"] == 1
    assert "ExplodingTensor" in verdict["sentence"]
    assert verdict["advice"]


def test_two_runs_are_one_report(tmp_path: Path) -> None:
    sick_run(tmp_path / "sick")
    simple_run(tmp_path / "well")
    done = tdbg(tmp_path, "report", "sick", "well")
    assert done.returncode == 0, done.stderr
    assert "sick: Trained for 30 steps" in done.stdout
    page = Page.of(tmp_path / "sick-well-report.html")
    assert page.root.all("h1")[0].text == "sick and well"


def test_the_name_of_a_run_makes_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "-o $(x)"
    simple_run(folder)
    done = tdbg(tmp_path, "report", "--", "-o $(x)")
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.html")
    assert made.name == "o-x-report.html"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("report",), 2, "Missing argument"),
        (("report", "a", "b", "c"), 2, "a report covers one run or two, not 3"),
        (("report", "run", "-o", "."), 2, "is a directory"),
        (("report", "run", "-o", "no/where.html"), 2, "there is no folder no"),
        (("report", "nothing"), 3, "nothing"),
        (("check", "run", "--report", "no/where.html"), 2, "there is no folder no"),
        (("check", "run", "run", "--report", "x.html"), 2, "--report covers one run"),
        (("watch", "run", "run", "--report", "x.html"), 2, "--report covers one run"),
        (("run", "--report", "no/x.html", "--", "true"), 2, "there is no folder no"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    simple_run(tmp_path / "run")
    done = tdbg(tmp_path, *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.html"))


def test_a_place_that_refuses_is_an_error_of_storage(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    name = "x" * 300 + ".html"
    done = tdbg(tmp_path, "report", "run", "-o", name)
    assert done.returncode == 3
    assert "the report could not be written" in done.stderr


def test_check_writes_the_report_of_its_judgement(tmp_path: Path) -> None:
    sick_run(tmp_path / "sick")
    done = tdbg(
        tmp_path, "check", "sick", "--rule", "ExplodingTensor", "--report", "out.html"
    )
    assert done.returncode == 1
    assert "written to out.html" in done.stdout
    rules = Page.of(tmp_path / "out.html").section("rules").text
    assert "ExplodingTensor" in rules
    assert "AllZero" not in rules


def test_check_judges_even_if_the_report_cannot_be_written(tmp_path: Path) -> None:
    sick_run(tmp_path / "sick")
    simple_run(tmp_path / "well")
    name = "x" * 300 + ".html"
    sick = tdbg(tmp_path, "check", "sick", "--report", name, "--json")
    assert sick.returncode == 1
    document = json.loads(sick.stdout)
    assert document["findings"]
    assert "could not be written" in document["report"]["error"]
    well = tdbg(tmp_path, "check", "well", "--rule", "AllZero", "--report", name)
    assert well.returncode == 3
    assert "judged 5 recorded steps" in well.stdout
    assert "could not be written" in well.stderr


def test_watch_writes_the_report_when_the_training_has_ended(tmp_path: Path) -> None:
    sick_run(tmp_path / "sick")
    done = tdbg(tmp_path, "watch", "sick", "--report", "out.html", "--json")
    assert done.returncode == 1
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "ended"
    assert last["report"]["file"] == "out.html"
    assert "ExplodingTensor" in Page.of(tmp_path / "out.html").verdict


@pytest.mark.needs("xgboost")
def test_run_judges_and_writes_the_report_of_each_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import numpy as np, xgboost\n"
        "x = np.random.default_rng(0).normal(size=(50, 3))\n"
        "for n in (3, 4):\n"
        "    data = xgboost.DMatrix(x, x[:, 0])\n"
        "    xgboost.train({'nthread': 1}, data, n)\n"
    )
    done = tdbg(
        tmp_path,
        *("run", "--out", "runs/a", "--report", "out.html"),
        *("--", sys.executable, "train.py"),
    )
    assert done.returncode == 0, done.stderr
    assert "written to out.html" in done.stderr
    for name, rounds in (("out.html", 3), ("out-2.html", 4)):
        assert f"Trained for {rounds} rounds" in Page.of(tmp_path / name).verdict


def test_a_profile_is_a_report_about_time_alone(tmp_path: Path) -> None:
    profiled_run(tmp_path / "bound", [Plan(LOADER_BOUND)])
    result = tdbg(tmp_path, "report", "bound", "--profile")
    assert result.returncode == 0, result.stderr
    titles = Page((tmp_path / "bound-profile.html").read_text()).titles
    assert titles[:2] == ["Findings", "Where the time went"]
    assert "Losses and rates" not in titles


def test_a_profile_of_two_runs_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        simple_run(tmp_path / name)
    result = tdbg(tmp_path, "report", "a", "b", "--profile")
    assert result.returncode == 2
    assert "--profile covers one run, not 2" in result.stderr


def test_a_report_with_a_price_says_what_the_run_cost(tmp_path: Path) -> None:
    profiled_run(tmp_path / "bound", [Plan(LOADER_BOUND)])
    result = tdbg(tmp_path, "report", "bound", "--profile", "--price", "3.6")
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "bound-profile.html").read_text()
    assert "Cost" in Page(text).titles
    assert "at 3.60 an hour" in text.partition("<nav")[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--on", "cpu.small"], "give --prices FILE"),
        (["--prices", "none.csv"], "cannot read none.csv"),
        (["--price", "-1"], "-1"),
        (["other", "--price", "1"], "a price covers one run, not 2"),
    ],
)
def test_a_price_that_says_nothing_is_refused_before_anything_is_written(
    tmp_path: Path, options: list[str], said: str
) -> None:
    for name in ("bound", "other"):
        simple_run(tmp_path / name)
    result = tdbg(tmp_path, "report", "bound", *options)
    assert result.returncode in (2, 3), result.stderr
    assert said in " ".join(result.stderr.split())
    assert list(tmp_path.glob("*.html")) == []


def test_show_says_where_the_time_went(tmp_path: Path) -> None:
    profiled_run(tmp_path / "bound", [Plan(LOADER_BOUND)])
    with RunBuilder(tmp_path / "bound", rank=1, world_size=2) as run:
        run.step(0, {"fc.weight": np.ones(3, np.float32)})
    result = tdbg(tmp_path, "show", "bound")
    assert "where the time went: 67 % data wait" in result.stdout
