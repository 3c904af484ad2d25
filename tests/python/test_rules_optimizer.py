"""Rules of optimizers: rates of zero, parameters without gradient or optimizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.errors import ConfigurationError
from tdbg.facts import Facts, ParameterFacts
from tdbg.findings import Severity
from tdbg.rules import MissingGradient, NotInOptimizer, ZeroLearningRate


def rates(*groups: list[float]) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(len(groups[0])):
        for i, values in enumerate(groups):
            run.scalar(step, f"optimizer/group_{i}/lr", values[step])
        run.step(step)
    return run


def test_a_rate_that_stays_zero_is_a_warning_and_then_an_error():
    begin, worse = judge(rates([0.0] * 30), ZeroLearningRate())
    assert begin.tensor == "scalar/optimizer/group_0/lr"
    assert (begin.step, begin.severity) == (2, Severity.WARNING)
    assert (worse.step, worse.severity) == (19, Severity.ERROR)
    assert "1 of 1 groups" in begin.message


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0, 0.1, 0.2, 0.3],
        [0.3, 0.2, 0.0, 0.3, 0.2, 0.0, 0.3],
        [0.3] * 20 + [0.0, 0.0],
        [1e-30] * 30,
    ],
)
def test_schedules_may_begin_turn_and_end_at_zero(values: list[float]):
    assert judge(rates(values), ZeroLearningRate()) == []


def test_one_group_of_several_is_never_an_error():
    (finding,) = judge(rates([0.1] * 30, [0.0] * 30), ZeroLearningRate())
    assert finding.tensor == "scalar/optimizer/group_1/lr"
    assert finding.severity is Severity.WARNING
    assert "others have up to 0.1" in finding.advice


def test_other_scalars_are_not_looked_at():
    run = FakeRun(every=10)
    for step in range(30):
        run.scalar(step, "lr", 0.0)
        run.scalar(step, "optimizer/group_0/momentum", 0.0)
        run.step(step)
    assert judge(run, ZeroLearningRate()) == []


def test_lost_steps_and_nan_are_not_zero():
    run = rates([0.0] * 30)
    for step in range(30):
        run.step(step, lossless=step % 2 == 0 and step > 25)
    assert judge(run, ZeroLearningRate()) == []
    assert judge(rates([np.nan] * 30), ZeroLearningRate()) == []


NAMES = ("a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias")


def known(
    held: str = "abc", complete: bool = True, required: str = "abc", step: int = 0
) -> Facts:
    return Facts(
        step=step,
        parameters={
            name: ParameterFacts(
                shape=(4, 4),
                dtype="float32",
                requires_grad=name[0] in required,
                module="Linear",
                optimizer=0 if name[0] in held else None,
            )
            for name in NAMES
        },
        complete=complete,
    )


def with_gradients(layers: str, n_steps: int = 10, **flags: bool) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(n_steps):
        rows = {f"gradient/{name}": [1.0] for name in NAMES if name[0] in layers}
        run.step(step, rows, **flags)
    return run


def test_a_parameter_that_never_has_a_gradient_is_reported_once_for_all():
    run = with_gradients("c")
    run.known_facts = [known()]
    (finding,) = judge(run, MissingGradient())
    assert (finding.tensor, finding.step) == ("gradient/a.weight", 4)
    assert finding.severity is Severity.WARNING
    assert "4 of 6 parameters" in finding.message
    assert "a.weight, a.bias, b.weight and 1 more" in finding.message


@pytest.mark.parametrize(
    ("layers", "facts"),
    [
        ("abc", known()),
        ("c", known(required="c")),
        ("c", known(held="c")),
        ("", known()),
    ],
)
def test_frozen_parameters_and_those_outside_the_optimizer_miss_nothing(
    layers: str, facts: Facts
):
    run = with_gradients(layers)
    run.known_facts = [facts]
    assert judge(run, MissingGradient()) == []


def test_one_gradient_is_enough():
    run = with_gradients("bc", n_steps=20)
    run.step(1, {"gradient/a.weight": [1.0], "gradient/a.bias": [1.0]})
    run.known_facts = [known()]
    assert judge(run, MissingGradient()) == []


def thawing(held: str) -> FakeRun:
    """Layers a and b are frozen until step 20, and have no gradient then either."""
    run = with_gradients("c", n_steps=20)
    for step in range(20, 40):
        run.step(step, {f"gradient/c.{kind}": [1.0] for kind in ("weight", "bias")})
    run.known_facts = [known(held, required="c"), known(held, step=20)]
    return run


def test_steps_at_which_a_parameter_was_frozen_do_not_count():
    (finding,) = judge(thawing("abc"), MissingGradient())
    assert (finding.tensor, finding.step) == ("gradient/a.weight", 24)
    run = thawing("abc")
    for step in range(22, 40):
        run.step(step, {f"gradient/{name}": [1.0] for name in NAMES})
    assert judge(run, MissingGradient()) == []
    assert judge_in_parts(run, range(40), MissingGradient()) == []
    assert [
        each.step
        for each in judge_in_parts(thawing("abc"), range(40), MissingGradient())
    ] == [24]


def test_what_is_thawed_and_in_no_optimizer_is_no_backbone():
    run = thawing("c")
    for step in range(21, 40):
        run.step(step, {f"gradient/{name}": [1.0] for name in NAMES})
    (finding,) = judge(run, NotInOptimizer())
    assert (finding.step, finding.severity) == (22, Severity.WARNING)
    assert "thawed" in finding.advice


def test_without_facts_or_with_gradients_of_weights_only_nothing_is_known():
    assert judge(with_gradients("c"), MissingGradient()) == []
    run = FakeRun(every=10)
    run.known_facts = [known()]
    for step in range(10):
        run.step(step, {"gradient/a.weight": [1.0]})
    assert judge(run, MissingGradient()) == []


def test_what_no_optimizer_has_is_reported_once_for_all():
    run = with_gradients("abc")
    run.known_facts = [known(held="ab")]
    (finding,) = judge(run, NotInOptimizer())
    assert (finding.tensor, finding.step) == ("gradient/c.weight", 1)
    assert finding.severity is Severity.WARNING
    assert "2 parameters" in finding.message


def test_a_backbone_outside_the_optimizer_is_an_info():
    run = with_gradients("abc")
    run.known_facts = [known(held="c")]
    (finding,) = judge(run, NotInOptimizer())
    assert finding.severity is Severity.INFO
    assert "requires_grad_(False)" in finding.advice


def test_what_was_frozen_after_a_training_keeps_a_gradient_and_is_silent():
    """A teacher that was trained in the same process holds its last gradients."""
    run = with_gradients("abc")
    run.known_facts = [known(held="ab", required="ab")]
    assert judge(run, NotInOptimizer()) == []


@pytest.mark.parametrize(
    "facts", [known(), known(held=""), known(held="a", complete=False)]
)
def test_nothing_is_said_where_all_are_held_or_nothing_is_known(facts: Facts):
    run = with_gradients("abc")
    run.known_facts = [facts]
    assert judge(run, NotInOptimizer()) == []


def test_what_is_known_later_holds_from_then_on():
    run = with_gradients("abc")
    run.known_facts = [known(), known(held="ab", step=6)]
    (finding,) = judge(run, NotInOptimizer())
    assert finding.step == 6


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
def test_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    run = with_gradients("c", **flags)
    run.known_facts = [known()]
    assert judge(run, MissingGradient()) == []
    run.known_facts = [known(held="ab")]
    assert judge(run, NotInOptimizer()) == []


@pytest.mark.parametrize("rule", [ZeroLearningRate, MissingGradient, NotInOptimizer])
def test_parameters_out_of_range_are_refused(rule: type):
    with pytest.raises(ConfigurationError, match=f"{rule.__name__}.patience"):
        rule(patience=0)


def backbone(weights: np.ndarray) -> FakeRun:
    """The last layer alone is in an optimizer; the first has these weights."""
    run = FakeRun(every=10)
    for step in range(8):
        names = [f"{x}.{kind}" for x in "abc" for kind in ("weight", "bias")]
        rows: dict[str, object] = {f"gradient/{name}": [1.0] for name in names}
        run.step(step, {**rows, "a.weight": weights})
    facts = known(held="c")
    shapes = {
        name: replace(each, shape=weights.shape)
        for name, each in facts.parameters.items()
    }
    run.known_facts = [replace(facts, parameters=shapes)]
    return run


def test_a_backbone_that_has_learned_nothing_is_not_left_out_on_purpose():
    """Sabotaged: without a look at the weights it is an info."""
    random = np.random.default_rng(0)
    fresh = random.uniform(-0.25, 0.25, (32, 16)).astype(np.float32)
    (finding,) = judge(backbone(fresh), NotInOptimizer())
    assert finding.severity is Severity.WARNING
    learned = fresh + random.normal(0, 0.05, fresh.shape)
    (finding,) = judge(backbone(learned), NotInOptimizer())
    assert finding.severity is Severity.INFO
