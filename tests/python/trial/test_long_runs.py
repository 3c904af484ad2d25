"""Long runs: what a reader holds does not grow with them, and its answers stay."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.rules import Engine
from tdbg.run.directory import create_run
from tdbg.trial import Trial, create_trial, steps, table_queries
from tdbg.trial import trial as trial_module

# Shards are sealed at so many bytes: one has about 400 steps of these.
SHARD_BYTES = 256 << 10


def write(run: RunBuilder, start: int, stop: int) -> None:
    """Steps of two rows and a scalar; every tenth is an evaluation."""
    for step in range(start, stop):
        for name in ("fc.weight", "gradient/fc.weight"):
            run.save(step, name, np.full(2, step, np.float32), what="statistics")
        run.scalar(step, "scalar/loss", 1 / (step + 1))
        mode = ModeKeys.EVAL if step % 10 == 9 else ModeKeys.TRAIN
        run.end_step(step, mode, duration_ns=10**7 + step % 7)
    run.flush()


def held(trial: Trial) -> int:
    """Bytes of all tables that the trial holds."""
    run = trial._run
    readers = sum(source.writer.reader.n_held for source in run.sources)
    return readers + run.table.nbytes


@pytest.fixture
def writing(run_dir: Path) -> Iterator[RunBuilder]:
    with RunBuilder(run_dir, shard_bytes=SHARD_BYTES) as run:
        write(run, 0, 1)
        yield run


def check(trial: Trial, n: int) -> None:
    """Every answer about *n* steps that ``write`` wrote."""
    numbers = np.arange(n)
    table = trial.step_table()
    assert np.array_equal(table["step"], numbers)
    assert np.array_equal(table["duration_ns"], 10**7 + numbers % 7)
    assert table["settled"].all()
    assert table["lossless"].all()
    assert np.array_equal(table["mode"] == ModeKeys.EVAL.value, numbers % 10 == 9)
    rows = trial.statistics(["gradient/fc.weight"])
    assert np.array_equal(rows.mean[0], numbers)
    weight, loss = trial.tensor("fc.weight"), trial.tensor("scalar/loss")
    assert weight.reduction_value(n // 2, "max", ModeKeys.GLOBAL) == n // 2
    training = np.flatnonzero(numbers % 10 != 9)  # By training step, its global one.
    middle = len(training) // 2
    assert weight.reduction_value(middle, "max") == training[middle]
    assert loss.steps(ModeKeys.GLOBAL) == numbers.tolist()
    assert loss.steps() == list(range(len(training)))
    assert np.array_equal(table["training_step"], numbers - numbers // 10)
    assert weight.steps(what="values") == []
    assert trial.scalars()["scalar/loss"].values.tolist() == [
        1 / (i + 1) for i in numbers
    ]
    assert trial.mode_modestep(n // 10 * 10 - 1) == (ModeKeys.EVAL, n // 10 - 1)
    assert trial.problems() == []
    assert trial.lost_records().in_order


@pytest.mark.parametrize("how", ["trial", "engine"])
def test_a_follower_holds_less_than_100_bytes_of_each_step(
    writing: RunBuilder, run_dir: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail when shards keep their tables, or records of steps are held."""
    options = {"cached_bytes": 1 << 19}
    monkeypatch.setattr(trial_module, "reader_options", lambda *_: options)
    trial = create_trial(run_dir)
    engine = Engine(trial, record=False)
    sizes = []
    edges = list(range(1, 30_001, 2000))
    for start, stop in pairwise(edges):
        write(writing, start, stop)
        while trial.last_complete_step < stop - 1:
            trial.refresh()
        last = stop - 1
        n_evaluated = last // 10
        if how == "engine":
            engine.poll()
            assert engine.report().last_global_step == last
            assert engine.report().last_step == last - n_evaluated
        else:
            weight = trial.tensor("fc.weight")
            assert weight.reduction_value(last - n_evaluated, "max") == last
            assert weight.reduction_value(last, "max", ModeKeys.GLOBAL) == last
        sizes.append(held(trial))
    # Beyond what the shard holds that grows, whose end is anywhere.
    half = len(sizes) // 2
    grown = max(sizes[half:]) - max(sizes[:half])
    assert grown < 100 * (edges[-1] - edges[half])


def test_answers_stay_when_a_live_reader_lets_go_of_tables(
    writing: RunBuilder, run_dir: Path
) -> None:
    trial = create_trial(run_dir)
    for start, stop in pairwise(range(1, 5001, 500)):
        write(writing, start, stop)
        trial.refresh()
        check(trial, stop)
    (source,) = trial._run.sources
    assert len(list(source.writer.directory.path.glob("*.tdi"))) >= 5
    writing.close()
    check(trial, 4501)
    check(create_trial(run_dir), 4501)


def test_an_index_that_is_gone_or_damaged_under_a_live_reader_changes_no_answer(
    writing: RunBuilder, run_dir: Path
) -> None:
    trial = create_trial(run_dir)
    write(writing, 1, 3000)
    trial.refresh()
    check(trial, 3000)
    indexes = sorted(writing.directory.glob("*.tdi"))
    assert len(indexes) >= 4
    indexes[0].unlink()
    content = bytearray(indexes[1].read_bytes())
    for at in range(len(content) // 8, len(content), len(content) // 8):
        content[at] ^= 255
    indexes[1].write_bytes(content)
    write(writing, 3000, 3100)
    trial.refresh()
    check(trial, 3100)


@pytest.fixture
def finished(run_dir: Path) -> Path:
    """Two ranks, of which one was started again and repeats steps."""
    create_run(run_dir)
    for rank, start, stop in ((0, 0, 900), (1, 0, 500), (1, 450, 900)):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            for step in range(start, stop):
                value = np.full(2, 1000 * rank + step, np.float32)
                run.save(step, "out_output_0", value, what="statistics")
                if step % 3 == 0:
                    run.save(step, "fc.weight", value)
                run.end_step(step, mode_step=step)
    return run_dir


def table_of(run: Path) -> NDArray[np.void]:
    return create_trial(run).step_table()


def test_a_table_that_is_put_together_in_parts_is_the_same(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = table_of(finished)
    assert whole["step"].tolist() == list(range(900))
    assert (whole["workers"] == 2).all()
    assert whole["complete"].all()
    monkeypatch.setattr(steps, "PART_RECORDS", 50)
    monkeypatch.setattr(steps, "PART_STEPS", 7)
    assert np.array_equal(table_of(finished), whole)


def test_statistics_in_parts_are_the_statistics(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_queries, "PART_ENTRIES", 100)
    monkeypatch.setattr(table_queries, "LEAST_STEPS", 10)
    trial = create_trial(finished)
    whole = trial.statistics()
    parts = list(trial.statistics_in_parts())
    assert len(parts) == 18
    assert all(part.names == whole.names for part in parts)
    assert np.array_equal(np.concatenate([p.steps for p in parts]), whole.steps)
    for name in ("present", "count", "mean", "m2", "min", "max"):
        joined = np.concatenate([getattr(part, name) for part in parts], axis=1)
        assert np.array_equal(joined, getattr(whole, name), equal_nan=True)


@pytest.mark.parametrize("mode", list(ModeKeys))
def test_an_overview_is_what_each_tensor_says_of_itself(
    finished: Path, mode: ModeKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunBuilder(finished, rank=0, ordinal=1, attempt=b"attempt-number-1") as run:
        for step in range(800, 860):
            mode_step = 2000 - step if step % 2 else None
            run.save(step, "late", np.ones(1 + step % 3), role=Role.OUTPUT)
            run.scalar(step, "scalar/x", step)
            run.end_step(step, ModeKeys.EVAL if step % 2 else ModeKeys.TRAIN, mode_step)
    monkeypatch.setattr("tdbg.trial.overview.MOST_STEPS", 100)
    trial = create_trial(finished)
    names = trial.tensor_names(mode=mode)
    assert names or mode in (ModeKeys.PREDICT, ModeKeys.GLOBAL)
    found = trial.overview(names, mode)
    assert [each.what.name for each in found] == names
    for each in found:
        tensor = trial.tensor(each.what.name)
        saved = tensor.steps(mode)
        assert each.n_statistics == len(tensor.steps(mode, "statistics"))
        assert each.n_values == len(tensor.steps(mode, "values"))
        assert (each.first_step, each.last_step) == (saved[0], saved[-1])
        assert (each.what.role, each.what.dtype) == (tensor.role, tensor.dtype)
        if each.what.name == "late":
            assert each.what.shape is None
        elif each.what.shape is not None:
            assert each.what.shape == tensor.shape(saved[-1], mode)
    assert trial.count_steps(mode) == len(trial.steps(mode, "any"))


def test_a_rank_that_is_far_behind_is_named_once_and_not_waited_for(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        RunBuilder(run_dir, world_size=2) as ahead,
        RunBuilder(run_dir, rank=1, world_size=2) as behind,
    ):
        behind.step(0, {"w": np.ones(2)})
        behind.flush()
        write(ahead, 0, 1000)
        trial = create_trial(run_dir)
        assert trial.last_complete_step == 0
        write(ahead, 1000, 1001)
        assert trial.last_complete_step == 1000
        assert not trial.step_table()["complete"][1:].any()
        write(ahead, 1001, 1100)
        assert trial.last_complete_step == 1099
    assert caplog.text.count("worker_1 has not advanced since step 0") == 1


def test_a_run_may_have_more_writers_than_a_process_has_descriptors(
    run_dir: Path,
) -> None:
    """Seen to fail when each reader keeps its directory and its shard open."""
    n = 300
    for rank in range(n):
        with RunBuilder(run_dir, rank=rank, world_size=n) as run:
            run.step(0, {"out_output_0": np.full(2, rank, np.float32)})
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 450, limits[1]))
    try:
        trial = create_trial(run_dir)
        assert trial.problems() == []
        assert len(trial.workers()) == n
        tensor = trial.tensor("out_output_0")
        assert tensor.stats(0).count == 2 * n
        assert [tensor.value(0, worker=f"worker_{r}")[0] for r in (0, 150, 299)] == [
            0,
            150,
            299,
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
