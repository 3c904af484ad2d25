"""Loops of TensorFlow: steps of two optimizers, and what is watched by default."""

from __future__ import annotations

from typing import Any

import pytest

from keras_programs import run_program


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_program("adversaries", tmp_path_factory.mktemp("adversaries"))


@pytest.mark.parametrize(
    ("way", "recorded"),
    [
        ("eager", [0, 1, 2, 3, 4, 5]),
        ("graph", [0, 1, 2, 3, 4, 5]),
        ("every other", [0, 2, 4]),
    ],
)
def test_what_two_optimizers_do_in_one_call_is_one_step(
    report: dict[str, Any], way: str, recorded: list[int]
) -> None:
    assert report[way]["steps"] == 6
    for name, steps in report[way]["recorded"].items():
        assert steps == recorded, name


@pytest.mark.parametrize("way", ["turns, eager", "turns, graph"])
def test_optimizers_that_take_turns_make_one_step_of_an_iteration(
    report: dict[str, Any], way: str
) -> None:
    assert report[way]["steps"] == 6
    own = report[way]["are_of_their_iteration"]
    assert own == {"first": [True] * 6, "second": [True] * 5}


def test_a_watched_loop_records_what_rules_need(report: dict[str, Any]) -> None:
    expected = {"losses", "outputs", "labels", "predictions", "updates", "scalars"}
    assert expected <= set(report["default"]["collections"])
    assert {"WeightUpdateRatio", "LossSpike"} <= set(report["default"]["rules"])
