"""What a bridge sends, when, and what it sends again: by a tracker that remembers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from run_builder import RunBuilder
from tdbg.bridge import Bridge, bridge
from tdbg.bridge.rows import StepRow
from tdbg.bridge.tracker import Destination, Forwarded, Sent, TrackedRun, fitting
from tdbg.bridge.verdicts import Alert, RunOutcome
from tdbg.cli.bridge import command
from tdbg.errors import ConfigurationError, NotARun, QueryError, StorageError
from tdbg.rules import check
from tracked_runs import add_steps, sick_run, wall_of


class Memory:
    """A tracker in memory, which outlives bridges and may refuse."""

    replaces = False
    where = "memory"

    def __init__(self) -> None:
        self.rows: list[StepRow] = []
        self.alerts: list[Alert] = []
        self.judged: list[RunOutcome] = []
        self.run: Forwarded | None = None
        self.closed: list[str] = []
        self.refuses_after: int | None = None
        self.received = threading.Event()

    def open(self, run: Forwarded) -> Sent:
        self.run = run
        last = self.rows[-1].global_step if self.rows else -1
        return Sent(last + 1, frozenset(each.key for each in self.alerts))

    def send(self, rows: Sequence[StepRow]) -> None:
        if self.refuses_after is not None and len(self.rows) >= self.refuses_after:
            msg = "the tracker refuses"
            raise StorageError(msg)
        self.rows += rows
        self.received.set()

    def alert(self, alert: Alert) -> None:
        self.alerts.append(alert)

    def judge(self, outcome: RunOutcome) -> None:
        self.judged.append(outcome)

    def close(self, state: str) -> None:
        self.closed.append(state)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """In place of W&B; and rows are sent five at a time."""
    made = Memory()

    def make(_name: str, _to: Destination) -> TrackedRun:
        return made

    monkeypatch.setattr(bridge, "tracker_of", make)
    monkeypatch.setattr(bridge, "MOST_ROWS", 5)
    monkeypatch.setattr(bridge, "POLL_SECONDS", 0.05)
    return made


def test_each_step_is_a_row_with_losses_and_scalars_of_its_mode(
    run_dir: Path, memory: Memory
) -> None:
    report = Bridge(sick_run(run_dir), "wandb").forward()
    assert [each.global_step for each in memory.rows] == list(range(16))
    assert [each.step for each in memory.rows][:5] == [0, 1, 2, 3, 3]
    assert [each.wall for each in memory.rows] == [wall_of(s) for s in range(16)]
    assert memory.rows[0].values == {"train/loss_output_0": 1.0, "train/lr": 0.1}
    assert memory.rows[3].values == {"eval/loss_output_0": 0.25}
    assert memory.closed == ["closed"]
    assert (report.rows, report.first_step, report.last_step) == (16, 0, 15)
    assert report.numbers == {
        "train/loss_output_0": 12,
        "train/lr": 12,
        "eval/loss_output_0": 4,
    }


def test_statistics_are_sent_as_they_are_chosen(run_dir: Path, memory: Memory) -> None:
    sick_run(run_dir)
    Bridge(run_dir, "wandb", statistics=["l2", "nan"], regex="fc").forward()
    name = "train/gradients/gradient/fc.weight"
    assert memory.rows[0].values == {
        f"{name}/l2": pytest.approx(0.5 * 12**0.5),
        f"{name}/nan": 0.0,
    }
    assert memory.rows[-1].values[f"{name}/nan"] == 12.0
    assert len(memory.rows) == 12  # Steps of evaluation have none of these.


@pytest.mark.parametrize(
    ("steps", "expected", "axis"),
    [
        ("training", [0, 1, 2, 3, 3], "training_step"),
        ("mode", [0, 1, 2, 0, 3], "mode_step"),
        ("global", [0, 1, 2, 3, 4], "global_step"),
    ],
)
def test_the_axis_is_the_one_that_is_asked_for(
    run_dir: Path, memory: Memory, steps: str, expected: list[int], axis: str
) -> None:
    Bridge(sick_run(run_dir), "wandb", steps=steps).forward()
    assert [each.step for each in memory.rows][:5] == expected
    assert memory.run is not None
    assert memory.run.axis == axis


def test_findings_arrive_though_nobody_has_judged_the_run(
    run_dir: Path, memory: Memory
) -> None:
    report = Bridge(sick_run(run_dir), "wandb").forward()
    (alert,) = memory.alerts
    assert alert.title == "ExplodingTensor in gradient/fc.weight"
    assert alert.step == 6
    assert "since step 6" in alert.text
    (finding,) = memory.judged[-1].findings()
    assert finding["severity"] == "error"
    assert finding["first_step"] == 6
    assert "One thing is wrong" in report.verdict
    # The run is read, and not written.
    assert not list(run_dir.glob("w/engine-*"))


def test_findings_of_others_arrive_with_those_of_the_bridge(
    run_dir: Path, memory: Memory
) -> None:
    sick_run(run_dir)
    check(run_dir, "ExplodingTensor")
    Bridge(run_dir, "wandb", rules=[]).forward()
    assert [each["rule"] for each in memory.judged[-1].findings()] == [
        "ExplodingTensor"
    ]
    memory.alerts.clear()
    Bridge(run_dir, "wandb", rules="ExplodingTensor").forward()
    assert len(memory.alerts) == 1  # One problem, whoever found it.


def test_alerts_begin_at_the_severity_that_is_asked_for(
    run_dir: Path, memory: Memory
) -> None:
    sick_run(run_dir)
    Bridge(run_dir, "wandb", alerts="none").forward()
    assert not memory.alerts
    assert memory.judged
    Bridge(run_dir, "wandb", alerts="error").forward()
    assert len(memory.alerts) == 1


def test_a_bridge_after_a_refusal_sends_what_is_missing(
    run_dir: Path, memory: Memory
) -> None:
    sick_run(run_dir)
    memory.refuses_after = 10
    with pytest.raises(StorageError, match="refuses"):
        Bridge(run_dir, "wandb").forward()
    assert len(memory.rows) == 10
    assert memory.closed == ["running"]  # It is not said to have ended.
    memory.refuses_after = None
    report = Bridge(run_dir, "wandb").forward()
    assert report.sent_before
    assert report.rows == 6
    assert [each.global_step for each in memory.rows] == list(range(16))
    assert len(memory.alerts) == 1


def test_nothing_is_sent_or_shown_again_when_all_is_there(
    run_dir: Path, memory: Memory
) -> None:
    sick_run(run_dir)
    Bridge(run_dir, "wandb").forward()
    shown = len(memory.judged)
    report = Bridge(run_dir, "wandb").forward()
    assert (report.rows, report.alerts, len(memory.judged)) == (0, (), shown)


def test_steps_that_a_resumed_training_repeats_stay_as_they_were(
    run_dir: Path, memory: Memory
) -> None:
    sick_run(run_dir)
    Bridge(run_dir, "wandb").forward()
    with RunBuilder(run_dir, ordinal=1, attempt=b"attempt-number-1") as builder:
        add_steps(builder, 12, 20)
    report = Bridge(run_dir, "wandb").forward()
    assert (report.first_step, report.last_step) == (16, 19)
    assert [each.global_step for each in memory.rows] == list(range(20))


def test_a_live_run_is_followed_until_its_training_ends(
    run_dir: Path, memory: Memory
) -> None:
    builder = RunBuilder(run_dir)
    add_steps(builder, 0, 6)
    builder.flush()

    def train() -> None:
        assert memory.received.wait(30)
        add_steps(builder, 6, 16)
        builder.close()

    training = threading.Thread(target=train)
    training.start()
    report = Bridge(run_dir, "wandb").follow()
    training.join()
    assert [each.global_step for each in memory.rows] == list(range(16))
    assert report.complete
    assert memory.closed == ["closed"]
    assert len(memory.alerts) == 1


def test_a_bridge_that_is_stopped_leaves_the_rest_to_the_next_one(
    run_dir: Path, memory: Memory
) -> None:
    builder = RunBuilder(run_dir)
    add_steps(builder, 0, 6)
    builder.flush()
    following = Bridge(run_dir, "wandb")

    def stop() -> None:
        assert memory.received.wait(30)
        following.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    report = following.follow()
    stopping.join()
    assert not report.complete
    assert memory.closed == ["running"]
    add_steps(builder, 6, 8)
    builder.close()
    Bridge(run_dir, "wandb").forward()
    assert [each.global_step for each in memory.rows] == list(range(8))


@pytest.mark.usefixtures("memory")
def test_rows_are_sent_no_faster_than_the_rate(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    following = Bridge(sick_run(run_dir), "wandb", rate=5.0)
    monkeypatch.setattr(following._stop, "wait", waited.append)
    following.forward()
    assert sum(waited) == pytest.approx(16 / 5.0, abs=1.0)
    assert len(waited) == 4


def test_a_dry_run_sends_nothing_and_needs_no_tracker(
    run_dir: Path, memory: Memory
) -> None:
    sick_run(run_dir)
    asked = ["wandb", str(run_dir), "--dry-run", "--statistics", "l2"]
    told = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert told.exit_code == 0
    assert "would send 16 steps (0 to 15), 40 numbers under 4 names" in told.output
    assert "alert: ExplodingTensor in gradient/fc.weight" in told.output
    assert not memory.rows
    assert memory.run is None


def test_names_that_a_tracker_refuses_stay_apart() -> None:
    names = [fitting(name, r"[^\w/]", 20) for name in ("a@2", "a[2", "a_2", "b" * 30)]
    assert len({*names}) == 4
    assert names[2] == "a_2"
    assert max(map(len, names)) <= 20


def test_what_can_never_work_is_refused_at_once(run_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'wandb'"):
        Bridge(run_dir, "wandbb")
    with pytest.raises(ConfigurationError, match="mlflow alerts nobody"):
        Bridge(run_dir, "mlflow", alerts="error")
    with pytest.raises(ConfigurationError, match="rate must be"):
        Bridge(run_dir, "wandb", rate=-1, dry_run=True)
    with pytest.raises(NotARun):
        Bridge(run_dir / "none", "wandb", dry_run=True)
    sick_run(run_dir)
    with pytest.raises(QueryError, match="no collection"):
        Bridge(run_dir, "wandb", collection="none", dry_run=True)
    with pytest.raises(ConfigurationError, match="statistics"):
        Bridge(run_dir, "wandb", statistics=["median"], dry_run=True)


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    sick_run(run_dir)
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigurationError, match=rf"pip install 'tdbg\[{name}\]'"):
            Bridge(run_dir, name)


def test_a_run_with_nothing_to_show_sends_its_verdict(
    run_dir: Path, memory: Memory
) -> None:
    with RunBuilder(run_dir) as builder:
        builder.save(0, "fc.weight", np.ones(3, np.float32), what="statistics")
        builder.end_step(0)
    report = Bridge(run_dir, "wandb", rules=[]).forward()
    assert report.rows == 0
    assert report.complete
    assert memory.judged[-1].findings() == []
