"""SimilarAcrossRuns and StalledTraining: what each of their conditions is there for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rules_by_the_book import Row, spied
from rules_fake import FakeRun, judge, judge_in_parts, row_of
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, Idle, SimilarAcrossRuns, StalledTraining
from tdbg.run.findings import Severity

WARNING = int(Severity.WARNING)
W = "0.weight"


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeRun]:
    runs: dict[str, FakeRun] = {}
    module = "tdbg.rules.builtin.runs.similar_across_runs"
    monkeypatch.setattr(f"{module}._open", runs.__getitem__)
    return runs


def run_of(*rows: dict[str, Any]) -> FakeRun:
    run = FakeRun()
    for step, of_step in enumerate(rows):
        run.step(step, of_step)
    return run


def like(*others: str, **parameters: Any) -> SimilarAcrossRuns:
    return SimilarAcrossRuns(other_runs=others, **parameters)


def severities(
    run: FakeRun, rule: SimilarAcrossRuns, name: str = W
) -> list[int | None]:
    found = spied(run, rule)
    return [found.get((ModeKeys.TRAIN, name, step)) for step in sorted(run.steps)]


# ---- SimilarAcrossRuns -----------------------------------------------------------


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
@pytest.mark.parametrize("of_which", ["ours", "theirs"])
def test_a_step_of_which_something_is_lost_is_unknown(
    others: dict[str, FakeRun], flags: dict[str, bool], of_which: str
):
    ours = run_of(*[{W: [1.0]}] * 4)
    others["a"] = run_of(*[{W: [2.0]}] * 4)
    (ours if of_which == "ours" else others["a"]).step(2, **flags)
    assert severities(ours, like("a")) == [WARNING, WARNING, None, WARNING]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        # Of what has no finite number, minimum, maximum and mean are not known.
        ([NAN, NAN], [NAN, NAN], 0),
        ([INF, 1.0], [INF, 1.0], 0),
        ([NAN, 1.0], [1.0, 1.0], WARNING),
        ([1.0, 1.0], [NAN, 1.0], WARNING),
        ([NAN, 1.0], [INF, 1.0], WARNING),
        ([NAN, NAN], [1.0, 1.0], WARNING),
        ([1.0, 1.0], [NAN, NAN], WARNING),
        ([INF, 1.0], [-INF, 1.0], WARNING),
        ([0.0], [-0.0], 0),
    ],
)
def test_what_is_no_number_is_the_same_as_itself_only(
    others: dict[str, FakeRun],
    ours: list[float],
    theirs: list[float],
    expected: int,
):
    others["a"] = run_of({W: theirs})
    assert severities(run_of({W: ours}), like("a")) == [expected]


@pytest.mark.parametrize(
    "field", ["mean", "min", "max", "l1", "l2", "m2", "abs_min", "zero"]
)
def test_every_field_is_compared_and_named(others: dict[str, FakeRun], field: str):
    row: Row = row_of([1.0, 2.0, 4.0])
    others["a"] = run_of({W: row})
    ours = run_of({W: row | {field: row[field] + 0.5}})
    (finding,) = judge(ours, like("a"))
    assert f"differs from a: {field} is " in finding.message
    assert finding.value == pytest.approx(0.5)
    # A row that is infinite in one field, or not known in one of both.
    for odd in (INF, NAN):
        strange = run_of({W: row | {field: odd}})
        assert severities(strange, like("a")) == [WARNING]
        others["b"] = strange
        assert severities(strange, like("b")) == [0]
        assert severities(run_of({W: row}), like("b")) == [WARNING]


@pytest.mark.parametrize(
    ("ours", "rtol", "atol", "expected"),
    [
        (101.0, 0.011, 0.0, 0),
        (101.0, 0.009, 0.0, WARNING),
        (99.0, 0.009, 0.0, WARNING),
        (101.0, 0.0, 1.1, 0),
        (101.0, 0.0, 0.9, WARNING),
        (103.0, 0.02, 1.1, 0),
        (103.0, 0.02, 0.9, WARNING),
        # A share of theirs, not of ours.
        (50.0, 0.6, 0.0, 0),
        (170.0, 0.6, 0.0, WARNING),
        (100.0, 0.0, 0.0, 0),
    ],
)
def test_how_far_they_may_differ(
    others: dict[str, FakeRun], ours: float, rtol: float, atol: float, expected: int
):
    row = dict.fromkeys(row_of([1.0]), 100.0)
    others["a"] = run_of({W: row})
    rule = like("a", rtol=rtol, atol=atol)
    run = run_of({W: row | {"mean": ours}})
    assert severities(run, rule) == [expected]
    for finding in judge(run, rule):
        assert finding.value == pytest.approx(abs(ours - 100))
        assert finding.threshold == pytest.approx(atol + 100 * rtol)
    negative = {field: -value for field, value in row.items()}
    others["a"] = run_of({W: negative})
    assert severities(run_of({W: negative | {"mean": -ours}}), rule) == [expected]


def test_what_only_one_of_them_has_is_unknown(others: dict[str, FakeRun]):
    ours = run_of(*[{W: [1.0], "1.weight": [1.0]}] * 4)
    others["a"] = run_of({W: [1.0]}, {}, {W: [2.0]}, {}, {W: [9.0]})
    assert severities(ours, like("a")) == [0, None, WARNING, None]
    assert severities(ours, like("a"), "1.weight") == [None] * 4
    # Steps of ours between theirs, and before and behind them.
    others["b"] = FakeRun()
    others["b"].step(1, {W: [1.0]})
    others["b"].step(7, {W: [1.0]})
    assert severities(ours, like("b")) == [None, 0, None, None]
    others["c"] = FakeRun()
    assert severities(ours, like("c")) == [None] * 4


def test_they_are_compared_by_name_whatever_their_order(others: dict[str, FakeRun]):
    others["a"] = run_of({"9.weight": [9.0], "1.weight": [1.0], W: [0.0]})
    ours = run_of({W: [0.0], "9.weight": [9.0], "1.weight": [1.0]})
    assert judge(ours, like("a")) == []


def test_of_several_others_the_first_that_differs_is_named(others: dict[str, FakeRun]):
    others["a"] = run_of({W: [1.0], "1.weight": [1.0], "2.weight": [1.0]})
    others["b"] = run_of({W: [2.0], "1.weight": [1.0]})
    others["c"] = run_of({W: [3.0], "1.weight": [4.0]})
    ours = run_of({W: [1.0], "1.weight": [1.0], "2.weight": [1.0]})
    (finding,) = judge(ours, like("a", "b"))
    assert "differs from b" in finding.message
    assert "is 1 instead of 2." in finding.message
    assert finding.value == 1
    assert "2 of 3 tensors are the same" in finding.message
    first, second = judge(ours, like("a", "b", "c"))
    assert "differs from b" in first.message
    assert "differs from c" in second.message
    assert "1 of 3 tensors is the same" in first.message
    assert judge(ours, like("a")) == []
    # What that one does not have is not the same.
    others["d"] = run_of({W: [2.0], "1.weight": [1.0]})
    (finding,) = judge(ours, like("d"))
    assert "1 of 2 tensors is the same" in finding.message


def test_a_run_that_goes_on_is_looked_at_again(others: dict[str, FakeRun]):
    """Sabotaged: without ``refresh`` its later steps stay unknown."""
    other = others["a"] = run_of(*[{W: [2.0]}] * 6)
    other.shown = -1
    shows = iter((1, 3, 5, 5))

    def refresh() -> bool:
        other.shown = next(shows)
        return True

    other.refresh = refresh  # type: ignore[method-assign]
    found = spied(run_of(*[{W: [1.0]}] * 6), like("a"), max_window=2)
    assert sorted(step for _, _, step in found) == [0, 1, 2, 3, 4, 5]


def test_windows_change_no_comparison(others: dict[str, FakeRun]):
    random = np.random.default_rng(0)
    rows = [{W: [float(random.choice([1, 1, 1, 2]))]} for _ in range(30)]
    others["a"] = run_of(*[{W: [1.0]}] * 30)
    ours = run_of(*rows)
    assert judge_in_parts(ours, range(30), like("a")) == judge(ours, like("a")) != []


# ---- StalledTraining -------------------------------------------------------------

LOSS = "CrossEntropyLoss_output_0"


def paced(*pauses: float) -> FakeRun:
    run, now = FakeRun(), 0.0
    for step, pause in enumerate((0.0, *pauses)):
        now += pause
        run.step(step, {LOSS: [1.0]}, wall_ns=round(now * 10**9))
    return run


def stalls(run: FakeRun, rule: StalledTraining, max_window: int | None) -> list[int]:
    found = spied(run, rule, max_window)
    return sorted(step for (_, _, step), level in found.items() if level == WARNING)


@pytest.mark.parametrize("max_window", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_so_many_pauses_are_remembered_and_no_more(
    num_steps: int, max_window: int | None
):
    """Sabotaged: with one row less to look back at, or one pause more or less."""
    rule = StalledTraining(threshold=10.0, times_usual=2.0, num_steps=num_steps)
    for between in range(5):
        run = paced(50.0, *[1.0] * between, 90.0, 1.0)
        is_remembered = between < num_steps
        again = [] if is_remembered else [2 + between]
        assert stalls(run, rule, max_window) == [1, *again]
        every = range(4 + between)
        assert judge_in_parts(run, every, rule) == judge(run, rule)


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        # Longer than the threshold, where pauses are short.
        ([1.0, 10.0], []),
        ([1.0, 10.1], [2]),
        ([1.0, 1.0, 10.1], [3]),
        # And longer than so many times the longest, not the last, of those before.
        ([9.0, 1.0, 27.0], []),
        ([9.0, 1.0, 27.1], [3]),
        ([10.1], [1]),
    ],
)
def test_how_long_a_pause_must_be(pauses: list[float], expected: list[int]):
    rule = StalledTraining(threshold=10.0, times_usual=3.0)
    run = paced(*pauses)
    assert stalls(run, rule, None) == expected
    for finding in judge(run, rule):
        assert finding.value == pytest.approx(pauses[-1])
        assert finding.threshold == pytest.approx(
            max(10.0, 3 * max(pauses[:-1] or [0]))
        )


def test_the_first_step_follows_no_pause():
    run = FakeRun()
    run.step(0, {LOSS: [1.0]}, wall_ns=10**18)
    assert stalls(run, StalledTraining(threshold=10.0), None) == []


def test_pauses_before_a_restart_are_still_usual():
    run = paced(9.0, 9000.0, 26.0, 28.0)
    run.resumed = [2]
    rule = StalledTraining(threshold=10.0, times_usual=3.0)
    # Sabotaged: with the time until the restart taken for a pause there is none.
    assert stalls(run, rule, None) == []
    run = paced(9.0, 9000.0, 28.0)
    run.resumed = [2]
    assert stalls(run, rule, None) == [3]


def test_a_step_without_a_loss_is_none():
    run = paced(8.0, 8.0)
    del run.tensor_of(LOSS).rows[1]
    assert stalls(run, StalledTraining(threshold=10.0), None) == [2]
    nothing = FakeRun()
    nothing.step(0, {W: [1.0]})
    assert spied(nothing, StalledTraining()) == {}


def test_modes_share_the_clock_and_have_findings_of_their_own():
    run = FakeRun()
    for step, (mode, at) in enumerate(
        [
            (ModeKeys.TRAIN, 0),
            (ModeKeys.EVAL, 1),
            (ModeKeys.TRAIN, 2),
            (ModeKeys.EVAL, 20),
            (ModeKeys.TRAIN, 21),
        ]
    ):
        run.step(step, {LOSS: [1.0]}, mode=mode, wall_ns=at * 10**9)
    found = spied(run, StalledTraining(threshold=10.0))
    assert {key for key, level in found.items() if level == WARNING} == {
        (ModeKeys.EVAL, "training", 3)
    }


def quiet(seconds: float, **changed: Any) -> Idle:
    values: dict[str, Any] = {
        "seconds": seconds,
        "last_step": 7,
        "mode": ModeKeys.TRAIN,
        "alive": True,
        "ended": False,
    }
    return Idle(**values | changed)


def test_silence_is_judged_by_the_threshold_alone():
    rule = StalledTraining(threshold=10.0)
    for seconds, level in ((10.0, 0), (10.1, WARNING)):
        (evaluation,) = rule.on_idle(quiet(seconds))
        assert evaluation.severities[0, 0] == level
    description = evaluation.describe(0, 0)
    assert (description.value, description.threshold) == (10.1, 10.0)
    # Before its first step nothing is known of it.
    assert list(rule.on_idle(quiet(99.0, mode=None))) == []
    assert list(rule.on_idle(quiet(99.0, ended=True))) == []


# ---- runs that go on, or on disk -------------------------------------------------


SECOND = 10**9


@pytest.mark.parametrize("resumed", [False, True])
def test_a_resumed_run_is_told_from_a_pause_on_disk(tmp_path: Path, resumed: bool):
    from run_builder import RunBuilder, new_attempt
    from tdbg.rules import check

    loss = np.ones(1, np.float32)
    builder = RunBuilder(tmp_path / "run")
    for step in range(10):
        if step == 5:
            time.sleep(3.0)
        if step == 5 and resumed:
            builder.close()
            builder = RunBuilder(tmp_path / "run", attempt=new_attempt(), ordinal=1)
        builder.save(step, LOSS, loss, role=Role.LOSS)
        builder.end_step(step)
    builder.close()
    # A busy machine makes pauses of its own, but none so long.
    rule = StalledTraining(threshold=2.5, times_usual=2.0)
    report = check(tmp_path / "run", [rule], record=False)
    assert [finding.step for finding in report.findings] == ([] if resumed else [5])


@pytest.mark.parametrize(
    ("alive", "said"), [(True, "alive"), (False, "gone"), (None, "tdbg cannot tell")]
)
def test_a_training_that_is_silent_now_is_reported(alive: bool | None, said: str):
    quiet = Idle(
        seconds=601, last_step=7, mode=ModeKeys.TRAIN, alive=alive, ended=False
    )
    (evaluation,) = StalledTraining().on_idle(quiet)
    assert evaluation.severities[0, 0] == Severity.WARNING
    assert evaluation.steps[0] == 7
    assert said in evaluation.describe(0, 0).message


@pytest.mark.parametrize(("started", "found"), [(0, 1), (60, 1), (3590, 0)])
def test_a_training_that_was_just_started_again_is_not_silent(started: int, found: int):
    now = time.time_ns()
    run, at = FakeRun(), now - 3600 * SECOND
    run.step(0, {LOSS: [1.0]}, wall_ns=at)
    run.status, run.started_ns = "running", at + started * SECOND
    engine = Engine(run, StalledTraining())
    engine.poll()
    assert len(engine.poll_idle()) == found


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
