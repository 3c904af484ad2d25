"""Bins of a profile: each is judged once, and however the data come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profile_fake import SECOND, START, ProfiledTraining
from rules_fake import FakeRun
from run_builder import RunBuilder
from tdbg.config import Needs
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.rules import (
    CpuThrottled,
    Engine,
    Evaluation,
    Rule,
    Window,
    check,
    default_rules,
)
from tdbg.rules.engine import profile_feed
from tdbg.rules.profile import BIN_NS
from tdbg.rules.rule import Rule as BaseRule
from tdbg.run.findings import Finding
from tdbg.run.profile_tables import TABLES

SEEN: list[Any] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeing(BaseRule):
    """Keeps the new bins that it is shown."""

    tables: tuple[str, ...] = ("step", "system", "loader")

    @property
    def needs(self) -> Needs:
        return Needs(statistics=False, profile=frozenset(self.tables))

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        SEEN.extend(window.profile.bins[window.profile.start :])
        yield from ()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(profile_feed, "POLL_SECONDS", 0.0)
    SEEN.clear()
    yield
    SEEN.clear()


def random_training(seed: int) -> ProfiledTraining:
    """Stretches of all kinds, with samples that show every fault now and then."""
    random = np.random.default_rng(seed)
    made = ProfiledTraining(FakeRun(), seed=seed)
    for _ in range(int(random.integers(2, 6))):
        since = made.now
        step = float(random.choice([0.3, 1.0, 4.0, 25.0]))
        wait = step * float(random.choice([0.0, 0.02, 0.04, 0.3, 0.6]))
        mode = ModeKeys(int(random.choice([1, 1, 1, 2])))
        loader = {"workers": int(random.integers(0, 3)), "fetch": step}
        made.epoch += int(random.integers(0, 2))
        pauses = {int(random.integers(5)): {str(random.choice(["checkpoint"])): 1.0}}
        made.steps(
            float(random.integers(20, 120)),
            {"data_wait": wait, "forward": step - wait},
            loader=loader,
            extra=pauses,
            mode=mode,
        )
        busy = float(random.choice([0.5, 0.99]))
        stopped = float(random.choice([0.0, 9.0]))
        made.samples(
            "system",
            since,
            totals={
                "cgroup_periods": 10.0,
                "cgroup_throttled": stopped,
                "cgroup_throttled_ns": stopped * 1e8,
            },
            allowed_busy=busy,
            allowed_cores=4.0,
            cpu_steal=0.0,
        )
        run, state = float(random.random()), str(random.choice(["S", "D"]))
        made.process(since, 7, run=run, queued=1 - run, state=state)
    return made


def of_time() -> list[Rule]:
    return [rule for rule in default_rules() if _reads_profile(rule)]


def _reads_profile(rule: Rule) -> bool:
    needs = rule.needs
    return isinstance(needs, Needs) and bool(needs.profile)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Return what began, got worse or ended, without what order decides."""
    key = lambda each: (each.step, each.rule, each.tensor, each.phase)  # noqa: E731
    return sorted((replace(each, cause=None) for each in findings), key=key)


def shown_in_parts(made: ProfiledTraining, cuts: list[float]) -> list[Finding]:
    engine, found = Engine(made.run, of_time()), []
    last = made.profile.last_time()
    for cut in sorted(cuts):
        made.profile.shown = int(START + cut * (last - START))
        found += engine.poll()
    made.profile.shown = None
    return found + engine.poll()


def shown_at_once(made: ProfiledTraining) -> list[Finding]:
    return Engine(made.run, of_time()).poll()


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=12),
)
def test_any_partition_of_the_time_gives_the_same_findings(
    seed: int, cuts: list[float]
) -> None:
    made = random_training(seed)
    assert in_order(shown_in_parts(made, cuts)) == in_order(shown_at_once(made))


def test_the_partitions_above_meet_findings() -> None:
    runs = (random_training(seed) for seed in range(12))
    found = [each for run in runs for each in shown_at_once(run)]
    assert len({each.rule for each in found}) >= 4
    assert {each.phase for each in found} >= {"begin", "end"}


def test_a_window_of_one_bin_gives_the_same_findings() -> None:
    made = random_training(3)
    by_bin = Engine(made.run, of_time(), max_window=1).poll()
    assert in_order(by_bin) == in_order(shown_at_once(made))


def test_each_bin_is_given_once_when_the_data_have_passed_it() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(65, {"forward": 0.1})
    engine = Engine(made.run, [Seeing()])
    for second in range(66):
        made.profile.shown = START + second * SECOND
        engine.poll()
        # Rows of devices come 5 s late, and the newest second is on its way.
        assert max(0, second - 7) // 10 <= len(SEEN) <= max(0, second - 6) // 10
    made.profile.shown = None
    engine.poll()
    engine.poll()
    assert [each.number for each in SEEN] == list(range(7))
    steps = np.concatenate([each.steps["global_step"] for each in SEEN])
    assert steps.tolist() == list(range(made.n_steps))
    assert all((each.steps["time"] < each.end_ns).all() for each in SEEN)
    assert {each.end_ns - each.start_ns for each in SEEN} == {BIN_NS}


def test_samples_of_a_bin_begin_with_the_last_before_it() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(30, {"forward": 0.1})
    made.samples("system", START, totals={"cgroup_periods": 10.0})
    check(made.run, [Seeing()], record=False)
    second = SEEN[1].tables["system"]
    assert (second["time"] < SEEN[1].start_ns).tolist() == [True] + [False] * 20
    assert int(second["cgroup_periods"][-1] - second["cgroup_periods"][0]) == 100


def test_steps_of_the_beginning_after_pauses_and_of_evaluation_are_not_usual() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(30, {"forward": 0.5}, scatter=0.0)
    pause = {4: {"checkpoint": 1.0}, 12: {"compile": 0.5}}
    made.steps(35, {"forward": 0.5}, extra=pause, scatter=0.0)
    n_trained = made.n_steps
    made.steps(5, {"forward": 0.5}, mode=ModeKeys.EVAL, scatter=0.0)
    check(made.run, [Seeing()], record=False)
    steps = np.concatenate([each.steps["global_step"] for each in SEEN])
    usual = np.concatenate([each.is_judged for each in SEEN])
    # 20 steps of 0.5 s are 10 s; then 10 steps, a checkpoint and the step after it, a
    # compilation and the 20 steps after that.
    expected = {*range(21, 60), *range(60, 1000)} - {64, 65} - set(range(72, 93))
    assert set(steps[usual].tolist()) == {n for n in expected if n < n_trained}


def test_a_worker_that_stands_still_holds_up_nobody() -> None:
    made = ProfiledTraining(FakeRun(), n_workers=2)
    made.steps(12, {"forward": 0.1})
    made.steps(40, {"forward": 0.1}, worker=0)
    made.run.ended = False
    Engine(made.run, [Seeing()]).poll()
    assert [each.number for each in SEEN] == [0, 1, 2, 3]


def test_a_run_without_a_profile_says_so() -> None:
    run = FakeRun()
    run.step(0, {"w.weight": [1.0]})
    report = check(run, [Seeing(), *of_time()], record=False)
    assert {status.message for status in report.statuses} == {
        "does not apply: the run has no profile",
        "does not apply: the training has one worker",
    }
    assert not any(status.applies for status in report.statuses)


def test_a_short_training_is_not_asked_where_its_time_goes() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(30, {"forward": 0.1})
    report = check(made.run, [CpuThrottled()], record=False)
    assert report.statuses[0].message == (
        "does not apply: the training is too short to judge its time"
    )


def test_what_the_profile_lacks_is_named() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(60, {"forward": 0.1})
    report = check(made.run, [Seeing()], record=False)
    assert report.statuses[0].message == ("does not apply: tdbg saw no data loader")


def test_a_table_that_no_profile_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no table 'steps'; did you mean"):
        Needs(profile=frozenset({"steps"}))


def test_the_profile_of_a_run_on_disk_is_judged(tmp_path: Path) -> None:
    made = ProfiledTraining(FakeRun())
    loader = {"workers": 1, "fetch": 0.1, "fetch_cpu_ns": 10**6}
    made.steps(90, {"data_wait": 0.075, "forward": 0.025}, loader=loader)
    made.samples("system", START, allowed_cores=8.0)
    with RunBuilder(tmp_path / "run") as run:
        for table in ("step", "loader", "system"):
            rows = made.profile.table(table, time=(0.0, None))
            stored = np.zeros(len(rows), TABLES[table])
            for name in TABLES[table].names or ():
                given = "loader_worker" if name == "worker" else name
                stored[name] = rows[given]
            for start in range(0, len(stored), 64):
                run.samples(table, stored[start : start + 64])
        run.end_step(made.n_steps - 1)
    report = check(tmp_path / "run", "DataLoaderBound", record=False)
    (finding,) = report.findings
    assert "4 workers instead of 1" in finding.advice


def test_samples_that_nobody_took_are_missing_data() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(60, {"forward": 0.1})
    report = check(made.run, [CpuThrottled()], record=False)
    assert report.statuses[0].applies
    assert report.statuses[0].message == (
        "nothing to judge: the profile has no process and system rows"
    )
