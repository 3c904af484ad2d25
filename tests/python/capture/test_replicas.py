"""Each replica that a process runs is a worker of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tdbg.capture.adapter import FrameworkAdapter, TensorRef, array_ref
from tdbg.capture.opening import SessionSpec, open_session
from tdbg.capture.policy import Policy
from tdbg.capture.session import Session
from tdbg.config import CollectionRegistry, Role, SaveConfig
from tdbg.config.options import SessionOptions
from tdbg.modes import ModeKeys
from tdbg.trial import Trial, create_trial

TRAIN = ModeKeys.TRAIN
ROOT, OPTIMIZER = "root", "optimizer"
Open = Callable[..., Session]


class Arrays(FrameworkAdapter):
    """A framework whose tensors are arrays."""

    def describe(self, tensor: object) -> TensorRef | None:
        return array_ref(tensor)


@pytest.fixture
def open_(run_dir: Path) -> Open:
    """Opens a session that captures outputs and losses at every step."""

    def opened(interval: int = 1, **options: object) -> Session:
        registry = CollectionRegistry()
        for name in ("outputs", "losses", "weights"):
            registry.include(name)
        schedule = SaveConfig(save_interval=interval, statistics_interval=interval)
        policy = Policy(registry, schedule)
        spec = SessionSpec(run_dir, policy, SessionOptions(**options))  # type: ignore[arg-type]
        session = open_session(spec, Arrays())
        session.optimizer_found(OPTIMIZER, defines_step=True)
        return session

    return opened


def step(session: Session, *of_replicas: NDArray[np.float32]) -> None:
    """A step in which each replica shows an output."""
    context = session.run(session.forward_begins, ROOT, TRAIN)
    assert context is not None
    entry = session.entry("layer_output_0", Role.OUTPUT)
    flags = context.step_plan.of_entry(entry)
    for replica, array in enumerate(of_replicas if flags else ()):
        session.run(
            session.replicas.take, replica, context, (entry,), (array,), (flags,)
        )
    session.run(session.forward_ends)
    session.run(session.optimizer_begins, OPTIMIZER, lambda: TRAIN)
    session.run(session.optimizer_ends, OPTIMIZER)


def shares(*sizes: int) -> list[NDArray[np.float32]]:
    """What replicas show that have so many samples each."""
    generator = np.random.default_rng(0)
    return [generator.normal(size=(n, 5)).astype(np.float32) for n in sizes]


def assert_is_of(trial: Trial, array: NDArray[np.float32], worker: str | None) -> None:
    """The row of a worker, or of all, is that of this array."""
    found = trial.tensor("layer_output_0").stats(0, worker=worker)
    exact = array.astype(np.float64)
    assert found.count == array.size
    assert (found.min, found.max) == (exact.min(), exact.max())
    assert found.mean == pytest.approx(exact.mean(), rel=1e-6)
    assert found.l2 == pytest.approx(np.linalg.norm(exact), rel=1e-6)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 3), (5, 1, 2)])
def test_each_replica_is_a_worker_and_all_together_are_the_batch(
    open_: Open, run_dir: Path, sizes: tuple[int, ...]
) -> None:
    session, arrays = open_(), shares(*sizes)
    session.replicas.expect(len(sizes))
    step(session, *arrays)
    assert session.close()
    trial = create_trial(run_dir)
    assert trial.workers() == [f"worker_{i}" for i in range(len(sizes))]
    for worker, array in zip(trial.workers(), arrays, strict=True):
        assert_is_of(trial, array, worker)
        found = trial.tensor("layer_output_0").value(0, worker=worker)
        assert np.array_equal(found, array)
    assert_is_of(trial, np.concatenate(arrays), None)


def test_a_replica_without_samples_has_a_row_that_counts_nothing(
    open_: Open, run_dir: Path
) -> None:
    session, arrays = open_(), shares(3, 0)
    session.replicas.expect(2)
    step(session, *arrays)
    session.close()
    trial = create_trial(run_dir)
    assert trial.tensor("layer_output_0").stats(0, worker="worker_1").count == 0
    assert_is_of(trial, arrays[0], None)


def test_a_step_is_complete_when_all_replicas_have_ended_it(
    open_: Open, run_dir: Path
) -> None:
    session = open_(interval=4)
    session.replicas.expect(2)
    for _ in range(6):
        step(session, *shares(2, 2))
    session.flush(durable=False, timeout=10)
    table = create_trial(run_dir).step_table()  # While the training goes on.
    assert table["step"].tolist() == [0, 4]
    assert table["complete"].all()
    assert table["lossless"].all()
    assert table["workers"].tolist() == [2, 2]
    session.close()


def test_replicas_are_counted_together(open_: Open) -> None:
    session = open_()
    session.replicas.expect(2)
    step(session, *shares(2, 2))
    session.close()
    counters = session.counters()
    assert counters["written"] == counters["offered"]
    assert counters["written"] > session.writer.counters()["written"]
    assert counters["state"] == 2
    assert counters["internal_errors"] == counters["refused_tensors"] == 0


def test_more_replicas_join_the_workers_that_there_are(
    open_: Open, run_dir: Path
) -> None:
    session = open_()
    for n in (1, 2, 2, 3):
        session.replicas.expect(n)
    step(session, *shares(1, 1, 1))
    session.close()
    trial = create_trial(run_dir)
    assert trial.workers() == ["worker_0", "worker_1", "worker_2"]
    assert trial.attempts()[-1].world_size == 3


def test_a_second_start_makes_another_generation_of_each_worker(
    open_: Open, run_dir: Path
) -> None:
    for _ in range(2):
        session = open_()
        session.replicas.expect(2)
        step(session, *shares(2, 2))
        session.close()
    names = sorted(each.name for each in (run_dir / "w").iterdir())
    assert names == ["train-0-1", "train-0-2", "train-1-1", "train-1-2"]
    assert len(create_trial(run_dir).attempts()) == 2


def test_the_replicas_of_several_processes_have_the_ranks_above_theirs(
    open_: Open, run_dir: Path
) -> None:
    sessions = [
        open_(rank=rank, world_size=2, include_workers="all", launch="one start")
        for rank in (0, 1)
    ]
    for session in sessions:
        session.replicas.expect(2)
        step(session, *shares(1, 1))
    for session in sessions:
        session.close()
    trial = create_trial(run_dir)
    assert trial.workers() == [f"worker_{i}" for i in range(4)]
    assert trial.attempts()[-1].world_size == 4
    assert trial.tensor("layer_output_0").stats(0).count == 4 * 5


def test_a_rank_that_does_not_write_has_no_replicas_that_do(
    open_: Open, run_dir: Path
) -> None:
    session = open_(rank=1, world_size=2)
    session.replicas.expect(2)
    context = session.run(session.forward_begins, ROOT, TRAIN)
    assert context is None or not context.takes
    session.close()
    assert not run_dir.exists()


def test_a_dry_run_measures_the_first_replica(open_: Open, run_dir: Path) -> None:
    session = open_(dry_run=True)
    session.replicas.expect(2)
    step(session, *shares(2, 2))
    (content,) = session.writer.content[TRAIN.value].values()  # type: ignore[union-attr]
    assert content.rows == 1
    assert session.counters()["refused_tensors"] == 0
    session.close()
    assert not run_dir.exists()


def test_a_replica_that_cannot_write_is_told_of_once_and_counted(
    open_: Open, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session, arrays = open_(), shares(2, 2, 2)
    (run_dir / "w").rename(run_dir / "elsewhere")
    (run_dir / "w").touch()
    with caplog.at_level(logging.WARNING, "tdbg"):
        session.replicas.expect(3)
        session.replicas.expect(3)
    (told,) = caplog.messages
    assert "captures nothing from replica 1 of 3" in told
    assert str(run_dir) in told
    (run_dir / "w").unlink()
    (run_dir / "elsewhere").rename(run_dir / "w")
    step(session, *arrays)
    session.close()
    assert session.counters()["refused_tensors"] == 2
    trial = create_trial(run_dir)
    assert trial.workers() == ["worker_0"]
    assert_is_of(trial, arrays[0], None)
    assert not trial.step_table()["lossless"].any()


def test_a_collection_that_is_added_later_holds_for_all_replicas(
    open_: Open, run_dir: Path
) -> None:
    session = open_(interval=100)
    session.replicas.expect(2)
    for _ in range(3):
        step(session, *shares(2, 2))
    session.collections.get("outputs").save_config = SaveConfig(
        save_interval=1, statistics_interval=1
    )
    step(session, *shares(2, 2))
    session.close()
    tensor = create_trial(run_dir).tensor("layer_output_0")
    assert tensor.steps() == [0, 3]
    assert tensor.workers(3) == ["worker_0", "worker_1"]
