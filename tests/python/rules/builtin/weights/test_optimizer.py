"""Rules of optimizers: rates of zero, parameters without gradient or optimizer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rules_by_the_book import spied
from rules_fake import FakeRun, judge, judge_in_parts, row_of
from tdbg.modes import ModeKeys
from tdbg.rules import (
    MissingGradient,
    NotInOptimizer,
    Rule,
    VanishingLearningRate,
    ZeroLearningRate,
)
from tdbg.run.findings import Finding, Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts


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
    assert "only parameter group" in begin.message


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
    assert "rates of up to 0.1" in finding.advice


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
) -> ModelInfo:
    return ModelInfo(
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
    ("layers", "model_info"),
    [
        ("abc", known()),
        ("c", known(required="c")),
        ("c", known(held="c")),
        ("", known()),
    ],
)
def test_frozen_parameters_and_those_outside_the_optimizer_miss_nothing(
    layers: str, model_info: ModelInfo
):
    run = with_gradients(layers)
    run.known_facts = [model_info]
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
    assert "unfreeze" in finding.advice


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
    # Nothing shows that they were meant to learn.
    assert finding.severity is Severity.INFO
    assert "2 parameters" in finding.message
    assert "leave them as they are" in finding.advice


def test_what_was_frozen_after_a_training_keeps_a_gradient_and_is_silent():
    """A teacher that was trained in the same process holds its last gradients."""
    run = with_gradients("abc")
    run.known_facts = [known(held="ab", required="ab")]
    assert judge(run, NotInOptimizer()) == []


@pytest.mark.parametrize(
    "model_info", [known(), known(held=""), known(held="a", complete=False)]
)
def test_nothing_is_said_where_all_are_held_or_nothing_is_known(model_info: ModelInfo):
    run = with_gradients("abc")
    run.known_facts = [model_info]
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


# ---- conditions of MissingGradient and NotInOptimizer ----------------------------


INFO, WARNING = int(Severity.INFO), int(Severity.WARNING)


def model_info(
    names: str, held: str, required: str = "", *, complete: bool = True, step: int = 0
) -> ModelInfo:
    """One-letter parameters; *held* by the optimizer; all but these are required."""
    return ModelInfo(
        step=step,
        parameters={
            name: ParameterFacts(
                shape=(4, 4),
                dtype="float32",
                requires_grad=not required or name in required,
                module="Linear",
                optimizer=0 if name in held else None,
            )
            for name in names
        },
        complete=complete,
    )


def run_of(
    known: ModelInfo, gradients: str, n_steps: int = 8, every: int = 10
) -> FakeRun:
    run = FakeRun(every=every)
    for step in range(n_steps):
        run.step(step, {f"gradient/{name}": [1.0] for name in gradients})
    run.known_facts = [known]
    return run


def verdicts(run: FakeRun, rule: Rule) -> dict[str, list[int | None]]:
    """Of each name, those of all steps; None: unknown."""
    found = spied(run, rule)
    return {
        name: [found.get((ModeKeys.TRAIN, name, step)) for step in sorted(run.steps)]
        for name in sorted({name for _, name, _ in found})
    }


# ---- MissingGradient -------------------------------------------------------------


@pytest.mark.parametrize("patience", [1, 2, 5, 7])
def test_a_gradient_is_missing_from_the_step_of_its_patience_on(patience: int):
    """And one that is there is in order from that step on, as one that is missing is
    never: the first of these has the finding, the others no verdict.
    """
    run = run_of(model_info("abc", "abc"), "b")
    unknown: list[int | None] = [None] * (patience - 1)
    left = 8 - len(unknown)
    assert verdicts(run, MissingGradient(patience=patience)) == {
        "gradient/a": unknown + [WARNING] * left,
        "gradient/b": unknown + [0] * left,
    }


def test_a_gradient_that_comes_late_is_in_order_from_then_on():
    run = run_of(model_info("ab", "ab"), "b", 12)
    run.step(9, {"gradient/a": [1.0], "gradient/b": [1.0]})
    assert verdicts(run, MissingGradient()) == {
        "gradient/a": [None] * 4 + [WARNING] * 5 + [0] * 3,
        "gradient/b": [None] * 4 + [0] * 8,
    }


def test_a_gradient_that_came_once_is_enough_even_where_the_step_is_not_whole():
    run = run_of(model_info("ab", "ab"), "b")
    run.step(1, {"gradient/a": [1.0]}, lossless=False)
    assert judge(run, MissingGradient()) == []


def test_what_no_optimizer_has_is_missed_only_while_not_all_of_them_are_known():
    run = run_of(model_info("abc", "b"), "b")
    assert judge(run, MissingGradient()) == []
    run = run_of(model_info("abc", "b", complete=False), "b")
    (finding,) = judge(run, MissingGradient())
    assert "2 of 3 parameters" in finding.message


def named(run: FakeRun) -> list[tuple[str, int]]:
    return [(each.tensor, each.step) for each in judge(run, MissingGradient())]


def test_weights_or_biases_that_have_no_gradient_at_all_are_not_captured():
    """Sabotaged: each half of ``_both_kinds`` left out reports the other kind."""

    def kinds(*gradients: str) -> FakeRun:
        names = ("a.weight", "a.bias", "b.weight", "b.bias_hh")
        parameter = model_info("a", "a").parameters["a"]
        run = FakeRun(every=10)
        for step in range(8):
            run.step(step, {f"gradient/{name}": [1.0] for name in gradients})
        known = model_info("", "")
        run.known_facts = [replace(known, parameters=dict.fromkeys(names, parameter))]
        return run

    assert named(kinds("a.weight", "b.weight")) == []
    assert named(kinds("a.bias", "b.bias_hh")) == []
    assert named(kinds("a.weight", "a.bias")) == [("gradient/b.weight", 4)]
    # Where a model has one kind only there is nothing to compare with.
    assert named(run_of(model_info("ab", "ab"), "b")) == [("gradient/a", 4)]


def thawed(at: int, every: int, seen: str = "b") -> FakeRun:
    """Parameter a is frozen until a step."""
    run = run_of(model_info("ab", "ab", "b"), "b", 40, every)
    for step in range(40):
        run.step(step, {f"gradient/{name}": [1.0] for name in seen})
    run.known_facts += [model_info("ab", "ab", step=at)]
    return run


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        # Five rows from the thaw on, where those are ten steps or more; else as many
        # rows as ten steps have.
        (10, 24),
        (3, 24),
        (2, 25),
        (1, 29),
    ],
)
def test_after_a_thaw_both_rows_and_steps_must_pass(every: int, expected: int):
    assert named(thawed(20, every)) == [("gradient/a", expected)]


def test_a_thaw_in_the_middle_counts_from_the_next_row_on():
    run = thawed(20, 10)
    # Two and a half rows later than the row of step 20.
    first, later = run.known_facts
    run.known_facts = [first, replace(later, step=22)]
    assert named(run) == [("gradient/a", 26)]


def test_steps_of_which_something_is_lost_do_not_count_after_a_thaw():
    run = thawed(20, 10)
    for step in (20, 22):
        run.step(step, lossless=False)
    assert named(run) == [("gradient/a", 26)]


def test_until_then_nothing_is_known_of_what_was_thawed():
    found = verdicts(thawed(20, 10), MissingGradient())
    assert found["gradient/a"] == [None] * 24 + [WARNING] * 16
    assert found["gradient/b"] == [None] * 4 + [0] * 36


# ---- NotInOptimizer --------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "new", "severity"),
    [
        # One new layer may be random features.
        ("e", "a", Severity.INFO),
        ("cde", "a", Severity.WARNING),
        ("e", "ab", Severity.WARNING),
        ("ae", "c", Severity.WARNING),
        ("abcd", "e", Severity.WARNING),
        # What has learned may stay as it is, wherever that is: adapters, judges.
        ("cde", "", Severity.INFO),
        ("d", "", Severity.INFO),
        ("ae", "", Severity.INFO),
        ("a", "", Severity.INFO),
    ],
)
def test_only_what_was_drawn_was_meant_to_learn(
    held: str, new: str, severity: Severity
):
    facts = model_info("abcde", held)
    run = run_of(facts, "abcde")
    learned = row_of(np.random.default_rng(0).standard_t(3, size=512))
    for step in range(8):
        rows = {name: fresh() if name in new else learned for name in "abcde"}
        run.step(step, rows)
    run.known_facts = [shaped(facts)]
    (finding,) = judge(run, NotInOptimizer())
    assert finding.severity is severity


def shaped(facts: ModelInfo) -> ModelInfo:
    parameters = {n: replace(p, shape=SHAPE) for n, p in facts.parameters.items()}
    return replace(facts, parameters=parameters)


def test_which_verdicts_there_are_on_what_optimizers_hold():
    run = run_of(model_info("abc", "b"), "abc", 4)
    # Of one that is not known nothing is said.
    for step in range(4):
        run.step(step, {"gradient/x": [1.0]})
    assert verdicts(run, NotInOptimizer()) == {
        "gradient/a": [None, INFO, INFO, INFO],
        "gradient/b": [None, 0, 0, 0],
    }


def test_without_optimizers_or_gradients_there_are_none():
    assert verdicts(run_of(model_info("ab", ""), "ab"), NotInOptimizer()) == {}
    run = run_of(model_info("ab", "b"), "")
    for step in range(4):
        run.step(step, {"a": [1.0], "b": [1.0]})
    assert verdicts(run, NotInOptimizer()) == {}
    # A weight is no gradient: that of the one that is not held is not there.
    for step in range(4):
        run.step(step, {"gradient/b": [1.0]})
    assert verdicts(run, NotInOptimizer()) == {
        "gradient/b": [None] + [0] * 3 + [None] * 4
    }


@pytest.mark.parametrize(("patience", "step"), [(1, 0), (2, 1), (6, 5)])
def test_an_optimizer_may_be_found_within_the_patience(patience: int, step: int):
    run = run_of(model_info("ab", "b"), "ab")
    (finding,) = judge(run, NotInOptimizer(patience=patience))
    assert (finding.tensor, finding.step) == ("gradient/a", step)


SHAPE = (32, 16)
FAN_IN = 16


def whole(
    row: dict[str, float] | None,
    shape: tuple[int, ...] = SHAPE,
    first_step: int = 0,
    lossless: bool = True,
    late: dict[str, float] | None = None,
) -> Finding:
    """The last of three is held; the first two began with this row of weights."""
    run = run_of(model_info("abc", "c"), "abc")
    for step in (first_step, 5):
        if row is not None:
            names = ("a", "b") if step == first_step else ("a", "b", "c")
            of_step = row if step == first_step else late or row
            run.step(step, dict.fromkeys(names, of_step), lossless=lossless or step > 0)
    for step in (first_step, 5):
        run.step(step, {f"gradient/{name}": [1.0] for name in "abc"})
    if not lossless:
        run.step(first_step, lossless=False)
    known = run.known_facts[0]
    run.known_facts = [
        replace(
            known,
            parameters={
                name: replace(each, shape=shape)
                for name, each in known.parameters.items()
            },
        )
    ]
    (finding,) = judge(run, NotInOptimizer())
    return finding


def fresh(bound: float = 1 / math.sqrt(FAN_IN), **changed: float) -> dict[str, float]:
    """The row of weights that are even between the bounds of a new layer."""
    return row_of(np.linspace(-bound, bound, math.prod(SHAPE))) | changed


def is_fresh(row: dict[str, float] | None, shape: tuple[int, ...] = SHAPE) -> bool:
    finding = whole(row, shape)
    assert finding.severity in {Severity.INFO, Severity.WARNING}
    return finding.severity is Severity.WARNING


LIMIT = 1 / math.sqrt(FAN_IN)
SPREAD = LIMIT / math.sqrt(3) * math.sqrt(math.prod(SHAPE))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        # The largest, of either sign, comes near the bound and not beyond it.
        ({"max": 0.91 * LIMIT}, True),
        ({"min": -0.91 * LIMIT}, True),
        ({"min": -0.91 * LIMIT, "max": 0.91 * LIMIT}, True),
        ({"min": -0.89 * LIMIT, "max": 0.89 * LIMIT}, False),
        ({"min": -0.89 * LIMIT, "max": 0.91 * LIMIT}, True),
        ({"min": -0.91 * LIMIT, "max": 0.89 * LIMIT}, True),
        ({"max": (1 + 5e-7) * LIMIT}, True),
        ({"max": (1 + 3e-6) * LIMIT}, False),
        ({"min": -(1 + 3e-6) * LIMIT}, False),
        # And the deviation is that of a uniform distribution.
        ({"l2": 1.09 * SPREAD}, True),
        ({"l2": 1.12 * SPREAD}, False),
        ({"l2": 0.91 * SPREAD}, True),
        ({"l2": 0.89 * SPREAD}, False),
    ],
)
def test_new_weights_are_uniform_up_to_their_bound(
    changed: dict[str, float], expected: bool
):
    assert is_fresh(fresh(**changed)) is expected


def test_the_bound_is_of_the_inputs_of_a_neuron():
    """(32, 16) has 16, and (32, 4, 2, 2) as well; the count of all is 512."""
    assert is_fresh(fresh(), (32, 4, 2, 2))
    assert not is_fresh(fresh(), (16, 32))
    assert is_fresh(fresh(1 / math.sqrt(32)), (16, 32))


def test_weights_that_were_not_seen_as_they_began_are_taken_for_learned():
    assert not is_fresh(None)
    assert whole(fresh(), first_step=0).severity is Severity.WARNING
    assert whole(fresh(), lossless=False).severity is Severity.INFO
    # Nor are those of later taken for those of the beginning.
    assert whole(fresh(), lossless=False, late=fresh()).severity is Severity.INFO


@pytest.mark.parametrize("shape", [(512,), (9, 7)])
def test_biases_and_few_weights_are_not_judged(shape: tuple[int, ...]):
    """Whatever they are: they neither are new nor learned."""
    assert not is_fresh(fresh(), shape)


def test_as_few_as_64_are_judged():
    bound = 1 / math.sqrt(8)
    assert is_fresh(row_of(np.linspace(-bound, bound, 64)), (8, 8))


def mixed(
    first: dict[str, float],
    second: dict[str, float],
    shape: tuple[int, ...] = SHAPE,
) -> Severity:
    """The second of the two that are left out has this shape."""
    run = run_of(model_info("abc", "c"), "abc")
    run.step(0, {"a": first, "b": second, "c": fresh()})
    run.step(0, {f"gradient/{name}": [1.0] for name in "abc"})
    known = run.known_facts[0]
    shaped = {n: replace(p, shape=SHAPE) for n, p in known.parameters.items()}
    shaped["b"] = replace(shaped["b"], shape=shape)
    run.known_facts = [replace(known, parameters=shaped)]
    (finding,) = judge(run, NotInOptimizer())
    return finding.severity


@pytest.mark.parametrize("shape", [(63, 1), (9, 7)])
def test_beside_new_weights_few_weights_do_not_count(
    shape: tuple[int, ...],
):
    assert mixed(fresh(), row_of(np.zeros(512)), shape) is Severity.INFO
    assert mixed(fresh(), fresh(), shape) is Severity.INFO


def test_one_layer_that_has_learned_is_enough():
    learned = row_of(np.random.default_rng(0).standard_t(3, size=512))
    assert mixed(fresh(), fresh()) is Severity.WARNING
    assert mixed(fresh(), learned) is Severity.INFO
    assert mixed(learned, fresh()) is Severity.INFO


def test_a_schedule_for_epochs_that_is_stepped_in_each_batch_is_named():
    (finding,) = judge(rates([0.7**n for n in range(100)]), VanishingLearningRate())
    assert finding.severity is Severity.WARNING
    assert "The learning rate fell from 1 to" in finding.message
    assert "once an epoch" in finding.advice


@pytest.mark.parametrize(
    "values",
    [
        # A cosine to zero; a warm-up; steps of a tenth; a rate that was always tiny.
        [0.5 + 0.5 * math.cos(math.pi * n / 500) for n in range(500)],
        [1e-9] * 50 + [0.1] * 200,
        [0.1 ** (1 + n // 100) for n in range(400)],
        [1e-9] * 300,
        [0.1] * 50 + [0.0] * 100,
    ],
    ids=["cosine", "warm-up", "steps", "tiny", "zero"],
)
def test_a_schedule_that_ends_with_the_training_is_sound(values: list[float]):
    assert judge(rates(values), VanishingLearningRate()) == []
