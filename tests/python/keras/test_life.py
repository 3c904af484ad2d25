"""Keras: what a hook bears, and what it does to a model."""

from __future__ import annotations

from typing import Any

import pytest

from keras_programs import run_program

# Of a training that nobody stops.
ALL_STEPS = 99 * 5


@pytest.fixture(scope="module")
def report(tmp_path_factory: Any) -> dict[str, Any]:
    return run_program("life", tmp_path_factory.mktemp("life"))


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "clone", "save"])
def test_a_model_with_a_hook_can_be_copied_and_saved(
    report: dict[str, Any], way: str
) -> None:
    assert report["copies"][way]


def test_copies_of_a_model_are_not_captured(report: dict[str, Any]) -> None:
    assert report["steps of copies"] == 0


def test_a_copy_of_a_hook_does_nothing(report: dict[str, Any]) -> None:
    assert report["a copied hook"] == [0, 0]


def test_a_model_that_is_compiled_again_is_captured_again(
    report: dict[str, Any],
) -> None:
    assert report["compiled again"] == 10


def test_a_hook_follows_two_models_one_after_the_other(report: dict[str, Any]) -> None:
    assert report["two models"] == 15


def test_of_two_hooks_of_a_model_the_newest_stays(report: dict[str, Any]) -> None:
    assert report["newest"] == [True, 5]


def test_a_hook_may_be_closed_in_the_middle_of_an_epoch(report: dict[str, Any]) -> None:
    assert report["closed"] == [2, True]


def test_no_error_of_tdbg_reaches_the_training(report: dict[str, Any]) -> None:
    assert len(report["faults"]) >= 15
    for place, (is_same, n_errors) in report["faults"].items():
        assert is_same, place
        assert n_errors > 0, place


def test_an_error_of_the_training_stays_what_it_is(report: dict[str, Any]) -> None:
    assert report["a failing step"] == "KeyError"
    assert report["steps until it failed"] == 3


def test_a_request_stops_the_training_by_an_error(report: dict[str, Any]) -> None:
    name, n_steps, reason = report["stops"]["raise"]
    assert name == "TrainingStopped"
    assert 2 <= n_steps < ALL_STEPS
    assert "enough" in reason


def test_a_request_stops_the_training_as_keras_does(report: dict[str, Any]) -> None:
    name, n_steps, reason = report["stops"]["flag"]
    assert name == ""
    assert 2 <= n_steps < ALL_STEPS
    assert "enough" in reason
