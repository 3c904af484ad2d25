"""Analyses of Python functions answer for the windows of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg.compat.smdebug.profiler.analysis.python_stats import (
    Metrics,
    PyinstrumentAnalysis,
    PythonProfileModes,
    cProfileAnalysis,
)

TRAIN = PythonProfileModes.TRAIN


def down(n: int) -> int:
    """Call itself *n* times."""
    for _ in range(2_000):  # It is among the functions with the most time.
        pass
    return n and down(n - 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train; each of two windows of two steps calls ``down`` twice, four deep."""
    path = tmp_path_factory.mktemp("runs") / "run"
    windows = [
        td.WindowConfig(
            start_step=start, num_steps=2, operators=False, functions="cprofile"
        )
        for start in (2, 6)
    ]
    profiler = td.ProfilerConfig(windows=windows, budget=1.0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with td.Hook(path, profiler=profiler) as hook:
        hook.register_module(model)
        for _ in range(10):
            model(torch.ones(1, 2)).sum().backward()
            down(3)
            optimizer.step()
    return path


def calls_of_down(analysis: cProfileAnalysis, **steps: int) -> tuple[int, int] | None:
    stats = analysis.fetch_profile_stats_by_step(**steps)
    if stats is None:
        return None
    (found,) = (
        each for each in stats.function_stats_list if "down" in each.function_name
    )
    return found.prim_calls, found.total_calls


def test_a_range_of_steps_has_the_windows_in_it(run: Path) -> None:
    analysis = cProfileAnalysis(run)
    assert calls_of_down(analysis, start_step=2, end_step=3) == (2, 8)
    assert calls_of_down(analysis, start_step=0, end_step=9) == (4, 16)
    assert calls_of_down(analysis, start_step=4, end_step=5) is None


def test_windows_belong_to_the_training_loop(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = cProfileAnalysis(run)
    assert [*analysis.fetch_profile_stats_by_training_phase()] == [(TRAIN, TRAIN)]
    found = analysis.fetch_profile_stats_by_job_phase()
    assert [*found] == ["training_loop"]
    found["training_loop"].print_top_n_functions(Metrics.TOTAL_CALLS, 200)
    assert re.search(r"16/4 .*test_run_windows.py:\d+\(down\)", capsys.readouterr().out)


def test_windows_have_the_worker_and_the_time(run: Path) -> None:
    analysis = cProfileAnalysis(run)
    assert analysis.list_available_node_ids() == ["worker_0"]
    first, second = analysis.python_profile_stats
    seconds = (
        first.start_time_since_epoch_in_micros / 1e6,
        first.end_time_since_epoch_in_micros / 1e6,
    )
    assert analysis.fetch_profile_stats_by_time(*seconds) is not None
    assert (second.start_step, second.end_step) == (6, 7)
    assert analysis.fetch_pre_step_zero_profile_stats() is None


def test_functions_of_another_profiler_are_not_mixed_in(run: Path) -> None:
    assert PyinstrumentAnalysis(run).python_profile_stats == []
