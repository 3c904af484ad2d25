"""Measures the loaders of other frameworks: tf.data, Keras on JAX, and Gluon.

Each is measured where Python asks it for a batch; docs/profiler-steps.md says where
none does.  Keras on PyTorch takes its batches from a DataLoader, which ``loaders``
measures.

Thread safety: any thread may iterate over a loader.

Errors: none reach the program.  Where a framework has changed, it is left alone, and an
event says so.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler import loaders
from tdbg.profiler.loader_rows import LoaderRows, is_inside
from tdbg.profiler.loader_waits import BatchWaits, measure
from tdbg.profiler.part import write_off
from tdbg.profiler.patches import LibraryPatches
from tdbg.run.program_lines import calling_line

__all__ = ["FrameworkLoaders", "start"]

_STATE = "_tdbg_waits"
_Method = Callable[..., Any]
_patches = LibraryPatches()
_lock = threading.RLock()
_users: set[int] = set()


class FrameworkLoaders:
    """Measures these loaders until all parts of this kind are closed.

    Attributes:
        off: Why frameworks are left alone that are loaded.
    """

    def __init__(self) -> None:
        self.off: list[str] = []
        with _lock:
            if not _patches.are_in_place:
                self._install()
            _users.add(id(self))

    def _install(self) -> None:
        for place in _PLACES:
            module = sys.modules.get(place.module)
            if module is None:
                continue
            try:
                owner = getattr(module, place.owner)
                found = list(inspect.signature(vars(owner)[place.method]).parameters)
                if found != ["self"]:
                    msg = f"it takes {found}"
                    raise ValueError(msg)
                _patches.put(owner, place.method, place.replace)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                where = f"{place.module}.{place.owner}.{place.method}"
                self.off.append(f"{where}: {error}")

    def close(self) -> None:
        """Put the frameworks' methods back, if nobody else measures."""
        with _lock:
            _users.discard(id(self))
            if not _users:
                _patches.undo()


def start(session: Session, _: ProfilerConfig) -> FrameworkLoaders:
    """Measure the loaders of the frameworks that are loaded."""
    part = FrameworkLoaders()
    for off in part.off:
        write_off(session, "framework_loaders", off)
    return part


def _describe(numbered: Any, kind: str, **facts: Any) -> None:
    for rows in loaders.observers():
        rows.describe(numbered.number, {"kind": kind, **facts})


# ---- tf.data ----------------------------------------------------------------------


def _of_tensorflow(original: _Method) -> _Method:
    executing_eagerly = sys.modules["tensorflow"].executing_eagerly

    def _next_internal(self: Any) -> Any:
        observers = loaders.observers()
        if not observers or is_inside() or not executing_eagerly():
            return original(self)
        waits = self.__dict__.get(_STATE) or _begin_dataset(self)
        return waits.wait(self, lambda: original(self), observers)

    return _next_internal


def _begin_dataset(iterator: Any) -> BatchWaits:
    dataset = getattr(iterator, "_dataset", None) or iterator
    made_at = type(dataset).__qualname__, calling_line()
    numbered = loaders.number_of(dataset, made_at)
    _describe(numbered, "tf.data.Dataset", dataset=made_at[0])
    out_of_range = sys.modules["tensorflow"].errors.OutOfRangeError
    waits = BatchWaits(iterator, numbered, ends_with=out_of_range)
    setattr(iterator, _STATE, waits)
    return waits


# ---- Keras on JAX -----------------------------------------------------------------


def _of_keras(original: _Method) -> _Method:
    def _get_iterator(self: Any) -> Any:
        batches = original(self)
        # What it reads of PyTorch is measured there, in its workers as well.
        kind = type(getattr(self, "data_adapter", None)).__name__
        if not loaders.observers() or kind == "TorchDataLoaderAdapter":
            return batches
        made_at: Hashable = kind, calling_line()
        numbered = loaders.number_of(self, made_at)
        iterator, _ = measure(iter(batches), loaders.observers, lambda _: numbered)
        dataset = getattr(self.data_adapter, "py_dataset", None)
        facts = {"workers": dataset.workers} if dataset is not None else {}
        _describe(numbered, f"keras {kind}", **facts)
        return iterator

    return _get_iterator


# ---- Gluon ------------------------------------------------------------------------


def _of_gluon(original: _Method) -> _Method:
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        batches: Iterator[Any] = original(self)
        observers: Sequence[LoaderRows] = loaders.observers()
        n_workers, data = getattr(self, "_num_workers", 0), self._dataset
        if not observers:
            return batches
        sampler = getattr(self, "_batch_sampler", None)
        facts = {
            "workers": n_workers,
            "dataset": f"{type(data).__module__}.{type(data).__qualname__}",
            "batch_size": getattr(sampler, "_batch_size", None),
            "batches": len(self),
        }
        made_at: Hashable = type(sampler), repr(facts)
        numbered = loaders.number_of(self, made_at, data)
        _describe(numbered, "mxnet.gluon.data.DataLoader", **facts)
        capacity = getattr(self, "_prefetch", 0) if n_workers else 0
        return measure(
            batches,
            loaders.observers,
            lambda _: numbered,
            n_workers=n_workers,
            capacity=capacity,
        )[0]

    return __iter__


class _Place(NamedTuple):
    """A method that gives batches."""

    module: str
    owner: str
    method: str
    replace: Callable[[_Method], _Method]


_PLACES = (
    _Place(
        "tensorflow.python.data.ops.iterator_ops",
        "OwnedIterator",
        "_next_internal",
        _of_tensorflow,
    ),
    _Place(
        "keras.src.backend.jax.trainer", "JAXEpochIterator", "_get_iterator", _of_keras
    ),
    _Place("mxnet.gluon.data.dataloader", "DataLoader", "__iter__", _of_gluon),
)
