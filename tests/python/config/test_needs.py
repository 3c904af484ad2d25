"""Needs: plain data that is checked where it is made."""

from __future__ import annotations

from typing import Any

import pytest

from tdbg.config import Needs, missing
from tdbg.config.needs import every_need
from tdbg.errors import ConfigurationError
from tdbg.rules import Confusion
from tdbg.rules.engine.missing_capture import NOTHING_KNOWN, describe_missing
from tdbg.rules.training_facts import TrainingFacts


def test_needs_name_built_in_collections() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'gradients'"):
        Needs(collections=frozenset({"gradient"}))
    for name in ("labels", "predictions", "model_inputs", "trees", "average_shap"):
        assert Needs(collections=frozenset({name})).collections == {name}


def test_a_text_is_no_set_of_names() -> None:
    for field in ("collections", "modules"):
        with pytest.raises(ConfigurationError, match=f"{field} is a set of names"):
            Needs(**{field: "weights"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"), [("interval", 0), ("first_steps", 0), ("raw_limit", -1)]
)
def test_numbers_have_a_range(field: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} must be at least"):
        Needs(**{field: value})  # type: ignore[arg-type]
    assert getattr(Needs(**{field: value + 1}), field) == value + 1  # type: ignore[arg-type]


def test_one_need_is_as_good_as_a_tuple_of_it() -> None:
    one = Needs(collections=frozenset({"weights"}))
    other = Needs(collections=frozenset({"labels"}), raw=True, interval=5)
    assert every_need(one) == (one,)
    assert every_need([one, other]) == (one, other)
    assert every_need(()) == ()


def test_equal_needs_are_one() -> None:
    assert len({Needs(modules=frozenset({"Tanh"})), Needs(modules={"Tanh"})}) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"include_collections": ["losses"]},
            (
                "nothing to judge: labels and predictions were not captured; "
                'include_collections=["labels", "predictions"] with save_interval=5 or '
                'rules=["Confusion"] captures them'
            ),
        ),
        # Sabotaged: whoever includes them is told of too few steps, for ever.
        (
            {"include_collections": ["labels", "losses", "predictions"]},
            (
                f"{NOTHING_KNOWN}; it reads values of labels and predictions every 5 "
                'steps: rules=["Confusion"] saves them'
            ),
        ),
        (
            {
                "include_collections": ["losses"],
                "needs": [
                    {
                        "collections": ["labels", "predictions"],
                        "raw": True,
                        "interval": 5,
                    }
                ],
            },
            NOTHING_KNOWN,
        ),
    ],
)
def test_values_that_are_read_often_are_told_with_the_setting_that_saves_them(
    asked: dict[str, Any], said: str
) -> None:
    class Run:
        def configuration(self) -> dict[str, Any]:
            return {"hook": asked}

        def tensor_names(self) -> list[str]:
            return []

    class There:
        tensor_names = ("x",)

    captured = {name: There() for name in ("labels", "predictions")}
    source: Any = Run()
    told = describe_missing(
        Confusion(),
        source,
        lambda: captured,
        TrainingFacts,
        is_blind=False,
        has_judged=False,
    )
    assert told == (said, True)


def test_names_are_listed_as_in_a_sentence() -> None:
    needs = [Needs(collections=frozenset({name})) for name in ("weights", "biases")]
    needs.append(Needs(collections=frozenset({"outputs"})))
    (told,) = missing(needs, {}, {"include_collections": []}, "R")
    assert told.startswith("weights, biases and outputs were not captured")
