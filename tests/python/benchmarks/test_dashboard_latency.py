"""The benchmark of the dashboard's latency verifies what it measures."""

from __future__ import annotations

import pytest

from benchmarks._harness import WrongAnswer
from benchmarks.ui.latency import FIRST_STEPS, delays_of


def ended(*seconds: float) -> list[float]:
    """When steps ended: first those that are there before anything is measured."""
    return [0.0] * FIRST_STEPS + list(seconds)


def test_a_step_counts_from_its_end_to_the_first_picture_that_has_it() -> None:
    n = FIRST_STEPS
    drawn = [(n, 900.0), (n + 1, 1040.0), (n + 1, 1060.0), (n + 3, 1200.0)]
    found = delays_of(ended(1.0, 1.05, 1.1), drawn)
    assert found == pytest.approx([0.04, 0.15, 0.1])


@pytest.mark.parametrize(
    ("drawn", "reason"),
    [
        ([(FIRST_STEPS + 1, 2000.0)], "was never drawn"),
        ([(FIRST_STEPS + 2, 2000.0), (FIRST_STEPS + 1, 3000.0)], "went back"),
        ([(FIRST_STEPS + 2, 500.0)], "before it was written"),
    ],
)
def test_a_picture_that_cannot_be_is_noticed(
    drawn: list[tuple[int, float]], reason: str
) -> None:
    with pytest.raises(WrongAnswer, match=reason):
        delays_of(ended(1.0, 1.05), drawn)
