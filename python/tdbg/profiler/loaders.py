"""Measures PyTorch's DataLoader: how long the training waits, and what a batch costs.

The iterators' own methods are replaced, once for a process, so that whatever uses a
DataLoader (Lightning, accelerate, transformers) is measured.  What the workers do is
measured inside them (``MeasuredWorker``).

A program that is searched for trainings begins its first epoch before there is a
session (``expect``): its workers are measured from their start, and a session that
comes later gets what is known of them with their next batch.

Thread safety: any thread may iterate over a loader.

Errors: none reach the program.  Where PyTorch has changed, nothing is replaced, and an
event says so.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from tdbg.capture.process import at_exit
from tdbg.capture.ranks import launched_rank
from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.fetches import UNKNOWN, Fetch, FetchMemory
from tdbg.profiler.later_run import LaterRun
from tdbg.profiler.loader_draws import LoaderDraws
from tdbg.profiler.loader_numbers import LoaderNumbers, NumberedLoader
from tdbg.profiler.loader_rows import (
    LoaderRows,
    enter_loader,
    is_inside,
    leave_loader,
    size_of,
)
from tdbg.profiler.loader_workers import MODULE, MeasuredWorker
from tdbg.profiler.part import write_off
from tdbg.profiler.patches import LibraryPatches
from tdbg.profiler.stacks import StackSite
from tdbg.profiler.system import follow_process
from tdbg.run.program_lines import calling_line, is_of_library

__all__ = [
    "Loaders",
    "expect",
    "number_of",
    "observers",
    "rows_of",
    "start",
    "worker_processes",
]

_STATE, _DRAWS = "_tdbg_iteration", "_tdbg_draws"
# Sessions that measure; replaced as a whole, so that reading needs no lock.
_active: tuple[LoaderRows, ...] = ()
# The run that workers belong to which start before any session; None: nobody waits
# for a session.
_early: LaterRun | None = None
_patches = LibraryPatches()
_lock = threading.RLock()


class Loaders:
    """Measures the loaders of a process for a session.

    Args:
        session: Writes the rows.

    Raises:
        ValueError: If PyTorch is not as it is expected to be.
    """

    def __init__(self, session: Session) -> None:
        global _active  # noqa: PLW0603 - a process has one DataLoader class
        self.rows = LoaderRows(session)
        with _lock:
            _install()
            _active = (*_active, self.rows)
        if _early is not None and session.place is not None:
            _early.lead_to(session.place.run)

    def close(self) -> None:
        """Measure no longer, and put PyTorch's methods back."""
        self.rows.write()
        self.forget()

    def forget(self) -> None:
        """Measure no longer."""
        global _active  # noqa: PLW0603
        with _lock:
            _active = tuple(rows for rows in _active if rows is not self.rows)
            if _active:
                return
            if _early is None:
                _patches.undo()
            else:
                _early.forget()


def start(session: Session, _: ProfilerConfig) -> Loaders | None:
    """Measure the loaders of a session."""
    try:
        return Loaders(session)
    except (AttributeError, TypeError, ValueError) as error:
        write_off(session, "loaders", error)
        return None


def expect() -> None:
    """Measure loaders from now on, for sessions that begin later."""
    global _early  # noqa: PLW0603
    with _lock, contextlib.suppress(AttributeError, TypeError, ValueError):
        _install()
        if _early is None:
            _early = LaterRun()
            at_exit(_forget_early)


def _forget_early() -> None:
    if _early is not None:
        _early.forget()


def rows_of(session: Session) -> LoaderRows | None:
    """Return the rows of a session; None: its loaders are not measured."""
    return next((rows for rows in _active if rows.session is session), None)


def observers() -> tuple[LoaderRows, ...]:
    """Return who takes the rows of all loaders of this process now."""
    return _active


def number_of(loader: object, kind: Hashable, data: object = None) -> NumberedLoader:
    """Return the number of a loader that is not PyTorch's.

    Args:
        loader: The loader.
        kind: What it has in common with one that is made anew.
        data: What it reads, which is the same object again.
    """
    return _numbers.of(loader, kind, data)


def _become_inert() -> None:
    """Measure nothing in a forked child."""
    global _active, _early, _lock, _numbers  # noqa: PLW0603
    _active = ()
    _early = None if _early is None else LaterRun()
    _lock = threading.RLock()
    _numbers = LoaderNumbers()


os.register_at_fork(after_in_child=_become_inert)


# ---- loaders and their iterators --------------------------------------------------


_numbers = LoaderNumbers()


class _Iteration:
    """What tdbg knows of an iterator of a DataLoader.

    Attributes:
        numbered: The loader.
        epoch: Number of the epoch in the loader.
        worker: The one that fetched the newest batch; -1: this process.
        start: When the epoch began, and when its first batch could be asked for, in ns;
            None: unknown.
        starting_ns: How long the training has waited for the epoch before to end and
            for this one to begin, which no row has yet.
        known_to: The sessions that know of the iterator.
    """

    def __init__(
        self,
        iterator: Any,
        numbered: NumberedLoader,
        facts: Mapping[str, Any] | None = None,
        memory: FetchMemory | None = None,
    ) -> None:
        self.numbered = numbered
        self.loader = numbered.number
        self.facts = facts
        self.start: tuple[int, int] | None = None
        self.starting_ns = 0
        self.known_to: tuple[LoaderRows, ...] = ()
        self.epoch = self.first_epoch = numbered.begins(iterator)
        self.worker = -1
        self.memory = memory
        self.n_workers: int = iterator._num_workers
        self.capacity: int = self.n_workers * int(
            getattr(iterator, "_prefetch_factor", None) or 0
        )
        self.is_collated: bool = iterator._auto_collation
        self.n_taken = [0] * self.n_workers
        self.pids: list[int] = [each.pid for each in getattr(iterator, "_workers", ())]
        self.queue = getattr(iterator, "_data_queue", None)
        self.draws: LoaderDraws | None = iterator.__dict__.get(_DRAWS)
        if self.draws is not None:
            self.draws.watch(iterator)

    def place(self) -> tuple[int, int, int]:
        """Return the newest batch's worker, its number there, and what it drew."""
        worker, drawn = self.worker, 0
        number = self.n_taken[worker] - 1 if worker >= 0 else -1
        if self.memory is not None and worker >= 0:
            drawn = self.memory.drawn(worker, self.epoch - self.first_epoch, number)
        return worker, number, drawn

    def begin_epoch(self, iterator: Any) -> None:
        self.epoch = self.numbered.begins(iterator)
        self.n_taken = [0] * self.n_workers

    def started(self, began_ns: int, observers: tuple[LoaderRows, ...]) -> None:
        """Note that the first batch of an epoch can be asked for now."""
        self.start = began_ns, time.monotonic_ns()
        between_ns = self.start[1] - began_ns + self.numbered.ending_ns
        self.starting_ns = between_ns if observers else 0
        self.numbered.ending_ns = 0

    def introduce(self, observers: tuple[LoaderRows, ...]) -> None:
        """Tell sessions what is known, those that have not heard it yet."""
        new = [each for each in observers if each not in self.known_to]
        self.known_to = observers
        for rows in new:
            if self.facts is not None:
                rows.describe(self.loader, self.facts)
            if self.start is not None:
                rows.started(self.loader, self.epoch, *self.start)
            if rows.session is not None:
                for worker, pid in enumerate(self.pids):
                    follow_process(rows.session, pid, worker=worker)

    def ready(self, iterator: Any) -> int:
        """Return how many batches wait for the training; -1: unknown."""
        if self.queue is None:
            return -1
        try:
            arrived = len(iterator._task_info) - iterator._tasks_outstanding
            ready: int = self.queue.qsize() + arrived
        except (AttributeError, NotImplementedError, OSError, TypeError):
            return -1
        return max(0, ready)

    def take(self, worker: int) -> None:
        """Note that the next batch is a worker's."""
        self.worker = worker
        self.n_taken[worker] += 1

    def row(
        self, began_ns: int, ended_ns: int, cpu_ns: int, depth: int, batch: Any
    ) -> tuple[int, ...]:
        """Return the row of a batch; *cpu_ns* is of a loader without workers."""
        worker, wait = self.worker, ended_ns - began_ns
        fetch: Fetch = UNKNOWN
        if self.n_workers == 0:
            pid, fetch = os.getpid(), Fetch(wait, cpu_ns)
        else:
            pid = self.pids[worker] if 0 <= worker < len(self.pids) else 0
            if self.memory is not None and worker >= 0:
                number = self.n_taken[worker] - 1
                epoch = self.epoch - self.first_epoch
                fetch = self.memory.read(worker, epoch, number)
        samples, n_bytes = size_of(batch)
        wait, self.starting_ns = wait + self.starting_ns, 0
        return (
            ended_ns,
            self.loader,
            worker,
            pid,
            self.epoch,
            depth,
            self.capacity,
            self.n_workers,
            samples if self.is_collated else -1,
            wait,
            *fetch,
            n_bytes,
        )


def _iteration_of(iterator: Any) -> _Iteration:
    """Return what is known; of an iterator that is older than the hook, little."""
    state: _Iteration | None = iterator.__dict__.get(_STATE)
    if state is None:
        state = _Iteration(iterator, _numbers.new())
        setattr(iterator, _STATE, state)
    return state


_living: weakref.WeakSet[Any] = weakref.WeakSet()


def worker_processes() -> dict[int, int]:
    """Return the loader workers of this process: their numbers by their pids.

    Any thread may call it; workers that have ended may be among them for a while.
    """
    found: dict[int, int] = {}
    with contextlib.suppress(RuntimeError):  # Another thread begins an epoch.
        for iterator in list(_living):
            state = iterator.__dict__.get(_STATE)
            if state is not None and not getattr(iterator, "_shutdown", False):
                found.update({pid: i for i, pid in enumerate(state.pids)})
    return found


# ---- what is replaced -------------------------------------------------------------


def _install() -> None:
    """Replace the methods of the iterators, or none of them, if there are any.

    Raises:
        AttributeError, TypeError, ValueError: If they are not what is expected.
    """
    module = sys.modules.get(MODULE)
    if module is None or _patches.are_in_place:
        return
    base = module._BaseDataLoaderIter
    single = module._SingleProcessDataLoaderIter
    several = module._MultiProcessingDataLoaderIter
    for owner, name, parameters in (
        (base, "__next__", ["self"]),
        (single, "__init__", ["self", "loader"]),
        (several, "__init__", ["self", "loader"]),
        (several, "_reset", ["self", "loader", "first_iter"]),
    ):
        found = list(inspect.signature(owner.__dict__[name]).parameters)
        if found != parameters:
            msg = f"{owner.__name__}.{name} takes {found}, not {parameters}"
            raise ValueError(msg)
    if len(inspect.signature(several.__dict__["_process_data"]).parameters) != 3:
        msg = "_MultiProcessingDataLoaderIter._process_data takes other arguments"
        raise ValueError(msg)
    _patches.put(base, "__next__", _measured_next)
    if [*inspect.signature(base._next_index).parameters] == ["self"]:
        _patches.put(base, "_next_index", _noted_index)
    _patches.put(single, "__init__", _measured_init)
    _patches.put(several, "__init__", _measured_init)
    _patches.put(several, "_reset", _measured_reset)
    _patches.put(several, "_process_data", _measured_process)


@contextlib.contextmanager
def _waiting(observers: tuple[LoaderRows, ...]) -> Iterator[None]:
    for rows in observers:
        rows.enter()
    try:
        yield
    finally:
        for rows in observers:
            rows.leave()


def _measured_next(original: Callable[..., Any]) -> Callable[..., Any]:
    now, cpu = time.monotonic_ns, time.thread_time_ns

    def __next__(self: Any) -> Any:  # noqa: N807
        observers = _active
        if not observers or is_inside():
            return original(self)
        state = _iteration_of(self)
        if state.known_to is not observers:
            state.introduce(observers)
        depth = state.ready(self)
        if state.draws is not None:
            state.draws.note_use(observers)
        enter_loader()
        for rows in observers:
            rows.enter()
        is_alone = state.n_workers == 0
        began, cpu_ns = now(), -cpu() if is_alone else -1
        try:
            batch = original(self)
        except StopIteration:
            state.numbered.ends(self)
            state.numbered.ending_ns = now() - began
            if state.draws is not None:
                state.draws.ends(observers)
            raise
        finally:
            ended = now()
            leave_loader()
            for rows in observers:
                rows.leave()
        if is_alone:
            cpu_ns += cpu()
        row = state.row(began, ended, cpu_ns, depth, batch)
        for rows in observers:
            rows.add(row)
        if state.draws is not None:
            state.draws.note_batch(*state.place(), observers, batch)
        return batch

    return __next__


def _noted_index(original: Callable[..., Any]) -> Callable[..., Any]:
    def _next_index(self: Any) -> Any:
        indices = original(self)
        draws = self.__dict__.get(_DRAWS)
        if draws is not None:
            draws.note_indices(indices)
        return indices

    return _next_index


def _is_expected() -> bool:
    """Whether a loader is measured for a session that comes later.

    Loaders that a worker makes are not the training's.
    """
    is_worker = sys.modules["torch.utils.data"].get_worker_info() is not None
    return _early is not None and not is_worker


def _measured_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, loader: Any) -> None:  # noqa: N807
        observers = _active
        if not observers and not _is_expected():
            original(self, loader)
            return
        began = time.monotonic_ns()
        facts = _facts(loader)
        numbered = _number_of(loader, facts)
        draws = numbered.draws = numbered.draws or LoaderDraws(facts)
        setattr(self, _DRAWS, draws)
        draws.begins(self, loader, numbered.epoch + 1)
        with _waiting(observers), _workers_of(loader, numbered.number) as memory:
            original(self, loader)
        state = _Iteration(self, numbered, facts, memory)
        state.started(began, observers)
        setattr(self, _STATE, state)
        if state.pids:
            _living.add(self)
        if memory is not None:
            weakref.finalize(self, memory.unlink)
        state.introduce(observers)

    return __init__


@contextlib.contextmanager
def _workers_of(loader: Any, number: int) -> Iterator[FetchMemory | None]:
    """Let the workers that are started here measure what they do."""
    n_workers: int = loader.num_workers
    if n_workers == 0:
        yield None
        return
    memory = None
    with contextlib.suppress(OSError):
        memory = FetchMemory(n_workers, loader.prefetch_factor or 2)
    site = _site_of_workers(number)
    init = loader.worker_init_fn
    path, n_slots = (memory.path, memory.n_slots) if memory else (None, 0)
    # A loader refuses changes once it is made; this one is taken back at once.
    object.__setattr__(
        loader, "worker_init_fn", MeasuredWorker(init, site, path, n_slots)
    )
    try:
        yield memory
    except BaseException:
        if memory is not None:
            memory.unlink()
        raise
    finally:
        object.__setattr__(loader, "worker_init_fn", init)


def _site_of_workers(loader: int) -> StackSite | None:
    """Return where the workers of a loader say where they are; None: nowhere."""
    session = _active[0].session if _active else None
    if session is not None and session.place is not None:
        run, rank = str(session.place.run), session.place.rank
    elif session is None and _early is not None:
        run, rank = _early.path, launched_rank(os.environ)[0]
    else:
        return None
    return StackSite(run, rank, "worker", -1, loader, os.getpid())


def _measured_reset(original: Callable[..., Any]) -> Callable[..., Any]:
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        state = self.__dict__.get(_STATE)
        if first_iter or state is None:
            original(self, loader, first_iter)
            return
        observers = _active
        began = time.monotonic_ns()
        state.begin_epoch(self)
        if state.draws is not None:
            state.draws.begins(self, loader, state.epoch)
        with _waiting(observers):
            original(self, loader, first_iter)
        state.started(began, observers)
        for rows in observers:
            rows.started(state.loader, state.epoch, *state.start)

    return _reset


def _measured_process(original: Callable[..., Any]) -> Callable[..., Any]:
    def _process_data(self: Any, data: Any, worker: int) -> Any:
        state = self.__dict__.get(_STATE)
        if state is not None:
            state.take(worker)
        return original(self, data, worker)

    return _process_data


def _number_of(loader: Any, facts: Mapping[str, Any]) -> NumberedLoader:
    samplers = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
    kind: tuple[Any, ...] = (type(loader), *map(type, samplers), repr(facts))
    data = loader.dataset
    if "<locals>" in type(data).__qualname__ and _is_of_library(type(data)):
        # A library makes it anew each epoch, as Keras does.
        data, kind = None, (*kind, calling_line())
    return _numbers.of(loader, kind, data)


def _is_of_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return is_of_library(getattr(module, "__file__", None) or "")


def _facts(loader: Any) -> dict[str, Any]:
    dataset = loader.dataset
    context = getattr(loader, "multiprocessing_context", None)
    method = getattr(context, "get_start_method", None)
    return {
        "kind": "torch.utils.data.DataLoader",
        "workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent": bool(loader.persistent_workers),
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "is_iterable": loader._dataset_kind != 0,
        "batch_size": loader.batch_size,
        "drop_last": bool(loader.drop_last),
        "batches": _length(loader),
        "start_method": method() if method is not None else None,
        "samples": _length(dataset) if loader._dataset_kind == 0 else None,
        **_facts_of_sampler(loader),
    }


def _length(sized: Any) -> int | None:
    """Return the length of what may have none, or may fail to tell it."""
    with contextlib.suppress(Exception):
        return len(sized)
    return None


def _facts_of_sampler(loader: Any) -> dict[str, Any]:
    """Return how a loader draws samples.

    Returns:
        ``sampler``, its class; ``draws`` of an epoch; whether it ``shuffles``, and
        whether it ``replaces`` what it has drawn.  None: unknown.
    """
    facts: dict[str, Any] = dict.fromkeys(("draws", "shuffles", "replaces"))
    batches = loader.batch_sampler
    is_plain = batches is None or type(batches).__name__ == "BatchSampler"
    sampler = loader.sampler if is_plain else batches
    facts["sampler"] = name = type(sampler).__name__
    if name == "SequentialSampler":
        facts.update(shuffles=False, replaces=False)
    elif name == "RandomSampler":
        facts.update(shuffles=True, replaces=bool(sampler.replacement))
    elif name == "SubsetRandomSampler":
        facts.update(shuffles=True, replaces=False)
    elif name == "DistributedSampler":
        facts.update(shuffles=bool(sampler.shuffle), replaces=False)
    if facts["replaces"] is not None:
        facts["draws"] = _length(sampler)
    return facts
