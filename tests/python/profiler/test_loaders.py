"""Data loaders are measured: waits in the training, fetches in the workers."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, dataloader

from profiled_data import (
    Failing,
    FakeSession,
    Initialized,
    Nested,
    Sleeping,
    Stream,
    note_worker,
)
from tdbg.errors import ConfigurationError
from tdbg.profiler import loaders
from tdbg.profiler.any_loader import measured
from tdbg.profiler.fetches import FetchMemory, WorkerFetches
from tdbg.profiler.loader_rows import size_of
from tdbg.run.profile_tables import Phase

pytestmark = pytest.mark.torch


@pytest.fixture
def session() -> Iterator[Any]:
    found = FakeSession()
    part = loaders.Loaders(found)  # type: ignore[arg-type]
    yield found
    part.close()
    assert not _left_in_memory()


@pytest.fixture(autouse=True)
def _child_handler() -> Iterator[None]:
    """PyTorch handles the ends of workers, and goes on to."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def _left_in_memory() -> list[str]:
    folder = Path("/dev/shm")  # noqa: S108
    return [each.name for each in folder.glob(f"tdbg-loader-{os.getpid()}-*")]


def rows_after(session: FakeSession) -> Any:
    found = loaders.rows_of(session)  # type: ignore[arg-type]
    assert found is not None
    found.write()
    return session.rows()


# ---- PyTorch's DataLoader ---------------------------------------------------------


def test_a_loader_without_workers_fetches_while_the_training_waits(
    session: FakeSession,
) -> None:
    loader = DataLoader(Sleeping(6), batch_size=4)
    batches = list(loader)
    rows = rows_after(session)
    assert rows["samples"].tolist() == [4, 2]
    assert rows["bytes"].tolist() == [each.nbytes for each in batches]
    assert set(rows["worker"]) == {-1}
    assert set(rows["pid"]) == {os.getpid()}
    assert set(rows["depth"]) == {-1}
    assert rows["fetch_ns"][1] == rows["wait_ns"][1]
    # The first one has waited for the epoch to begin, too.
    assert rows["fetch_ns"][0] < rows["wait_ns"][0]
    assert (rows["wait_ns"] >= 2 * 2_000_000).all()
    assert (
        (rows["fetch_cpu_ns"] >= 0) & (rows["fetch_cpu_ns"] < rows["wait_ns"])
    ).all()
    # The end of an epoch is waited for, too, and is no batch.
    assert session.clock.log.count(("enter", Phase.DATA_WAIT)) == 4
    assert session.clock.log.count(("leave", Phase.DATA_WAIT)) == 4


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Sleeping(8), Stream()], ids=["map", "iterable"])
def test_forked_workers_measure_each_fetch(
    session: FakeSession, dataset: Any, persistent: bool
) -> None:
    loader = DataLoader(
        dataset, batch_size=2, num_workers=2, persistent_workers=persistent
    )
    for _ in range(2):
        assert len(list(loader)) == 4
    rows = rows_after(session)
    assert rows["worker"].tolist() == [0, 1, 0, 1] * 2
    assert rows["epoch"].tolist() == [0] * 4 + [1] * 4
    assert set(rows["capacity"]) == {4}
    assert set(rows["workers"]) == {2}
    assert (rows["fetch_ns"] > 0).all()
    assert (rows["fetch_cpu_ns"] >= 0).all()
    assert (rows["depth"] >= 0).all()
    assert (rows["depth"] <= 4).all()
    assert len(set(rows["pid"])) == (2 if persistent else 4)
    if isinstance(dataset, Sleeping):
        assert (rows["fetch_ns"] >= 2 * 2_000_000).all()


def test_batches_that_an_epoch_leaves_behind_are_not_taken_for_later_ones(
    session: FakeSession,
) -> None:
    class Growing(Sleeping):
        def __getitem__(self, index: int) -> torch.Tensor:
            self.seconds = 0.02 if index >= 12 else 0.0
            return super().__getitem__(index)

    loader = DataLoader(
        Growing(16), batch_size=2, num_workers=1, persistent_workers=True
    )
    next(iter(loader))  # Others are under way.
    list(loader)
    rows = rows_after(session)
    slow = rows["fetch_ns"][1:] >= 40_000_000
    assert slow.tolist() == [False] * 6 + [True] * 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_measure_each_fetch(
    session: FakeSession, method: str
) -> None:
    loader = DataLoader(
        Initialized(4),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=method,
        worker_init_fn=note_worker,
    )
    assert [each.flatten().tolist() for each in loader] == [[1, 1]] * 2
    rows = rows_after(session)
    assert (rows["fetch_ns"] > 0).all()
    assert session.events[0]["start_method"] == method


def test_the_programs_own_worker_init_fn_is_called_and_put_back(
    session: FakeSession,
) -> None:
    loader = DataLoader(
        Initialized(4), batch_size=2, num_workers=2, worker_init_fn=note_worker
    )
    assert [each.flatten().tolist() for each in loader] == [[1, 1]] * 2
    assert loader.worker_init_fn is note_worker
    assert len(rows_after(session)) == 2


def test_a_loader_inside_of_a_data_set_is_part_of_the_fetch(
    session: FakeSession,
) -> None:
    for n_workers in (0, 1):
        assert len(list(DataLoader(Nested(), batch_size=2, num_workers=n_workers))) == 2
    rows = rows_after(session)
    assert rows["workers"].tolist() == [0, 0, 1, 1]
    assert (rows["fetch_ns"] > 0).all()


@pytest.mark.parametrize("n_workers", [0, 1])
def test_an_error_of_the_data_set_reaches_the_program_and_costs_no_row(
    session: FakeSession, n_workers: int
) -> None:
    loader = iter(DataLoader(Failing(8), batch_size=1, num_workers=n_workers))
    found = []
    for _ in range(9):
        with contextlib.suppress(KeyError, StopIteration):
            found.append(next(loader))
    del loader
    gc.collect()
    rows = rows_after(session)
    assert len(rows) == len(found) == 7
    # The fetches are those of the batches that came.
    assert (rows["fetch_ns"] >= 2_000_000).all()
    assert session.clock.log[-1] == ("leave", Phase.DATA_WAIT)


@pytest.mark.slow  # PyTorch waits five seconds for what it killed.
def test_a_killed_worker_is_the_programs_error_as_without_tdbg(
    session: FakeSession,
) -> None:
    iterator = iter(DataLoader(Sleeping(64, 0.05), batch_size=1, num_workers=1))
    next(iterator)
    (pid,) = loaders.worker_processes()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="worker"):
        list(iterator)
    del iterator
    gc.collect()
    assert loaders.worker_processes() == {}
    assert len(rows_after(session)) >= 1


def test_an_iterator_that_is_older_than_the_hook_is_measured_as_far_as_known() -> None:
    iterator = iter(DataLoader(Sleeping(4), batch_size=2, num_workers=1))
    session = FakeSession()
    part = loaders.Loaders(session)  # type: ignore[arg-type]
    assert len(list(iterator)) == 2
    part.close()
    rows = session.rows()
    assert rows["fetch_ns"].tolist() == [-1, -1]
    assert (rows["wait_ns"] > 0).all()
    assert rows["capacity"].tolist() == [2, 2]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_are_older_than_the_session_are_measured_if_it_is_expected(
    monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    monkeypatch.setattr(loaders, "_early", None)
    loaders.expect()
    loader = DataLoader(
        Sleeping(8), batch_size=2, num_workers=1, persistent_workers=persistent
    )
    list(loader)
    iterator = iter(loader)
    next(iterator)
    session = FakeSession()
    part = loaders.Loaders(session)  # type: ignore[arg-type]
    for _ in iterator:
        pass
    rows = rows_after(session)
    assert rows["loader"].tolist() == [rows["loader"][0]] * 3
    assert rows["epoch"].tolist() == [1, 1, 1]
    assert rows["fetch_ns"].min() >= 2 * 2_000_000
    told = [each["what"] for each in session.events]
    assert told == ["loader", "loader_start"]
    assert session.events[1]["epoch"] == 1
    monkeypatch.setattr(loaders, "_early", None)
    part.close()
    assert "_measured" not in dataloader._BaseDataLoaderIter.__next__.__qualname__


def test_facts_of_a_loader_are_written_once(session: FakeSession) -> None:
    loader = DataLoader(Sleeping(4), batch_size=2, num_workers=1, drop_last=True)
    for _ in range(3):
        list(loader)
    facts = [each for each in session.events if each["what"] == "loader"]
    assert len(facts) == 1
    assert facts[0]["workers"] == 1
    assert facts[0]["prefetch_factor"] == 2
    assert facts[0]["batch_size"] == 2
    assert facts[0]["batches"] == 2
    assert facts[0]["dataset"] == "profiled_data.Sleeping"
    starts = [each for each in session.events if each["what"] == "loader_start"]
    assert [each["epoch"] for each in starts] == [0, 1, 2]
    assert all(each["duration_ns"] > 0 for each in starts)


def test_everything_is_put_back_and_two_sessions_share_it() -> None:
    kinds = (
        dataloader._BaseDataLoaderIter,
        dataloader._SingleProcessDataLoaderIter,
        dataloader._MultiProcessingDataLoaderIter,
    )
    before = [dict(vars(kind)) for kind in kinds]
    first, second = FakeSession(), FakeSession()
    parts = [loaders.Loaders(each) for each in (first, second)]  # type: ignore[arg-type]
    list(DataLoader(Sleeping(2)))
    parts[0].close()
    list(DataLoader(Sleeping(2)))
    parts[1].close()
    assert (len(first.rows()), len(second.rows())) == (2, 4)
    assert [dict(vars(kind)) for kind in kinds] == before
    list(DataLoader(Sleeping(2)))
    assert (len(first.rows()), len(second.rows())) == (2, 4)


def test_another_pytorch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: Any, loader: Any, more: int) -> None: ...

    kind = dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(kind, "__init__", other)
    before = dict(vars(dataloader._BaseDataLoaderIter))
    session: Any = FakeSession()
    assert loaders.start(session, None) is None  # type: ignore[arg-type]
    assert session.events[0]["part"] == "loaders"
    assert "__init__ takes" in session.events[0]["off"]
    assert dict(vars(dataloader._BaseDataLoaderIter)) == before


def test_no_memory_to_share_costs_the_fetch_times_only(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert len(list(DataLoader(Sleeping(4), batch_size=2, num_workers=1))) == 2
    assert rows_after(session)["fetch_ns"].tolist() == [-1, -1]


def test_a_forked_child_measures_nothing(session: FakeSession) -> None:
    pid = os.fork()
    if pid == 0:
        n = -1
        with contextlib.suppress(BaseException):
            list(DataLoader(Sleeping(2)))
            n = len(session.clock.log)
        os._exit(0 if n == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


# ---- the memory that is shared ----------------------------------------------------


def test_a_slot_is_read_only_for_the_batch_that_it_is_of() -> None:
    memory = FetchMemory(2, 2)
    worker = WorkerFetches(memory.path, 1, memory.n_slots)
    worker.begin_epoch()
    for number in range(memory.n_slots + 1):
        worker.write(number, number * 2)
    assert memory.read(1, 0, memory.n_slots) == (memory.n_slots, memory.n_slots * 2)
    assert memory.read(1, 0, 0) == (-1, -1)  # A later batch has its slot.
    assert memory.read(1, 0, 1) == (1, 2)
    assert memory.read(0, 0, 1) == (-1, -1)
    worker.begin_epoch()
    assert memory.read(1, 1, 1) == (-1, -1)
    assert Path(memory.path).exists()
    WorkerFetches(memory.path, 0, memory.n_slots)
    assert not Path(memory.path).exists()  # All have it.


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(4, 2), (4, 32)),
        ([torch.zeros(4, 2), torch.zeros(4)], (4, 48)),
        ({"x": np.zeros((3, 2)), "y": ["a"]}, (3, 48)),
        (["a", "b"], (-1, -1)),
        (7, (-1, -1)),
        ((torch.tensor(1.0), torch.zeros(5)), (5, 24)),
    ],
)
def test_the_size_of_a_batch_is_that_of_its_arrays(
    batch: Any, expected: tuple[int, int]
) -> None:
    assert size_of(batch) == expected


# ---- loaders of others ------------------------------------------------------------


class Batches:
    """A loader of somebody's own."""

    epoch = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.n):
            yield np.full((4, 2), i, np.float32)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_any_iterable_is_measured_and_stays_what_it_is(session: Any) -> None:
    inner = Batches(3)
    loader: Any = measured(session, inner)
    assert len(loader) == 3
    loader.set_epoch(5)
    loader.drop = True
    assert (inner.epoch, inner.drop) == (5, True)  # type: ignore[attr-defined]
    for _ in range(2):
        assert [int(each[0, 0]) for each in loader] == [0, 1, 2]
    rows = rows_after(session)
    assert rows["epoch"].tolist() == [0, 0, 0, 1, 1, 1]
    assert set(rows["samples"]) == {4}
    assert set(rows["bytes"]) == {32}
    assert session.clock.log.count(("enter", Phase.DATA_WAIT)) == 10
    assert type(copy.deepcopy(loader)) is Batches
    assert type(pickle.loads(pickle.dumps(loader))) is Batches  # noqa: S301


def test_a_generator_is_measured_and_can_be_asked_for_the_next(session: Any) -> None:
    loader: Any = measured(session, (each for each in Batches(3)))
    assert not hasattr(loader, "__len__")
    next(loader)
    assert len(list(loader)) == 2
    assert len(rows_after(session)) == 3


def test_what_is_measured_already_is_returned_as_it_is(session: Any) -> None:
    loader = DataLoader(Sleeping(2))
    assert measured(session, loader) is loader
    # A loader around one counts once.
    around: Any = measured(session, (each for each in loader))
    assert len(list(around)) == 2
    assert len(rows_after(session)) == 2


def test_without_a_profile_a_loader_is_returned_as_it_is() -> None:
    inner = Batches(1)
    assert measured(FakeSession(), inner) is inner  # type: ignore[arg-type]


def test_after_the_run_a_loader_goes_on_unmeasured(session: Any) -> None:
    loader: Any = measured(session, Batches(2))
    iterator = iter(loader)
    next(iterator)
    session.is_closed = True
    assert len(list(iterator)) == 1
    assert len(rows_after(session)) == 1


def test_an_error_of_a_loader_reaches_the_program(session: Any) -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield {}["broken"]

    loader = iter(measured(session, broken()))
    next(loader)
    with pytest.raises(KeyError, match="broken"):
        next(loader)
    assert session.clock.log[-1] == ("leave", Phase.DATA_WAIT)


def test_what_is_no_iterable_is_refused(session: Any) -> None:
    with pytest.raises(ConfigurationError, match="an iterable of batches, not 3"):
        measured(session, 3)  # type: ignore[arg-type]
