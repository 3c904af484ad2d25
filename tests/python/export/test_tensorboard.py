"""A run as files of TensorBoard, read back by TensorBoard's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder, new_attempt
from tdbg.config import Role
from tdbg.errors import ConfigurationError, QueryError
from tdbg.export import export_tensorboard, follow_tensorboard
from tdbg.export.event_files import buckets
from tdbg.modes import ModeKeys
from tdbg.stats.histogram import Histogram
from tdbg.trial import create_trial
from tensorboard_helpers import KeyValueStore, files

RNG = np.random.default_rng(5)


def draw(*shape: int) -> NDArray[Any]:
    return RNG.normal(size=shape).astype(np.float32)


def add_step(
    run: RunBuilder, step: int, mode: ModeKeys = ModeKeys.TRAIN, **options: Any
) -> None:
    """A step of a weight with a histogram, a bias with a value, a loss, a scalar."""
    weight = draw(4, 30)
    run.save(step, "fc.weight", weight, what="statistics")
    run.histogram(step, "fc.weight", weight)
    run.save(step, "fc.bias", draw(8), role=Role.BIAS)
    loss = np.array(1.0 / (step + 3), np.float32)
    run.save(step, "loss_output_0", loss, role=Role.LOSS)
    run.scalar(step, "scalar/lr", 0.1 * step, wall_ns=1_700_000_000_000_000_000 + step)
    run.end_step(step, mode, **options)


@pytest.fixture
def run(run_dir: Path) -> Path:
    with RunBuilder(run_dir) as builder:
        for step in range(12):
            add_step(builder, step, ModeKeys.EVAL if step % 4 == 3 else ModeKeys.TRAIN)
    return run_dir


def test_numbers_are_those_of_the_trial_by_mode_and_step(
    run: Path, tmp_path: Path
) -> None:
    report = export_tensorboard(
        run, tmp_path / "tb", statistics=["l2", "abs_mean", "zero", "l2"]
    )
    assert sorted(report.files) == ["EVAL", "TRAIN"]
    assert (report.steps, report.last_step, report.unreadable) == (12, 11, 0)
    assert (report.scalars, report.histograms) == (12 * 8, 24)
    assert report.complete
    trial = create_trial(run)
    table = {int(row["step"]): row for row in trial.step_table()}
    # Evaluation stands at its training step.
    at = {step: int(row["training_step"]) for step, row in table.items()}
    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
        board = KeyValueStore(tmp_path / "tb" / mode.name)
        steps = [step for step in range(12) if trial.mode(step) is mode]
        assert board.scalar_tags == {
            *("loss_output_0", "scalar/lr"),
            *("weights/fc.weight/l2", "weights/fc.weight/abs_mean"),
            *("weights/fc.weight/zero", "biases/fc.bias/l2"),
            *("biases/fc.bias/abs_mean", "biases/fc.bias/zero"),
        }
        loss = trial.tensor("loss_output_0")
        assert board.scalars("loss_output_0") == {
            at[step]: np.float32(loss.reduction_value(step, "mean", "global"))
            for step in steps
        }
        assert board.scalars("scalar/lr") == {
            at[step]: np.float32(0.1 * step) for step in steps
        }
        weight = trial.tensor("fc.weight")
        assert board.scalars("weights/fc.weight/abs_mean") == {
            at[step]: np.float32(
                weight.reduction_value(step, "mean", "global", abs=True)
            )
            for step in steps
        }
        assert set(board.scalars("biases/fc.bias/zero").values()) == {0.0}
        # Of the step, or of the scalar itself.
        assert board.times("loss_output_0") == [
            pytest.approx(int(table[step]["wall_ns"]) / 1e9) for step in steps
        ]
        assert board.times("scalar/lr") == [
            pytest.approx(1_700_000_000 + step * 1e-9) for step in steps
        ]


def test_histograms_have_every_element_and_the_moments_of_the_trial(
    run: Path, tmp_path: Path
) -> None:
    export_tensorboard(run, tmp_path / "tb")
    trial = create_trial(run)
    board = KeyValueStore(tmp_path / "tb" / "TRAIN")
    assert board.histogram_tags == {"weights/fc.weight", "biases/fc.bias"}
    for tag in board.histogram_tags:
        tensor = trial.tensor(tag.partition("/")[2])
        found = board.histograms(tag)
        assert list(found) == list(range(9))
        for step, histogram in found.items():
            stats = tensor.stats(step)
            assert sum(histogram.bucket) == histogram.num == stats.count
            assert (histogram.min, histogram.max) == (stats.min, stats.max)
            assert histogram.sum == pytest.approx(stats.mean * stats.count)
            assert histogram.sum_squares == pytest.approx(stats.l2**2)
    # That of the bias was counted from its value.
    values = trial.tensor("fc.bias").value(0)
    first = board.histograms("biases/fc.bias")[0]
    below = [np.count_nonzero(values < limit) for limit in first.bucket_limit]
    assert np.cumsum(first.bucket).tolist() == below


@pytest.mark.parametrize(
    "values",
    [
        draw(5000),
        draw(300) * 1e-30,
        np.abs(draw(300)),
        -np.abs(draw(300)) * 1e30,
        np.maximum(draw(300), 0),
        np.zeros(7, np.float32),
        np.float32([-1e-44, 0.0, -0.0, 1e-40, 2.0]),
        np.float32([np.nan, np.inf, -np.inf, 3.0, -3e38, 3.4e38]),
        np.arange(-5, 200, dtype=np.int16),
        draw(300).astype(ml_dtypes.bfloat16),
    ],
)
def test_buckets_hold_each_finite_element_once_where_it_is(values: Any) -> None:
    limits, counts = buckets(Histogram.of(values))
    numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    assert np.all(np.diff(limits) > 0)
    assert np.all(counts == np.round(counts))
    assert counts.sum() == len(numbers)
    assert numbers.max() <= limits[-1]
    lefts = np.concatenate(([-np.inf], limits[:-1]))
    for left, right, count in zip(lefts, limits, counts, strict=True):
        # Bins are closed at the end that is nearer to zero.
        inside = (numbers > left) & (numbers < right)
        inside |= (numbers == left) & (left > 0)
        inside |= (numbers == right) & (right < 0)
        assert count == np.count_nonzero(inside)


def test_there_are_no_more_buckets_than_tensorboard_makes_itself() -> None:
    _, counts = buckets(Histogram.of(draw(100_000)))
    assert len(counts) < 400
    limits, _ = buckets(Histogram.of(np.abs(draw(100_000)) + 1.0))
    assert np.all(limits[1:] / limits[:-1] <= 1.125)


def test_of_no_finite_element_there_is_no_histogram_and_numbers_are_as_they_are(
    run_dir: Path,
) -> None:
    with RunBuilder(run_dir) as run:
        for step, value in enumerate([np.nan, np.inf, 1.0]):
            run.save(step, "w", np.full(3, value, np.float32))
            run.save(step, "loss_output_0", np.array(value), role=Role.LOSS)
            run.save(step, "spectrum", np.ones(2, np.complex64), what="values")
            run.save(step, "big", np.array([2**62, -(2**62)]))
            run.end_step(step)
    report = export_tensorboard(run_dir)
    assert report.unreadable == 0
    board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    losses = board.scalars("loss_output_0")
    assert np.isnan(losses[0])
    assert (losses[1], losses[2]) == (np.inf, 1.0)
    assert board.histogram_tags == {"weights/w", "weights/big"}
    assert list(board.histograms("weights/w")) == [2]
    assert board.histograms("weights/big")[0].min == -(2.0**62)


def test_a_second_export_changes_nothing_and_one_of_more_steps_adds_at_the_end(
    run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tb"
    with RunBuilder(run_dir) as builder:
        for step in range(3):
            add_step(builder, step)
        builder.flush()
        assert not export_tensorboard(run_dir, out).complete
        first = files(out)
        export_tensorboard(run_dir, out)
        assert files(out) == first
        add_step(builder, 3)
    export_tensorboard(run_dir, out)
    (name,) = first
    (content,) = files(out).values()
    assert files(out).keys() == first.keys()
    assert content.startswith(first[name])
    assert list(KeyValueStore(out / "TRAIN").scalars("loss_output_0")) == [0, 1, 2, 3]


def test_what_is_selected_is_exported_and_replaces_the_earlier_export(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tb"
    export_tensorboard(run, out, statistics=["max"])
    export_tensorboard(run, out, regex="fc", histograms="stored", steps="mode")
    board = KeyValueStore(out / "EVAL")
    assert board.scalar_tags == set()
    assert board.histogram_tags == {"weights/fc.weight"}
    assert list(board.histograms("weights/fc.weight")) == [0, 1, 2]
    export_tensorboard(run, out, collection="losses", histograms="none")
    board = KeyValueStore(out / "TRAIN")
    assert (board.scalar_tags, board.histogram_tags) == ({"loss_output_0"}, set())


def test_a_mode_that_a_resumed_training_no_longer_has_goes(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tb"
    export_tensorboard(run, out)
    (out / "EVAL" / "events.out.tfevents.1.host").write_bytes(b"of somebody else")
    with RunBuilder(run, attempt=new_attempt(), ordinal=1) as builder:
        for step in range(3):
            add_step(builder, step)
    export_tensorboard(run, out)
    assert [name.partition("/")[0] for name in sorted(files(out))] == ["EVAL", "TRAIN"]
    assert (out / "EVAL" / "events.out.tfevents.1.host").exists()
    assert list(KeyValueStore(out / "TRAIN").scalars("scalar/lr")) == [0, 1, 2]


def test_steps_are_exported_when_all_workers_have_them(run_dir: Path) -> None:
    workers = [RunBuilder(run_dir, rank=rank, world_size=2) for rank in range(2)]
    for rank, worker in enumerate(workers):
        for step in range(3 - rank):
            add_step(worker, step)
        worker.flush()
    assert export_tensorboard(run_dir).last_step == 1
    for worker in workers:
        worker.close()
    assert export_tensorboard(run_dir).last_step == 2
    board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    loss = create_trial(run_dir).tensor("loss_output_0")
    assert board.scalars("loss_output_0")[1] == np.float32(loss.stats(1).mean)


def test_following_writes_what_is_new_until_the_end(
    run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tb"
    builder = RunBuilder(run_dir)
    add_step(builder, 0)
    builder.flush()
    following = follow_tensorboard(run_dir, out, interval=0.01, statistics=["std"])
    assert next(following).steps == 1
    before = files(out)
    add_step(builder, 1)
    add_step(builder, 2, ModeKeys.EVAL)
    builder.flush()
    assert next(following).steps == 3
    assert list(KeyValueStore(out / "TRAIN").scalars("weights/fc.weight/std")) == [0, 1]
    add_step(builder, 3)
    builder.close()
    last = list(following)[-1]
    assert last.complete
    assert last.steps == 4
    assert list(KeyValueStore(out / "EVAL").scalars("loss_output_0")) == [2]
    followed = files(out)
    assert followed["TRAIN/" + Path(last.files["TRAIN"]).name].startswith(
        before["TRAIN/" + Path(last.files["TRAIN"]).name]
    )
    # It is what one export of the whole makes.
    export_tensorboard(run_dir, out, statistics=["std"])
    assert files(out) == followed


def test_following_begins_anew_when_the_training_is_resumed(run_dir: Path) -> None:
    builder = RunBuilder(run_dir)
    for step in range(4):
        add_step(builder, step)
    builder.flush()
    following = follow_tensorboard(run_dir, interval=0.01)
    assert next(following).steps == 4
    builder.close()
    with RunBuilder(run_dir, attempt=new_attempt(), ordinal=1) as again:
        for step in range(2, 5):
            add_step(again, step)
    last = list(following)[-1]
    assert (last.steps, last.last_step) == (5, 4)
    followed = files(run_dir / "tensorboard")
    export_tensorboard(run_dir)
    assert files(run_dir / "tensorboard") == followed
    assert list(
        KeyValueStore(run_dir / "tensorboard" / "TRAIN").scalars("scalar/lr")
    ) == [*range(5)]


def test_time_ends_an_export_between_two_steps(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = export_tensorboard(run, timeout=0.0)
    assert (report.steps, report.complete) == (1, False)
    assert list(KeyValueStore(run / "tensorboard" / "TRAIN").scalars("scalar/lr")) == [
        0
    ]
    export_tensorboard(run, progress=lambda *it: seen.append(it))
    assert seen == [(12, 12)]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"statistics": ["l3"]}, "statistics: unknown 'l3'"),
        ({"statistics": "median"}, "statistics: unknown 'median'; did you mean 'mean'"),
        ({"statistics": 3}, "statistics must be a list of names"),
        ({"histograms": "some"}, "histograms: unknown 'some'"),
        ({"steps": "globl"}, "did you mean 'global'"),
        ({"regex": ["("]}, r"regex: '\(' is not a regular expression"),
    ],
)
def test_a_selection_that_can_never_work_is_refused_before_anything_is_made(
    run: Path, tmp_path: Path, selection: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        export_tensorboard(run, tmp_path / "tb", **selection)
    with pytest.raises(QueryError, match="did you mean 'losses'"):
        export_tensorboard(run, tmp_path / "tb", collection="loses")
    assert not (tmp_path / "tb").exists()


def test_neither_a_framework_nor_tensorflow_is_imported(run: Path) -> None:
    code = (
        "import sys, json; sys.modules['tensorflow'] = None\n"
        "import tdbg.export\n"
        "early = 'tensorboard' in sys.modules\n"
        f"tdbg.export.export_tensorboard({str(run)!r})\n"
        "heavy = {'torch', 'tensorboard.summary', 'grpc'} & set(sys.modules)\n"
        "print(json.dumps([early, sorted(heavy)]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == [False, []]
