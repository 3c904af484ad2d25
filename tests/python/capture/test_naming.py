"""Names, and what is found in nested structures."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import pytest

from tdbg.capture import naming
from tdbg.config import Role


class Tensor:
    """Stands for one."""


@dataclasses.dataclass
class Output:
    logits: Any
    hidden: Any = None


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - an untyped one, as models return

T = [Tensor() for _ in range(4)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (T[0], [0]),
        ((T[0],), [0]),
        ((T[0], None, 3, T[1]), [0, 1]),
        ([T[1], [T[0]]], [1, 0]),
        ({"b": T[1], "a": (T[0], "text")}, [1, 0]),
        (Output(T[2], {"x": T[0]}), [2, 0]),
        (Pair(T[0], T[1]), [0, 1]),
        (((T[0],), {"mask": T[1]}), [0, 1]),
        (None, []),
        (Output, []),
    ],
)
def test_tensors_are_found_in_order_and_nothing_else_counts(
    value: object, expected: list[int]
) -> None:
    found = list(naming.tensors_in(value, lambda item: isinstance(item, Tensor)))
    assert found == [T[index] for index in expected]


def test_a_structure_that_contains_itself_is_cut() -> None:
    loop: list[object] = [T[0]]
    loop.append(loop)
    found = list(naming.tensors_in(loop, lambda item: isinstance(item, Tensor)))
    assert 1 <= len(found) <= naming.MAX_DEPTH + 1


def test_a_long_list_is_cut() -> None:
    many = [T[0]] * (naming.MAX_TENSORS + 5)
    found = list(naming.tensors_in(many, lambda item: isinstance(item, Tensor)))
    assert len(found) == naming.MAX_TENSORS


def test_a_second_call_is_marked() -> None:
    assert naming.activation_name("relu", "output", 1, 0) == "relu_output_1"
    assert naming.activation_name("relu", "input", 0, 1) == "relu_input_0@2"


def test_parameters_have_what_stands_before_their_module() -> None:
    assert naming.Naming().before_parameters("Net", "") == ""
    assert naming.Naming().before_parameters("Net_2", "Net_2.") == "Net_2."


def test_the_second_of_a_name_has_a_number() -> None:
    names = naming.UniqueNames()
    assert [names.take("Loss") for _ in range(3)] == ["Loss", "Loss_2", "Loss_3"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("fc.bias", Role.BIAS),
        ("attention.in_proj_bias", Role.BIAS),
        ("lstm.bias_ih_l0", Role.BIAS),
        ("unbiased.weight", Role.WEIGHT),
        ("bias.gain", Role.WEIGHT),
        ("cls_token", Role.WEIGHT),
    ],
)
def test_a_bias_is_told_by_the_last_part_of_its_name(name: str, role: Role) -> None:
    assert naming.parameter_role(name) is role
