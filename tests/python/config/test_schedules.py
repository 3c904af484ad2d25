"""Schedules: what they accept, refuse, and mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys


def saved(config: SaveConfigMode, stop: int) -> list[int]:
    return [step for step in range(stop) if config.should_save(step)]


def reduced(config: SaveConfigMode, stop: int) -> list[int]:
    return [step for step in range(stop) if config.should_reduce(step)]


def test_the_defaults_are_values_every_500_and_statistics_every_10_steps() -> None:
    config = SaveConfig().of(ModeKeys.TRAIN)
    assert saved(config, 1001) == [0, 500, 1000]
    assert reduced(config, 31) == [0, 10, 20, 30]


def test_the_phase_is_absolute_and_start_and_end_bound_both_schedules() -> None:
    config = SaveConfigMode(
        save_interval=4, statistics_interval=2, start_step=3, end_step=9
    )
    assert saved(config, 20) == [4, 8]
    assert reduced(config, 20) == [4, 6, 8]


def test_end_step_zero_disables_both() -> None:
    for start in (0, 5):
        config = SaveConfigMode(save_interval=1, start_step=start, end_step=0)
        assert saved(config, 9) == reduced(config, 9) == []


def test_save_steps_add_wherever_they_lie() -> None:
    config = SaveConfigMode(
        save_interval=5, statistics_interval=5, end_step=6, save_steps=frozenset({7})
    )
    assert saved(config, 20) == reduced(config, 20) == [0, 5, 7]


BOUNDS = st.tuples(st.integers(0, 20), st.none() | st.integers(0, 30)).filter(
    lambda bounds: not bounds[1] or bounds[0] < bounds[1]
)
SCHEDULES = st.builds(
    lambda bounds, **others: SaveConfigMode(
        start_step=bounds[0], end_step=bounds[1], **others
    ),
    BOUNDS,
    save_interval=st.integers(1, 9),
    statistics_interval=st.integers(1, 9),
    save_steps=st.frozensets(st.integers(0, 40)),
)


@given(SCHEDULES)
def test_statistics_are_taken_wherever_a_value_is_saved(config: SaveConfigMode) -> None:
    assert set(saved(config, 50)) <= set(reduced(config, 50))


@given(SCHEDULES, st.integers(0, 45))
def test_the_same_is_due_until_a_schedule_changes(
    config: SaveConfigMode, first: int
) -> None:
    """Sabotaged: a save step forgotten; the step after one; the end."""
    end = config.steady_until(first)
    assert end is None or end > first
    due = config.should_save(first), config.should_reduce(first)
    for step in range(first, 60 if end is None else min(end, 60)):
        assert (config.should_save(step), config.should_reduce(step)) == due


def test_modes_have_schedules_of_their_own() -> None:
    mode = SaveConfigMode(save_interval=3)
    config = SaveConfig({ModeKeys.EVAL: mode}, save_interval=7)
    assert config.of(ModeKeys.EVAL) is mode
    assert config.of(ModeKeys.TRAIN).save_interval == 7


def test_a_mode_that_a_collection_leaves_out_follows_the_hook() -> None:
    hook = SaveConfigMode(save_interval=42)
    only_modes = SaveConfig({ModeKeys.EVAL: SaveConfigMode(save_interval=1)})
    assert only_modes.of(ModeKeys.TRAIN, hook) is hook
    with_own = SaveConfig({ModeKeys.EVAL: SaveConfigMode()}, save_interval=3)
    assert with_own.of(ModeKeys.TRAIN, hook).save_interval == 3
    assert SaveConfig().of(ModeKeys.TRAIN, hook).save_interval == 500


def test_text_that_is_a_number_is_one() -> None:
    config: Any = SaveConfigMode(save_interval="7", save_steps=["1", 2])  # type: ignore[arg-type]
    assert (config.save_interval, config.save_steps) == (7, {1, 2})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_interval": 0}, "save_interval must be at least 1, not 0"),
        ({"statistics_interval": -1}, "statistics_interval must be at least 1"),
        ({"start_step": 1.5}, "start_step must be a whole number, not 1.5"),
        ({"end_step": True}, "end_step must be a whole number, not True"),
        ({"start_step": 5, "end_step": 3}, "between start_step=5 and end_step=3"),
        ({"start_step": 5, "end_step": 5}, "between start_step=5 and end_step=5"),
        (
            {"mode_save_configs": {ModeKeys.EVAL: {"start_step": 9, "end_step": 8}}},
            "between start_step=9 and end_step=8",
        ),
        ({"save_steps": 3}, "save_steps must be a list of steps, not 3"),
        ({"save_steps": ["x"]}, "save_steps must be a whole number, not 'x'"),
        ({"mode_save_configs": {"TRAIN": SaveConfigMode()}}, "'TRAIN' is not a mode"),
        ({"mode_save_configs": {ModeKeys.TRAIN: 3}}, "must be a SaveConfigMode"),
        (
            {"mode_save_configs": {ModeKeys.TRAIN: {"save_intervall": 3}}},
            "did you mean 'save_interval'",
        ),
    ],
)
def test_a_bad_value_is_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SaveConfig(**arguments)


def test_parse_takes_what_smdebug_takes() -> None:
    mode = SaveConfigMode(save_interval=3, save_steps=frozenset({1}))
    assert SaveConfig.parse(mode).of(ModeKeys.EVAL) == mode
    assert SaveConfig.parse({ModeKeys.EVAL: mode}).of(ModeKeys.EVAL) == mode
    with pytest.raises(ConfigurationError, match="must be a SaveConfig, not 3"):
        SaveConfig.parse(3)


def test_reductions_are_checked_and_change_nothing() -> None:
    config = ReductionConfig(["min", "mean"], norms=["l2"])  # type: ignore[arg-type]
    assert config.reductions == ("min", "mean")
    assert not config.save_raw_tensor
    with pytest.raises(ConfigurationError, match="did you mean 'mean'"):
        ReductionConfig(("meen",))
    with pytest.raises(ConfigurationError, match="must be a list"):
        ReductionConfig("min")  # type: ignore[arg-type]
