"""Envelopes: every row is in its column, whatever the number of columns."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.errors import ConfigurationError, InvalidWorker, TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.trial import ENVELOPE_FIELDS, Envelope, Trial, create_trial

NAMES = ("a", "b", "c")


def rows_of(trial: Trial, name: str) -> dict[str, NDArray[Any]]:
    """The fields of an envelope of each row, from the statistics of the steps."""
    table = trial.statistics([name])
    at = table.present[0]
    n = np.maximum(table.finite[0, at], 1)
    return {
        "l2": table.l2[0, at],
        "rms": table.l2[0, at] / np.sqrt(n),
        "mean": table.mean[0, at],
        "std": np.sqrt(table.m2[0, at] / n),
        "abs_max": np.maximum(np.abs(table.min[0, at]), np.abs(table.max[0, at])),
        "zero_share": table.zero[0, at] / table.count[0, at],
        "finite": table.finite[0, at],
        "count": table.count[0, at],
        "step": table.steps[at],
    }


def assert_covers(trial: Trial, envelope: Envelope) -> None:
    """*envelope* says what the statistics of single steps say."""
    for i, name in enumerate(envelope.names):
        every = rows_of(trial, name)
        steps = every["step"]
        bad_steps = [-1]
        for j in range(len(envelope.edges) - 1):
            inside = (envelope.edges[j] <= steps) & (steps < envelope.edges[j + 1])
            rows = {field: values[inside] for field, values in every.items()}
            assert envelope.rows[i, j] == len(rows["step"])
            is_bad = rows["finite"] != rows["count"]
            assert envelope.bad[i, j] == is_bad.sum()
            bad_steps += rows["step"][is_bad].tolist()
            valued = rows["finite"] > 0
            for field in envelope.low:
                values = rows[field][valued].astype(np.float32)
                if not len(values):
                    assert np.isnan(envelope.low[field][i, j])
                    assert np.isnan(envelope.high[field][i, j])
                    assert np.isnan(envelope.mean[field][i, j])
                    continue
                assert envelope.low[field][i, j] == values.min()
                assert envelope.high[field][i, j] == values.max()
                mean = rows[field][valued].mean()
                # Cells hold sums and means of float32.
                off = 1e-6 * float(np.abs(values).max())
                assert envelope.mean[field][i, j] == pytest.approx(mean, abs=off)
        assert envelope.first_bad[i] == (bad_steps[1] if len(bad_steps) > 1 else -1)


def write_run(path: Path, n_steps: int = 200, every: int = 1, **options: Any) -> None:
    """Three tensors; "a" spikes at 37, "b" has a NaN at 150 and no finite one at 70."""
    random = np.random.default_rng(1)
    with RunBuilder(path, **options) as run:
        for i in range(n_steps):
            step = i * every
            for name in NAMES:
                values = random.normal(size=8).astype(np.float32)
                if (name, i) == ("a", 37):
                    values *= 1000
                if (name, i) == ("b", 150):
                    values[3] = np.nan
                if (name, i) == ("b", 70):
                    values[:] = np.inf
                if name == "c":
                    values[: i % 8] = 0
                    if i % 3:
                        continue
                run.save(step, name, values, what="statistics")
            run.end_step(step)


@pytest.mark.parametrize("columns", [1, 2, 7, 64, 199, 200, 1000])
def test_an_envelope_says_what_the_rows_say(run_dir: Path, columns: int) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)
    envelope = trial.envelope(columns=columns, fields=ENVELOPE_FIELDS)
    assert envelope.names == list(NAMES)
    assert len(envelope.edges) - 1 <= columns
    assert envelope.edges[0] == 0
    assert envelope.edges[-1] == 200
    assert (np.diff(envelope.edges) > 0).all()
    assert_covers(trial, envelope)
    assert envelope.first_bad.tolist() == [-1, 70, -1]
    assert envelope.bad.sum(axis=1).tolist() == [0, 2, 0]


def test_a_spike_and_a_nan_are_in_every_range_that_holds_their_steps(
    run_dir: Path,
) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)
    for columns in (1, 3, 10, 50):
        for start, stop in ((0, 200), (30, 160), (37, 151), (20, 500)):
            found = trial.envelope(["a", "b"], start=start, stop=stop, columns=columns)
            assert np.nanmax(found.high["l2"][0]) > 500
            assert found.bad[1].sum() == 2
            assert found.edges[0] == start
            assert found.edges[-1] == stop


def test_the_inner_bounds_stay_where_they_are_when_a_run_grows(run_dir: Path) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)
    short = trial.envelope(["a"], stop=150, columns=20)
    longer = trial.envelope(["a"], stop=155, columns=20)
    np.testing.assert_array_equal(
        short.edges[:-1], longer.edges[: len(short.edges) - 1]
    )


def test_columns_are_single_steps_where_there_are_enough(run_dir: Path) -> None:
    write_run(run_dir)
    envelope = create_trial(run_dir).envelope(["a"], start=30, stop=40, columns=50)
    assert envelope.edges.tolist() == list(range(30, 41))
    np.testing.assert_array_equal(envelope.low["l2"], envelope.high["l2"])


def test_a_tensor_answers_for_itself(run_dir: Path) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)
    whole = trial.envelope(columns=9)
    alone = trial.tensor("b").envelope(columns=9)
    assert alone.names == ["b"]
    np.testing.assert_array_equal(alone.low["l2"][0], whole.low["l2"][1])


def test_only_steps_of_the_mode_count(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        for step in range(100):
            mode = ModeKeys.EVAL if step % 10 == 9 else ModeKeys.TRAIN
            run.step(step, {"a": np.full(4, step, np.float32)}, mode, what="statistics")
    trial = create_trial(run_dir)
    found = trial.envelope(mode="EVAL", columns=2, fields="abs_max")
    assert found.rows.sum() == 10
    assert found.low["abs_max"][0, 0] == 9
    assert found.high["abs_max"][0, -1] == 99
    assert trial.envelope(mode="TRAIN", columns=2).rows.sum() == 90


def test_steps_that_were_not_ended_are_left_out(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.step(0, {"a": np.ones(4, np.float32)}, what="statistics")
        run.save(1, "a", np.full(4, np.nan, np.float32), what="statistics")
    trial = create_trial(run_dir)
    found = trial.envelope(["a"], start=0, stop=2)
    assert found.rows.tolist() == [[1, 0]]
    assert found.first_bad.tolist() == [-1]


def test_rows_of_workers_and_calls_give_their_extremes(run_dir: Path) -> None:
    for rank in range(2):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            for call in range(2):
                values = np.full(4, 10 * rank + call, np.float32)
                run.save(0, "n_output_0", values, what="statistics", call=call)
            run.end_step(0)
    found = create_trial(run_dir).envelope(fields=("mean",))
    assert found.n_workers == 2
    assert found.rows.tolist() == [[4]]
    assert found.low["mean"].tolist() == [[0]]
    assert found.high["mean"].tolist() == [[11]]
    assert found.mean["mean"].tolist() == [[5.5]]


def test_a_later_attempt_replaces_what_it_repeats(run_dir: Path) -> None:
    for ordinal, (first, value) in enumerate([(0, 1.0), (5, 2.0)]):
        attempt = bytes([ordinal]) * 16
        with RunBuilder(run_dir, attempt=attempt, ordinal=ordinal) as run:
            for step in range(first, 10):
                run.step(step, {"a": np.full(4, value)}, what="statistics")
    found = create_trial(run_dir).envelope(columns=1, fields=("mean",))
    assert found.rows.tolist() == [[10]]
    assert found.mean["mean"].tolist() == [[1.5]]


def test_extremes_of_integers_and_of_large_numbers(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.save(0, "i", np.array([-7, 3]), role=Role.OUTPUT, what="statistics")
        run.save(0, "u", np.array([2**63], np.uint64), what="statistics")
        run.save(0, "x", np.array([1e200, 0.0]), what="statistics")
        run.end_step(0)
    found = create_trial(run_dir).envelope(fields=ENVELOPE_FIELDS)
    assert found.names == ["i", "u", "x"]
    largest = np.finfo(np.float32).max
    assert found.high["abs_max"][:, 0].tolist() == [7, 2**63, largest]
    assert found.high["l2"][2, 0] == largest
    assert found.bad.sum() == 0


def test_parts_of_a_run_with_cells_and_without_say_the_same(run_dir: Path) -> None:
    """Shards as they are, without their indexes, and one that still grows."""
    with RunBuilder(run_dir, shard_bytes=1 << 16) as run:
        random = np.random.default_rng(2)
        for step in range(500):
            for name in NAMES:
                values = random.normal(size=4).astype(np.float32)
                if step in (130, 499):
                    values[0] = np.nan
                run.save(step, name, values, what="statistics")
            run.end_step(step, ModeKeys.EVAL if step % 7 == 6 else ModeKeys.TRAIN)
        run.capture.flush()
        trial = create_trial(run_dir)
        indexes = sorted(run_dir.rglob("*.tdi"))
        assert len(indexes) >= 2
        for mode, start in ((None, 0), ("TRAIN", 0), ("EVAL", 100)):
            options: dict[str, Any] = {"mode": mode, "start": start, "stop": 500}
            asked = [(c, quick) for c in (1, 8, 100, 500) for quick in (False, True)]
            before = [
                trial.envelope(NAMES, columns=columns, quick=quick, **options)
                for columns, quick in asked
            ]
            if mode is None:
                for envelope in before:
                    assert_covers(trial, envelope)
            hidden = [path.read_bytes() for path in indexes]
            for path in indexes:
                path.unlink()
            again = create_trial(run_dir)
            for envelope, (columns, quick) in zip(before, asked, strict=True):
                other = again.envelope(NAMES, columns=columns, quick=quick, **options)
                np.testing.assert_array_equal(other.edges, envelope.edges)
                np.testing.assert_array_equal(other.low["l2"], envelope.low["l2"])
                np.testing.assert_array_equal(other.high["l2"], envelope.high["l2"])
                np.testing.assert_array_equal(other.rows, envelope.rows)
                np.testing.assert_array_equal(other.bad, envelope.bad)
                np.testing.assert_array_equal(other.first_bad, envelope.first_bad)
            for path, content in zip(indexes, hidden, strict=True):
                path.write_bytes(content)


def test_quick_columns_are_made_of_whole_buckets(run_dir: Path) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)
    quick = trial.envelope(NAMES, columns=1000, quick=True, fields=ENVELOPE_FIELDS)
    assert quick.edges.tolist() == [0, 64, 128, 192, 200]
    assert_covers(trial, quick)


def test_buckets_are_wider_where_few_steps_are_recorded(run_dir: Path) -> None:
    write_run(run_dir, n_steps=200, every=100)
    trial = create_trial(run_dir)
    quick = trial.envelope(NAMES, quick=True)
    assert quick.edges.tolist() == [0, 8192, 16384, 19901]
    assert_covers(trial, quick)


def test_a_later_attempt_may_cut_the_buckets_of_an_earlier_one(run_dir: Path) -> None:
    for ordinal, (first, stop, value) in enumerate([(0, 130, 1.0), (100, 200, 2.0)]):
        attempt = bytes([ordinal]) * 16
        with RunBuilder(run_dir, attempt=attempt, ordinal=ordinal) as run:
            for step in range(first, stop):
                run.step(step, {"a": np.full(4, value)}, what="statistics")
    trial = create_trial(run_dir)
    found = trial.envelope(["a"], quick=True, fields=("mean",))
    assert found.edges.tolist() == [0, 64, 128, 192, 200]
    assert found.rows.tolist() == [[64, 64, 64, 8]]
    assert found.low["mean"].tolist() == [[1, 1, 2, 2]]
    assert found.high["mean"].tolist() == [[1, 2, 2, 2]]
    alone = create_trial(run_dir, attempt=0).envelope(["a"], quick=True)
    assert alone.rows.tolist() == [[64, 64, 2]]


def test_who_asks_may_end_a_question_between_its_parts(run_dir: Path) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)

    def give_up() -> None:
        msg = "the page was closed"
        raise InterruptedError(msg)

    with pytest.raises(InterruptedError, match="the page was closed"):
        trial.envelope(check=give_up)
    assert trial.envelope(["a"], columns=1, check=lambda: None).rows.tolist() == [[200]]


def test_other_threads_are_answered_while_an_envelope_is_read(run_dir: Path) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)
    answers: list[int] = []

    def ask_elsewhere() -> None:
        thread = threading.Thread(target=lambda: answers.append(len(trial.steps())))
        thread.start()
        thread.join(60)

    trial.envelope(["a"], check=ask_elsewhere)
    assert answers
    assert set(answers) == {200}


def test_what_cannot_be_asked_is_refused(run_dir: Path) -> None:
    write_run(run_dir, 10)
    trial = create_trial(run_dir)
    with pytest.raises(ConfigurationError, match="at least one column, got columns=0"):
        trial.envelope(columns=0)
    with pytest.raises(ConfigurationError, match="no field 'median': use one of l2"):
        trial.envelope(fields=("median",))
    with pytest.raises(TensorUnavailable, match="no tensor 'd'"):
        trial.envelope(["d"])


def test_a_run_without_steps_has_no_columns(run_dir: Path) -> None:
    with RunBuilder(run_dir):
        pass
    found = create_trial(run_dir).envelope()
    assert found.names == []
    assert found.rows.shape == (0, 0)
    assert found.edges.tolist() == [0]


def test_columns_between_edges_of_the_caller_hold_what_lies_in_them(
    run_dir: Path,
) -> None:
    write_run(run_dir)
    trial = create_trial(run_dir)
    found = trial.envelope(edges=[-5, 0, 0, 30, 38, 150, 151, 900])
    assert found.edges.tolist() == [-5, 0, 0, 30, 38, 150, 151, 900]
    assert_covers(trial, found)
    assert found.rows[0].tolist() == [0, 0, 30, 8, 112, 1, 49]


@pytest.mark.parametrize("edges", [[], [3, 2], [0.5, 1.0], [[0, 1]], 3])
def test_edges_that_bound_no_columns_are_refused(run_dir: Path, edges: Any) -> None:
    write_run(run_dir, n_steps=2)
    with pytest.raises(ConfigurationError, match="edges must"):
        create_trial(run_dir).envelope(edges=edges)


def test_each_worker_has_an_envelope_of_its_own(run_dir: Path) -> None:
    for rank in (2, 0, 1):
        with RunBuilder(run_dir, rank=rank, world_size=3) as run:
            for step in range(200):
                value = np.array([rank + (step == 70), np.nan][: 1 + (rank == step)])
                run.step(step, {"w": value.astype(np.float32)}, what="statistics")
    trial = create_trial(run_dir)
    found = trial.worker_envelope("w", fields="mean", columns=50)
    assert found.names == trial.workers() == ["worker_0", "worker_1", "worker_2"]
    assert found.rows.sum(axis=1).tolist() == [200, 200, 200]
    assert found.low["mean"].min(axis=1).tolist() == [0.0, 1.0, 2.0]
    assert found.high["mean"].max(axis=1).tolist() == [1.0, 2.0, 3.0]
    assert found.first_bad.tolist() == [0, 1, 2]
    # Columns are those of the envelope of all.
    whole = trial.envelope(["w"], fields="mean", columns=50)
    assert found.edges.tolist() == whole.edges.tolist()
    assert (found.low["mean"].min(axis=0) == whole.low["mean"][0]).all()
    with pytest.raises(TensorUnavailable, match="x"):
        trial.worker_envelope("x")
    with pytest.raises(ConfigurationError, match="columns=0"):
        trial.worker_envelope("w", columns=0)


def test_an_envelope_of_one_worker_has_its_rows_alone(run_dir: Path) -> None:
    for rank in (0, 1):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            for step in range(100):
                value = np.full(2, rank + 1, np.float32)
                run.step(step, {"w": value, "v": value}, what="statistics")
    trial = create_trial(run_dir)
    names = ["v", "w"]
    for rank in (0, 1):
        found = trial.envelope(names, fields="mean", worker=f"worker_{rank}")
        assert found.rows.sum(axis=1).tolist() == [100, 100]
        assert (found.low["mean"] == rank + 1).all()
        assert (found.high["mean"] == rank + 1).all()
        assert found.n_workers == 1
    assert trial.envelope(names).rows.sum(axis=1).tolist() == [200, 200]
    with pytest.raises(InvalidWorker, match="worker_2"):
        trial.envelope(names, worker="worker_2")


def test_how_long_steps_took_is_told_of_each_worker(run_dir: Path) -> None:
    for rank in (1, 0):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            for step in range(100):
                mode = ModeKeys.EVAL if step >= 90 else ModeKeys.TRAIN
                # Who nobody timed, has no duration.
                timed = step > 0
                took = (2_000_000_000 if rank == step == 1 else 1_000_000) * timed
                run.end_step(step, mode, duration_ns=took)
    trial = create_trial(run_dir)
    found = trial.worker_durations(columns=10)
    assert found.names == ["worker_0", "worker_1"]
    assert found.rows.sum(axis=1).tolist() == [99, 99]
    assert found.high["seconds"][:, 0].tolist() == [np.float32(0.001), 2.0]
    assert found.low["seconds"][1, 0] == np.float32(0.001)
    assert found.mean["seconds"][1, 0] == pytest.approx((2 + 8 * 0.001) / 9)
    assert found.bad.sum() == 0
    training = trial.worker_durations(mode="train", start=80, stop=100, columns=20)
    assert training.rows.sum(axis=1).tolist() == [10, 10]
    assert np.isnan(training.mean["seconds"][:, 10:]).all()
    with pytest.raises(ConfigurationError, match="columns=0"):
        trial.worker_durations(columns=0)


def test_the_steps_of_a_tensor_are_those_of_the_worker_that_is_asked_for(
    run_dir: Path,
) -> None:
    for rank in (0, 1):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            for step in range(4):
                if step % 2 == rank:
                    run.save(step, "w", np.ones(2, np.float32))
                run.end_step(step)
    tensor = create_trial(run_dir).tensor("w")
    assert tensor.steps() == [0, 1, 2, 3]
    assert tensor.steps(worker="worker_1") == [1, 3]
    assert tensor.steps(what="values", worker="worker_0") == [0, 2]
    with pytest.raises(InvalidWorker, match="worker_9"):
        tensor.steps(worker="worker_9")
