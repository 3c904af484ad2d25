"""Histograms of a tensor over steps: all of them, however many there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.errors import TensorUnavailable
from tdbg.stats.histogram import Histogram
from tdbg.trial import Trial, create_trial
from tdbg.view import Histograms

STEPS, NAME = 517, "gradient/w"


def save(run: RunBuilder, steps: range) -> None:
    for step in steps:
        run.histogram(step, NAME, np.array([step, 1.0], np.float32))
        run.end_step(step)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    path = tmp_path_factory.mktemp("runs") / "long"
    with RunBuilder(path) as run:
        save(run, range(STEPS))
    return create_trial(path)


@pytest.mark.parametrize("columns", [1, 7, 100, 517, 1000])
def test_every_histogram_is_in_a_column(trial: Trial, columns: int) -> None:
    found = Histograms(trial, NAME).over(0, STEPS, columns, 64)
    assert found.n_steps == STEPS
    assert len(found.steps) <= columns
    assert found.steps[0] == 0
    assert found.counts.sum() == 2 * STEPS
    assert found.edges[0] <= 0.0
    assert found.edges[-1] >= STEPS - 1


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 100), (250, 517), (90, 90)])
def test_columns_hold_the_steps_asked_for_and_no_others(
    trial: Trial, start: int, stop: int
) -> None:
    found = Histograms(trial, NAME).over(start, stop, 10, 16)
    assert found.counts.sum() == 2 * (stop - start)
    expected = Histogram.merge(
        trial.tensor(NAME).histogram(step) for step in range(start, stop)
    )
    assert found.counts.sum() == expected.finite
    assert all(start <= step < stop for step in found.steps.tolist())


def test_while_a_run_grows_only_its_last_column_is_read_again(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        save(run, range(512))
        run.flush()
        trial = create_trial(tmp_path / "run")
        reads: list[int] = []
        Histograms(trial, NAME).over(0, 600, 64, 16, lambda: reads.append(1))
        assert len(reads) == 512
        save(run, range(512, 515))
        run.flush()
        trial.refresh()
        reads.clear()
        found = Histograms(trial, NAME).over(0, 600, 64, 16, lambda: reads.append(1))
        assert found.n_steps == 515
        assert len(reads) <= 16


def test_stretches_hold_every_step_once(trial: Trial) -> None:
    saved = Histograms(trial, NAME)
    for most in (1, 3, 7, 517, 1000):
        found = saved.stretches(most)
        assert len(found) <= most
        assert [step for part in found for step in part] == list(range(STEPS))
    assert saved.stretches(2, 100, 104) == [[100, 101], [102, 103]]
    assert saved.stretches(9, 100, 102) == [[100], [101]]
    assert saved.stretches(9, 600) == []


def test_values_count_where_no_histogram_was_saved(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.save(0, "w", np.array([1.0, np.nan], np.float32), what="values")
        run.end_step(0)
        run.histogram(1, "w", np.array([2.0, 3.0], np.float32))
        run.end_step(1)
        run.save(2, "w", np.array([np.nan], np.float32), what="values")
        run.end_step(2)
    trial = create_trial(tmp_path / "run")
    saved = Histograms(trial, "w")
    assert saved.steps == [0, 1, 2]
    assert saved.over(0, 3, 3, 4).bad.tolist() == [1, 0, 1]
    assert Histograms(trial, "w", with_values=False).steps == [1]
    newest = saved.newest(None, 10)
    assert newest is not None
    assert newest[0] == 1
    assert saved.newest(0, 10) is not None
    assert saved.newest(None, 1) is None


def test_a_tensor_that_is_not_there_is_refused(trial: Trial) -> None:
    with pytest.raises(TensorUnavailable):
        Histograms(trial, "no such tensor")
