"""What a training cost, and what would have cost less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tdbg.cost import Instance, Usage, cost_of, hints_of, offers_of, saving_of

GIB = 1 << 30
V100X4 = Instance("v100x4", 14.688, 4, "V100", 16, 32, 244, 10, 1.0)
V100 = Instance("v100", 3.825, 1, "V100", 16, 8, 61, 10, 1.0)
T4 = Instance("t4", 0.736, 1, "T4", 16, 4, 16, 10, 0.35)
CORES8 = Instance("cores8", 0.4, 0, "", None, 8, 32)
CORES32 = Instance("cores32", 1.6, 0, "", None, 32, 128)

#: The published case: nine of twelve GPUs used, at 13.5 % in the 95th percentile.
CASE = Usage(
    503,
    {"startup": 0.1, "data_wait": 0.35, "forward": 0.2, "backward": 0.25, "other": 0.1},
    steps=1000,
    samples=2_304_000,
    nodes=3,
    ranks=9,
    gpus=9,
    visible_gpus=12,
    gpu_busy=0.135,
    gpu_peak_bytes=6 * GIB,
    memory_peak_bytes=20 * GIB,
    cores=96,
    cores_used=30,
)
LOADER_BOUND = Usage(
    100,
    {"data_wait": 0.6, "forward": 0.2, "backward": 0.2},
    cores=32,
    cores_used=6,
    useful_cores=8,
    memory_peak_bytes=4 * GIB,
)


def test_the_published_arithmetic_is_ours() -> None:
    before, after = cost_of(14.688, 503, nodes=3), cost_of(3.825, 502, nodes=2)
    assert before == pytest.approx(6.157, abs=5e-4)
    assert after == pytest.approx(1.067, abs=5e-4)
    assert saving_of(before, after) == pytest.approx(0.8267, abs=5e-5)
    assert saving_of(0, 1) == 0


def test_what_is_idle_is_said_with_its_number() -> None:
    idle, low = hints_of(CASE)
    assert "3 of 12 GPUs did nothing" in idle
    assert "busy at most 13.5 % of the time" in low
    assert "only a second run shows that" in low
    assert "used none of 4 GPUs" in hints_of(Usage(1, visible_gpus=4))[0]
    assert hints_of(Usage(1)) == ()


def test_machines_without_idle_gpus_are_offered_as_certain() -> None:
    fewer, offer = offers_of(CASE, V100X4, [V100])
    assert (offer.nodes, offer.gpus) == (9, 9)
    assert fewer.gpus < 9
    assert fewer.cost.middle < offer.cost.middle
    assert fewer.seconds.middle > offer.seconds.middle
    assert offer.seconds.low == offer.seconds.middle == offer.seconds.high
    assert offer.cost.middle == pytest.approx(cost_of(3.825, 503, 9))
    assert offer.saving.middle == pytest.approx(0.219, abs=1e-3)
    assert "nothing that the run used is slower there" in offer.assumptions
    assert "run 200 steps on 9 x v100" in offer.experiment


def test_another_device_is_offered_as_a_range_with_its_assumption() -> None:
    usage = replace(CASE, memory_peak_bytes=1 * GIB, cores_used=8)
    offer, *_ = offers_of(usage, V100X4, [T4])
    assert offer.cost.low < offer.cost.middle < offer.cost.high
    assert offer.saving.low < offer.saving.middle < offer.saving.high
    assert any("computing (45 % of the time)" in each for each in offer.assumptions)
    assert any("give or take 20 %" in each for each in offer.assumptions)


def test_a_speed_that_nobody_gave_is_not_guessed() -> None:
    unknown = replace(T4, relative_speed=None)
    usage = replace(CASE, memory_peak_bytes=1 * GIB, cores_used=8)
    assert offers_of(usage, V100X4, [unknown]) == ()


def test_a_machine_that_is_too_small_is_not_offered() -> None:
    assert offers_of(replace(CASE, gpu_peak_bytes=15 * GIB), V100X4, [V100]) == ()
    assert offers_of(replace(CASE, memory_peak_bytes=200 * GIB), V100X4, [V100]) == ()
    assert offers_of(replace(CASE, cores_used=80), V100X4, [V100]) == ()
    assert offers_of(CASE, V100X4, [CORES32]) == ()


def test_a_smaller_machine_that_the_loaders_fill_costs_less() -> None:
    (offer,) = offers_of(LOADER_BOUND, CORES32, [CORES8, CORES32])
    assert offer.instance == "cores8"
    assert offer.seconds.middle == pytest.approx(100)
    assert offer.saving.middle == pytest.approx(0.75)


def test_more_cores_are_promised_no_more_than_the_loaders_can_use() -> None:
    usage = replace(LOADER_BOUND, cores=4, cores_used=4, useful_cores=8)
    dear = replace(CORES8, name="now", cpus=4, price_per_hour=1.7)
    (offer,) = offers_of(usage, dear, [CORES32])
    assert offer.seconds.middle == pytest.approx(100 * (0.4 + 0.6 / 2))
    alone = offers_of(replace(usage, useful_cores=4), dear, [CORES32])
    assert alone == ()


def test_a_saving_below_a_tenth_is_not_mentioned() -> None:
    assert offers_of(LOADER_BOUND, CORES8, [replace(CORES8, price_per_hour=0.37)]) == ()
    assert offers_of(LOADER_BOUND, CORES8, [replace(CORES8, price_per_hour=0.35)])


def test_a_range_that_holds_a_loss_is_not_offered() -> None:
    gpu = replace(CASE, nodes=1, gpus=1, visible_gpus=1, cores=8, cores_used=4)
    slow = replace(T4, relative_speed=0.2, price_per_hour=1.2, memory=61, cpus=8)
    assert offers_of(gpu, V100, [slow]) == ()


def test_more_gpus_than_were_used_are_never_offered() -> None:
    one = replace(CASE, nodes=1, gpus=1, visible_gpus=1, cores=8, cores_used=8)
    offers = offers_of(one, replace(V100, price_per_hour=30), [V100X4])
    assert [offer.gpus for offer in offers] == [1]


def test_offers_are_sorted_by_cost_and_few() -> None:
    many = [replace(CORES8, name=f"m{i}", price_per_hour=0.1 * i) for i in range(1, 9)]
    offers = offers_of(LOADER_BOUND, CORES32, many)
    assert [offer.instance for offer in offers] == ["m1", "m2", "m3"]


def test_the_share_of_time_that_trains_is_told() -> None:
    assert CASE.productive == pytest.approx(0.45)
