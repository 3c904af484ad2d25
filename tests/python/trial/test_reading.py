"""Names, values and statistics of finished runs of one worker."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from run_builder import RunBuilder, simple_run
from tdbg.config import Role
from tdbg.errors import (
    ConfigurationError,
    NotARun,
    QueryError,
    ShapeUnavailableForStep,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from tdbg.modes import ModeKeys
from tdbg.trial import Call, TensorHandle, create_trial

HOSTILE = [
    "../../etc/passwd",
    "a\nb",
    "tab\t, quote \" and '",
    "*",
    "[red]x[/red]",
    "üñí 中",
    "con",
    "a" * 3000,
]


@pytest.fixture
def mixed_run(run_dir: Path) -> Path:
    """Training steps 0, 1, 3, 4 and evaluation steps 2 and 5."""
    with RunBuilder(run_dir) as run:
        for step in range(6):
            value = np.full((2, 3), step, np.float32)
            if step in (2, 5):
                run.step(step, {"net_output_0": value}, ModeKeys.EVAL)
            else:
                run.save(step, "net_output_0", value, what="statistics")
                if step in (0, 4):
                    run.save(step, "fc.weight", value + 1)
                run.scalar(step, "scalar/lr", 0.1 * step)
                run.end_step(step)
    return run_dir


def test_names_are_sorted_and_filtered_by_step_mode_regex_and_collection(
    mixed_run: Path,
) -> None:
    trial = create_trial(mixed_run)
    everything = ["fc.weight", "net_output_0", "scalar/lr"]
    assert trial.tensor_names() == everything
    assert trial.tensor_names(step=2, mode="global") == ["net_output_0"]
    assert trial.tensor_names(step=99) == []
    assert trial.tensor_names(step=1, mode=ModeKeys.EVAL) == ["net_output_0"]
    assert trial.tensor_names(mode=ModeKeys.EVAL) == ["net_output_0"]
    assert trial.tensor_names(mode="train") == everything
    assert trial.tensor_names(mode=ModeKeys.PREDICT) == []
    assert trial.tensor_names(regex="out") == ["net_output_0"]
    assert trial.tensor_names(regex=["out", "^fc"]) == ["fc.weight", "net_output_0"]
    assert trial.tensor_names(collection="weights") == ["fc.weight"]
    assert trial.tensor_names(collection="weights", regex="out") == []
    assert trial.tensor_names(collection=trial.collection("outputs")) == [
        "net_output_0"
    ]


def test_values_come_back_bit_by_bit_and_read_only(mixed_run: Path) -> None:
    tensor = create_trial(mixed_run).tensor("fc.weight")
    value = tensor.value(3)
    np.testing.assert_array_equal(tensor.value(4, "global"), value)
    np.testing.assert_array_equal(value, np.full((2, 3), 5, np.float32))
    assert value.dtype == np.float32
    assert not value.flags.writeable
    assert list(tensor.values()) == [0, 3]
    assert list(tensor.values("global")) == [0, 4]
    assert tensor.shape(3) == (2, 3)
    assert (tensor.role, tensor.dtype) == ("weight", "float32")


def test_a_scalar_reads_as_a_tensor_and_as_a_series(mixed_run: Path) -> None:
    trial = create_trial(mixed_run)
    assert float(trial.tensor("scalar/lr").value(2)) == pytest.approx(0.3)
    assert trial.tensor("scalar/lr").reduction_value(2, "mean") == pytest.approx(0.3)
    series = trial.scalars()["scalar/lr"]
    assert series.steps.tolist() == [0, 1, 3, 4]
    np.testing.assert_allclose(series.values, [0, 0.1, 0.3, 0.4])
    assert trial.scalars("train")["scalar/lr"].steps.tolist() == [0, 1, 2, 3]
    part = trial.scalars(start=2, end=4)["scalar/lr"]
    inside = (series.steps >= 2) & (series.steps < 4)
    assert part.steps.tolist() == series.steps[inside].tolist() != []
    assert part.values.tolist() == series.values[inside].tolist()


def test_mode_steps_and_global_steps_convert_into_each_other(mixed_run: Path) -> None:
    trial = create_trial(mixed_run)
    assert trial.steps(what="any") == [0, 1, 2, 3]
    assert trial.steps(ModeKeys.GLOBAL, "any") == [0, 1, 2, 3, 4, 5]
    assert trial.steps(ModeKeys.TRAIN, "any") == [0, 1, 2, 3]
    assert trial.steps(ModeKeys.EVAL) == [0, 1]
    assert trial.steps(ModeKeys.PREDICT) == []
    assert trial.modes() == [ModeKeys.TRAIN, ModeKeys.EVAL]
    assert trial.global_step(ModeKeys.EVAL, 1) == 5
    assert trial.global_step(ModeKeys.EVAL, 2) is None
    assert trial.global_step(ModeKeys.GLOBAL, 77) == 77
    assert trial.mode_modestep(4) == (ModeKeys.TRAIN, 3)
    assert trial.mode(2) is ModeKeys.EVAL
    # Evaluation stands at the number of training steps before it.
    assert trial.training_steps_at(range(6)) == [0, 1, 2, 2, 3, 4]
    assert trial.step_table()["training_step"].tolist() == [0, 1, 2, 2, 3, 4]
    assert trial.mode_step(5) == 1
    assert trial.mode_modestep(6) == (None, None)
    output = trial.tensor("net_output_0")
    assert output.steps("eval") == [0, 1]
    assert output.reduction_value(1, "mean", mode=ModeKeys.EVAL) == 5.0
    assert output.reduction_value(3, "max", mode="train") == 4.0


def test_values_and_statistics_have_steps_of_their_own(mixed_run: Path) -> None:
    trial = create_trial(mixed_run)
    output = trial.tensor("net_output_0")
    assert output.steps("global", what="values") == [2, 5]
    assert output.steps("global", what="statistics") == [0, 1, 2, 3, 4, 5]
    assert output.steps(what="statistics") == [0, 1, 2, 3]
    assert output.steps(ModeKeys.TRAIN, what="values") == []
    # The scalar is a value.
    assert trial.steps("global", what="values") == [0, 1, 2, 3, 4, 5]
    assert trial.tensor("scalar/lr").steps(what="statistics") == []
    assert output.prev_steps(3) == [0, 1, 2, 3]
    assert output.prev_steps(3, 2) == [2, 3]
    assert output.prev_steps(3, 0) == []
    assert output.prev_steps(1, 5, mode=ModeKeys.EVAL) == [0, 1]


def test_reductions_are_what_numpy_says(run_dir: Path) -> None:
    array = np.random.default_rng(1).normal(size=(17, 5)).astype(np.float32)
    with RunBuilder(run_dir) as run:
        run.step(0, {"w": array}, what="statistics")
        run.step(1, {"w": array}, what="values")
    tensor = create_trial(run_dir).tensor("w")
    exact = array.astype(np.float64).ravel()
    expected = {
        ("min", False): exact.min(),
        ("max", False): exact.max(),
        ("mean", False): exact.mean(),
        ("std", False): exact.std(),
        ("variance", False): exact.var(),
        ("l1", False): np.abs(exact).sum(),
        ("l2", False): np.sqrt((exact**2).sum()),
        ("mean", True): np.abs(exact).mean(),
        ("max", True): np.abs(exact).max(),
        ("min", True): np.abs(exact).min(),
        ("std", True): np.abs(exact).std(),
    }
    stored = tensor.reduction_values(0)
    for (name, absolute), value in expected.items():
        assert stored[name, absolute] == pytest.approx(value, rel=1e-7)
        got = tensor.reduction_value(0, name, abs=absolute)
        assert got == stored[name, absolute]
    # From the raw value by the same kernel: bit by bit the same.
    assert tensor.reduction_values(1) == stored
    assert tensor.stats(1) == tensor.stats(0)


def test_stats_holds_the_row_with_exact_integers(run_dir: Path) -> None:
    big = np.array([2**63 - 1, -(2**63), 0], np.int64)
    huge = np.array([2**64 - 1, 5], np.uint64)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -2.0], np.float32)
    with RunBuilder(run_dir) as run:
        run.step(0, {"big": big, "huge": huge, "odd": odd, "none": odd[:0]})
    trial = create_trial(run_dir)
    assert trial.tensor("big").stats(0).max == 2**63 - 1
    assert trial.tensor("big").stats(0).min == -(2**63)
    assert trial.tensor("huge").stats(0).max == 2**64 - 1
    low, high = trial.statistics().exact_extremes("huge")
    assert (low[0], high[0]) == (5, 2**64 - 1)
    stats = trial.tensor("odd").stats(0)
    assert (stats.count, stats.finite, stats.nan) == (5, 2, 1)
    assert (stats.positive_infinity, stats.negative_infinity, stats.zero) == (1, 1, 1)
    assert (stats.min, stats.max, stats.mean, stats.std) == (-2.0, 0.0, -1.0, 1.0)
    assert np.isnan(trial.tensor("odd").reduction_value(0, "mean"))
    empty = trial.tensor("none").stats(0)
    assert (empty.count, empty.min, empty.max) == (0, np.inf, -np.inf)
    assert np.isnan(empty.variance)
    assert np.isnan(empty.rms)
    assert trial.tensor("none").value(0).shape == (0,)


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "bool", "uint8", "int32"],
)
def test_values_have_the_dtype_of_numpy_or_ml_dtypes(run_dir: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype, dtype))
    with RunBuilder(run_dir) as run:
        run.step(0, {"x": array})
    tensor = create_trial(run_dir).tensor("x")
    assert tensor.value(0).dtype == array.dtype
    assert tensor.value(0).tobytes() == array.tobytes()
    expected = array.astype(np.float64)
    assert tensor.reduction_value(0, "mean") == pytest.approx(expected.mean())


@pytest.mark.parametrize("text", ["<M8[ns]", "complex64"])
def test_a_dtype_without_statistics_has_values_only(run_dir: Path, text: str) -> None:
    array = np.arange(4).astype(text)
    with RunBuilder(run_dir) as run:
        run.save(0, "x", array, what="values")
        run.end_step(0)
    tensor = create_trial(run_dir).tensor("x")
    np.testing.assert_array_equal(tensor.value(0), array)
    with pytest.raises(TensorUnavailableForStep, match="no statistics"):
        tensor.reduction_value(0, "mean")


def test_a_name_can_be_any_text(run_dir: Path) -> None:
    arrays = {name: np.full(2, i, np.float32) for i, name in enumerate(HOSTILE)}
    with RunBuilder(run_dir) as run:
        run.step(0, arrays)
    trial = create_trial(run_dir)
    assert trial.tensor_names() == sorted(HOSTILE)
    for i, name in enumerate(HOSTILE):
        assert trial.tensor(name).value(0)[0] == i
        with pytest.raises(TensorUnavailable):
            trial.tensor(name + "x")
    assert trial.statistics().names == sorted(HOSTILE)


def test_a_tensor_is_found_by_its_aliases(run_dir: Path) -> None:
    array = np.ones(3, np.float32)
    with RunBuilder(run_dir) as run:
        run.save(0, "decoder.weight", array, aliases=["embedding.weight"])
        run.end_step(0)
    trial = create_trial(run_dir)
    assert trial.tensor("embedding.weight").name == "decoder.weight"
    assert trial.tensor("decoder.weight").aliases == ("embedding.weight",)
    assert trial.has_tensor("embedding.weight")
    assert not trial.has_tensor("embedding")


def test_a_shape_may_change_from_step_to_step(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        for step, batch in enumerate((8, 8, 3)):
            run.step(step, {"net_output_0": np.ones((batch, 2), np.float32)})
    trial = create_trial(run_dir)
    tensor = trial.tensor("net_output_0")
    assert [tensor.shape(step) for step in range(3)] == [(8, 2), (8, 2), (3, 2)]
    assert [v.shape[0] for v in tensor.values().values()] == [8, 8, 3]
    assert tensor.first_shape == (8, 2)
    assert trial.statistics().count.tolist() == [[16, 16, 6]]


def test_a_range_hides_all_other_steps(mixed_run: Path) -> None:
    trial = create_trial(mixed_run, range_steps=(2, 4))
    assert trial.steps("global", "any") == [2, 3]
    assert trial.tensor_names() == ["net_output_0", "scalar/lr"]
    assert not create_trial(mixed_run, range_steps=(2, 3)).tensor_names(regex="lr")
    assert trial.statistics().steps.tolist() == [2, 3]
    assert trial.step_table()["step"].tolist() == [2, 3]
    assert create_trial(mixed_run, range_steps=(4, None)).steps("global") == [4, 5]


# --- Errors ---------------------------------------------------------------


def test_a_path_without_a_run_says_what_is_there_instead(
    run_dir: Path, tmp_path: Path
) -> None:
    simple_run(run_dir)
    with pytest.raises(NotARun, match=r"did you mean .*run"):
        create_trial(tmp_path)
    with pytest.raises(NotARun, match="lies inside one"):
        create_trial(run_dir / "w")
    with pytest.raises(NotARun, match="nowhere"):
        create_trial(tmp_path / "nowhere")
    with pytest.raises(NotARun):
        create_trial(tmp_path / "nowhere", wait=0.05)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("path", ["s3://", "s3://user:key@bucket/run", "", "  "])
def test_a_path_that_can_never_work_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError):
        create_trial(path)


@pytest.mark.parametrize("steps", [(3, 3), (5, 2), (1,), "ab", ("a", "b")])
def test_a_bad_range_is_refused(run_dir: Path, steps: object) -> None:
    simple_run(run_dir)
    with pytest.raises(ConfigurationError, match="range_steps"):
        create_trial(run_dir, range_steps=steps)  # type: ignore[arg-type]


def test_errors_about_names_say_what_there_is(mixed_run: Path) -> None:
    trial = create_trial(mixed_run)
    with pytest.raises(TensorUnavailable, match=r"did you mean 'fc\.weight'"):
        trial.tensor("fc.wieght")
    with pytest.raises(TensorUnavailable, match="there are 3"):
        trial.tensor("zzz")
    with pytest.raises(TensorUnavailable, match="zzz"):
        trial.statistics(["zzz"])
    with pytest.raises(QueryError, match="did you mean 'weights'"):
        trial.collection("weight")
    with pytest.raises(ConfigurationError, match="regular expression"):
        trial.tensor_names(regex="(")
    with pytest.raises(QueryError, match="mode must be one of"):
        trial.steps("validation")
    with pytest.raises(ConfigurationError, match="what must be one of"):
        trial.steps(what="rows")


def test_a_step_with_only_a_row_says_that_the_statistics_are_there(
    mixed_run: Path,
) -> None:
    trial = create_trial(mixed_run)
    with pytest.raises(TensorUnavailableForStep, match="statistics are there"):
        trial.tensor("net_output_0").value(1)
    with pytest.raises(TensorUnavailableForStep, match=r"nearest step .* is 0"):
        trial.tensor("fc.weight").value(1)
    with pytest.raises(TensorUnavailableForStep):
        trial.tensor("fc.weight").stats(1)
    with pytest.raises(TensorUnavailableForStep):
        trial.tensor("fc.weight").workers(1)
    with pytest.raises(TensorUnavailableForStep, match="call 3"):
        trial.tensor("fc.weight").value(0, call=3)
    with pytest.raises(ShapeUnavailableForStep):
        trial.tensor("fc.weight").shape(1)
    with pytest.raises(ShapeUnavailableForStep):
        trial.tensor("fc.weight").shape(100)


def test_an_unknown_reduction_is_refused_with_the_valid_ones(mixed_run: Path) -> None:
    tensor = create_trial(mixed_run).tensor("fc.weight")
    for name in ("average", "", "__class__"):
        with pytest.raises(ConfigurationError, match="variance"):
            tensor.reduction_value(0, name)


def test_calls_and_micro_batches_can_be_asked_for(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        for micro_batch in range(2):
            for call in range(2):
                array = np.full(2, 10 * micro_batch + call, np.float32)
                run.save(0, "net_output_0", array, call=call, micro_batch=micro_batch)
        run.end_step(0, micro_batches=2)
    tensor = create_trial(run_dir).tensor("net_output_0")
    assert tensor.calls(0) == [Call(0, 0), Call(0, 1), Call(1, 0), Call(1, 1)]
    assert tensor.value(0)[0] == 0
    assert tensor.value(0, micro_batch=1)[0] == 10
    assert tensor.value(0, call=1, micro_batch=1)[0] == 11
    assert tensor.stats(0).mean == 5.5
    assert tensor.stats(0, call=1).mean == 6.0
    assert tensor.stats(0, micro_batch=1).count == 4


def test_unit_summaries_add_up(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        for micro_batch in range(3):
            array = np.arange(6, dtype=np.uint64).reshape(3, 2)
            run.save(0, "unit/a", array, what="values", micro_batch=micro_batch)
        run.end_step(0)
    tensor = create_trial(run_dir).tensor("unit/a")
    assert tensor.role == Role.UNIT_SUMMARY.name.lower()
    assert tensor.value(0).tolist() == [[0, 3], [6, 9], [12, 15]]
    assert tensor.value(0, micro_batch=1).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_positions_follow_the_order_of_execution(run_dir: Path) -> None:
    names = ["z", "b", "m", "a"]
    with RunBuilder(run_dir) as run:
        for step in range(2):
            run.step(step, dict.fromkeys(names, np.ones(2, np.float32)))
    trial = create_trial(run_dir)
    found = sorted(trial.tensor_names(), key=lambda name: trial.tensor(name).position)
    assert found == names


def test_deleting_index_and_commit_page_changes_no_answer(run_dir: Path) -> None:
    simple_run(run_dir, range(20))
    before = create_trial(run_dir)
    values = before.tensor("fc.weight").values()
    table = before.statistics()
    removed = 0
    for pattern in ("*.tdi", "COMMIT"):
        for file in (run_dir / "w" / "train-0-1").glob(pattern):
            file.unlink()
            removed += 1
    assert removed == 2
    after = create_trial(run_dir)
    assert after.steps() == before.steps()
    np.testing.assert_array_equal(after.statistics().m2, table.m2)
    for step, value in after.tensor("fc.weight").values().items():
        assert value.tobytes() == values[step].tobytes()
    assert after.problems() == []


# ---- values of several steps -----------------------------------------------------


@pytest.fixture
def trained(run_dir: Path) -> TensorHandle:
    """A weight at steps 0, 2, 4, 6, 8, and a scalar at every step."""
    with RunBuilder(run_dir) as run:
        for step in range(10):
            if step % 2 == 0:
                run.save(step, "fc.weight", np.full(3, step, np.float32))
            run.scalar(step, "scalar/lr", 0.1 * step)
            run.end_step(step)
    return create_trial(run_dir).tensor("fc.weight")


def test_they_are_those_that_are_found_one_by_one(trained: TensorHandle) -> None:
    found = trained.values_between(2, 7)
    assert list(found) == [2, 4, 6]
    assert len(found) == 3
    for step, value in found.items():
        np.testing.assert_array_equal(value, trained.value(step))
        assert not value.flags.writeable


def test_the_end_is_left_out_and_what_is_not_there_is_no_key(
    trained: TensorHandle,
) -> None:
    found = trained.values_between(2, 6)
    assert [step in found for step in (0, 2, 3, 4, 6)] == [0, 1, 0, 1, 0]
    with pytest.raises(KeyError):
        found[6]
    assert dict(trained.values_between(4, 4)) == {}
    assert dict(trained.values_between(100, 200)) == {}


@pytest.mark.usefixtures("trained")
def test_scalars_have_them_too(run_dir: Path) -> None:
    rates = create_trial(run_dir).tensor("scalar/lr").values_between(3, 5)
    assert {s: float(v) for s, v in rates.items()} == pytest.approx({3: 0.3, 4: 0.4})
