"""What a profile cost the training, and what it lacks."""

from __future__ import annotations

import numpy as np
import pytest

from profiles import Plan, tables_of
from tdbg.trial.profile.windows import RecordedWindow
from tdbg.view.time.completeness import (
    missing_ranks,
    missing_rows,
    not_measured,
    own_cost,
    parts_off,
    refused,
    sample_gaps,
    unreported,
)

SECOND = 10**9


def test_the_cost_is_the_share_of_the_steps_that_tdbg_took() -> None:
    rows = tables_of(Plan())["step"]
    found = own_cost(rows, [])
    assert found.share == pytest.approx(0.2 / 30.6, rel=0.05)
    assert found.sentence.startswith("Capture and profiling took ")
    assert "window" not in found.sentence


def test_windows_are_told_with_what_they_cost() -> None:
    rows = tables_of(Plan())["step"]
    windows = [
        RecordedWindow("1", 0, state="ended", cost_ns=3 * SECOND),
        RecordedWindow("2", 0, state="refused", reason="the profiler is off"),
    ]
    assert own_cost(rows, windows).sentence.endswith("1 window cost 3 s")
    assert list(refused(windows)) == ["window 2: refused, because the profiler is off"]


def test_samples_that_came_late_and_pauses_without_any_are_told() -> None:
    rows = tables_of(Plan())["system"]
    assert list(sample_gaps("", rows)) == []
    rows["is_late"][3] = 1
    rows["time"][10:] += 20 * SECOND
    late, gap = sample_gaps("node 1", rows)
    assert late.startswith("1 sample of node 1 of ")
    assert gap == "no sample of node 1 was taken in 1 pause, together 20.5 s"


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([], []),
        ([3, 4, 5], []),
        ([3, 5], ["1 step of worker_0 has no row"]),
        ([1, 5, 5], ["3 steps of worker_0 have no row"]),
    ],
)
def test_steps_without_a_row_are_counted(places: list[int], said: list[str]) -> None:
    assert list(missing_rows("worker_0", np.array(places, np.int64))) == said


def test_ranks_that_wrote_nothing_are_told_with_what_to_do() -> None:
    events = [{"what": "gc"}, {"what": "collectives", "size": 4}]
    (said,) = missing_ranks(events, 1)
    assert said.startswith("1 of 4 ranks wrote alone")
    assert "include_workers='all'" in said
    assert list(missing_ranks(events, 4)) == []
    assert list(missing_ranks([{"what": "collectives", "size": "four"}], 1)) == []


def test_parts_that_are_off_say_why() -> None:
    events = [
        {"what": "profiler", "part": "python_sampler", "off": "no signal is free"},
        {"what": "profiler", "request": "1"},
        {"what": "machine", "not_measured": {"gpu": "no driver"}},
        {"what": "machine", "not_measured": "damaged"},
    ]
    assert list(parts_off(events)) == ["python sampler: off, because no signal is free"]
    assert list(not_measured(events)) == ["GPUs: not measured, because no driver"]


def test_phases_that_the_framework_does_not_tell_are_named() -> None:
    tables = tables_of(Plan())
    steps, none = tables["step"], tables["loader"][:0]
    steps["data_wait_ns"] = steps["evaluation_ns"] = 0
    configuration = {"framework": {"name": "xgboost"}}
    expected = ["how long evaluation takes", "when a checkpoint is saved"]
    told = list(unreported(configuration, steps, none))
    assert sorted(told) == [f"XGBoost does not tell {each}" for each in expected]
    assert list(unreported({"framework": {"name": "pytorch"}}, steps, none)) == []
    assert list(unreported(configuration, steps[:0], none)) == []
