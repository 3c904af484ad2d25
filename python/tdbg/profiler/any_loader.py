"""``hook.loader``: any iterable of batches, measured as a data loader is.

Thread safety: as the iterable.

Errors: those of the iterable, and none of tdbg.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from tdbg.capture.session import Session
from tdbg.config.messages import short
from tdbg.errors import ConfigurationError
from tdbg.profiler import loaders
from tdbg.profiler.loader_numbers import NumberedLoader
from tdbg.profiler.loader_rows import LoaderRows
from tdbg.profiler.loader_waits import measure
from tdbg.run.program_lines import calling_line

__all__ = ["measured"]

_T = TypeVar("_T")


def measured(session: Session, batches: Iterable[_T]) -> Iterable[_T]:
    """Return what yields the same batches and measures how long each one takes.

    Args:
        session: Writes the rows.
        batches: Any iterable; what tdbg measures already (PyTorch's DataLoader) is
            returned as it is.

    Raises:
        ConfigurationError: If it cannot be iterated over.
    """
    given: object = batches
    if not isinstance(given, Iterable) and not hasattr(type(given), "__getitem__"):
        msg = f"hook.loader needs an iterable of batches, not {short(given)}"
        raise ConfigurationError(msg)
    rows = loaders.rows_of(session)
    if rows is None or _is_measured(batches):
        return batches
    facts = {"kind": _kind(batches), "batches": _length(batches)}
    made_at = facts["kind"], getattr(batches, "gi_code", None), calling_line()
    if isinstance(batches, Iterator):
        iterator, numbered = measure(
            batches, _observer(rows), lambda found: loaders.number_of(found, made_at)
        )
        rows.describe(numbered.number, facts)
        return iterator
    has_length = hasattr(type(batches), "__len__")
    loader = (_SizedLoader if has_length else _Loader)(rows, batches)
    loader._numbered = loaders.number_of(loader, made_at)
    rows.describe(loader._numbered.number, facts)
    return loader


def _kind(batches: object) -> str:
    return f"{type(batches).__module__}.{type(batches).__qualname__}"


def _is_measured(batches: object) -> bool:
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(batches, module.DataLoader)


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except Exception:
        return None


class _Loader(Generic[_T]):
    """An iterable whose batches are measured; its attributes are the iterable's."""

    _own = frozenset({"_batches", "_rows", "_numbered"})
    _numbered: NumberedLoader

    def __init__(self, rows: LoaderRows, batches: Iterable[_T]) -> None:
        self._rows = rows
        self._batches = batches

    def __iter__(self) -> Iterator[_T]:
        began = time.monotonic_ns()
        self._rows.enter()
        try:
            batches = iter(self._batches)
        finally:
            self._rows.leave()
        starting_ns = time.monotonic_ns() - began
        numbered = self._numbered
        return measure(batches, _observer(self._rows), lambda _: numbered, starting_ns)[
            0
        ]

    def __getattr__(self, name: str) -> Any:
        if name in self._own:  # Of a copy that is only being made.
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self._batches, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._batches[key]  # type: ignore[index]

    def __reduce__(self) -> Any:
        return _itself, (self._batches,)


class _SizedLoader(_Loader[_T]):
    """One that has a length."""

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


def _itself(batches: _T) -> _T:
    """Return the iterable: a copy of a measured one is not measured."""
    return batches


def _observer(rows: LoaderRows) -> Callable[[], Sequence[LoaderRows]]:
    """Return what tells whether a session still takes rows."""
    alone = (rows,)

    def observers() -> Sequence[LoaderRows]:
        session = rows.session
        return () if session is None or session.is_closed else alone

    return observers
