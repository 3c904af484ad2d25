"""Values, histograms and rows of single workers, read when a rule requests them.

A bounded cache keeps what was read, so that several rules and several windows read it
once.

Thread safety: none; owned by the engine.

Errors: damaged data counts as missing; ``tdbg fsck`` reports it.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import QueryError, StorageError, TensorUnavailable
from tdbg.modes import GLOBAL

if TYPE_CHECKING:
    from tdbg.stats.histogram import Histogram
    from tdbg.trial import TensorHandle, TensorStatistics, Trial

__all__ = ["ValueCache"]

# Size of the cache; a value above a quarter of it is read every time.
LIMIT_BYTES = 32 << 20
# Overhead of an entry.
ENTRY_BYTES = 400
# Up to this many steps, trying to read is cheaper than listing the steps with values.
FEW_STEPS = 8

Found = TypeVar("Found")


class ValueCache:
    """Reads what belongs to one tensor and step, and keeps it for a while.

    Args:
        trial: The run.
        limit_bytes: Size of the cache.
    """

    def __init__(self, trial: Trial, limit_bytes: int = LIMIT_BYTES) -> None:
        self._trial = trial
        self._limit = limit_bytes
        self._n_bytes = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._tensors: dict[str, TensorHandle] = {}
        # Values at the steps of the window, by tensor, from one query each.
        self._window = range(0)
        self._values: dict[str, Mapping[int, NDArray[Any]]] = {}
        self._names: Container[str] = ()
        # Steps with values and with histograms, complete up to the horizon.
        self._steps: dict[tuple[str, str], NDArray[np.int64]] = {}
        self._horizon = -1
        self._has_many_steps = False

    def begin(
        self,
        n_steps: int,
        first: int,
        last: int,
        horizon: int,
        names: Container[str],
    ) -> None:
        """Begin a window; later calls are about its new steps or older ones.

        Args:
            n_steps: How many new steps the window has.
            first: The first of them.
            last: The last of them.
            horizon: The last settled step of the run: lists of steps that are read
                now stay valid for all windows up to it.
            names: The tensors of the run.
        """
        if last > self._horizon:
            self._steps = {}
            self._horizon = horizon
        self._names = names
        self._has_many_steps = n_steps > FEW_STEPS
        self._window = range(first, last + 1)
        self._values = {}

    def value(self, name: str, step: int) -> NDArray[np.generic] | None:
        """Return the values of a tensor at a step, or None."""
        key = ("values", name, step)
        if step in self._window:
            values = self._in_window(name)
            if step not in values:
                return None
            return self._read(key, lambda: values[step], None)
        if self._has_many_steps and not self._has("values", name, step):
            return None
        return self._read(key, lambda: self._tensor(name).value(step, GLOBAL), None)

    def new_values(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield step and value for the new steps that have one.

        For data that is read once: nothing is cached.
        """
        values = self._in_window(name)
        for step in values:
            with contextlib.suppress(QueryError, StorageError):
                yield step, values[step]

    def histogram(self, name: str, step: int) -> Histogram | None:
        """Return the histogram of a tensor at a step, or None."""
        if self._has_many_steps and not self._has("histograms", name, step):
            return None
        return self._read(
            ("histograms", name, step),
            lambda: self._tensor(name).histogram(step, GLOBAL),
            None,
        )

    def by_worker(self, name: str, step: int) -> Mapping[str, TensorStatistics]:
        """Return the row of each worker that has one, ordered by rank."""
        return self._read(
            ("workers", name, step), lambda: self._rows(name, step), dict[str, Any]()
        )

    def derived(self, what: Hashable, step: int, make: Callable[[], Found]) -> Found:
        """Return what *make* computes from values at a step, cached under *what*."""
        return self._read((what, step), make, None)

    def steps(self, name: str, what: str = "values") -> NDArray[np.int64]:
        """Return the steps with "values" (or "histograms") of a tensor, ascending."""
        found = self._steps.get((what, name))
        if found is None:
            try:
                known = self._tensor(name).steps(GLOBAL, what)
            except (QueryError, StorageError):
                known = []
            found = np.array(known, dtype=np.int64)
            self._steps[what, name] = found
        return found

    def _tensor(self, name: str) -> TensorHandle:
        tensor = self._tensors.get(name)
        if tensor is None:
            if name not in self._names:
                # The trial would search for similar names, which is slow.
                raise TensorUnavailable(name)
            tensor = self._tensors[name] = self._trial.tensor(name)
        return tensor

    def _in_window(self, name: str) -> Mapping[int, NDArray[Any]]:
        found = self._values.get(name)
        if found is None:
            ends = self._window.start, self._window.stop
            try:
                found = self._tensor(name).values_between(*ends)
            except (QueryError, StorageError):
                found = {}
            self._values[name] = found
        return found

    def _has(self, what: str, name: str, step: int) -> bool:
        steps = self.steps(name, what)
        at = int(np.searchsorted(steps, step))
        return at < len(steps) and int(steps[at]) == step

    def _rows(self, name: str, step: int) -> Mapping[str, TensorStatistics]:
        tensor = self._tensor(name)
        return {
            worker: tensor.stats(step, GLOBAL, worker)
            for worker in tensor.workers(step, GLOBAL)
        }

    def _read(self, key: Hashable, read: Callable[[], Found], missing: Any) -> Found:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            found: Found = entry[0]
            return found
        try:
            found = read()
        except (QueryError, StorageError):
            found = missing
        size = ENTRY_BYTES + _size(found)
        if size <= self._limit // 4:
            self._entries[key] = (found, size)
            self._n_bytes += size
            while self._n_bytes > self._limit:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._n_bytes -= dropped
        return found


def _size(content: object) -> int:
    n_bytes = getattr(content, "nbytes", None)
    if isinstance(n_bytes, int):
        return n_bytes
    if isinstance(content, Mapping):
        return sum(ENTRY_BYTES for _ in content)
    keys, counts = getattr(content, "keys", None), getattr(content, "counts", None)
    if isinstance(keys, np.ndarray) and isinstance(counts, np.ndarray):
        return keys.nbytes + counts.nbytes
    return sys.getsizeof(content)
