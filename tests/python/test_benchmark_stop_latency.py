"""The benchmark of stopping: simulated ranks leave in time and together."""

from __future__ import annotations

import random

import pytest

from benchmarks._harness import WrongAnswer
from benchmarks.hooks import stop_latency
from tdbg.capture.agreement import Agreement
from tdbg.capture.looks import LOOK_SECONDS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("seconds", [0.0005, 0.002, 0.05, 0.3, 1.0])
def test_ranks_leave_within_two_steps_or_a_fraction_of_a_second(
    seconds: float,
) -> None:
    """No clock but the simulated one: the figures are the same on any machine."""
    chance = random.Random(2)
    latencies = sorted(
        stop_latency.simulate(3, seconds, chance).latency for _ in range(100)
    )
    # A step may be longer than it should, by ranks that begin it later.
    listening = stop_latency.LISTENS_EVERY
    assert latencies[-1] <= 2.8 * seconds + listening + 1.5 * LOOK_SECONDS
    assert latencies[98] <= seconds + 1.0 or seconds >= 1.0


def test_a_rank_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    look_from = Agreement._look_from
    monkeypatch.setattr(
        Agreement, "_look_from", lambda self, n: look_from(self, max(0, n - 2))
    )

    def simulate_some() -> None:
        for seed in range(20):
            stop_latency.simulate(2, 0.3, random.Random(seed))

    with pytest.raises(WrongAnswer, match="ranks that leave"):
        simulate_some()
