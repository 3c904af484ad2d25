"""Prints of replicas: what their sums say, and that they survive a store."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.capture.replica_prints import OneElement, Print, Standing, one_element

N = 300
WORDS = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=N, max_size=N)


def sums(words: list[int]) -> list[int]:
    """The three sums as ranks have them: of 64 bits with a sign."""
    totals = [
        sum(i**power * word for i, word in enumerate(words)) for power in (0, 1, 2)
    ]
    return [(total + 2**63) % 2**64 - 2**63 for total in totals]


@given(WORDS, st.integers(0, N - 1), st.integers(0, 30))
def test_a_flipped_bit_is_found_in_its_place(
    words: list[int], at: int, bit: int
) -> None:
    other = [*words]
    other[at] ^= 1 << bit
    assert one_element(sums(words), sums(other)) == OneElement(at, bit)


@given(WORDS, st.integers(0, N - 1))
def test_a_flipped_sign_is_one_bit(words: list[int], at: int) -> None:
    other = [*words]
    other[at] += 2**31 if words[at] < 0 else -(2**31)
    assert one_element(sums(words), sums(other)) == OneElement(at, 31)


def test_several_bits_of_one_element_are_one_element() -> None:
    assert one_element(sums([5, 6, 7]), sums([5, 6, 12])) == OneElement(2, None)


@pytest.mark.parametrize(
    "other", [[6, 7, 7], [4, 7, 7], [6, 6, 8], [5, 6, 7], [105, 206, 307]]
)
def test_anything_else_is_no_single_element(other: list[int]) -> None:
    assert one_element(sums([5, 6, 7]), sums(other)) is None


def made_print(**changes: object) -> Print:
    made = Print(
        n=4,
        n_forwards=5,
        group=(0, 2),
        kind="kind",
        standings=(int(Standing.REDUCED), 0),
        weights=np.array([[1, -2, 3], [2**62, 5, 6]]),
        gradients=np.array([[7, 8, 9], [0, 0, 0]]),
        sizes=np.array([[0.5, 1.0, 2.0, 3.0], [4.0, np.nan, np.inf, 0.0]]),
        spots={1: -5, 2: 6},
        inputs={0: 2**40, 1: -7},
        averages=True,
    )
    return dataclasses.replace(made, **changes)


def test_a_print_survives_the_store() -> None:
    made = made_print()
    found = Print.decode(made.encode())
    for field in dataclasses.fields(Print):
        np.testing.assert_array_equal(
            getattr(found, field.name), getattr(made, field.name)
        )


@pytest.mark.parametrize(
    "data", [b"", b"{}\n", b"null\n", b"\xff", b'{"standings":[1]}\n']
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Print.decode(data)


def test_a_print_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy's
        Print.decode(made_print().encode()[:-8])
