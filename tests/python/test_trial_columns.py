"""Columns are the statistics, whatever way they were read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.rules.window import FIELDS
from tdbg.trial import Trial, create_trial

NAMES = ["a.weight", "gradient/a.weight", "b.weight", "ids", "x_output_0", "nowhere"]


def write(path: Path, *, calls: int = 1, ranks: int = 1, every: int = 1) -> None:
    """A run in which some tensors come now and then."""
    for rank in range(ranks):
        random = np.random.default_rng(rank)
        with RunBuilder(path, rank=rank, world_size=ranks) as run:
            for step in range(40):
                values = {"a.weight": random.normal(size=5).astype(np.float32)}
                if step % every == 0:
                    values["gradient/a.weight"] = random.normal(size=4)
                    values["ids"] = random.integers(-9, 2**60, 7)
                if step % 7 == 3:
                    values["b.weight"] = np.array([np.nan, np.inf, 1.0])
                if step == 20:
                    values["ids"] = np.array([0.5])
                for name, value in values.items():
                    run.save(step, name, value, what="statistics")
                for call in range(calls):
                    value = random.normal(size=3)
                    run.save(step, "x_output_0", value, what="statistics", call=call)
                run.end_step(step)
                if step == 25:
                    run.flush()


def same(trial: Trial, names: list[str], steps: list[int]) -> bool:
    """Compares, and says whether nothing had to be merged."""
    columns = trial.columns(names, np.array(steps, dtype=np.int64))
    known = [name for name in names if trial.has_tensor(name)]
    table = trial.statistics(known, start=min(steps), end=max(steps) + 1)
    rows = [names.index(name) for name in known]
    assert columns.names == names
    assert columns.steps.tolist() == steps
    # Not every step that is asked for has a row, nor the other way round.
    common, here, there = np.intersect1d(steps, table.steps, return_indices=True)
    present = table.present[:, there]
    assert (columns.present[rows][:, here] == present).all()
    assert columns.present.sum() == present.sum()
    assert len(common) or not columns.present.any()
    for i, field in enumerate(FIELDS):
        expected = np.full((len(names), len(steps)), np.nan)
        values = np.where(present, getattr(table, field)[:, there], np.nan)
        expected[np.ix_(rows, here)] = values
        np.testing.assert_array_equal(columns.fields[i], expected)
        np.testing.assert_array_equal(columns.column(field), expected)
    return not columns.is_merged


@pytest.mark.parametrize("every", [1, 3])
def test_rows_of_one_worker_are_read_as_they_are(tmp_path: Path, every: int):
    write(tmp_path / "run", every=every)
    trial = create_trial(tmp_path / "run")
    assert same(trial, NAMES, [*range(40)])
    assert same(trial, NAMES, [*range(5, 6)])
    assert same(trial, NAMES[::-1], [*range(10, 30)])
    assert same(trial, NAMES, [3, 4, 9, 20, 21, 33])
    assert same(trial, NAMES, [*range(1000)])
    assert not same(trial, NAMES, [*range(100, 200)])
    # Where most rows would be read for nothing, only those that are wanted are.
    assert not same(trial, ["b.weight"], [*range(40)])


@pytest.mark.parametrize("options", [{"calls": 2}, {"ranks": 2}])
def test_what_must_be_merged_is(tmp_path: Path, options: dict[str, int]):
    write(tmp_path / "run", **options)
    trial = create_trial(tmp_path / "run")
    assert not same(trial, NAMES, [*range(40)])
    assert not same(trial, NAMES, [*range(7, 9)])


def test_new_tensors_are_seen(tmp_path: Path):
    path = tmp_path / "run"
    with RunBuilder(path) as run:
        run.step(0, {"a.weight": np.ones(3)})
        run.flush()
        trial = create_trial(path)
        assert same(trial, ["a.weight", "b.weight"], [*range(9)])
        run.step(1, {"a.weight": np.ones(3), "b.weight": np.zeros(2)})
        run.flush()
        assert same(trial, ["a.weight", "b.weight"], [*range(9)])
        assert trial.columns(["b.weight"], np.arange(9)).present.any()
