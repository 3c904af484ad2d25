"""Measures collective operations: when a rank arrives, and how long it waits.

The methods of PyTorch's process group are replaced, not the functions that call them:
functions that the program has imported already are measured, and torch.compile
finds its own.  What a compiled graph or another library calls in C++ is not seen.

DistributedDataParallel reduces gradients in C++ while it computes others, and waits at
the end of the backward.  The wait begins when the last gradient of the rank is there:
a hook of that one parameter sees it.  No communication hook is registered, so the
program may register its own.

No tensor is kept: sizes are read and the operation is remembered by a number.

Thread safety: any thread.

Errors: none reach the program but its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.part import write_off
from tdbg.profiler.patches import LibraryPatches
from tdbg.profiler.phase_rows import PhaseRows
from tdbg.run.profile_tables import COLLECTIVE_KINDS, Phase

__all__ = ["DDP", "KINDS", "CollectiveRows", "Collectives", "start"]

_MAX_GROUPS = 10_000

#: The kinds by the methods of a process group.
KINDS: dict[str, str] = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
#: The all-reduce of gradients that DistributedDataParallel makes of a backward.
DDP = "ddp_all_reduce"
_NUMBERS = {word: i for i, word in enumerate(COLLECTIVE_KINDS)}

_MODULE = "torch._C._distributed_c10d"
_DDP_MODULE = "torch.nn.parallel.distributed"
# Operations that nobody has waited for yet.
_MAX_PENDING = 1024
# The argument with what the rank gives, where it is not the first.
_GIVEN = frozenset({"all_gather", "gather", "reduce_scatter", "all_to_all"})


class CollectiveRows(PhaseRows):
    """Collects the collective operations of a session.

    Args:
        session: Writes them.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session, "collective", Phase.COMMUNICATION)
        self._groups: dict[str, int] = {}
        self._sequence: dict[int, int] = {}

    def number(self, group: Any) -> tuple[int, int]:
        """Return the number of a process group, and the next of its operations."""
        name = str(getattr(group, "group_name", ""))
        with self._lock:
            known = name in self._groups
            number = self._groups.setdefault(name, len(self._groups))
            sequence = self._sequence.get(number, 0)
            self._sequence[number] = sequence + 1
        if not known and number < _MAX_GROUPS:
            self._describe(number, name, group)
        return number, sequence

    def _describe(self, number: int, name: str, group: Any) -> None:
        content: dict[str, Any] = {
            "what": "collectives",
            "kinds": list(COLLECTIVE_KINDS),
            "group": number,
            "name": name,
        }
        with contextlib.suppress(Exception):
            content["size"] = int(group.size())
            content["backend"] = str(group.name())
        self.write_fact(content)

    def add_operation(
        self,
        kind: str,
        place: tuple[int, int],
        began_ns: int,
        ended_ns: int,
        exposed_ns: int,
        n_bytes: int,
    ) -> None:
        """Add the row of an operation.

        Args:
            kind: Its word.
            place: As ``number`` returned.
            began_ns: When the rank arrived.
            ended_ns: When it was over, as far as the host sees.
            exposed_ns: How long the rank waited; -1: unknown.
            n_bytes: What the rank gave; -1: unknown.
        """
        session = self._session()
        if session is None:
            return
        step = int(session.clock.coming_step)
        group, sequence = place
        what = sequence, group, _NUMBERS[kind]
        self.add((ended_ns, step, *what, ended_ns - began_ns, exposed_ns, n_bytes))


_active: tuple[CollectiveRows, ...] = ()
_patches = LibraryPatches()
_lock = threading.RLock()


class _Pending(NamedTuple):
    """An operation that is under way."""

    kind: str
    places: tuple[tuple[int, int], ...]
    began_ns: int
    launch_ns: int
    n_bytes: int
    is_on_host: bool
    rows: tuple[CollectiveRows, ...]


# By the addresses of their Work objects.
_pending: dict[int, _Pending] = {}


class Collectives:
    """Measures the collective operations of a process for a session.

    Args:
        session: Writes the rows.

    Raises:
        AttributeError: If PyTorch is not as it is expected to be.
    """

    def __init__(self, session: Session) -> None:
        global _active  # noqa: PLW0603 - a process has one class of groups
        self._rows = CollectiveRows(session)
        with _lock:
            if not _patches.are_in_place:
                _install(sys.modules[_MODULE])
            _active = (*_active, self._rows)
        self._gradients = GradientWaits(self._rows)

    def close(self) -> None:
        """Measure no longer, and put PyTorch's methods back."""
        self._rows.write()
        self.forked()

    def forked(self) -> None:
        """Measure no longer."""
        global _active  # noqa: PLW0603
        self._gradients.close()
        with _lock:
            _active = tuple(rows for rows in _active if rows is not self._rows)
            if not _active:
                _patches.undo()
                _pending.clear()


def start(session: Session, _: ProfilerConfig) -> Collectives | None:
    """Measure the collective operations of a session, where PyTorch has any."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or _MODULE not in sys.modules:
        return None
    try:
        return Collectives(session) if distributed.is_available() else None
    except (AttributeError, TypeError) as error:
        write_off(session, "collectives", error)
        return None


def _become_inert() -> None:
    """Measure nothing in a forked child."""
    global _active, _lock  # noqa: PLW0603
    _active = ()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_become_inert)


def _install(module: Any) -> None:
    """Replace the methods that exist.

    Raises:
        AttributeError: If the usual ones do not.
    """
    group, work = module.ProcessGroup, module.Work
    for name in ("allreduce", "broadcast", "allgather", "barrier"):
        getattr(group, name)
    _patches.put(work, "wait", _measured_wait)
    for method, kind in KINDS.items():
        if method in vars(group):
            _patches.put(group, method, _measured_call(kind))


def _measured_call(kind: str) -> Callable[[Any], Any]:
    at = 1 if kind in _GIVEN else 0
    now = time.monotonic_ns

    def replace(original: Any) -> Any:
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            observers = _active
            if not observers:
                return original(self, *arguments, **named)
            places = tuple(rows.number(self) for rows in observers)
            for rows in observers:
                rows.enter()
            began = now()
            try:
                work = original(self, *arguments, **named)
            finally:
                launched = now() - began
                for rows in observers:
                    rows.leave()
            if work is not None:
                given = arguments[at] if len(arguments) > at else None
                n_bytes, is_on_host = _size(given)
                _remember(
                    work,
                    _Pending(
                        kind, places, began, launched, n_bytes, is_on_host, observers
                    ),
                )
            return work

        return call

    return replace


def _remember(work: Any, pending: _Pending) -> None:
    while len(_pending) >= _MAX_PENDING:
        _pending.pop(next(iter(_pending)), None)
    _pending[id(work)] = pending


def _measured_wait(original: Any) -> Any:
    now = time.monotonic_ns

    def wait(self: Any, *arguments: Any, **named: Any) -> Any:
        found = _pending.pop(id(self), None)
        if found is None:
            return original(self, *arguments, **named)
        for rows in found.rows:
            rows.enter()
        began = now()
        try:
            return original(self, *arguments, **named)
        finally:
            ended = now()
            # On a device the host goes on while the device waits.
            exposed = found.launch_ns + ended - began if found.is_on_host else -1
            for rows, place in zip(found.rows, found.places, strict=True):
                rows.leave()
                rows.add_operation(
                    found.kind, place, found.began_ns, ended, exposed, found.n_bytes
                )

    return wait


def _size(given: Any) -> tuple[int, bool]:
    """Return the bytes of tensors, in lists of lists perhaps, and where they are."""
    if isinstance(given, list | tuple):
        sizes = [_size(each) for each in given]
        known = [n for n, _ in sizes if n >= 0]
        return (sum(known) if known else -1), all(on_host for _, on_host in sizes)
    n_bytes = getattr(given, "nbytes", None)
    if not isinstance(n_bytes, int):
        return -1, True
    return n_bytes, getattr(getattr(given, "device", None), "type", "cpu") == "cpu"


# ---- gradients of DistributedDataParallel -----------------------------------------


class GradientWaits:
    """Measures the waits of all DistributedDataParallel modules of the process.

    Args:
        rows: Takes them.
    """

    def __init__(self, rows: CollectiveRows) -> None:
        self._rows = rows
        self._modules: list[_ModuleWaits] = []
        self._patches = LibraryPatches()
        module = sys.modules.get(_DDP_MODULE)
        kind = None if module is None else module.DistributedDataParallel
        if kind is None:
            return
        # Without a process group there can be none yet, and this pass takes 25 ms.
        if sys.modules["torch.distributed"].is_initialized():
            for each in gc.get_referrers(kind):
                if isinstance(each, kind):
                    self._watch(each)
        self._patches.put(kind, "__init__", self._measured_init)

    def _measured_init(self, original: Any) -> Any:
        waits = weakref.ref(self)

        def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            original(self, *arguments, **named)
            found = waits()
            if found is not None:
                with contextlib.suppress(Exception):
                    found._watch(self)

        return __init__

    def _watch(self, module: Any) -> None:
        self._modules.append(_ModuleWaits(module, self._rows))

    def close(self) -> None:
        """Measure no longer."""
        self._patches.undo()
        for each in self._modules:
            each.close()
        self._modules.clear()


class _ModuleWaits:
    """Measures the waits of one module.

    The first backward shows which parameter's gradient comes last; only that one keeps
    a hook.
    """

    def __init__(self, module: Any, rows: CollectiveRows) -> None:
        self._module = weakref.ref(module)
        self._rows = rows
        self._began_ns = 0
        parameters = [each for each in module.parameters() if each.requires_grad]
        self._n_bytes = sum(each.nbytes for each in parameters)
        self._on_host = all(each.device.type == "cpu" for each in parameters)
        self._last: weakref.ref[Any] | None = None
        self._is_known = False
        self._handles = [
            each.register_post_accumulate_grad_hook(self._comes) for each in parameters
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _comes(self, parameter: Any) -> None:
        """A gradient has come; afterwards only that of the last parameter tells."""
        module = self._module()
        if module is None or not module.require_backward_grad_sync:
            return
        with contextlib.suppress(Exception):
            self._last = weakref.ref(parameter)
            self._began_ns = time.monotonic_ns()
            if self._is_known:
                self._rows.enter()
            _after_backward(self._ends)

    def _ends(self) -> None:
        """The backward is over, and all gradients are there."""
        began, self._began_ns = self._began_ns, 0
        ended = time.monotonic_ns()
        if began == 0:  # Said already.
            return
        if not self._is_known:
            self._keep_last()
            return
        self._rows.leave()
        module = self._module()
        if module is None:
            return
        place = self._rows.number(module.process_group)
        exposed = ended - began if self._on_host else -1
        self._rows.add_operation(DDP, place, began, ended, exposed, self._n_bytes)

    def _keep_last(self) -> None:
        last = None if self._last is None else self._last()
        self.close()
        self._is_known = True
        if last is not None:
            self._handles = [last.register_post_accumulate_grad_hook(self._comes)]


def _after_backward(callback: Any) -> None:
    """Call *callback* when the backward under way has ended, after all others.

    What is called at the end may ask for another call, which comes after that of
    DistributedDataParallel.
    """
    engine = sys.modules["torch"].autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(callback))
