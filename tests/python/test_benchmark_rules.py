"""The run that the rules are measured on has something for every default rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._harness import WrongAnswer
from benchmarks.rules import engine
from benchmarks.rules._plan import Plan
from benchmarks.rules._run import build
from tdbg.rules import Engine, default_rules

N_TENSORS, N_STEPS = 100, 200


def test_every_default_rule_finds_what_is_planted_and_nothing_else(tmp_path: Path):
    plan = Plan(N_TENSORS, N_STEPS)
    n_steps = build(tmp_path / "run", N_TENSORS, N_STEPS)
    judging = Engine(tmp_path / "run", record=False)
    judging.poll()
    report, judged = judging.report(), judging.judged()
    engine.verify(report, judged, plan)
    assert report.n_steps == n_steps
    # StalledTraining goes by the clock.
    by_clock = {"StalledTraining"}
    planted = {rule for rule, _ in plan.faults()}
    assert planted | by_clock == {rule.name for rule in default_rules()}
    with pytest.raises(WrongAnswer, match="no verdict"):
        engine.verify(report, judged | {"AllZero": 0}, plan)
    with pytest.raises(WrongAnswer, match="missed"):
        engine.verify(report, judged, Plan(2 * N_TENSORS, N_STEPS))


def test_without_values_the_rules_that_go_by_rows_find_the_same(tmp_path: Path):
    plan = Plan(N_TENSORS, N_STEPS)
    build(tmp_path / "run", N_TENSORS, N_STEPS, rows_only=True)
    judging = Engine(tmp_path / "run", record=False)
    judging.poll()
    sure = engine.of_rows()
    assert {"AllZero", "VanishingGradient", "LossSpike"} <= sure
    assert not {"Confusion", "DeadRelu", "TreeDepth"} & sure
    engine.verify(judging.report(), judging.judged(), plan, sure)
    with pytest.raises(WrongAnswer, match="missed"):
        engine.verify(judging.report(), judging.judged(), plan)
