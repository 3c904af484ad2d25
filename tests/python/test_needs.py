"""Needs: plain data that is checked where it is made."""

from __future__ import annotations

import pytest

from tdbg.errors import ConfigurationError
from tdbg.needs import Needs, every_need


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
