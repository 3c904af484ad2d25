"""Where every step is recorded, some rows in a row are not enough: it must last."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.config import BEGINNING, Needs, with_beginning
from tdbg.rules import Rule, make
from tdbg.run.model_info import ModelInfo, ParameterFacts

Record = Callable[[FakeRun, int], None]


def model_info(*, held: str = "abc") -> ModelInfo:
    parameters = {
        name: ParameterFacts(
            module="Linear",
            shape=(4, 4),
            dtype="float32",
            requires_grad=True,
            optimizer=0 if name in held else None,
        )
        for name in "abc"
    }
    # Tanh is not the end of the model: there it would be saturated rightly.
    parameters["c.weight"] = parameters["c"]
    modules = {"tanh": "Tanh", "relu": "ReLU", "c": "Linear"}
    return ModelInfo(step=0, modules=modules, parameters=parameters, complete=True)


def gradients(run: FakeRun, step: int) -> None:
    run.step(step, {"gradient/a": [1e-12], "gradient/b": [1.0], "gradient/c": [1.0]})


def the_same(run: FakeRun, step: int) -> None:
    run.step(step, {"a": [1.0, 2.0], "gradient/a": [1.0, step]})


def zeros(run: FakeRun, step: int) -> None:
    run.step(step, {"a_output_0": [0.0] * 8})


def alike(run: FakeRun, step: int) -> None:
    run.step(step, {"a_output_0": [1.0] * 8})


def slow(run: FakeRun, step: int) -> None:
    run.step(step, {"a": [1.0, 2.0], "update/a": [1e-9, 1e-9]})


def warming(run: FakeRun, step: int) -> None:
    size = 1e-9 * (step + 1)
    run.step(step, {"a": [1.0, 2.0], "update/a": [size, size]})


def lost(run: FakeRun, step: int) -> None:
    rows = {"a": [1.0] * 4, "gradient/a": [1.0] * 4, "update/a": [0.0] * 4}
    run.step(step, rows)
    for name in rows:
        run.tensor_of(name).dtype = "bfloat16"


def dead(run: FakeRun, step: int) -> None:
    run.units(step, "relu_output_0", [0, 0], 64)
    run.step(step)


def saturated(run: FakeRun, step: int) -> None:
    run.units(step, "tanh_output_0", [32, 32], 64, [64, 64])
    run.step(step)


def without(run: FakeRun, step: int) -> None:
    run.step(step, {"gradient/a": [1.0], "gradient/b": [1.0]})


def rate(run: FakeRun, step: int) -> None:
    run.scalar(step, "optimizer/group_0/lr", 0.0)
    run.step(step)


CASES = [
    ("VanishingGradient", gradients, model_info(), 10),
    ("UnchangedTensor", the_same, model_info(), 10),
    ("AllZero", zeros, model_info(), 10),
    ("TensorVariance", alike, model_info(), 10),
    ("WeightUpdateRatio", slow, model_info(), 10),
    ("WeightUpdateRatio", warming, model_info(), 40),
    ("PrecisionLoss", lost, model_info(), 20),
    ("DeadRelu", dead, model_info(), 10),
    ("SaturatedActivation", saturated, model_info(), 10),
    ("MissingGradient", without, model_info(), 10),
    ("NotInOptimizer", gradients, model_info(held="ab"), 10),
    ("ZeroLearningRate", rate, model_info(), 10),
]


@pytest.mark.parametrize(("name", "record", "known", "steps"), CASES)
def test_what_is_recorded_at_every_step_must_last(
    name: str, record: Record, known: ModelInfo, steps: int
):
    """Sabotaged: a rule that counts rows speaks at the second to fifth step."""
    rule = make(name)
    run = recorded(record, known, range(60))
    found = judge(run, rule)
    assert found[0].step == steps - 1
    assert judge_in_parts(run, range(60), rule) == found
    assert judge_in_parts(run, (3, 7, 12, 41), rule) == found
    assert judge(recorded(record, known, range(steps - 1)), rule) == []


@pytest.mark.parametrize(("name", "record", "known", "steps"), CASES)
def test_at_the_usual_interval_the_rows_decide(
    name: str, record: Record, known: ModelInfo, steps: int
):
    """Sabotaged: a rule that counts steps in the place of rows speaks sooner."""
    rule = make(name)
    rows = {"MissingGradient": 5, "NotInOptimizer": 2, "WeightUpdateRatio": 5}
    found = judge(recorded(record, known, range(0, 200, 10)), rule)
    assert found[0].step == max(10 * (rows.get(name, 3) - 1), steps)
    assert found[0].step >= steps


def recorded(record: Record, known: ModelInfo, steps: range) -> FakeRun:
    run = FakeRun()
    run.known_facts = [known]
    for step in steps:
        record(run, step)
    return run


def test_a_rate_of_zero_is_an_error_when_it_has_lasted_for_longer():
    found = judge(recorded(rate, model_info(), range(250)), make("ZeroLearningRate"))
    assert [(each.step, each.severity.label) for each in found] == [
        (9, "warning"),
        (189, "error"),
    ]


def test_the_beginning_is_a_need_of_its_own():
    need = Needs(collections=frozenset({"weights"}), raw=True, raw_limit=5)
    always, beginning = with_beginning(need)
    assert always is need
    assert (beginning.interval, beginning.first_steps) == (1, BEGINNING)
    assert (beginning.raw, beginning.raw_limit) == (True, 5)


def needs_of(rule: Rule) -> list[Needs]:
    return [rule.needs] if isinstance(rule.needs, Needs) else list(rule.needs)


@pytest.mark.parametrize("name", sorted({case[0] for case in CASES}))
def test_a_rule_that_counts_rows_says_when_it_wants_all_of_them(name: str):
    needs = needs_of(make(name))
    if name != "ZeroLearningRate":  # Rates are recorded when they change.
        assert any(each.first_steps == BEGINNING for each in needs)
