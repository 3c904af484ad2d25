"""The scenarios of time: what they say of themselves, and three of them performed.

What the rules name in all of them takes half an hour and is what
``python -m benchmarks.detection.scenarios`` is for.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks._harness.machine import ROOT
from benchmarks.detection.scenarios import __main__ as program
from benchmarks.detection.scenarios import corpus, play, table
from benchmarks.detection.scenarios.kit import Scenario, scenarios
from benchmarks.detection.scenarios.stage import (
    Performance,
    Recorded,
    judge,
    perform,
    rules_of_time,
)
from tdbg.modes import ModeKeys
from tdbg.rules.engine import profile_feed
from tdbg.rules.registry import names
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch


def recorded(name: str, mode: str, step_ms: float = 50.0) -> Recorded:
    outcome = {"shows": mode == "sick", "step_ms": step_ms, "queued": 0.0}
    return Recorded(
        scenario=scenarios()[name],
        mode=mode,
        run=Path("none"),
        outcome={**outcome, "shares": {"wait": 0.6}, "figures": {}},
    )


def warning(rule: str, gain: float | None = None) -> Finding:
    return Finding(
        rule=rule,
        severity=Severity.WARNING,
        step=1,
        mode=ModeKeys.TRAIN,
        tensor="training",
        message=f"{rule} says so",
        first_step=1,
        last_step=1,
        gain=gain,
    )


def heard(name: str, mode: str, *roots: Finding) -> Performance:
    return Performance(
        recorded=recorded(name, mode), roots=roots, symptoms=(), infos=(), seconds=40.0
    )


@pytest.mark.parametrize("one", scenarios().values(), ids=lambda one: one.name)
def test_a_scenario_says_what_it_is_and_knows_no_tdbg(one: Scenario) -> None:
    assert set(one.named_by) <= set(names())
    assert set(one.asks) <= set(one.named_by)
    assert bool(one.named_by) == ("Twin: " in one.text)
    module = inspect.getmodule(one.program)
    assert module is not None
    assert not re.search(
        r"^(from|import) tdbg", inspect.getsource(module), re.MULTILINE
    )


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["--sick", None])
def test_a_scenario_measures_its_fault_without_tdbg(
    mode: str | None, tmp_path: Path
) -> None:
    given = ["no_workers", f"--outcome={tmp_path / 'told'}", "--seconds=4"]
    given += ["--warm-up=1", *([mode] if mode else [])]
    command = [sys.executable, "-m", play.__name__, *given]
    subprocess.run(command, check=True, cwd=ROOT)
    told = json.loads((tmp_path / "told").read_text())
    assert told["shows"] is (mode == "--sick")
    assert (told["shares"]["wait"] > 0.3) is told["shows"]


def test_faults_are_named_and_a_healthy_training_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bins of a second, what takes a minute takes some seconds."""
    monkeypatch.setattr(profile_feed, "BIN_NS", 10**9)
    monkeypatch.setattr(profile_feed, "WARM_NS", 10**9)
    work = [("no_workers", "sick"), ("no_loader", "healthy")]

    def one(what: tuple[str, str]) -> Recorded:
        folder = tmp_path / "-".join(what)
        return perform(scenarios()[what[0]], what[1], folder, seconds=9, warm_up=2)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(one, work))
    assert [each.trouble for each in done] == ["", ""]
    waits, silent = map(judge, done)
    assert [each.rule for each in waits.naming] == ["DataLoaderBound"]
    assert (waits.naming[0].gain or 0.0) > 0.3
    assert waits.wrong == []
    assert silent.wrong == []


def test_a_limit_of_cores_that_nobody_may_set_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "benchmarks.detection.scenarios.stage.GROUP", tmp_path / "missing"
    )
    done = perform(scenarios()["under_a_quota"], "sick", tmp_path / "run")
    assert done.trouble.startswith("no right to limit cores")


def test_a_wrong_cause_and_a_false_alarm_are_counted() -> None:
    found = [
        heard("loader_sleeps", "sick", warning("DataLoaderBound", 0.6)),
        heard("loader_sleeps", "twin", warning("GcPauses")),
        heard("saves_often", "sick", warning("StepOutlier")),
        heard("no_loader", "healthy"),
    ]
    rows = table.totals(found).rows
    assert rows == [
        ["with a fault", "2", "1", "1", "0"],
        ["healthy", "2", "-", "1", "0"],
    ]
    told = [row[:2] for row in table.alarms(found).rows]
    assert told == [["loader_sleeps.twin", "GcPauses"], ["saves_often", "StepOutlier"]]


def test_a_machine_that_was_busy_is_counted_apart() -> None:
    said = heard("no_loader", "healthy", warning("CpuContention"), warning("GcPauses"))
    said.recorded.outcome["queued"] = 0.2
    (row,) = table.totals([said]).rows[1:]
    assert row[3:] == ["1", "1"]
    assert [each.rule for each in said.crowded] == ["CpuContention"]
    assert [each.rule for each in said.wrong] == ["GcPauses"]


@pytest.mark.parametrize(("after", "kept"), [(21.0, "yes"), (30.0, "NO")])
def test_a_promise_is_kept_within_ten_points(after: float, kept: str) -> None:
    promise = table.Promise(
        warning("DataLoaderBound", 0.6),
        recorded("loader_sleeps", "sick"),
        recorded("loader_sleeps", "mended", after),
    )
    (row,) = table.promises([promise]).rows
    assert row[-1] == kept


def test_all_rules_about_time_are_asked() -> None:
    asked = {each.name for each in rules_of_time()}
    assert {rule for one in scenarios().values() for rule in one.named_by} <= asked


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["list", "--only", "loader"]) == 0
    assert "DataLoaderBound" in capsys.readouterr().out


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit, match="no scenario has a name that begins so"):
        program.main(["list", "--only", "nothing"])


def test_the_corpus_is_of_scripts_with_these_names(tmp_path: Path) -> None:
    for name in ("vae.py", "gan.py", "vae.toml"):
        (tmp_path / name).touch()
    assert corpus.scripts([tmp_path], ("v",)) == [tmp_path / "vae.py"]
    assert corpus.scripts([], ("digits_mlp",))[0].name == "digits_mlp.py"
