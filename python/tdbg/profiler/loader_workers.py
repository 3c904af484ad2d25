"""Measures what a loader's workers do, inside them.

Thread safety: a worker has one thread that fetches.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from multiprocessing import util
from typing import Any

from tdbg.profiler.fetches import WorkerFetches
from tdbg.profiler.random_states import FETCHES, RandomStates, drawn_since
from tdbg.profiler.stacks import StackAnswers, StackSite

__all__ = ["MODULE", "MeasuredWorker"]

MODULE = "torch.utils.data.dataloader"

_Fetch = Callable[[Any], Any]


class MeasuredWorker:
    """Stands for a loader's ``worker_init_fn``, and can be sent to a worker.

    It needs nothing of the parent, so it works with workers that are forked, spawned
    or served by a fork server.  A worker that cannot be measured works as ever.

    Args:
        init: The function that the program has given; None: none.
        site: Where the worker answers; None: nowhere.
        path: The file that its fetches are noted in; None: they are not.
        n_slots: As ``FetchMemory`` has it.
    """

    def __init__(
        self,
        init: Callable[[int], object] | None,
        site: StackSite | None,
        path: str | None,
        n_slots: int,
    ) -> None:
        self._init = init
        self._site = site
        self._path = path
        self._n_slots = n_slots

    def __call__(self, worker: int) -> None:
        """Prepare the worker, then do what the program asks for."""
        with contextlib.suppress(Exception):
            self._answer(worker)
        with contextlib.suppress(Exception):
            self._measure(worker)
        if self._init is not None:
            self._init(worker)

    def _answer(self, worker: int) -> None:
        if self._site is not None:
            answers = StackAnswers(self._site._replace(worker=worker))
            # Before the queues are flushed, which may take as long as it likes.
            util.Finalize(None, answers.close, exitpriority=100)

    def _measure(self, worker: int) -> None:
        if self._path is None:
            return
        fetches = WorkerFetches(self._path, worker, self._n_slots)
        kind = sys.modules[MODULE]._DatasetKind
        create = kind.create_fetcher

        def create_fetcher(*arguments: Any, **named: Any) -> Any:
            fetcher = create(*arguments, **named)
            # Others are of loaders that the data set uses itself.
            if sys._getframe(1).f_code.co_name == "_worker_loop":
                with contextlib.suppress(Exception):
                    fetches.begin_epoch()
                    states = RandomStates(getattr(fetcher, "dataset", None))
                    fetcher.fetch = _measured(fetcher.fetch, fetches, states)
            return fetcher

        kind.create_fetcher = staticmethod(create_fetcher)


def _measured(fetch: _Fetch, fetches: WorkerFetches, states: RandomStates) -> _Fetch:
    wall, cpu, write = time.monotonic_ns, time.thread_time_ns, fetches.write

    def measured(index: Any) -> Any:
        before = _read(states) if fetches.number < FETCHES else None
        began, began_cpu = wall(), cpu()
        try:
            data = fetch(index)
        except StopIteration:  # The end of an iterable data set is no batch.
            raise
        except BaseException:
            write(wall() - began, cpu() - began_cpu)
            raise
        wall_ns, cpu_ns = wall() - began, cpu() - began_cpu
        after = None if before is None else _read(states)
        drawn = drawn_since(before, after) if before and after else 0
        write(wall_ns, cpu_ns, drawn)
        return data

    return measured


def _read(states: RandomStates) -> tuple[int, ...] | None:
    with contextlib.suppress(Exception):
        return states.read()
    return None
