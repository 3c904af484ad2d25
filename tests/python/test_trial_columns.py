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


def same(trial: Trial, names: list[str], start: int, end: int) -> bool:
    """Compares, and says whether nothing had to be merged."""
    columns = trial.columns(names, start=start, end=end)
    known = [name for name in names if trial.has_tensor(name)]
    table = trial.statistics(known, start=start, end=end)
    rows = [names.index(name) for name in known]
    assert columns.names == names
    assert columns.steps.tolist() == table.steps.tolist()
    assert (columns.present[rows] == table.present).all()
    assert columns.present.sum() == table.present.sum()
    for field in FIELDS:
        expected = np.where(table.present, getattr(table, field), np.nan)
        column = columns.column(field)
        assert column.dtype == np.float64
        np.testing.assert_array_equal(column[rows], expected)
    return columns._merged is None


@pytest.mark.parametrize("every", [1, 3])
def test_rows_of_one_worker_are_read_as_they_are(tmp_path: Path, every: int):
    write(tmp_path / "run", every=every)
    trial = create_trial(tmp_path / "run")
    assert same(trial, NAMES, 0, 40)
    assert same(trial, NAMES, 5, 6)
    assert same(trial, NAMES[::-1], 10, 30)
    assert same(trial, NAMES, 0, 1000)
    assert not same(trial, NAMES, 100, 200)
    # Where most rows would be read for nothing, only those that are wanted are.
    assert not same(trial, ["b.weight"], 0, 40)


@pytest.mark.parametrize("options", [{"calls": 2}, {"ranks": 2}])
def test_what_must_be_merged_is(tmp_path: Path, options: dict[str, int]):
    write(tmp_path / "run", **options)
    trial = create_trial(tmp_path / "run")
    assert not same(trial, NAMES, 0, 40)
    assert not same(trial, NAMES, 7, 9)


def test_new_tensors_are_seen(tmp_path: Path):
    path = tmp_path / "run"
    with RunBuilder(path) as run:
        run.step(0, {"a.weight": np.ones(3)})
        run.flush()
        trial = create_trial(path)
        assert same(trial, ["a.weight", "b.weight"], 0, 9)
        run.step(1, {"a.weight": np.ones(3), "b.weight": np.zeros(2)})
        run.flush()
        assert same(trial, ["a.weight", "b.weight"], 0, 9)
        assert trial.columns(["b.weight"], start=0, end=9).present.any()
