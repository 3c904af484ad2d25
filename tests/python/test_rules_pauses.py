"""LossSpike, StalledTraining and SimilarAcrossRuns."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.collections import Role
from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, LossSpike, Quiet, SimilarAcrossRuns, StalledTraining

LOSS = "CrossEntropyLoss_output_0"
SECOND = 10**9


def run_of(losses: np.ndarray) -> FakeRun:
    run = FakeRun()
    for step, loss in enumerate(losses.tolist()):
        run.step(step, {LOSS: [loss]})
    return run


def curve(n: int = 300, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    steps = np.arange(n)
    falling = 0.05 + 2.3 * np.exp(-steps / 60)
    return falling * (1 + noise * np.abs(random.standard_normal(n)))


def test_a_loss_that_jumps_back_is_a_warning_when_it_stays():
    losses = curve()
    losses[200:220] = 2.0
    (begin, end) = judge(run_of(losses), LossSpike())
    assert begin.severity is Severity.WARNING
    assert begin.step == 201
    assert "jumped to 2" in begin.message
    assert end.is_over


@pytest.mark.parametrize("seed", range(10))
def test_single_hard_batches_are_silent(seed: int):
    losses = curve(600, noise=0.5, seed=seed)
    losses[300::37] = 2.0
    losses[100::11] *= 4
    assert judge(run_of(losses), LossSpike()) == []


def test_single_samples_of_which_some_are_hard_are_silent():
    """Batches of one: nearly all are easy by now, and two hard ones may follow."""
    losses = np.full(600, 0.02)
    losses[::8] = losses[41::40] = losses[:50] = 0.7
    assert judge(run_of(losses), LossSpike()) == []
    assert judge(run_of(losses), LossSpike(of_tails=0.0))
    # Far above the hard ones it is a jump again.
    losses[400:410] = 3.0
    assert judge(run_of(losses), LossSpike())[0].step == 401


def test_what_is_no_number_is_unknown():
    losses = curve()
    losses[150:] = np.nan
    assert judge(run_of(losses), LossSpike()) == []


def test_the_cut_into_windows_changes_no_spike():
    losses = curve()
    losses[[40, 90]] = np.nan
    losses[160:170] = losses[230:] = 3.0
    run, rule = run_of(losses), LossSpike(num_steps=20)
    whole = judge(run, rule)
    assert len(whole) >= 2
    assert judge_in_parts(run, range(300), rule) == whole


def paced(pauses: list[float]) -> FakeRun:
    run, now = FakeRun(), 0.0
    for step, pause in enumerate(pauses):
        now += pause
        run.step(step, {LOSS: [1.0]}, wall_ns=int(now * SECOND))
    return run


def test_a_pause_is_reported_when_the_training_has_gone_on():
    begin, end = judge(paced([1.0] * 10 + [700.0] + [1.0] * 5), StalledTraining())
    assert begin.severity is Severity.WARNING
    assert begin.step == 10
    assert begin.value == 700
    assert "700 s" in begin.message
    assert end.is_over


def test_pauses_that_are_usual_are_silent():
    assert judge(paced(([1.0] * 10 + [650.0]) * 5), StalledTraining())[2:] == []
    assert judge(paced([1.0] * 10 + [500.0] + [1.0] * 5), StalledTraining()) == []
    slow = paced([400.0] * 5 + [1500.0] + [400.0] * 5)
    assert judge(slow, StalledTraining()) == []


def test_pauses_are_counted_over_all_modes():
    run = FakeRun()
    for step in range(20):
        mode = ModeKeys.EVAL if 5 <= step < 15 else ModeKeys.TRAIN
        run.step(step, {LOSS: [1.0]}, mode=mode, wall_ns=100 * step * SECOND)
    assert judge(run, StalledTraining(threshold=500.0)) == []


def test_the_time_until_a_run_is_resumed_is_no_pause():
    run = paced([1.0] * 10 + [9000.0] + [1.0] * 30 + [700.0, 1.0])
    run.resumed = [10]
    (begin,) = judge(run, StalledTraining())
    assert begin.step == 41
    assert judge_in_parts(run, range(50), StalledTraining()) == [begin]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_resumed_run_is_told_from_a_pause_on_disk(tmp_path: Path, resumed: bool):
    from run_builder import RunBuilder, new_attempt
    from tdbg.rules import check

    loss = np.ones(1, np.float32)
    builder = RunBuilder(tmp_path / "run")
    for step in range(10):
        if step == 5:
            time.sleep(0.25)
        if step == 5 and resumed:
            builder.close()
            builder = RunBuilder(tmp_path / "run", attempt=new_attempt(), ordinal=1)
        builder.save(step, LOSS, loss, role=Role.LOSS)
        builder.end_step(step)
    builder.close()
    # A busy machine makes pauses of its own, but none so long.
    rule = StalledTraining(threshold=0.2, times_usual=2.0)
    report = check(tmp_path / "run", [rule], record=False)
    assert [finding.step for finding in report.findings] == ([] if resumed else [5])


def test_the_cut_into_windows_changes_no_pause():
    run = paced(([1.0] * 9 + [50.0]) * 3 + [700.0] + [2.0] * 30 + [5000.0, 1.0])
    rule = StalledTraining(num_steps=12)
    assert judge_in_parts(run, range(70), rule) == judge(run, rule) != []


@pytest.mark.parametrize(
    ("alive", "said"), [(True, "alive"), (False, "gone"), (None, "not known")]
)
def test_a_training_that_is_silent_now_is_reported(alive: bool | None, said: str):
    quiet = Quiet(
        seconds=601, last_step=7, mode=ModeKeys.TRAIN, alive=alive, ended=False
    )
    (judgement,) = StalledTraining().silence(quiet)
    assert judgement.levels[0, 0] == Severity.WARNING
    assert judgement.steps[0] == 7
    assert said in judgement.describe(0, 0).message


@pytest.mark.parametrize(("started", "found"), [(0, 1), (60, 1), (3590, 0)])
def test_a_training_that_was_just_started_again_is_not_silent(started: int, found: int):
    now = time.time_ns()
    run, at = FakeRun(), now - 3600 * SECOND
    run.step(0, {LOSS: [1.0]}, wall_ns=at)
    run.status, run.started_ns = "running", at + started * SECOND
    engine = Engine(run, StalledTraining())
    engine.poll()
    assert len(engine.ask_silence()) == found


def test_an_ended_or_shortly_silent_training_is_not_reported():
    ended = Quiet(seconds=9e9, last_step=7, mode=ModeKeys.TRAIN, alive=None, ended=True)
    assert list(StalledTraining().silence(ended)) == []
    short = Quiet(seconds=9, last_step=7, mode=ModeKeys.TRAIN, alive=None, ended=False)
    (judgement,) = StalledTraining().silence(short)
    assert judgement.levels[0, 0] == 0


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeRun]:
    runs: dict[str, FakeRun] = {}
    monkeypatch.setattr("tdbg.rules.runs.other_runs._open", runs.__getitem__)
    return runs


def seeded(seed: int, n_steps: int = 20, differs_from: int = 99) -> FakeRun:
    run = FakeRun()
    random = np.random.default_rng(seed)
    for step in range(n_steps):
        weight = random.normal(size=8)
        weight[0] += 1e-3 * (step >= differs_from)
        run.step(step, {"0.weight": weight, LOSS: [1.0]})
    return run


def test_the_first_step_at_which_two_runs_differ_is_reported(
    others: dict[str, FakeRun],
):
    others["runs/a"] = seeded(1)
    rule = SimilarAcrossRuns(other_runs=("runs/a",))
    assert judge(seeded(1), rule) == []
    (finding,) = judge(seeded(1, differs_from=13), rule)
    assert (finding.tensor, finding.step) == ("0.weight", 13)
    assert "runs/a" in finding.message
    assert "1 of 2 tensors are the same" in finding.message


def test_what_the_other_run_does_not_have_is_unknown(others: dict[str, FakeRun]):
    others["runs/a"] = seeded(1, n_steps=5)
    rule = SimilarAcrossRuns(other_runs=("runs/a",))
    assert judge(seeded(1, differs_from=5), rule) == []
    del others["runs/a"].tensors["0.weight"]
    assert judge(seeded(2), rule) == []


def test_small_differences_can_be_allowed(others: dict[str, FakeRun]):
    others["runs/a"] = seeded(1)
    run = seeded(1, differs_from=3)
    assert judge(run, SimilarAcrossRuns(other_runs=("runs/a",), atol=0.5)) == []


def test_steps_that_the_other_run_has_lost_are_unknown(others: dict[str, FakeRun]):
    other = others["runs/a"] = seeded(2)
    for step, (mode, complete, _, skipped, wall) in list(other.steps.items()):
        other.steps[step] = (mode, complete, False, skipped, wall)
    assert judge(seeded(1), SimilarAcrossRuns(other_runs=("runs/a",))) == []


def test_another_run_is_asked_for():
    with pytest.raises(ConfigurationError, match="other_runs is empty"):
        SimilarAcrossRuns()


def test_real_runs_are_compared(tmp_path: Path):
    from run_builder import RunBuilder
    from tdbg.rules import check

    for name, differs in (("a", 0.0), ("b", 0.5)):
        builder = RunBuilder(tmp_path / name)
        for step in range(4):
            builder.step(step, {"w": np.arange(4) + differs * (step > 2)})
        builder.close()
    rule = SimilarAcrossRuns(other_runs=(str(tmp_path / "a"),), collections=("all",))
    report = check(tmp_path / "b", [rule], record=False)
    assert [finding.step for finding in report.findings] == [3]


@pytest.mark.parametrize(
    ("rule", "parameters"),
    [
        (LossSpike, {"num_steps": 9}),
        (LossSpike, {"patience": 99}),
        (LossSpike, {"deviations": 0.0}),
        (StalledTraining, {"threshold": 0.0}),
        (StalledTraining, {"times_usual": 0.5}),
        (SimilarAcrossRuns, {"rtol": -1.0, "other_runs": ("a",)}),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    rule: type, parameters: dict[str, object]
):
    name = next(iter(parameters))
    with pytest.raises(ConfigurationError, match=f"{rule.__name__}.{name}"):
        rule(**parameters)
