"""Single values, histograms and rows of workers, read when a rule asks for them.

What was read is kept for a while, so that several rules, and several windows, read it
once; memory is bounded.

Thread safety: none; owned by the engine.

Errors: what is damaged is as good as missing: it is for fsck to complain.
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

if TYPE_CHECKING:
    from tdbg.histogram import Histogram
    from tdbg.rules.source import RowSource, Source, TensorSource

__all__ = ["CellReader"]

# Of everything that is kept together; a value that is larger is read every time.
LIMIT_BYTES = 32 << 20
# What an entry costs beside its content.
ENTRY_BYTES = 400
# For so few steps it is cheaper to try than to ask at which steps there is a value.
FEW_STEPS = 8

Found = TypeVar("Found")


class CellReader:
    """Reads cells of a run; the ``Cells`` of its tables.

    Args:
        source: The run.
        limit_bytes: How much to keep.
    """

    def __init__(self, source: Source, limit_bytes: int = LIMIT_BYTES) -> None:
        self._source = source
        self._limit = limit_bytes
        self._n_bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._tensors: dict[str, TensorSource] = {}
        # Values of the window's steps, by tensor, found at once.
        self._window = range(0)
        self._values: dict[str, Mapping[int, NDArray[Any]]] = {}
        self._names: Container[str] = ()
        # Where there are values and histograms, up to this step.
        self._steps: dict[tuple[str, str], NDArray[np.int64]] = {}
        self._horizon = -1
        self._is_large = False

    def begin(
        self,
        n_steps: int,
        first: int,
        last: int,
        horizon: int,
        names: Container[str],
    ) -> None:
        """What follows is asked about a window of so many new steps.

        Args:
            n_steps: How many.
            first: The first of them.
            last: The last of them.
            horizon: The last step of which nothing more will come: what is found out
                now holds for the windows up to it.
            names: The tensors that there are.
        """
        if last > self._horizon:
            self._steps = {}
            self._horizon = horizon
        self._names = names
        self._is_large = n_steps > FEW_STEPS
        self._window = range(first, last + 1)
        self._values = {}

    def value(self, name: str, step: int) -> NDArray[np.generic] | None:
        """The values of a tensor at a step; None if there are none."""
        key = ("values", name, step)
        if step in self._window:
            values = self._in_window(name)
            if step not in values:
                return None
            return self._read(key, lambda: values[step], None)
        if self._is_large and not self._has("values", name, step):
            return None
        return self._read(key, lambda: self._tensor(name).value(step), None)

    def new_values(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Step and value, of the steps of the window at which there is one.

        For what is read once: nothing of it is kept.
        """
        values = self._in_window(name)
        for step in values:
            with contextlib.suppress(QueryError, StorageError):
                yield step, values[step]

    def histogram(self, name: str, step: int) -> Histogram | None:
        """The histogram of a tensor at a step; None if there is none."""
        if self._is_large and not self._has("histograms", name, step):
            return None
        return self._read(
            ("histograms", name, step),
            lambda: self._tensor(name).histogram(step),
            None,
        )

    def by_worker(self, name: str, step: int) -> Mapping[str, RowSource]:
        """The row of each worker that has one, in the order of their ranks."""
        return self._read(
            ("workers", name, step), lambda: self._rows(name, step), dict[str, Any]()
        )

    def derived(self, what: Hashable, step: int, make: Callable[[], Found]) -> Found:
        """What is worked out of the values at a step, kept like these."""
        return self._read((what, step), make, None)

    def steps(self, name: str, what: str = "values") -> NDArray[np.int64]:
        """Steps at which a tensor has a value (or "histograms"), ascending."""
        found = self._steps.get((what, name))
        if found is None:
            try:
                known = self._tensor(name).steps(what=what)
            except (QueryError, StorageError):
                known = []
            found = np.array(known, dtype=np.int64)
            self._steps[what, name] = found
        return found

    def _tensor(self, name: str) -> TensorSource:
        tensor = self._tensors.get(name)
        if tensor is None:
            if name not in self._names:
                # The run would look for names like it, which takes its time.
                raise TensorUnavailable(name)
            tensor = self._tensors[name] = self._source.tensor(name)
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

    def _rows(self, name: str, step: int) -> Mapping[str, RowSource]:
        tensor = self._tensor(name)
        return {
            worker: tensor.stats(step, worker=worker) for worker in tensor.workers(step)
        }

    def _read(self, key: Hashable, read: Callable[[], Found], missing: Any) -> Found:
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            found: Found = kept[0]
            return found
        try:
            found = read()
        except (QueryError, StorageError):
            found = missing
        size = ENTRY_BYTES + _size(found)
        if size <= self._limit // 4:
            self._kept[key] = (found, size)
            self._n_bytes += size
            while self._n_bytes > self._limit:
                _, (_, dropped) = self._kept.popitem(last=False)
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
