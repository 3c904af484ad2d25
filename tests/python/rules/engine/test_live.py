"""The engine beside a real training: what it finds, records, and stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from rules_fake import FakeRun
from tdbg import actions
from tdbg.config import Needs
from tdbg.errors import ConfigurationError, NotARun, StorageError, TrainingStopped
from tdbg.pytorch import Hook
from tdbg.rules import (
    Description,
    Engine,
    Evaluation,
    Report,
    Rule,
    Status,
    VanishingGradient,
    Window,
    check,
    watch,
)
from tdbg.rules.engine import finding_writer
from tdbg.run.directory import create_run
from tdbg.run.findings import Finding, Severity
from tdbg.run.requests import request_stop
from tdbg.trial import create_trial
from trainings import OK, SICK, Training

pytestmark = pytest.mark.torch

VANISHING = SICK["VanishingGradient"]


class Watching(threading.Thread):
    """``watch`` beside a training of the same process."""

    def __init__(self, run: Path, **options: object) -> None:
        super().__init__(daemon=True)
        self.report: Report | None = None
        self._run, self._options = run, options
        create_run(run)
        self.start()

    def run(self) -> None:
        self.report = watch(self._run, **self._options)  # type: ignore[arg-type]

    def result(self) -> Report:
        self.join(60)
        assert self.report is not None, "the watcher did not end with the run"
        return self.report


def test_watching_finds_what_checking_finds(tmp_path: Path):
    run = tmp_path / "run"
    watching = Watching(run, record=False, poll_seconds=0.001)
    replace(VANISHING, n_steps=200).run(run, seed=1)
    live = watching.result()
    offline = check(run, record=False)
    assert live.findings == offline.findings
    assert live.statuses == offline.statuses
    assert live.n_steps == offline.n_steps == 200
    assert any(finding.rule == "VanishingGradient" for finding in live.findings)


def test_a_sick_training_is_stopped_by_exactly_one_request(tmp_path: Path):
    run = tmp_path / "run"
    watching = Watching(run, on_finding="stop")
    n_steps = 100_000
    with pytest.raises(TrainingStopped, match="VanishingGradient at step 9"):
        replace(VANISHING, n_steps=n_steps).run(run, seed=0)
    report = watching.result()
    assert len(list((run / "ctl").glob("*.json"))) == 1
    assert report.n_steps < 5000
    assert report.notes == ()
    errors = [f for f in report.findings if f.severity is Severity.ERROR]
    assert len(errors) > 1


def test_a_warning_stops_only_if_asked_to(tmp_path: Path):
    unchanged = SICK["UnchangedTensor"]
    rules = "UnchangedTensor"
    watching = Watching(tmp_path / "mild", rules=rules, on_finding="stop")
    unchanged.run(tmp_path / "mild", seed=0)
    assert watching.result().findings
    assert not list((tmp_path / "mild" / "ctl").glob("*.json"))

    run = tmp_path / "strict"
    watching = Watching(run, rules=rules, on_finding="stop", stop_on="warning")
    with pytest.raises(TrainingStopped):
        replace(unchanged, n_steps=100_000).run(run, seed=0)
    watching.result()


def test_a_healthy_training_is_left_alone(tmp_path: Path):
    run = tmp_path / "run"
    watching = Watching(run, on_finding="stop", stop_on="info")
    replace(OK["mlp"], n_steps=60).run(run, seed=0)
    report = watching.result()
    assert report.healthy
    assert report.findings == ()
    assert {s.status for s in report.statuses} == {Status.NO_ISSUES_FOUND}


def test_findings_and_statuses_are_events_of_the_run(tmp_path: Path):
    run = tmp_path / "run"
    VANISHING.run(run, seed=0)
    engine = Engine(run)
    found = engine.poll()
    report = engine.finish()
    trial = create_trial(run)

    def key(finding: Finding) -> tuple[int, str, str]:
        return finding.step, finding.rule, finding.tensor

    assert sorted(trial.findings(), key=key) == sorted(found, key=key)
    statuses = trial.rule_statuses()
    for status in report.statuses:
        assert statuses[status.rule] == status.to_json()
    # The hook has statuses of its own, which are of no rule.
    of_rules = [e.data for e in trial.events("status") if "rule" in e.data]
    kinds = {data["status"] for data in of_rules}
    assert kinds == {"InProgress", "IssuesFound", "NoIssuesFound"}
    assert report.notes == ()


def test_a_verdict_that_has_not_changed_is_written_once(tmp_path: Path):
    run = tmp_path / "run"
    VANISHING.run(run, seed=0)
    before = create_trial(run).steps()

    def files() -> list[tuple[str, int]]:
        return sorted((str(file), file.stat().st_size) for file in run.rglob("*"))

    first, written = check(run), files()
    assert any("engine-0-1" in name for name, _ in written)
    # Judged again, by some of the rules only, and by following it to its end.
    assert check(run) == first
    some = check(run, ["VanishingGradient"])
    assert some.findings
    assert watch(run).findings == first.findings
    assert files() == written
    trial = create_trial(run)
    assert trial.steps() == before
    assert trial.loaded_all_steps
    assert trial.problems() == []


def test_a_verdict_that_has_changed_is_written_anew(tmp_path: Path):
    run = tmp_path / "run"
    VANISHING.run(run, seed=0)
    check(run, ["VanishingGradient"])
    strict = VanishingGradient(threshold=1e-30)
    assert not check(run, [strict]).findings
    assert len(list(run.glob("w/engine-*"))) == 2
    status = create_trial(run).rule_statuses()["VanishingGradient"]
    assert status["status"] == Status.NO_ISSUES_FOUND.value


def test_a_run_that_cannot_be_written_is_judged_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = tmp_path / "run"
    VANISHING.run(run, seed=0)
    expected = check(run, record=False).findings

    def refuse(*_: object, **__: object) -> None:
        msg = "Read-only file system"
        raise StorageError(msg)

    monkeypatch.setattr(finding_writer, "Capture", refuse)
    report = check(run)
    assert report.findings == expected
    (note,) = report.notes
    assert note == "findings could not be recorded in the run: Read-only file system"


def test_a_step_is_judged_while_the_training_goes_on(tmp_path: Path):
    run = tmp_path / "run"
    found = threading.Event()

    class Noted:
        name = "noted"

        def __call__(self, finding: Finding) -> None:
            if finding.step == 20:
                found.set()

    watching = Watching(run, rules="ExplodingTensor", on_finding=Noted())
    with Hook(run, rules=["ExplodingTensor"]) as hook:
        model = torch.nn.Linear(1, 1)
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(40):
            optimizer.zero_grad()
            model(
                torch.full((4, 1), float("nan") if step == 20 else 1.0)
            ).sum().backward()
            optimizer.step()
        # While it trains: nothing more is written, and nothing has ended.
        assert found.wait(60)
    watching.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class EachNan(Rule):
    """Reports every tensor that has NaN."""

    @property
    def needs(self) -> Needs:
        return Needs(collections=frozenset({"weights"}))

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        for table in window.tables():
            yield table.judge_bad(
                table["nan"] > 0,
                Severity.ERROR,
                lambda i, j, nan=table["nan"]: Description(
                    message=f"{nan[i, j]:g} NaN"
                ),
            )


def test_the_stop_action_asks_once_and_again_only_if_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[dict[str, object]] = []
    fail = True

    def request(run: object, **details: object) -> None:
        calls.append({"run": run, **details})
        if fail:
            msg = "no space"
            raise StorageError(msg)

    monkeypatch.setattr("tdbg.actions.stop.request_stop", request)
    run = FakeRun()
    nan = float("nan")
    for step in range(4):
        run.step(step, {name: [nan] for name in list("abcdef")[: step + 1]})
    stop = actions.get("stop", tmp_path)
    engine = Engine(run, EachNan(), (stop,))
    run.shown = 0
    engine.poll()
    assert engine.report().notes == ("action stop: no space",)
    fail = False
    run.shown = None
    engine.poll()
    assert len(calls) == 2
    assert calls[1]["rule"] == "EachNan"
    assert calls[1]["step"] == 1
    assert "1 NaN" in str(calls[1]["reason"])


def test_actions_go_by_name(tmp_path: Path):
    assert {"report", "stop", "webhook"} <= set(actions.names())
    assert actions.get("report", tmp_path).name == "report"
    with pytest.raises(ConfigurationError, match="did you mean 'stop'"):
        actions.get("stopp", tmp_path)
    with pytest.raises(ConfigurationError, match="severity 'awful' is none of"):
        actions.get("stop", tmp_path, stop_on="awful")


def test_what_is_no_run_cannot_be_judged(tmp_path: Path):
    with pytest.raises(NotARun):
        check(tmp_path)


def test_a_stop_that_somebody_else_asked_for_ends_the_watching(tmp_path: Path):
    run = tmp_path / "run"
    watching = Watching(run, rules=(VanishingGradient(),))
    stopper = threading.Timer(1.0, request_stop, (run,), {"reason": "lunch"})
    stopper.start()
    with pytest.raises(TrainingStopped, match="lunch"):
        Training(
            model=OK["mlp"].model,
            optimizer=OK["mlp"].optimizer,
            n_steps=100_000,
        ).run(run, seed=0)
    assert watching.result().findings == ()
