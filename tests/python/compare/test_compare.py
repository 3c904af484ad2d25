"""Runs beside each other: aligned, their ratio, where they diverge, what was set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.compare import (
    Axis,
    differences,
    divergence,
    facts_of,
    flattened,
    ratios,
    settings_of,
)
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.run.model_info import ModelInfo, ParameterFacts
from tdbg.run.schema import EventKind
from tdbg.trial import STEP_TABLE_DTYPE, Trial, create_trial

NAMES = ("a.weight", "b.weight", "c.weight")
Values = Callable[[int, str], float]


def write(
    path: Path,
    values: Values,
    *,
    steps: int = 100,
    evaluates: int = 0,
    rate: Callable[[int], float] = lambda _: 0.1,
) -> Trial:
    """A run whose tensors have one element each, at training step i values(i, name)."""
    step = 0
    with RunBuilder(path) as run:
        for i in range(steps):
            run.scalar(step, "scalar/optimizer/group_0/lr", rate(i))
            for name in NAMES:
                run.save(step, name, np.full(1, values(i, name), np.float32))
            run.end_step(step)
            step += 1
            for _ in range(evaluates):
                run.end_step(step, ModeKeys.EVAL)
                step += 1
    return create_trial(path)


def flat(step: int, name: str) -> float:
    del step, name
    return 1.0


# --- The axis -----------------------------------------------------------------


def test_runs_that_evaluate_at_other_times_are_aligned_by_training_steps(
    tmp_path: Path,
) -> None:
    def rising(i: int, name: str) -> float:
        del name
        return i + 1.0

    one = write(tmp_path / "one", rising)
    other = write(tmp_path / "other", rising, evaluates=2)
    marks = np.arange(0, 101, 10)
    by_all = ratios(one, other, NAMES, axis=Axis.GLOBAL, marks=marks)
    by_training = ratios(one, other, NAMES, marks=marks)
    assert (by_all.mean > 0.5).all()
    np.testing.assert_array_equal(by_training.mean, 0)
    np.testing.assert_array_equal(by_training.rows, 10)


def test_a_place_in_time_is_that_since_the_first_step_and_never_goes_back() -> None:
    table = np.zeros(5, STEP_TABLE_DTYPE)
    table["step"] = [0, 1, 2, 3, 8]
    table["wall_ns"] = 10**18 + np.array([0, 10, 25, 20, 40]) * 10**6
    assert Axis.TIME.places(table).tolist() == [0, 10, 25, 25, 40]
    assert Axis.TIME.span(table) == (0, 41)
    edges = Axis.TIME.edges(table, np.array([0, 10, 11, 30, 99]))
    assert edges.tolist() == [0, 1, 2, 8, 9]


def test_a_run_without_steps_has_no_place_on_any_axis(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "empty").close()
    table = create_trial(tmp_path / "empty").step_table()
    for axis in Axis:
        assert axis.span(table) == (0, 0)
        assert len(axis.edges(table, np.array([0, 5]))) == 2


# --- The ratio ----------------------------------------------------------------


def test_a_ratio_is_its_binary_logarithm_and_a_spike_of_one_run_stays(
    tmp_path: Path,
) -> None:
    def spiked(i: int, name: str) -> float:
        return 2.0 * (64.0 if (i, name) == (37, NAMES[1]) else 1.0)

    one, other = write(tmp_path / "one", spiked), write(tmp_path / "other", flat)
    found = ratios(one, other, NAMES, marks=np.array([0, 50, 100]))
    assert found.names == list(NAMES)
    np.testing.assert_allclose(found.low, 1)
    np.testing.assert_allclose(found.high, [[1, 1], [7, 1], [1, 1]])
    assert 1 < found.mean[1, 0] < 7
    turned = ratios(other, one, NAMES, marks=np.array([0, 50, 100]))
    np.testing.assert_allclose(turned.low, -found.high)


def test_zeros_nan_and_what_one_run_lacks_are_told_apart(tmp_path: Path) -> None:
    def odd(i: int, name: str) -> float:
        return {NAMES[0]: 0.0, NAMES[1]: np.nan if i == 3 else 1.0}.get(name, 1.0)

    one, other = write(tmp_path / "a", odd), write(tmp_path / "b", flat, steps=50)
    found = ratios(one, other, ["gone", *NAMES], marks=np.arange(0, 101, 25))
    assert found.names == list(NAMES)
    np.testing.assert_array_equal(found.mean[0, :2], -40)
    np.testing.assert_array_equal(found.bad[1], [1, 0, 0, 0])
    np.testing.assert_array_equal(found.rows[2], [25, 25, 0, 0])
    assert np.isnan(found.mean[:, 2:]).all()
    np.testing.assert_array_equal(ratios(one, one, NAMES, marks=found.marks).mean[0], 0)


def test_what_has_a_sign_has_no_ratio(tmp_path: Path) -> None:
    trial = write(tmp_path / "run", flat, steps=2)
    with pytest.raises(ConfigurationError, match="'mean' has no ratio: use one of rms"):
        ratios(trial, trial, NAMES, field="mean", marks=np.array([0, 1]))


# --- Where they diverge -------------------------------------------------------


def test_the_first_step_at_which_runs_part_is_found_and_what_parts_there(
    tmp_path: Path,
) -> None:
    def diverging(i: int, name: str) -> float:
        begun = {NAMES[1]: 61, NAMES[2]: 62}.get(name, 1000)
        return 1.0 + 1e-4 * max(0, i - begun + 1)

    one, other = write(tmp_path / "one", diverging), write(tmp_path / "other", flat)
    found = divergence(one, other)
    assert [(each.name, each.place) for each in found.points] == [
        (NAMES[1], 61),
        (NAMES[2], 62),
    ]
    assert found.points[0].deviation == pytest.approx(1e-4, rel=1e-2)
    assert (found.n_names, found.n_places) == (4, 100)
    later = divergence(one, other, tolerance=1e-3)
    assert [each.place for each in later.points] == [71, 72]
    assert divergence(one, other, tolerance=0.01).points == ()
    assert divergence(one, one).points == ()


def test_a_rate_that_differs_is_named_before_the_tensors_that_follow(
    tmp_path: Path,
) -> None:
    one = write(tmp_path / "one", flat)
    other = write(
        tmp_path / "other",
        lambda i, _: 1.0 if i < 20 else 3.0,
        rate=lambda i: 0.1 if i < 20 else 0.01,
    )
    found = divergence(one, other)
    assert [each.name for each in found.points] == [
        "scalar/optimizer/group_0/lr",
        *NAMES,
    ]
    assert {each.place for each in found.points} == {20}


def test_a_nan_of_one_run_alone_is_infinitely_far_away(tmp_path: Path) -> None:
    def sick(i: int, name: str) -> float:
        return np.nan if (i, name) == (5, NAMES[0]) else 1.0

    one, other = write(tmp_path / "one", sick), write(tmp_path / "other", flat)
    (point,) = divergence(one, other, tolerance=1.0).points
    assert (point.name, point.place, point.deviation) == (NAMES[0], 5, np.inf)
    assert divergence(one, one).points == ()


def test_only_steps_that_both_have_are_compared(tmp_path: Path) -> None:
    """One captures every step, the other every tenth: what lies between is skipped."""
    with RunBuilder(tmp_path / "sparse") as run:
        for step in range(0, 100, 10):
            run.step(step, {"w": np.full(2, step, np.float32)})
    with RunBuilder(tmp_path / "dense") as run:
        for step in range(100):
            value = step if step % 10 == 0 and step < 70 else -1
            run.step(step, {"w": np.full(2, value, np.float32)})
    trials = [create_trial(tmp_path / name) for name in ("sparse", "dense")]
    found = divergence(*trials)
    assert (found.n_places, found.points[0].place) == (10, 70)


def test_parts_of_a_long_run_are_compared_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(tmp_path / "one", lambda i, _: 2.0 if i == 83 else 1.0)
    other = write(tmp_path / "other", flat)
    whole = divergence(one, other)
    monkeypatch.setattr("tdbg.compare.scan.PART_CELLS", 1)
    asked: list[int] = []
    parts = divergence(one, other, check=lambda: asked.append(1))
    assert parts == whole
    assert len(asked) >= 10


def test_a_reader_that_has_gone_ends_the_comparison(tmp_path: Path) -> None:
    trial = write(tmp_path / "run", flat)

    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        divergence(trial, trial, check=check)
    with pytest.raises(TimeoutError):
        ratios(trial, trial, NAMES, marks=np.array([0, 9]), check=check)


def test_what_can_never_be_compared_is_refused(tmp_path: Path) -> None:
    trial = write(tmp_path / "run", flat, steps=2)
    with pytest.raises(ConfigurationError, match="not by time"):
        divergence(trial, trial, axis=Axis.TIME)
    with pytest.raises(ConfigurationError, match="0 or more, not -1"):
        divergence(trial, trial, tolerance=-1)
    with pytest.raises(ConfigurationError, match="0 or more, not nan"):
        divergence(trial, trial, tolerance=float("nan"))


# --- How they were set up -----------------------------------------------------


def test_settings_that_differ_are_told_and_a_schedule_by_its_ends(
    tmp_path: Path,
) -> None:
    one = write(tmp_path / "one", flat, steps=10)
    other = write(tmp_path / "other", flat, steps=10, rate=lambda i: 0.1 * (i + 1))
    told = [settings_of(trial) for trial in (one, other)]
    ((name, values),) = differences(told)
    assert name == "optimizer/group_0/lr"
    assert values[0] == 0.1
    assert values[1] == pytest.approx((0.1, 1.0))
    assert differences([told[0], told[0]]) == []


def test_data_loaders_that_differ_are_told_and_like_ones_once(tmp_path: Path) -> None:
    told = []
    for workers in (0, 4):
        path = tmp_path / str(workers)
        with RunBuilder(path) as run:
            for loader in range(3):
                content = {"what": "loader", "loader": loader, "workers": workers}
                run.event(EventKind.CHANGE, content)
            run.end_step(0)
        told.append(settings_of(create_trial(path)))
    assert differences(told) == [("loader 0.workers", ("0", "4"))]


def test_models_of_the_same_layers_differ_by_their_widths(tmp_path: Path) -> None:
    told = []
    for width in (128, 16):
        shapes = {
            "a.weight": (width, 20),
            "b.weight": (width, width),
            "b.bias": (width,),
        }
        parameters = {
            name: ParameterFacts(
                shape=shape, dtype="float32", requires_grad=True, module="Linear"
            )
            for name, shape in {**shapes, "c.weight": (width, width)}.items()
        }
        info = ModelInfo(step=0, modules={"a": "Linear"}, parameters=parameters)
        with RunBuilder(tmp_path / str(width)) as run:
            content = json.dumps(
                {"what": "model", "part": 0, "parts": 1, **info.to_json()}
            ).encode()
            run.capture.event(0, EventKind.CONFIGURATION, 0, content)
            run.step(0, {"a.weight": np.ones(3, np.float32)})
        told.append(settings_of(create_trial(tmp_path / str(width))))
    assert differences(told) == [
        ("parameters", ("35,456", "848")),
        (
            "shapes of weights",
            ("128 x 20, 128 x 128 (2 times)", "16 x 20, 16 x 16 (2 times)"),
        ),
    ]


def test_what_only_one_tells_is_a_difference() -> None:
    assert differences([{"a": "x"}, {"a": "x", "b": 2.0}]) == [("b", (None, 2.0))]


def test_facts_are_told_of_a_run_without_steps_too(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "empty").close()
    facts = facts_of(create_trial(tmp_path / "empty"))
    assert (facts["Steps"], facts["Software"]) == ("0", "")


def test_documents_are_told_by_paths() -> None:
    document = {"a": {"b": [1, 2], "c": None}, "d": [{"e": True}, {"e": "x"}], "f": ""}
    assert dict(flattened(document)) == {"a.b": "1, 2", "d[0].e": "yes", "d[1].e": "x"}
