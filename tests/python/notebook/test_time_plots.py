"""Plots of time: what is drawn, and what is said where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

import tdbg
from profiles import Plan, profiled_run
from run_builder import simple_run
from tdbg.errors import ConfigurationError, TensorUnavailable
from tdbg.trial import Trial

PLOTS = ["phases", "step_timeline", "step_histogram"]
USAGE = ["usage_map", "usage_histogram", "usage_timeline"]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    path = tmp_path_factory.mktemp("runs") / "run"
    plans = [Plan(rank=i, n_gpus=2 * (not i), slow={77: 900.0}) for i in range(2)]
    profiled_run(path, plans)
    return tdbg.create_trial(path)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    path = tmp_path_factory.mktemp("runs") / "empty"
    simple_run(path)
    return tdbg.create_trial(path)


@pytest.mark.parametrize("name", [*PLOTS, *USAGE])
def test_each_plot_is_drawn_on_the_axes_that_are_given(trial: Trial, name: str) -> None:
    ax = getattr(trial.plot, name)()
    ax.figure.canvas.draw()
    assert getattr(trial.plot, name)(ax=ax) is ax


@pytest.mark.parametrize("name", [*PLOTS, *USAGE])
def test_a_run_without_a_profile_is_refused_in_words(empty: Trial, name: str) -> None:
    with pytest.raises(TensorUnavailable, match="no profile"):
        getattr(empty.plot, name)()


def test_a_spike_of_one_step_is_in_the_line_of_the_longest_step(trial: Trial) -> None:
    ax = trial.plot.phases(columns=20)
    (line,) = ax.lines
    assert np.nanmax(line.get_ydata()) > 900


def test_each_rank_has_a_line_of_its_steps(trial: Trial) -> None:
    ax = trial.plot.step_timeline()
    assert [line.get_label() for line in ax.lines] == ["worker_0", "worker_1"]
    assert len(ax.lines[0].get_xdata()) == 400


def test_rows_are_chosen_by_patterns(trial: Trial) -> None:
    ax = trial.plot.usage_timeline(select="GPU")
    assert [line.get_label() for line in ax.lines] == ["GPU 0", "GPU 1"]


@pytest.mark.parametrize("select", ["TPU", "("])
def test_a_pattern_that_names_no_row_is_refused(trial: Trial, select: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no row|no pattern|not a pattern"):
        trial.plot.usage_map(select=select)


def test_a_histogram_counts_samples_and_no_columns(trial: Trial) -> None:
    ax = trial.plot.usage_histogram(select="GPU 0")
    (patch,) = ax.patches
    n = len(trial.profile.gpus()) / 2
    heights = patch.get_path().vertices[:, 1]
    assert heights.max() <= n


def test_a_notebook_shows_where_the_time_went(trial: Trial) -> None:
    html = trial._repr_html_()
    assert "where the time went" in html
    assert len(html) < 50_000
