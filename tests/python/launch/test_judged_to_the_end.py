"""All that a training wrote is judged, however slowly rules get to it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hostile_rules import Foreign
from run_builder import RunBuilder
from tdbg.actions import Action
from tdbg.cli import run
from tdbg.cli.run import BackgroundJudge, FamilyJudge
from tdbg.launch.family import DirectoryFamily
from tdbg.launch.supervise import holding_signals
from tdbg.rules import Engine, Evaluation, ExplodingTensor, Window
from tdbg.rules.sandbox.sandbox import Process
from tdbg.run.findings import Finding
from tdbg.trial import create_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Foreign):
    """Judges in its process only when a file is there; says when it is about to."""

    folder: str = ""

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        if "tdbg.rules.engine.worker" in sys.modules:
            (Path(self.folder) / "begun").touch()
            appeared(Path(self.folder) / "go")
        # Not super(): a class with slots is another one than the compiler knows.
        yield from Foreign.evaluate(self, window)


def appeared(file: Path) -> None:
    """Wait for a file; a test that waits in vain is ended from outside."""
    while not file.exists():
        time.sleep(0.01)


def write(builder: RunBuilder, step: int, value: float) -> None:
    builder.step(step, {"a.weight": np.full(3, value, np.float32)})


@pytest.fixture
def healthy_then_sick(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with RunBuilder(path) as builder:
        for step in range(4):
            write(builder, step, 1.0 if step < 3 else np.nan)
    return path


def test_a_rule_that_was_busy_at_the_end_judges_the_rest(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunBuilder(run_dir) as builder:
        write(builder, 0, 1.0)
        builder.capture.flush()
        engine = Engine(run_dir, Late(folder=str(tmp_path)), record=False)
        assert engine._poll(wait=False) == []
        appeared(tmp_path / "begun")
        # It judges step 0 and has not seen this one.
        write(builder, 1, np.nan)
    wait = Process.wait

    def go_on(process: Process) -> None:
        (tmp_path / "go").touch()
        wait(process)

    monkeypatch.setattr(Process, "wait", go_on)
    found = [finding for some in engine.follow(0.001) for finding in some]
    assert [(finding.rule, finding.step) for finding in found] == [("Late", 1)]
    engine.finish()


def test_a_program_that_ends_during_the_first_look_is_judged(
    healthy_then_sick: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    judged = BackgroundJudge(str(healthy_then_sick), [Foreign()], [])
    n_looks = 0

    class Slow(Engine):
        def _poll(self, *, wait: bool) -> list[Finding]:
            nonlocal n_looks
            n_looks += 1
            if n_looks > 1:
                return super()._poll(wait=wait)
            judged._ended.wait()
            deadline = time.monotonic() + 2.0
            while not self.is_stopped and time.monotonic() < deadline:
                time.sleep(0.01)  # Nobody stops it now.
            return []

    monkeypatch.setattr(run, "Engine", Slow)
    with holding_signals():
        judged.start()
        judged.finish()
    told = capfd.readouterr().err
    assert "Foreign at step 3" in told
    assert "4 recorded steps judged by rules: 1 finding" in told
    (finding,) = create_trial(healthy_then_sick).findings()
    assert finding.rule == "Foreign"


def test_every_training_of_a_launch_is_judged_with_actions_of_its_own(
    healthy_then_sick: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    second = healthy_then_sick.with_name("run-2")
    asked: list[str] = []

    def make_actions(path: str) -> list[Action]:
        asked.append(path)
        return []

    judge = FamilyJudge(
        DirectoryFamily(healthy_then_sick, {}), [ExplodingTensor()], make_actions
    )
    with holding_signals():
        judge.start()
        with RunBuilder(second) as builder:
            write(builder, 0, np.nan)
        judge.finish()
    assert asked == [str(healthy_then_sick), str(second)]
    printed = capfd.readouterr().err
    assert f"tdbg: judging another training: {second}" in printed
    assert "ExplodingTensor at step 3" in printed
    assert "ExplodingTensor at step 0" in printed
    for path in (healthy_then_sick, second):
        assert len(create_trial(path).findings()) == 1


def test_a_program_that_trained_nothing_is_told_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    judge = FamilyJudge(
        DirectoryFamily(tmp_path / "run", {}), [ExplodingTensor()], lambda _: []
    )
    with holding_signals():
        judge.start()
        judge.finish()
    assert "no training was captured, so there was nothing to judge" in (
        capfd.readouterr().err
    )


def test_an_engine_that_is_made_after_the_end_judges_a_run_that_nobody_ends(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with RunBuilder(run_dir) as builder:
        write(builder, 0, np.nan)
        write(builder, 1, 1.0)
        builder.capture.flush()  # This process goes on: nothing closes the run.
        judged = BackgroundJudge(str(run_dir), [ExplodingTensor()], [])

        def late(*given: object) -> Engine:
            judged._ended.wait()
            return Engine(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(run, "Engine", late)
        with holding_signals():
            judged.start()
            judged.finish()
    told = capfd.readouterr().err
    assert "ExplodingTensor at step 0" in told
    assert "some steps were not judged" not in told


def test_a_rule_that_never_answers_is_left_when_a_signal_comes(
    tmp_path: Path,
    healthy_then_sick: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    judged = BackgroundJudge(str(healthy_then_sick), [Late(folder=str(tmp_path))], [])
    arrived: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: arrived.append(number))
    try:
        with holding_signals():
            judged.start()
            appeared(tmp_path / "begun")
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            judged.finish()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert arrived == []  # It was taken: the program's end is the end of tdbg.
    assert "some steps were not judged: run tdbg check" in capfd.readouterr().err
    (tmp_path / "go").touch()
    judged._thread.join()
