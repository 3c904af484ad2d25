"""A loader that is made anew goes on with its former's number, if that is gone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, dataloader

from profiled_data import FakeSession, Sleeping
from tdbg.profiler import loaders
from tdbg.profiler.any_loader import measured

pytestmark = pytest.mark.torch


@pytest.fixture
def session() -> Iterator[Any]:
    found = FakeSession()
    part = loaders.Loaders(found)  # type: ignore[arg-type]
    yield found
    part.close()


@pytest.fixture(autouse=True)
def _child_handler() -> Iterator[None]:
    """PyTorch handles the ends of workers, and goes on to."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def seen(session: FakeSession) -> list[tuple[int, int]]:
    """Return loader, counted from the first one, and epoch of each batch."""
    found = loaders.rows_of(session)  # type: ignore[arg-type]
    assert found is not None
    found.write()
    rows = session.rows()
    return [(int(x["loader"] - rows["loader"][0]), int(x["epoch"])) for x in rows]


def events(session: FakeSession, what: str) -> list[dict[str, Any]]:
    return [each for each in session.events if each["what"] == what]


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_loader_made_anew_each_epoch_is_one_loader(
    session: FakeSession, n_workers: int
) -> None:
    data = Sleeping(4, 0.0)
    for _ in range(3):
        for _ in DataLoader(data, batch_size=2, num_workers=n_workers):
            pass
    assert seen(session) == [(0, epoch) for epoch in (0, 0, 1, 1, 2, 2)]
    assert len(events(session, "loader")) == 1
    assert [each["epoch"] for each in events(session, "loader_start")] == [0, 1, 2]
    if n_workers:
        assert (session.rows()["fetch_ns"] > 0).all()


def test_an_epoch_that_was_cut_off_is_over_when_nobody_has_its_iterator(
    session: FakeSession,
) -> None:
    data = Sleeping(4, 0.0)
    for _ in range(2):
        for _ in DataLoader(data, batch_size=2):
            break
    assert seen(session) == [(0, 0), (0, 1)]


def test_an_exhausted_iterator_that_somebody_keeps_is_over(
    session: FakeSession,
) -> None:
    data, kept = Sleeping(2, 0.0), []
    for _ in range(2):
        kept.append(iter(DataLoader(data, batch_size=2)))
        assert len(list(kept[-1])) == 1
    assert seen(session) == [(0, 0), (0, 1)]


def test_loaders_that_live_at_once_are_never_one(session: FakeSession) -> None:
    data = Sleeping(4, 0.0)
    train, test = (DataLoader(data, batch_size=2) for _ in range(2))
    for loader in (train, test, train):
        list(loader)
    assert seen(session) == [(0, 0)] * 2 + [(1, 0)] * 2 + [(0, 1)] * 2


def test_two_iterators_that_live_at_once_are_never_one(session: FakeSession) -> None:
    data = Sleeping(4, 0.0)
    for _ in range(2):
        first, second = (iter(DataLoader(data, batch_size=2)) for _ in range(2))
        for _ in range(2):
            next(first)
            next(second)
        del first, second
    assert seen(session) == [(i % 2, i // 4) for i in range(8)]


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 4},
        {"batch_size": 2, "num_workers": 1},
        {"batch_size": 2, "shuffle": True},
    ],
)
def test_a_loader_of_another_kind_is_another_one(
    session: FakeSession, other: dict[str, Any]
) -> None:
    data = Sleeping(4, 0.0)
    for _ in range(2):
        list(DataLoader(data, batch_size=2))
        list(DataLoader(data, **other))
    assert {loader for loader, _ in seen(session)} == {0, 1}


def test_equal_loaders_of_two_data_sets_are_two(session: FakeSession) -> None:
    first, second = Sleeping(2, 0.0), Sleeping(2, 0.0)
    for _ in range(2):
        for data in (first, second):
            list(DataLoader(data, batch_size=2))
    assert seen(session) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_data_set_that_is_made_anew_is_another_one(session: FakeSession) -> None:
    for _ in range(3):
        list(DataLoader(Sleeping(2, 0.0), batch_size=2))
    assert seen(session) == [(0, 0), (1, 0), (2, 0)]


def test_a_list_is_a_data_set_as_well(session: FakeSession) -> None:
    data: Any = [1.0, 2.0]
    for _ in range(2):
        list(DataLoader(data, batch_size=2))
    assert seen(session) == [(0, 0), (0, 1)]


def test_a_loader_that_cannot_be_hashed_is_the_programs_own_affair(
    session: FakeSession,
) -> None:
    class Equal(DataLoader[Any]):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = None  # type: ignore[assignment]

    loaders_of_two = [Equal(Sleeping(2, 0.0), batch_size=2) for _ in range(2)]
    for loader in loaders_of_two:
        assert len(list(loader)) == 1
    assert seen(session) == [(0, 0), (1, 0)]


def batches(n: int = 2) -> Iterator[Any]:
    for i in range(n):
        yield np.full((4, 2), i, np.float32)


def test_a_generator_made_anew_each_epoch_is_one_loader(session: FakeSession) -> None:
    for _ in range(3):
        for _ in measured(session, batches()):  # type: ignore[arg-type]
            pass
    assert seen(session) == [(0, epoch) for epoch in (0, 0, 1, 1, 2, 2)]
    assert len(events(session, "loader")) == 1


def test_an_iterable_that_is_wrapped_each_epoch_is_one_loader(
    session: FakeSession,
) -> None:
    data = [np.zeros((4, 2)), np.zeros((4, 2))]
    for _ in range(2):
        for _ in measured(session, data):  # type: ignore[arg-type]
            pass
    assert seen(session) == [(0, 0), (0, 0), (0, 1), (0, 1)]


def test_generators_of_two_lines_are_two_loaders(session: FakeSession) -> None:
    given: Any = session
    for _ in range(2):
        list(measured(given, batches()))
        list(measured(given, batches(1)))
    assert seen(session) == [(0, 0), (0, 0), (1, 0), (0, 1), (0, 1), (1, 1)]


def test_generators_that_live_at_once_are_never_one(session: FakeSession) -> None:
    given: Any = session
    both = [iter(measured(given, batches())) for _ in range(2)]
    for _ in range(2):
        for each in both:
            next(each)
    assert seen(session) == [(0, 0), (1, 0), (0, 0), (1, 0)]


def test_beginning_an_epoch_counts_as_waiting_for_its_first_batch(
    session: FakeSession,
) -> None:
    loader = DataLoader(Sleeping(4, 0.0), batch_size=2, num_workers=1)
    for _ in range(2):
        list(loader)
    seen(session)
    rows, starts = session.rows(), events(session, "loader_start")
    for epoch in range(2):
        first, later = rows["wait_ns"][rows["epoch"] == epoch]
        assert first > starts[epoch]["duration_ns"] > 0
        assert later < first


def test_ending_the_workers_counts_as_waiting_for_the_next_epoch(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = dataloader._MultiProcessingDataLoaderIter
    end = kind._shutdown_workers

    def slowly(iterator: Any) -> None:
        time.sleep(0.3 if iterator._num_yielded else 0.0)
        end(iterator)

    monkeypatch.setattr(kind, "_shutdown_workers", slowly)
    data = Sleeping(4, 0.0)
    for _ in range(3):
        for _ in DataLoader(data, batch_size=2, num_workers=1):
            pass
    seen(session)
    rows = session.rows()
    firsts = rows["wait_ns"][::2]
    assert (firsts[1:] >= 300_000_000).all()
