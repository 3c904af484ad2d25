"""The band of healthy runs against a readable reference, and who leaves it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.compare import FEWEST_RUNS, FURTHEST, Departure, Herd, herd, located
from tdbg.errors import ConfigurationError, QueryError
from tdbg.trial import Trial, create_trial

STEPS = 60
NAMES = ["a.weight", "b.weight", "c.weight"]
# What the scale of few values is multiplied by, as in the paper; of more n / (n - 0.8).
FACTORS = {5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
Values = Callable[[int, int, str], float]


def size(run: int, step: int, name: str) -> float:
    """Healthy: runs differ by their settings, and each a little from step to step."""
    dice = np.random.default_rng([run, step, ord(name[0])])
    return (1 + ord(name[0]) % 7) * 1.2 ** (run % 4) * dice.lognormal(0, 0.05)


def write(
    folder: Path, run: int, values: Values = size, *, every: int = 1, steps: int = STEPS
) -> Trial:
    path = folder / f"run{run}"
    with RunBuilder(path) as builder:
        for step in range(0, steps, every):
            for name in NAMES:
                array = np.full(2, values(run, step, name), np.float32)
                builder.save(step, name, array, what="statistics")
            builder.end_step(step)
    return create_trial(path)


def flock(folder: Path, n: int = 8, **options: int) -> list[Trial]:
    return [write(folder, run, **options) for run in range(n)]


def of(runs: list[Trial], healthy: int, width: int = 1, steps: int = STEPS) -> Herd:
    is_healthy = [i < healthy for i in range(len(runs))]
    marks = np.arange(0, steps + width, width, dtype=np.int64)
    return herd(runs, is_healthy, NAMES, marks=marks)


# --- Against the definition ----------------------------------------------------


def deviations_by_the_book(values: list[list[float]], n_healthy: int) -> np.ndarray:
    """Of one tensor: values (runs, columns) with one row each, every run recorded."""
    logs = [[math.log2(each) for each in run] for run in values]
    healthy = logs[:n_healthy]
    n_columns = len(values[0])
    factor = FACTORS.get(n_healthy) or n_healthy / (n_healthy - 0.8)
    medians, scales = [], []
    for j in range(n_columns):
        column = [run[j] for run in healthy]
        middle = statistics.median(column)
        apart = statistics.median(abs(each - middle) for each in column)
        medians.append(middle)
        scales.append(1.4826 * factor * apart)
    usual = statistics.median(scales)
    floor = math.log2(1.02)
    return np.array(
        [
            [
                (run[j] - medians[j]) / max(scales[j], usual, floor)
                for j in range(n_columns)
            ]
            for run in logs
        ]
    )


@pytest.mark.parametrize("n", [5, 6, 9, 12])
def test_deviations_are_those_of_the_definition(tmp_path: Path, n: int) -> None:
    runs = [*flock(tmp_path, n), write(tmp_path, 99, lambda *_: 3.0)]
    found = of(runs, n)
    assert found.names == NAMES
    for i, name in enumerate(NAMES):
        values = [
            [float(np.float32(size(run, step, name))) for step in range(STEPS)]
            for run in range(n)
        ]
        expected = deviations_by_the_book([*values, [3.0] * STEPS], n)
        clipped = np.clip(expected, -99, 99)
        np.testing.assert_allclose(
            found.deviations[:, i], clipped, rtol=2e-3, atol=2e-3
        )
        middle = np.median(np.log2(values), axis=0)
        np.testing.assert_allclose(np.log2(found.center[i]), middle, atol=1e-5)
    assert (found.n_healthy == n).all()


def test_a_run_within_the_band_is_within_as_many_scales(tmp_path: Path) -> None:
    found = of(flock(tmp_path), 8)
    within = (found.mean >= found.low) & (found.mean <= found.high)
    assert within.all()
    assert (np.abs(found.deviations) <= FURTHEST).all()
    assert [found.departures(run) for run in range(8)] == [[]] * 8


# --- Who leaves ---------------------------------------------------------------


@pytest.mark.parametrize("factor", [30.0, 1 / 30])
def test_the_layer_that_leaves_is_named_with_its_step(
    tmp_path: Path, factor: float
) -> None:
    def sick(run: int, step: int, name: str) -> float:
        leaves = {"b.weight": 21, "c.weight": 30}.get(name, STEPS)
        return size(run, step, name) * (factor if step >= leaves else 1)

    runs = [*flock(tmp_path), write(tmp_path, 50, sick)]
    found = of(runs, 8).departures(8)
    assert [(each.name, each.place, each.until) for each in found] == [
        ("b.weight", 21, None),
        ("c.weight", 30, None),
    ]
    assert all((each.deviation > 0) == (factor > 1) for each in found)


def test_a_run_that_nobody_has_accused_is_found_though_it_is_in_the_herd(
    tmp_path: Path,
) -> None:
    runs = [*flock(tmp_path), write(tmp_path, 50, lambda r, s, n: 40 * size(r, s, n))]
    found = of(runs, 9)
    assert [each.place for each in found.departures(8)] == [0, 0, 0]
    assert found.departures(0) == []


def test_a_nan_leaves_at_once_and_counts_as_furthest(tmp_path: Path) -> None:
    def sick(run: int, step: int, name: str) -> float:
        return math.nan if step == 33 and name == "a.weight" else size(run, step, name)

    runs = [*flock(tmp_path), write(tmp_path, 50, sick)]
    (found,) = of(runs, 8).departures(8)
    assert found == Departure("a.weight", 33, 34, 99.0)


def test_a_run_that_comes_back_is_said_to_be_back(tmp_path: Path) -> None:
    def sick(run: int, step: int, name: str) -> float:
        return size(run, step, name) * (50 if 20 <= step < 30 else 1)

    runs = [*flock(tmp_path), write(tmp_path, 50, sick)]
    found = of(runs, 8).departures(8)
    assert [(each.place, each.until) for each in found] == [(20, 30)] * 3


def test_one_step_beyond_the_band_is_no_departure(tmp_path: Path) -> None:
    def spiky(run: int, step: int, name: str) -> float:
        return size(run, step, name) * (50 if step == 20 else 1)

    runs = [*flock(tmp_path), write(tmp_path, 50, spiky)]
    found = of(runs, 8)
    assert found.deviations[8, 0, 20] > FURTHEST
    assert found.departures(8) == []


def test_a_zero_is_below_every_band(tmp_path: Path) -> None:
    runs = [*flock(tmp_path), write(tmp_path, 50, lambda *_: 0.0)]
    found = of(runs, 8)
    assert (found.deviations[8] == -99).all()
    assert (found.mean[8] == 0).all()


def test_a_wide_column_is_looked_into_for_the_very_step(tmp_path: Path) -> None:
    def sick(run: int, step: int, name: str) -> float:
        return size(run, step, name) * (20 if step >= 37 and name == "b.weight" else 1)

    runs = [*flock(tmp_path), write(tmp_path, 50, sick)]
    healthy = [True] * 8 + [False]
    wide = of(runs, 8, width=8).departures(8)
    assert [(each.name, each.place) for each in wide] == [("b.weight", 32)]
    exact = located(wide, 8, runs, healthy, width=8)
    assert [(each.name, each.place) for each in exact] == [("b.weight", 37)]
    assert located(exact, 8, runs, healthy, width=1) == exact


# --- What is not there --------------------------------------------------------


@pytest.mark.parametrize("n", range(FEWEST_RUNS))
def test_too_few_healthy_runs_are_told(tmp_path: Path, n: int) -> None:
    runs = flock(tmp_path, FEWEST_RUNS)
    with pytest.raises(QueryError, match=f"needs 5 healthy runs.* {n or 'none'}: "):
        of(runs, n)


def test_models_without_a_name_in_common_are_told(tmp_path: Path) -> None:
    runs = flock(tmp_path, 5)
    with pytest.raises(QueryError, match="no names in common"):
        herd(runs, [True] * 5, ["other"], marks=np.arange(3))


def test_a_signed_statistic_has_no_band(tmp_path: Path) -> None:
    runs = flock(tmp_path, 5)
    with pytest.raises(ConfigurationError, match="'mean' has no band: use one of rms"):
        herd(runs, [True] * 5, NAMES, field="mean", marks=np.arange(3))


def test_where_too_few_recorded_something_nothing_is_judged(tmp_path: Path) -> None:
    runs = [*flock(tmp_path, 8, every=4), write(tmp_path, 50, lambda *_: 1e9)]
    found = of(runs, 8)
    recorded = np.arange(STEPS) % 4 == 0
    for array in (found.center, found.low, found.high, *found.deviations):
        assert (~np.isnan(array[0][:STEPS]) == recorded).all()
    assert (found.n_healthy[:, ~recorded] == 0).all()
    assert found.departures(8)[0].place == 0


def test_a_run_without_a_tensor_is_neither_in_the_herd_nor_apart(
    tmp_path: Path,
) -> None:
    runs = flock(tmp_path)
    with RunBuilder(tmp_path / "other") as builder:
        builder.step(0, {"a.weight": np.ones(2, np.float32)})
    found = of([*runs, create_trial(tmp_path / "other")], 9)
    assert np.isnan(found.deviations[8, 1:]).all()
    assert found.n_healthy[0, 0] == 9
    assert found.n_healthy[1, 0] == 8


def test_parts_of_many_tensors_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = flock(tmp_path)
    whole = of(runs, 8)
    monkeypatch.setattr("tdbg.compare.herd_band.PART_CELLS", 1)
    parts = of(runs, 8)
    for name in ("center", "low", "high", "n_healthy", "mean", "deviations"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
