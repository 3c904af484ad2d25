"""How much of a training was recorded, and what a reader can do about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from faces import said_by
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial
from tdbg.view import (
    Coverage,
    RoleCoverage,
    gaps_of,
    head_of,
    interval_of,
    view_of,
)

OVER = {"what": "budget", "why": "over budget", "budget": 0.05}
RARER = {"activations": 8, "others": 4, "steps": 1}


def sparse_run(path: Path, *changes: dict[str, object]) -> Path:
    """40 training steps: a loss at each, gradients at every tenth; and evaluation."""
    values = np.ones(4, np.float32)
    with RunBuilder(path) as run:
        for change in changes:
            run.capture.event(0, EventKind.CHANGE, 0, json.dumps(change).encode())
        for step in range(40):
            run.save(step, "loss_output_0", np.array(0.5, np.float32), role=Role.LOSS)
            if step % 10 == 0:
                run.save(step, "gradient/fc.weight", values, what="statistics")
                run.save(step, "fc.weight", values, what="statistics")
            run.end_step(step)
        for step in range(40, 50):
            run.save(step, "fc.weight", values, what="statistics")
            run.end_step(step, ModeKeys.EVAL)
    return path


def coverage(path: Path) -> Coverage:
    return head_of(create_trial(path)).coverage


def test_steps_of_training_are_counted_by_role(tmp_path: Path) -> None:
    found = coverage(sparse_run(tmp_path / "run"))
    assert {each.role: each.steps for each in found.roles} == {
        "loss": 40,
        "weight": 4,
        "gradient": 4,
    }
    assert found.text == "losses at every step, weights and gradients at 4 of 40 steps"
    assert found.advice == "To record more steps, lower statistics_interval."


def test_a_budget_that_left_steps_out_is_named_with_the_way_out(tmp_path: Path) -> None:
    change = {**OVER, "throttle": RARER}
    found = coverage(sparse_run(tmp_path / "run", change))
    assert found.text.endswith("4 of 40 steps; the budget of 5 % allows no more")
    assert "budget=0.1" in found.advice
    assert "TDBG_BUDGET=off" in found.advice


@pytest.mark.parametrize(
    "change",
    [
        {**OVER, "throttle": {"histograms": False, "others": 1}},
        {**OVER, "throttle": {"others": "8"}},
        {**OVER, "throttle": RARER, "budget": "much"},
        {**OVER, "throttle": RARER, "budget": -1.0},
        {**OVER, "throttle": []},
        {"what": "budget"},
    ],
)
def test_a_budget_that_left_out_no_step_is_not_blamed(
    tmp_path: Path, change: dict[str, object]
) -> None:
    assert coverage(sparse_run(tmp_path / "run", change)).budget is None


def test_a_run_with_every_step_needs_no_advice(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(5):
            run.save(step, "gradient/w", np.ones(2, np.float32))
            run.end_step(step)
    found = coverage(tmp_path / "run")
    assert (found.text, found.advice) == ("gradients at each of 5 steps", "")


def test_nothing_recorded_is_no_sentence(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run"):
        pass
    assert coverage(tmp_path / "run").text == ""


def test_a_recorded_step_stands_for_the_interval_that_was_asked_for() -> None:
    steps = np.array([*range(20), 30, 40, 120, 440])
    assert gaps_of(steps, steps, 10) == [(50, 120), (130, 440)]
    # A column may hold many steps; what comes late by less than half is no gap.
    first, last = np.array([0, 64, 260]), np.array([63, 127, 300])
    assert gaps_of(first, last, 100) == []
    assert gaps_of(first, last, 80) == [(207, 260)]


def test_the_interval_is_that_of_the_run_and_of_its_collections(tmp_path: Path) -> None:
    often, seldom = ({"statistics_interval": n} for n in (10, 40))
    collections = {"weights": {"save_config": seldom}, "gradients": 3}
    with RunBuilder(tmp_path / "run") as run:
        for kind, document in (
            (EventKind.CONFIGURATION, {"hook": {"save_config": often}}),
            (EventKind.COLLECTIONS, {"collections": collections}),
        ):
            run.capture.event(0, kind, 0, json.dumps(document).encode())
        run.save(0, "w", np.ones(2, np.float32), what="statistics")
        run.end_step(0)
    trial = create_trial(tmp_path / "run")
    found = [interval_of(trial, role) for role in ("loss", "gradient", "weight")]
    assert found == [1, 10, 40]
    assert interval_of(create_trial(sparse_run(tmp_path / "old")), "gradient") is None


def test_evaluation_is_counted_where_nothing_was_trained(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(10):
            run.save(step, "relu_output_0", np.ones(2, np.float32))
            run.end_step(step, ModeKeys.EVAL)
    assert coverage(tmp_path / "run").text == "outputs at each of 10 steps"


def test_of_one_step_nobody_says_each(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.save(0, "gradient/w", np.ones(2, np.float32))
        run.end_step(0)
    assert coverage(tmp_path / "run").text == "gradients at the only step"


def test_a_live_run_is_counted_again_when_it_has_grown(tmp_path: Path) -> None:
    def steps_of(run: RunBuilder, steps: range) -> None:
        for step in steps:
            run.save(step, "gradient/w", np.ones(2, np.float32), what="statistics")
            run.end_step(step)
        run.flush()

    with RunBuilder(tmp_path / "run") as run:
        steps_of(run, range(1000))
        trial = create_trial(tmp_path / "run")
        before = head_of(trial).coverage.roles[0].steps
        steps_of(run, range(1000, 1010))
        trial.refresh()
        assert head_of(trial).coverage.roles[0].steps == before
        steps_of(run, range(1010, 1100))
        trial.refresh()
        assert head_of(trial).coverage.roles[0].steps > before + 90
    assert trial.status == "closed"
    assert head_of(trial).coverage.roles[0].steps == 1100


def test_verbs_and_documents_say_how_much_was_recorded(tmp_path: Path) -> None:
    run = sparse_run(tmp_path / "run", {**OVER, "throttle": RARER})
    found = view_of(create_trial(run)).head.coverage
    for verb in ("ls", "show", "check", "watch"):
        code, text = said_by(verb, run)
        assert f"recorded: {found.text}. {found.advice}" in text, (verb, code)
    assert found.text in said_by("top", run, "--once")[1]
    document = json.loads(said_by("show", run, "--json")[1])
    assert document["coverage"] == found.to_json()


def test_rounds_of_trees_are_called_rounds() -> None:
    role = RoleCoverage("loss", "losses", 100, 1)
    found = Coverage(100, "round", (role,))
    assert found.text == "losses at each of 100 rounds"
    some = replace(found, steps=200)
    assert some.text == "losses at 100 of 200 rounds"
