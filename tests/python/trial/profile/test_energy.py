"""Energy by the counters of GPUs and processors, of runs that were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import GPU, NOT_MEASURED, STEP, SYSTEM
from tdbg.trial import EnergyUse, create_trial, energy_of

SECOND = 1_000_000_000


def counters(table: np.dtype[Any], column: str, totals: list[int]) -> NDArray[Any]:
    """A row a second, from second 100 on."""
    rows = np.zeros(len(totals), table)
    rows["time"] = (100 + np.arange(len(totals))) * SECOND
    rows[column] = np.array(totals, np.uint64)
    return rows


def step_rows(n: int, *, samples: int = 8) -> NDArray[Any]:
    """Steps of half a second each, from second 101 on."""
    rows = np.zeros(n, STEP)
    rows["global_step"] = np.arange(n)
    rows["duration_ns"] = SECOND // 2
    rows["time"] = 101 * SECOND + (1 + np.arange(n)) * SECOND // 2
    rows["mode"] = ModeKeys.TRAIN.value
    rows["samples"] = samples
    return rows


def energy_in(run_dir: Path, *parts: tuple[Any, ...], **arguments: Any) -> EnergyUse:
    """The energy of a run with these tables."""
    builder = RunBuilder(run_dir)
    for table, rows, *instance in parts:
        builder.samples(table, rows, *instance)
    builder.close()
    return energy_of(create_trial(run_dir).profile, **arguments)


# 3.6 kJ are a watt-hour: in 10 s, 360 W are one.
WATTS_360 = [1_000_000 + 360_000 * i for i in range(11)]  # mJ


def test_a_run_has_the_energy_of_all_gpus_and_processors(run_dir: Path) -> None:
    packages = counters(SYSTEM, "energy_uj", [72_000_000 * i for i in range(11)])
    energy = energy_in(
        run_dir,
        ("system", packages),
        ("gpu", counters(GPU, "energy_mj", WATTS_360), "GPU-a"),
        ("gpu", counters(GPU, "energy_mj", WATTS_360), "GPU-b"),
        ("step", step_rows(10)),
    )
    assert energy.gpu_wh == pytest.approx(2.0)
    assert energy.processor_wh == pytest.approx(0.2)
    assert energy.seconds == 10.0
    assert energy.total_wh == pytest.approx(2.2)
    assert energy.per_step_wh == pytest.approx(0.22)
    assert energy.per_sample_wh == pytest.approx(0.0275)


def test_steps_have_the_energy_of_their_time(run_dir: Path) -> None:
    energy = energy_in(
        run_dir,
        ("system", counters(SYSTEM, "energy_uj", [NOT_MEASURED] * 11)),
        ("gpu", counters(GPU, "energy_mj", WATTS_360), "GPU-a"),
        ("step", step_rows(10)),
        steps=(2, 4),
    )
    assert energy.n_steps == 3
    assert energy.n_samples == 24
    assert energy.gpu_wh == pytest.approx(0.15)  # 1.5 s between two samples.
    assert energy.processor_wh is None
    assert energy.statement == (
        "0.15 Wh, of the GPUs alone: 50 mWh a step, 6.25 mWh a sample"
    )


def test_without_a_counter_energy_is_unknown(run_dir: Path) -> None:
    unknown = [NOT_MEASURED] * 11
    energy = energy_in(
        run_dir,
        ("system", counters(SYSTEM, "energy_uj", unknown)),
        ("gpu", counters(GPU, "energy_mj", unknown), "GPU-a"),
        ("step", step_rows(10)),
    )
    assert energy.total_wh is None
    assert energy.per_step_wh is None
    assert energy.statement.startswith("unknown")


def test_a_gpu_without_a_counter_makes_the_sum_unknown(run_dir: Path) -> None:
    energy = energy_in(
        run_dir,
        ("system", counters(SYSTEM, "energy_uj", [1_000_000 * i for i in range(11)])),
        ("gpu", counters(GPU, "energy_mj", WATTS_360), "GPU-a"),
        ("gpu", counters(GPU, "energy_mj", [NOT_MEASURED] * 11), "GPU-b"),
    )
    assert energy.gpu_wh is None
    assert energy.processor_wh == pytest.approx(10 / 3600)
    assert energy.statement == "0.00278 Wh, of the processors alone"


def test_samples_that_nobody_counted_have_no_energy(run_dir: Path) -> None:
    energy = energy_in(
        run_dir,
        ("system", counters(SYSTEM, "energy_uj", [NOT_MEASURED] * 11)),
        ("gpu", counters(GPU, "energy_mj", WATTS_360), "GPU-a"),
        ("step", step_rows(4, samples=-1)),
    )
    assert energy.per_step_wh == pytest.approx(0.25)
    assert energy.per_sample_wh is None


def test_a_counter_that_starts_over_loses_one_interval_only(run_dir: Path) -> None:
    totals = [*WATTS_360[:5], 5, 360_005, 720_005, 1_080_005, 1_440_005, 1_800_005]
    energy = energy_in(
        run_dir,
        ("system", counters(SYSTEM, "energy_uj", [NOT_MEASURED] * 11)),
        ("gpu", counters(GPU, "energy_mj", totals), "GPU-a"),
    )
    assert energy.gpu_wh == pytest.approx(0.9)


def test_steps_that_were_not_sampled_have_no_energy(run_dir: Path) -> None:
    energy = energy_in(
        run_dir,
        ("system", counters(SYSTEM, "energy_uj", [NOT_MEASURED] * 11)),
        ("gpu", counters(GPU, "energy_mj", WATTS_360), "GPU-a"),
        ("step", step_rows(40)),  # The samples end after 18 of them.
        steps=(20, 39),
    )
    assert energy.gpu_wh is None


def test_a_run_without_a_profile_has_no_energy(run_dir: Path) -> None:
    energy = energy_in(run_dir)
    assert energy == EnergyUse(None, None, 0.0, 0, None)
    assert energy.total_wh is None
