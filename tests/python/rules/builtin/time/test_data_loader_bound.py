"""DataLoaderBound: the wait of a step, and the workers that would end it."""

from __future__ import annotations

from typing import Any

import pytest

from profile_fake import START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import DataLoaderBound, check
from tdbg.run.findings import Finding, Severity
from tdbg.stats.loader_queue import HANDOVER_NS


def training(
    wait: float, *, seconds: float = 90, rest: float = 0.02, **loader: Any
) -> FakeRun:
    """Steps of 20 ms besides the wait, fetches of 80 ms."""
    run = FakeRun()
    made = ProfiledTraining(run)
    given = {"workers": 1, "fetch": 0.08, "fetch_cpu_ns": 10**6, **loader}
    made.steps(seconds, {"data_wait": wait, "forward": rest}, loader=given)
    made.samples("system", START, allowed_cores=8.0)
    return run


def found(run: FakeRun, **parameters: Any) -> list[Finding]:
    return judge(run, DataLoaderBound(**parameters))


def test_the_number_of_workers_that_ends_the_wait_is_named_with_its_gain() -> None:
    (finding,) = found(training(0.06))
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("The training waits for data for 75% of the time")
    assert "takes 80 ms, the rest of the step 20 ms" in finding.message
    assert "num_workers=4: 4 workers instead of 1" in finding.advice
    assert "75% shorter steps" in finding.advice
    assert finding.gain == pytest.approx(0.75, abs=0.01)


def test_a_loader_that_keeps_up_is_fine() -> None:
    assert found(training(0.0005, workers=4, depth=7)) == []
    # It waits, but batches are ready: workers are not what is short.
    assert found(training(0.06, workers=4, depth=7)) == []


def test_without_workers_the_fetch_is_the_wait() -> None:
    (finding,) = found(training(0.08, workers=0, depth=-1, fetch=None))
    assert "num_workers=4: 4 workers instead of none" in finding.advice
    assert "80% shorter steps" in finding.advice


def test_no_more_workers_are_advised_than_cores_can_run() -> None:
    run = training(0.06, fetch_cpu_ns=80 * 10**6)
    for row in run.profile._rows["system"]:
        row["allowed_cores"] = 3.0
    (finding,) = found(run)
    assert "2 workers instead of 1 should give 50% shorter steps" in finding.advice
    assert "leaves a wait of 50%" in finding.advice
    assert "share the same cores: each rank has 3." in finding.advice


def test_fetches_of_which_only_the_wait_is_known_may_need_a_core_each() -> None:
    run = training(0.08, workers=0, depth=-1, fetch=None)
    for row in run.profile._rows["system"]:
        row["allowed_cores"] = 2.0
    (finding,) = found(run)
    assert "1 worker instead of none should give 20% shorter steps" in finding.advice
    assert "share the same cores: each rank has 2." in finding.advice


def test_enough_workers_with_scattered_fetches_get_more_prefetch() -> None:
    run = training(0.02, workers=8, fetch=0.01)
    for row in run.profile._rows["loader"][::10]:
        row["fetch_ns"] = 10**9
    (finding,) = found(run)
    assert "prefetch_factor" in finding.advice


def test_enough_workers_that_do_not_help_are_told_to_do_less() -> None:
    (finding,) = found(training(0.02, workers=8))
    assert "Make loading cheaper" in finding.advice
    assert "More workers would not help" in finding.advice


def test_a_loader_that_nobody_measured_is_judged_by_its_wait_alone() -> None:
    run = FakeRun()
    ProfiledTraining(run).steps(90, {"data_wait": 0.06, "forward": 0.02})
    (finding,) = found(run)
    assert "tdbg could not measure how long a fetch takes" in finding.advice


def test_workers_that_never_pause_fetch_for_as_long_as_a_step_takes() -> None:
    """Nobody measured the fetch: one worker that is always late takes a step for it."""
    (finding,) = found(training(0.06, fetch=None, fetch_cpu_ns=-1))
    assert "num_workers=4: 4 workers instead of 1" in finding.advice
    (finding,) = found(training(0.06, fetch=None, workers=10, depth=3))
    assert "tdbg could not measure how long a fetch takes" in finding.advice


def test_a_loader_that_nobody_saw_is_not_called_fine() -> None:
    run = FakeRun()
    ProfiledTraining(run).steps(90, {"other": 0.08, "forward": 0.02})
    (status,) = check(run, [DataLoaderBound()], record=False).statuses
    assert status.message == "does not apply: tdbg saw no data loader"


def test_small_gains_are_silent_or_infos() -> None:
    assert found(training(0.0005), threshold=1.0) == []
    (finding,) = found(training(0.0008), threshold=1.0)
    assert finding.severity is Severity.INFO


def test_the_start_of_a_training_is_not_judged() -> None:
    assert found(training(0.06, seconds=30)) == []


def test_workers_that_start_again_for_every_epoch_are_named() -> None:
    run = FakeRun()
    made = ProfiledTraining(run)
    loader = {"workers": 2, "fetch": 0.02, "depth": 4}
    for epoch in range(40):
        made.epoch = epoch
        made.steps(2.0, {"forward": 0.02}, loader=loader, extra={0: {"data_wait": 0.5}})
    made.event("loader", loader=0, workers=2, persistent=False)
    (finding,) = found(run)
    assert finding.tensor == "beginnings of epochs"
    assert "persistent_workers=True" in finding.advice


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_predicted_waits_are_those_of_a_queue(workers: int) -> None:
    """They are 0.75, 0.5 and 0.25 of a step: 4 workers end them."""
    rest, fetch = 0.02, 0.08
    wait = fetch / workers - rest
    (finding,) = found(training(wait, workers=workers))
    gain = 100 * (wait - HANDOVER_NS / 1e9) / (wait + rest)
    assert f"{gain:.0f}% shorter steps" in finding.advice


def test_workers_that_cost_more_than_they_save_are_not_advised() -> None:
    """A batch that takes 0.1 ms to fetch takes 0.35 ms to get from a worker."""
    run = training(0.0001, seconds=40, rest=0.0004, workers=0, depth=-1, fetch=None)
    (finding,) = found(run)
    assert finding.advice.startswith("Make loading cheaper, for up to 20% shorter")
