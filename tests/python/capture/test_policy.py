"""The policy: what is wanted of which tensor at which step."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tdbg.capture.policy import Policy
from tdbg.capture.schedule import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    SMALL_VALUES,
    UNITS,
    VALUES,
)
from tdbg.config import (
    Collection,
    CollectionRegistry,
    Kind,
    Needs,
    ReductionConfig,
    Role,
    SaveConfig,
    SaveConfigMode,
)
from tdbg.modes import ModeKeys

TRAIN, EVAL = ModeKeys.TRAIN, ModeKeys.EVAL


def policy(
    included: Iterable[str] = (),
    collections: Iterable[Collection] = (),
    needs: Iterable[Needs] = (),
    reduction: ReductionConfig | None = None,
    **save: int,
) -> Policy:
    registry = CollectionRegistry(included, collections)
    return Policy(registry, SaveConfig(**save), reduction, needs)  # type: ignore[arg-type]


def requested(
    subject: Policy, name: str, role: Role, steps: int, mode: ModeKeys = TRAIN
) -> dict[int, int]:
    """What is wanted at each step, steps without anything left out."""
    profile = subject.capture_class(name, role)
    found = {step: subject.step_plan(mode, step).of(profile) for step in range(steps)}
    return {step: flags for step, flags in found.items() if flags}


def test_what_is_in_no_captured_collection_is_not_wanted() -> None:
    assert requested(policy(["weights"]), "x", Role.OUTPUT, 50) == {}


def test_steps_with_losses_at_most_are_alike_until_something_else_is_due() -> None:
    """Sabotaged: steps are observed one by one, or a due one passes unobserved."""
    subject = policy(["weights", "losses"], save_interval=10, statistics_interval=10)
    alike = {step: subject.n_alike(TRAIN, step, 64) for step in (0, 1, 4, 9, 10, 11)}
    assert alike == {0: 0, 1: 9, 4: 6, 9: 1, 10: 0, 11: 9}
    assert subject.n_alike(TRAIN, 1, 5) == 5


@pytest.mark.parametrize("collection", ["scalars", "losses"])
def test_steps_are_alike_until_numbers_are_due(collection: str) -> None:
    """Numbers that a framework logs are recorded then, whatever is captured."""
    subject = policy([collection], save_interval=10, statistics_interval=10)
    assert [subject.n_alike(TRAIN, step, 64) for step in (0, 1, 10)] == [0, 9, 0]


def test_steps_are_alike_until_losses_begin() -> None:
    subject = policy(["losses"], save_interval=10, statistics_interval=10, start_step=5)
    found = [subject.n_alike(TRAIN, step, 64) for step in (1, 4, 5)]
    assert found == [4, 1, 5]


def test_rows_and_values_have_schedules_of_their_own() -> None:
    subject = policy(["weights"], save_interval=20, statistics_interval=10)
    assert requested(subject, "w", Role.WEIGHT, 41) == {
        0: ROWS | VALUES,
        10: ROWS,
        20: ROWS | VALUES,
        30: ROWS,
        40: ROWS | VALUES,
    }


def test_a_tensor_in_several_collections_is_saved_when_any_says_so() -> None:
    every_third = Collection(
        "custom", "w", save_config=SaveConfig(save_interval=3, statistics_interval=3)
    )
    subject = policy(["weights"], [every_third], save_interval=4, statistics_interval=2)
    assert requested(subject, "w", Role.WEIGHT, 7) == {
        0: ROWS | VALUES,
        2: ROWS,
        3: ROWS | VALUES,
        4: ROWS | VALUES,
        6: ROWS | VALUES,
    }


def test_losses_are_wanted_at_every_step_within_the_bounds() -> None:
    subject = policy(["losses"], save_interval=4, end_step=6)
    found = requested(subject, "l", Role.LOSS, 9)
    assert sorted(found) == list(range(6))
    assert found[0] == found[4] == ROWS | VALUES | SMALL_VALUES
    assert found[1] == ROWS | SMALL_VALUES


def test_losses_follow_a_schedule_of_their_own() -> None:
    losses = Collection("losses", save_config=SaveConfig(save_interval=5, end_step=10))
    subject = policy(collections=[losses])
    assert requested(subject, "l", Role.LOSS, 20) == {0: 3, 5: 3}


def test_a_reduction_config_keeps_rows_only_but_for_losses() -> None:
    subject = policy(["weights", "losses"], reduction=ReductionConfig())
    assert requested(subject, "w", Role.WEIGHT, 5) == {0: ROWS}
    assert requested(subject, "l", Role.LOSS, 2)[1] & SMALL_VALUES


def test_a_collection_can_keep_raw_values_where_the_hook_does_not() -> None:
    raw = Collection("weights", reduction_config=ReductionConfig(save_raw_tensor=True))
    subject = policy(["biases"], [raw], reduction=ReductionConfig())
    assert requested(subject, "w", Role.WEIGHT, 5) == {0: ROWS | VALUES}
    assert requested(subject, "b", Role.BIAS, 5) == {0: ROWS}


def test_gradients_are_for_training() -> None:
    subject = policy(["gradients", "all"])
    assert requested(subject, "gradient/w", Role.GRADIENT, 1)
    assert not requested(subject, "gradient/w", Role.GRADIENT, 50, EVAL)
    assert requested(subject, "w", Role.WEIGHT, 1, EVAL)


def test_modes_have_schedules_of_their_own() -> None:
    registry = CollectionRegistry(["weights"])
    modes = {EVAL: SaveConfigMode(save_interval=1, statistics_interval=1)}
    subject = Policy(registry, SaveConfig(modes, save_interval=3))
    assert sorted(requested(subject, "w", Role.WEIGHT, 4, EVAL)) == [0, 1, 2, 3]
    assert sorted(requested(subject, "w", Role.WEIGHT, 4)) == [0, 3]


def test_needs_turn_on_the_rows_of_their_collections() -> None:
    need = Needs(collections=frozenset({"gradients"}), interval=5)
    subject = policy(needs=[need])
    assert requested(subject, "g", Role.GRADIENT, 11) == {0: ROWS, 5: ROWS, 10: ROWS}
    assert requested(subject, "w", Role.WEIGHT, 11) == {}


def test_needs_never_thin_out_what_the_hook_takes() -> None:
    need = Needs(collections=frozenset({"gradients"}), interval=100)
    subject = policy(["gradients"], needs=[need], statistics_interval=2)
    assert sorted(requested(subject, "g", Role.GRADIENT, 5)) == [0, 2, 4]
    alone = policy(needs=[need], statistics_interval=2)
    assert sorted(requested(alone, "g", Role.GRADIENT, 201)) == [0, 100, 200]


def test_needs_of_raw_values_save_them_when_the_hook_would() -> None:
    need = Needs(collections=frozenset({"weights"}), raw=True)
    subject = policy(needs=[need], save_interval=20)
    both = ROWS | LIMITED_VALUES
    assert requested(subject, "w", Role.WEIGHT, 21) == {0: both, 10: ROWS, 20: both}


def test_needs_of_unit_summaries_alone_take_no_rows_of_outputs() -> None:
    need = Needs(
        collections=frozenset({"outputs"}), statistics=False, unit_summaries=True
    )
    subject = policy(needs=[need])
    relu, gelu = frozenset({"ReLU", Kind.RELU}), frozenset({"GELU"})
    assert requested(subject, "relu_output_0", Role.OUTPUT, 11) == {}
    of_relu = subject.units_class(Role.OUTPUT, relu)
    assert subject.capture_class("relu_output_0", Role.OUTPUT, relu) == of_relu
    found = [subject.step_plan(TRAIN, step).of(of_relu) for step in (0, 1, 10)]
    assert found == [UNITS, 0, UNITS]
    of_gelu = subject.units_class(Role.OUTPUT, gelu)
    assert subject.step_plan(TRAIN, 0).of(of_gelu) == 0
    assert subject.step_plan(TRAIN, 10).takes_activations
    assert not subject.step_plan(TRAIN, 1).takes_activations


def test_each_need_is_honoured_by_itself() -> None:
    """That labels are wanted raw makes no weights raw."""
    labels = frozenset({"labels"})
    needs = [
        Needs(collections=frozenset({"weights"}), interval=4),
        Needs(collections=labels, statistics=False, raw=True, interval=5),
        Needs(collections=frozenset({"gradients"}), histogram=True, first_steps=3),
        Needs(collections=frozenset({"outputs"}), modules=frozenset({"Tanh"})),
    ]
    subject = policy(needs=needs)
    assert requested(subject, "w", Role.WEIGHT, 9) == {0: ROWS, 4: ROWS, 8: ROWS}
    raw = LIMITED_VALUES
    assert requested(subject, "y", Role.LABEL, 11) == {0: raw, 5: raw, 10: raw}
    assert requested(subject, "p", Role.PREDICTION, 11) == {}
    assert requested(subject, "g", Role.GRADIENT, 41) == {0: ROWS | HISTOGRAM}
    assert requested(subject, "relu_output_0", Role.OUTPUT, 11) == {}
    of_tanh = subject.capture_class("tanh_output_0", Role.OUTPUT, frozenset({"Tanh"}))
    assert subject.step_plan(TRAIN, 10).of(of_tanh) == ROWS
    assert subject.may_capture(Role.OUTPUT)
    assert not subject.may_capture(Role.OUTPUT, frozenset({"ReLU"}))
    assert subject.may_capture(Role.OUTPUT, frozenset({"Own", "Tanh"}))
    assert not subject.may_capture(Role.PREDICTION)


def test_a_narrower_schedule_of_the_user_is_widened_only_as_needed() -> None:
    gradients = Collection("gradients")
    gradients.save_config = SaveConfig(save_interval=60, statistics_interval=30)
    need = Needs(collections=frozenset({"gradients"}), interval=20)
    subject = policy(collections=[gradients], needs=[need])
    both = ROWS | VALUES
    expected = {0: both, 20: ROWS, 30: ROWS, 40: ROWS, 60: both}
    assert requested(subject, "g", Role.GRADIENT, 61) == expected


def test_what_a_hook_is_not_to_capture_rules_do_not_capture() -> None:
    need = Needs(collections=frozenset({"weights"}), interval=2)
    subject = policy(needs=[need], start_step=3, end_step=7)
    assert sorted(requested(subject, "w", Role.WEIGHT, 20)) == [4, 6]
    subject.disable()
    assert requested(subject, "w", Role.WEIGHT, 20) == {}


def test_a_tensor_that_was_put_into_a_collection_is_needed_by_its_name() -> None:
    need = Needs(collections=frozenset({"trees"}), interval=1)
    subject = policy(needs=[need])
    assert requested(subject, "trees/Gain", Role.OTHER, 2) == {}
    subject.registry.put("trees", "trees/Gain")
    subject.registry.get("trees").save_config = SaveConfig(end_step=0)
    subject.refresh()
    assert requested(subject, "trees/Gain", Role.OTHER, 2) == {0: ROWS, 1: ROWS}


def test_schedules_are_looked_up_whatever_begins_or_ends() -> None:
    """What is kept of a mode's steps is what its schedules say, in any order."""
    weights = frozenset({"weights"})
    needs = [
        Needs(collections=weights, interval=3, first_steps=20),
        Needs(collections=weights, interval=7),
    ]
    late = Collection("gradients")
    late.save_config = SaveConfig(
        start_step=11, end_step=40, statistics_interval=4, save_steps=[45]
    )
    subject = policy(collections=[late], needs=needs)
    weight = subject.capture_class("w", Role.WEIGHT)
    gradient = subject.capture_class("g", Role.GRADIENT)
    for step in [*range(200), *range(199, 100, -3), 123_456, 123_459]:
        of_weight = step % 7 == 0 or (step % 3 == 0 and step < 20)
        of_gradient = (step % 4 == 0 and 11 <= step < 40) or step == 45
        step_plan = subject.step_plan(TRAIN, step)
        assert bool(step_plan.of(weight)) == of_weight, step
        assert bool(step_plan.of(gradient)) == of_gradient, step


def test_activations_are_known_to_be_unwanted_before_they_are_named() -> None:
    subject = policy(["weights", "losses", "outputs"])
    assert subject.step_plan(TRAIN, 0).takes_activations
    assert not subject.step_plan(TRAIN, 1).takes_activations
    assert not policy(["weights", "losses"]).step_plan(TRAIN, 0).takes_activations
    by_regex = policy(collections=[Collection("custom", "relu")])
    assert by_regex.step_plan(TRAIN, 0).takes_activations


def test_a_change_of_collections_is_seen_at_the_next_refresh() -> None:
    subject = policy(["weights"])
    assert not subject.refresh()
    subject.registry.get("weights").save_config = SaveConfig(end_step=0)
    assert subject.refresh()
    assert not subject.refresh()
    assert requested(subject, "w", Role.WEIGHT, 50) == {}
