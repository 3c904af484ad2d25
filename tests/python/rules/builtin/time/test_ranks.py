"""Rules about ranks and workers: who is slow, and for whom the others wait."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from profile_fake import START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import (
    ExposedCommunication,
    LoadBalancing,
    NetworkBound,
    Rule,
    Straggler,
    WorkerImbalance,
    check,
)
from tdbg.run.findings import Finding

STEP = 0.1


def ranks(own: Sequence[float], *, exposed: float = 0.0) -> ProfiledTraining:
    """Synchronous steps of ranks with own work of so many seconds each."""
    made = ProfiledTraining(FakeRun(), n_workers=len(own))
    slowest = max(own)
    for _ in range(int(90 / (slowest + exposed))):
        at, number = made.now, made.n_steps
        for rank, seconds in enumerate(own):
            made.now, made.n_steps = at, number
            phases = {"forward": seconds, "communication": slowest - seconds + exposed}
            made.steps(slowest + exposed - 0.001, phases, worker=rank, scatter=0.0)
    return made


def found(made: ProfiledTraining, rule: Rule) -> list[Finding]:
    return [each for each in judge(made.run, rule) if each.phase == "begin"]


def test_the_rank_for_which_all_wait_is_named() -> None:
    (finding,) = found(ranks([0.1, 0.13, 0.1]), Straggler())
    assert finding.tensor == "worker 1"
    assert "takes 130 ms, that of the others 100 ms" in finding.message
    assert "it is the last in 100% of the steps" in finding.message
    assert "Most of the difference is the forward pass" in finding.advice
    assert "23% shorter steps" in finding.advice


def meeting(
    own: Sequence[float], *, kind: int = 0, shift: int = 0, turns: bool = False
) -> ProfiledTraining:
    """Ranks with measured all-reduces; *shift*: how far the last one counts off."""
    made = ProfiledTraining(FakeRun(), n_workers=len(own))
    made.event("collectives", kinds=["all_reduce", "send"], group=0)
    slowest = max(own)
    for step in range(int(90 / slowest)):
        at, number = made.now, made.n_steps
        turn = step % len(own) if turns else 0
        for rank in range(len(own)):
            made.now, made.n_steps = at, number
            seconds = own[(rank + turn) % len(own)]
            phases = {"forward": seconds, "communication": slowest - seconds}
            made.steps(slowest - 0.001, phases, worker=rank, scatter=0.0)
            waited = int((slowest - seconds) * 1e9)
            made.profile.add(
                "collective",
                {
                    "time": made.now,
                    "global_step": number,
                    "sequence": step + shift * (rank == len(own) - 1),
                    "group": 0,
                    "kind": kind,
                    "duration_ns": waited,
                    "exposed_ns": waited,
                    "worker": rank,
                },
            )
    return made


def test_who_comes_last_to_collectives_is_told_with_the_wait_of_the_others() -> None:
    (finding,) = found(meeting([0.1, 0.13, 0.1]), Straggler())
    assert finding.tensor == "worker 1"
    assert "In 100% of the steps it comes last to the operations" in finding.message
    assert "the others wait 30 ms for it." in finding.message
    assert finding.gain == pytest.approx(0.03 / 0.13, abs=0.01)


def test_a_straggler_that_changes_in_each_step_is_none() -> None:
    assert found(meeting([0.1, 0.13, 0.1], turns=True), Straggler()) == []


def test_a_rank_that_is_slow_but_for_which_nobody_waits_is_fine() -> None:
    made = meeting([0.1, 0.13, 0.1])
    for row in made.profile._rows["collective"]:
        row["exposed_ns"] = 1_000_000 + 1000 * row["worker"]
    made.profile._arrays.clear()
    assert found(made, Straggler()) == []


@pytest.mark.parametrize(
    ("kind", "shift"),
    [(1, 0), (0, 3)],
    ids=["messages of two ranks", "ranks that count differently"],
)
def test_operations_in_which_not_all_meet_leave_the_work_of_ranks(
    kind: int, shift: int
) -> None:
    made = meeting([0.1, 0.13, 0.1], kind=kind, shift=shift)
    (finding,) = found(made, Straggler())
    assert "takes 130 ms, that of the others 100 ms" in finding.message
    assert "operations" not in finding.message


def test_equal_ranks_are_fine() -> None:
    assert found(ranks([0.1, 0.101, 0.1]), Straggler()) == []


def test_ranks_without_measured_communication_cannot_be_judged() -> None:
    made = ranks([0.1, 0.1])
    report = check(made.run, [Straggler()], record=False)
    assert report.statuses[0].message == (
        "nothing to judge: the rule needs 10 s of steps that all ranks have in common, "
        "with communication"
    )


def test_communication_that_nothing_hides_is_found_if_no_rank_is_slow() -> None:
    (finding,) = found(ranks([0.1, 0.1], exposed=0.1), ExposedCommunication())
    assert "for 50% of the time of a step" in finding.message
    assert found(ranks([0.1, 0.15], exposed=0.1), ExposedCommunication()) == []
    assert found(ranks([0.1, 0.1], exposed=0.01), ExposedCommunication()) == []


def test_one_worker_has_nobody_to_wait_for() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"forward": 0.1})
    report = check(made.run, [Straggler(), ExposedCommunication()], record=False)
    assert {each.message for each in report.statuses} == {
        "does not apply: the training has one worker"
    }


def test_ranks_that_wrote_nothing_are_missed_and_not_called_one_worker() -> None:
    made = ProfiledTraining(FakeRun())
    made.run.settings = {"world_size": 3}
    made.steps(90, {"forward": 0.1, "communication": 0.05})
    rules = [Straggler(), ExposedCommunication(), LoadBalancing()]
    report = check(made.run, rules, record=False)
    expected = (
        "nothing to judge: 1 of 3 ranks wrote alone, so nobody can tell which rank the "
        "others wait for. Set include_workers='all' to record all of them"
    )
    assert {each.message for each in report.statuses} == {expected}
    assert all(each.applies for each in report.statuses)


def test_two_of_three_ranks_cannot_be_compared() -> None:
    made = ranks([0.1, 0.13])
    made.run.settings = {"world_size": 3}
    assert found(made, Straggler()) == []


def fetched(slow: float, wait: float) -> ProfiledTraining:
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"data_wait": wait, "forward": 0.05}, loader={"workers": 3})
    for row in made.profile._rows["loader"]:
        row["fetch_ns"] = int((slow if row["loader_worker"] == 1 else 0.1) * 1e9)
    return made


def test_a_worker_that_is_slower_than_the_others_is_named() -> None:
    (finding,) = found(fetched(0.3, 0.05), WorkerImbalance())
    assert "Worker 1 of the data loader is slow" in finding.message
    assert "take 300 ms, those of the other workers 100 ms" in finding.message
    assert found(fetched(0.15, 0.05), WorkerImbalance()) == []
    # Nobody waits for it.
    assert found(fetched(0.3, 0.0), WorkerImbalance()) == []


def test_ranks_with_unequal_work_are_found_and_follow_from_the_slow_one() -> None:
    made = ranks([0.1, 0.13, 0.1])
    (finding,) = found(made, LoadBalancing())
    assert "that of rank 1 takes 30% longer than the median" in finding.message
    assert finding.gain == pytest.approx(0.03 / 0.13, abs=0.01)
    report = check(made.run, [LoadBalancing(), Straggler()], record=False)
    causes = {each.rule: each.cause and each.cause.rule for each in report.findings}
    assert causes == {"Straggler": None, "LoadBalancing": "Straggler"}
    assert found(ranks([0.1, 0.105, 0.1]), LoadBalancing()) == []


def test_ranks_that_take_turns_in_having_most_work_are_balanced() -> None:
    made = ProfiledTraining(FakeRun(), n_workers=2)
    for step in range(600):
        at, number = made.now, made.n_steps
        for rank in (0, 1):
            made.now, made.n_steps = at, number
            own = 0.13 if (step + rank) % 2 else 0.1
            phases = {"forward": own, "communication": 0.13 - own}
            made.steps(0.129, phases, worker=rank, scatter=0.0)
    assert found(made, LoadBalancing()) == []


def network(rate: float, *, wait: float, bits: int = 10**10) -> ProfiledTraining:
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"data_wait": wait, "forward": 0.06})
    made.samples(
        "network",
        START,
        instance="eth0",
        bits_per_second=bits,
        totals={"received_bytes": rate, "sent_bytes": 1e6},
    )
    return made


def test_a_link_at_its_limit_is_found_if_the_training_waits() -> None:
    (finding,) = found(network(1.125e9, wait=0.04), NetworkBound())
    assert finding.tensor == "eth0"
    assert "carries 90% of its 10 Gbit/s" in finding.message
    assert "wait for data for 40%" in finding.message
    assert "Read less over the network" in finding.advice


@pytest.mark.parametrize(
    ("rate", "wait", "bits"),
    [(1.125e9, 0.001, 10**10), (5e8, 0.04, 10**10), (1.125e9, 0.04, 2**64 - 1)],
    ids=["nothing waits", "half of the speed", "unknown speed"],
)
def test_a_link_that_is_no_limit_is_fine(rate: float, wait: float, bits: int) -> None:
    assert found(network(rate, wait=wait, bits=bits), NetworkBound()) == []
