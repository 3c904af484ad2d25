"""Where the time of a run went, as every face shows it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import tdbg
from profiles import HEALTHY, LOADER_BOUND, MS, Plan, profiled_run, tables_of
from run_builder import simple_run
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity, Stage
from tdbg.run.profile_tables import COLLECTIVE, PHASE_COLUMNS, Phase
from tdbg.stats.loader_queue import busy_cores
from tdbg.view.problems import diagnosis_of
from tdbg.view.time import even_edges, time_of, what_if
from tdbg.view.time.bins import binned, covered
from tdbg.view.time.breakdown import (
    bands_of,
    breakdown_of,
    remarks_of,
    sentence_of,
)
from tdbg.view.time.course import after_warm_up, slow_steps, throughput_of
from tdbg.view.time.loading import loading_of
from tdbg.view.time.phases import NAMES, ORDER, duration_text, span_text
from tdbg.view.time.programs import lines_of, operators_of
from tdbg.view.time.ranks import lateness_of
from tdbg.view.time.usage import forecast_of, usage_map

SECOND = 10**9


def with_worker(rows: np.ndarray, worker: int = 0) -> np.ndarray:
    """Rows as ``trial.profile`` gives them."""
    found = np.zeros(len(rows), [*rows.dtype.descr, ("rank_", "<i4")])
    for name in rows.dtype.names:
        found[name] = rows[name]
    found["rank_"] = worker
    names = ["loader_worker" if name == "worker" else name for name in rows.dtype.names]
    found.dtype.names = (*names, "worker")
    return found


# --- Phases -------------------------------------------------------------------


def test_every_phase_has_a_name_and_a_place_in_charts() -> None:
    assert set(NAMES) == set(ORDER) == set(Phase)
    assert len(ORDER) == len(Phase)


def test_the_shares_of_a_step_add_up_to_it() -> None:
    found = breakdown_of(tables_of(Plan())["step"])
    assert sum(each.share for each in found.phases) == pytest.approx(1.0)
    assert sum(each.total_ns for each in found.phases) == found.total_ns


def test_a_phase_that_took_no_time_is_not_there() -> None:
    found = breakdown_of(tables_of(Plan())["step"])
    assert Phase.COMMUNICATION not in {each.phase for each in found.phases}


def test_the_sentence_names_the_largest_shares_first() -> None:
    text = sentence_of(breakdown_of(tables_of(Plan(LOADER_BOUND))["step"]))
    assert text == (
        "67 % data wait, 19 % backward, 10 % forward and 4 % the rest; a step takes "
        "90 ms"
    )


@pytest.mark.parametrize(
    ("ns", "text"),
    [(999_999.9, "1 ms"), (1500, "1.5 µs"), (33.4e6, "33.4 ms"), (61e9, "61 s")],
)
def test_durations_are_written_with_the_unit_that_people_say(
    ns: float, text: str
) -> None:
    assert duration_text(ns) == text


def test_long_spans_are_written_in_their_two_largest_units() -> None:
    assert span_text(3725e9) == "1 h 2 min"
    assert span_text(math.nan) == "unknown"


# --- Columns ------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 7, 100, 4000])
def test_a_spike_of_one_step_is_in_the_bands_at_every_zoom(columns: int) -> None:
    rows = tables_of(Plan(n_steps=1000, slow={537: 900.0}))["step"]
    places = rows["global_step"].astype(np.int64)
    edges = even_edges(0, 1000, columns)
    found = bands_of(rows, places, edges)
    assert np.nanmax(found.durations.high) == rows["duration_ns"].max()
    assert found.durations.rows.sum() == 1000
    total = np.nansum(found.mean_ns * found.durations.rows)
    assert total == pytest.approx(float(rows["duration_ns"].sum()))


@pytest.mark.parametrize(
    ("first", "stop", "most"), [(0, 10, 4), (3, 3, 5), (0, 1, 1), (5, 1000, 7)]
)
def test_columns_cover_the_steps_without_a_gap(
    first: int, stop: int, most: int
) -> None:
    edges = even_edges(first, stop, most)
    assert edges[0] == first
    assert edges[-1] == max(stop, first + 1)
    assert len(edges) - 1 <= most
    assert (np.diff(edges) > 0).all()


def test_values_that_were_not_measured_are_in_no_mean() -> None:
    values = np.array([1.0, np.nan, 3.0])
    found = binned(np.array([0, 0, 0]), values, np.array([0, 1, 2]))
    assert found.mean[0] == 2.0
    assert np.isnan(found.mean[1])


def test_a_column_between_two_samples_takes_the_later_one() -> None:
    times = np.arange(10) * 500
    found = covered(times, np.arange(10.0), np.arange(0, 4500, 100))
    assert np.isfinite(found.mean).all()
    assert found.mean[1] == 1.0


def test_a_stretch_without_samples_is_not_recorded() -> None:
    times = np.array([0, 500, 1000, 9000, 9500])
    found = covered(times, np.ones(5), np.arange(0, 9600, 100))
    assert np.isnan(found.mean[20:85]).all()


# --- The course of a job ------------------------------------------------------


def test_slow_steps_are_named_with_the_phase_that_took_longer() -> None:
    rows = with_worker(tables_of(Plan(slow={100: 900.0, 7: 300.0}))["step"])
    n, found = slow_steps(rows, rows["global_step"])
    assert n == 2
    assert [each.step for each in found] == [100, 7]
    assert {each.phase for each in found} == {Phase.OTHER}


def test_steps_that_scatter_a_little_are_not_slow() -> None:
    rows = with_worker(tables_of(Plan(n_steps=2000))["step"])
    assert slow_steps(rows, rows["global_step"])[0] == 0


def test_throughput_counts_the_samples_of_all_ranks() -> None:
    rows = np.concatenate(
        [with_worker(tables_of(Plan(rank=i))["step"], i) for i in range(2)]
    )
    found = throughput_of(rows)
    assert found.samples_per_s == pytest.approx(128 * found.steps_per_s)
    assert found.tokens_per_s is None


# --- Loaders ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "share"), [(0, 0.80), (1, 0.75), (2, 0.50), (4, 0.017)]
)
def test_what_if_predicts_the_waits_of_the_model(workers: int, share: float) -> None:
    curve = what_if(80 * MS, 20 * MS)
    assert curve.wait_shares[workers] == pytest.approx(share, abs=1e-3)
    assert curve.best == 4


def test_what_if_stops_at_the_cores() -> None:
    curve = what_if(80 * MS, 10 * MS, most_useful=3)
    assert curve.best == 3
    assert curve.is_capped
    assert "would find no core" in curve.text(1)


def test_what_if_advises_nothing_where_the_loader_keeps_up() -> None:
    assert "would not make steps shorter" in what_if(40 * MS, 30 * MS).text(2)


def test_a_loader_that_is_waited_for_has_a_curve_that_falls() -> None:
    tables = tables_of(Plan(LOADER_BOUND, fetch_ms=160.0))
    (found,) = loading_of(
        with_worker(tables["loader"]), with_worker(tables["step"]), 16.0
    )
    assert found.depth == 0.0
    assert found.what_if is not None
    assert found.what_if.best > found.workers == 2
    assert found.fetch_cpu_share == pytest.approx(0.9, abs=0.01)


def test_a_fetch_time_that_nobody_measured_is_unknown_and_gives_no_curve() -> None:
    tables = tables_of(Plan(LOADER_BOUND))
    tables["loader"]["fetch_ns"] = tables["loader"]["fetch_cpu_ns"] = -1
    (found,) = loading_of(with_worker(tables["loader"]), with_worker(tables["step"]))
    assert found.what_if is None
    assert found.to_json()["fetch_ns"] == [None, None]


# --- The machine --------------------------------------------------------------


def test_cores_that_were_not_measured_have_no_colour() -> None:
    rows = tables_of(Plan())["core"]
    edges = np.linspace(rows["time"][0], rows["time"][-1] + 1, 40).astype(np.int64)
    found = usage_map([("", rows)], [], edges)
    assert found.names == ("core 0", "core 1", "core 2", "core 3")
    assert np.isnan(found.columns.mean[3, 0])
    assert found.columns.mean[0, 0] == pytest.approx(0.9, abs=0.15)


def test_many_cores_share_rows_and_none_is_left_out() -> None:
    rows = tables_of(Plan(n_cores=192, n_steps=50))["core"]
    edges = np.array([rows["time"][0], rows["time"][-1] + 1])
    found = usage_map([("", rows)], [], edges)
    assert len(found.names) == 64
    assert found.names[-1] == "core 189 to 191"


@pytest.mark.parametrize("leak", [10e6, 2e6])
def test_memory_that_leaks_has_a_forecast(leak: float) -> None:
    times = np.arange(0, 600) * SECOND
    used = 8e9 + leak * times / 1e9
    found = forecast_of(times, used, 16e9)
    assert found is not None
    assert found.seconds == pytest.approx((16e9 - used[-1]) / leak, rel=0.05)


@pytest.mark.parametrize("shape", ["flat", "sawtooth", "cache that fills"])
def test_memory_that_does_not_leak_has_none(shape: str) -> None:
    seconds = np.arange(0, 600.0)
    used = {
        "flat": 8e9 + np.random.default_rng(0).normal(0, 1e7, 600),
        "sawtooth": 8e9 + 500e6 * (seconds % 60) / 60,
        "cache that fills": 8e9 + 4e9 * (1 - np.exp(-seconds / 60)),
    }[shape]
    assert forecast_of((seconds * 1e9).astype(np.int64), used, 16e9) is None


# --- Ranks --------------------------------------------------------------------


def ranks(lateness: list[float | None]) -> tuple[np.ndarray, np.ndarray]:
    plans = [Plan(rank=i, lateness_ms=ms) for i, ms in enumerate(lateness)]
    tables = [tables_of(plan) for plan in plans]
    steps = [with_worker(each["step"], i) for i, each in enumerate(tables)]
    collectives = [
        with_worker(each.get("collective", np.zeros(0, COLLECTIVE)), i)
        for i, each in enumerate(tables)
    ]
    return np.concatenate(collectives), np.concatenate(steps)


def test_the_rank_that_spends_least_in_collectives_came_last() -> None:
    collectives, steps = ranks([0.0, 20.0, 1.0])
    found = lateness_of(
        ["a", "b", "c"], collectives, steps, steps["global_step"],
        collectives["global_step"],
    )  # fmt: skip
    assert found is not None
    assert found.source == "collectives"
    assert [round(each.median_ns / MS) for each in found.ranks] == [0, 20, 1]
    assert [each.last_share for each in found.ranks] == [0.0, 1.0, 0.0]


def test_without_collectives_the_own_work_of_steps_tells_who_is_slow() -> None:
    collectives, steps = ranks([None, None])
    steps[PHASE_COLUMNS[Phase.BACKWARD]][steps["worker"] == 1] += 9 * MS
    steps["duration_ns"][steps["worker"] == 1] += 9 * MS
    found = lateness_of(
        ["a", "b"], collectives, steps, steps["global_step"],
        collectives["global_step"],
    )  # fmt: skip
    assert found is not None
    assert found.source == "own work"
    assert found.ranks[1].median_ns == pytest.approx(9 * MS, rel=0.3)


def test_one_rank_is_not_late() -> None:
    collectives, steps = ranks([0.0])
    places = steps["global_step"]
    assert lateness_of(["a"], collectives, steps, places, places) is None


# --- Programs -----------------------------------------------------------------


def test_operators_are_those_of_the_newest_window() -> None:
    old, new = (
        {
            "what": "operators",
            "window": window,
            "device": "cpu",
            "operators": [
                {"name": name, "calls": 3, "self_ns": 900},
                {"name": "aten::tiny", "calls": 1, "self_ns": 1},
            ],
        }
        for window, name in (("1", "aten::mm"), ("2", "aten::add"))
    )
    (found,) = operators_of([old, {"what": "gc"}, new])
    assert [each.name for each in found.listed] == ["aten::add"]
    assert (found.window, found.n_others) == ("2", 1)


def test_waiting_for_data_is_no_operator() -> None:
    waiting = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    operators = [
        {"name": waiting, "calls": 5, "self_ns": 150_000_000},
        {"name": "aten::mm", "calls": 5, "self_ns": 3_000_000},
    ]
    event = {"what": "operators", "window": "1", "operators": operators}
    (found,) = operators_of([event])
    assert [(each.name, each.share) for each in found.listed] == [("aten::mm", 1.0)]


def test_lines_are_ranked_within_their_phase() -> None:
    samples = [
        {"phase": 0, "stack": ["a.py:1 main", f"a.py:{n} work"], "count": n}
        for n in (2, 6)
    ]
    event = {"what": "python_lines", "samples": [*samples, {"phase": 99, "count": 1}]}
    found = lines_of([event])
    assert [(each.place, each.share) for each in found] == [
        ("a.py:6 work", 0.75),
        ("a.py:2 work", 0.25),
    ]


def test_lines_of_libraries_name_the_line_of_the_program_that_called_them() -> None:
    library = "/opt/lib/python3.11/site-packages/torch/_ops.py:95 call"
    stack = ["/home/ada/code/nets/train.py:36 main", library]
    event = {
        "what": "python_lines",
        "samples": [
            {"phase": 1, "stack": stack, "count": 300},
            {"phase": 1, "stack": ["a.py:1 rare"], "count": 1},
        ],
    }
    (found,) = lines_of([event])
    assert found.short_place == "torch/_ops.py:95 call"
    assert found.short_caller == "code/nets/train.py:36 main"


# --- What is odd ----------------------------------------------------------------


def test_much_time_between_the_phases_and_one_long_pass_are_remarked() -> None:
    phases = {Phase.FORWARD: 20.0, Phase.BACKWARD: 2.0, Phase.OTHER: 20.0}
    other, ways = remarks_of(breakdown_of(tables_of(Plan(phases))["step"]))
    assert other.startswith("48 % of a step is code between the phases")
    assert ways == "Forward takes 91 % of the time of both passes"
    assert remarks_of(breakdown_of(tables_of(Plan())["step"])) == ()


# --- A run --------------------------------------------------------------------


def test_a_run_says_where_its_time_went(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan(LOADER_BOUND, fetch_ms=160.0)])
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    assert view.sentence.startswith("67 % data wait, 19 % backward")
    first, second = view.lines
    assert first == f"where the time went: {view.sentence}"
    assert re.match("what may help: with .* workers instead of 2, a step", second)
    assert sum(each.share for each in view.job) == pytest.approx(1.0)
    assert 0.0 < view.goodput < 0.4


def test_two_ranks_have_a_bar_each(tmp_path: Path) -> None:
    plans = [Plan(HEALTHY, rank=i, lateness_ms=20.0 * i) for i in range(2)]
    profiled_run(tmp_path / "run", plans)
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    assert [each.title for each in view.breakdowns] == [
        "training",
        "first 20 steps",
        "worker_0",
        "worker_1",
    ]
    assert view.lateness is not None
    assert view.lateness.ranks[1].last_share == 1.0


def test_cores_are_placed_at_the_steps_that_ran_meanwhile(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan(n_steps=600)])
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    usage = view.usage(view.edges(60))
    assert usage.columns.mean.shape == (4, 60)
    assert np.isfinite(usage.columns.mean[:3]).all()


def test_the_change_that_saves_most_is_named_first(tmp_path: Path) -> None:
    """Whatever a rule's own value is: 1,000 ms of pauses may be less than 20 %."""
    simple_run(tmp_path / "run")
    found = [
        Finding(
            rule=rule,
            severity=Severity.WARNING,
            step=1,
            mode=ModeKeys.TRAIN,
            tensor="training",
            message=rule,
            value=value,
            advice=f"mend what {rule} says",
            first_step=1,
            last_step=1,
            stage=Stage.HOST,
            gain=gain,
        )
        for rule, value, gain in [
            ("Unmeasured", 2000.0, None),
            ("GcPauses", 1000.0, 0.05),
            ("IdleBetweenSteps", 20.0, 0.2),
        ]
    ]
    view = time_of(tdbg.create_trial(tmp_path / "run"), diagnosis_of(found, {}))
    rules = [each.rule for each in view.problems]
    assert rules == ["IdleBetweenSteps", "GcPauses", "Unmeasured"]
    assert view.change is not None
    assert view.change.rule == "IdleBetweenSteps"


def test_the_beginning_of_a_run_is_not_shown_as_its_usual_step(tmp_path: Path) -> None:
    slow = dict.fromkeys(range(10), 3000.0)
    profiled_run(tmp_path / "run", [Plan(HEALTHY, n_steps=60, slow=slow)])
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    assert view.breakdown is not None
    assert view.whole is not None
    assert view.breakdown.n_steps == 40
    assert view.breakdown.share_of(Phase.OTHER) < 0.1
    assert view.whole.share_of(Phase.OTHER) > 0.8
    assert view.breakdowns[1].title == "first 20 steps"
    assert view.breakdowns[1].n_steps == 20


@pytest.mark.parametrize(("n", "left"), [(1, 1), (2, 1), (9, 5), (40, 20), (90, 70)])
def test_at_least_half_of_a_short_run_is_shown(n: int, left: int) -> None:
    steps = with_worker(tables_of(Plan(n_steps=n))["step"])
    assert after_warm_up(steps).sum() == left


def test_batches_of_the_beginning_do_not_count(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan(LOADER_BOUND, n_steps=60, fetch_ms=160.0)])
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    assert view.loading[0].n_batches < len(view.loader_rows)


def test_the_job_has_a_beginning_a_loop_and_an_end(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan()])
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    assert re.match(
        r"[\d.]+ s: start-up 3 s \(.*\), the loop .* and after", view.job_text
    )


def test_a_loader_that_no_training_step_used_has_no_prediction() -> None:
    tables = tables_of(Plan(n_steps=80))
    steps, batches = tables["step"], tables["loader"]
    steps["mode"][60:] = 2
    batches["loader"][60:] = 1
    found = loading_of(
        with_worker(batches), with_worker(steps), 4.0, steps["mode"] == 1
    )
    assert [(each.loader, each.n_batches) for each in found] == [(0, 60), (1, 20)]
    assert found[0].what_if is not None
    assert found[1].what_if is None


def test_rules_that_judged_say_what_to_change_and_nobody_else(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan(LOADER_BOUND, fetch_ms=160.0)])
    judged = {"DataLoaderBound": {"status": "NoIssuesFound"}}
    trial = tdbg.create_trial(tmp_path / "run")
    assert len(time_of(trial, diagnosis_of([], judged)).lines) == 1


def test_a_training_that_does_not_wait_is_told_no_change(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan(HEALTHY, fetch_ms=160.0)])
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    assert view.lines == [f"where the time went: {view.sentence}"]


def test_the_cores_that_a_loader_fills_come_of_the_same_model() -> None:
    tables = tables_of(Plan(LOADER_BOUND, fetch_ms=160.0))
    (found,) = loading_of(with_worker(tables["loader"]), with_worker(tables["step"]))
    assert found.what_if is not None
    assert found.useful_cores == busy_cores(found.what_if.needed, found.fetch_cpu_share)


def test_a_run_without_a_profile_says_nothing(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    view = time_of(tdbg.create_trial(tmp_path / "run"))
    assert view.is_empty
    assert view.sentence == ""
    assert view.lines == []
    assert view.job == ()
    assert math.isnan(view.goodput)
