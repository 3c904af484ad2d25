"""A long table in little memory: steps of a run are alike.

Rows are held in pages.  Of a column of a page only what is left beside a straight line
is held, in as few bytes as that needs: a number that counts up takes none, a time four
or eight, a counter that hardly changes one.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CompactTable"]

# Rows of a page: what is behind the last full page is held as it is.
PAGE_ROWS = 8192

_WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)


class _Column(NamedTuple):
    """The values ``first + slope * i + rest[i]``, modulo 2^64."""

    first: int
    slope: int
    rest: NDArray[Any] | None  # None: all zero.

    @classmethod
    def of(cls, values: NDArray[Any]) -> _Column:
        """Compress the values of a full page: integers or booleans."""
        numbers = values.astype(np.int64).view(np.uint64)
        first, last = int(numbers[0]), int(numbers[-1])
        if first == last and (numbers == numbers[0]).all():
            return cls(first, 0, None)
        rise = (last - first + (1 << 63)) % (1 << 64) - (1 << 63)
        slope = rise // (len(values) - 1) % (1 << 64)
        along = _above_lowest(numbers - _line(0, slope, len(values)))
        level = _above_lowest(numbers)
        (base, rest), slope = min((level, 0), (along, slope), key=_highest)
        if not rest.any():
            return cls(base, slope, None)
        width = next(w for w in _WIDTHS if rest.max() <= np.iinfo(w).max)
        return cls(base, slope, rest.astype(width))

    def values(self, at: int, n: int) -> NDArray[np.int64]:
        """The values from the one at *at* on, at most *n*."""
        n = min(n, PAGE_ROWS - at)
        numbers = _line((self.first + self.slope * at) % (1 << 64), self.slope, n)
        if self.rest is not None:
            numbers += self.rest[at : at + n]
        return numbers.view(np.int64)


def _line(first: int, slope: int, n: int) -> NDArray[np.uint64]:
    if not slope:
        return np.full(n, first, np.uint64)
    numbers = np.arange(n, dtype=np.uint64)
    numbers *= np.uint64(slope)
    numbers += np.uint64(first)
    return numbers


def _above_lowest(numbers: NDArray[np.uint64]) -> tuple[int, NDArray[np.uint64]]:
    lowest = numbers.view(np.int64).min().view(np.uint64)
    return int(lowest), numbers - lowest


def _highest(candidate: tuple[tuple[int, NDArray[np.uint64]], int]) -> int:
    return int(candidate[0][1].max())


class CompactTable:
    """Rows of integers and booleans, appended to and cut at the end."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._dtype = dtype
        self._pages: list[dict[str, _Column]] = []
        self._tail: NDArray[np.void] = np.empty(0, dtype)

    def __len__(self) -> int:
        return len(self._pages) * PAGE_ROWS + len(self._tail)

    @property
    def nbytes(self) -> int:
        """Bytes of the values that are held."""
        rests = (c.rest for page in self._pages for c in page.values())
        held = sum(rest.nbytes for rest in rests if rest is not None)
        return held + self._tail.nbytes

    def extend(self, rows: NDArray[np.void]) -> None:
        """Append *rows*."""
        rows = np.concatenate((self._tail, rows)) if len(self._tail) else rows
        n_full = len(rows) - len(rows) % PAGE_ROWS
        for first in range(0, n_full, PAGE_ROWS):
            page = rows[first : first + PAGE_ROWS]
            self._pages.append({name: _Column.of(page[name]) for name in self._names})
        self._tail = rows[n_full:].copy()

    def truncate(self, length: int) -> None:
        """Forget everything from *length* on."""
        if length >= len(self):
            return
        n_pages, n_left = divmod(length, PAGE_ROWS)
        if n_pages == len(self._pages):
            self._tail = self._tail[:n_left].copy()
            return
        first = n_pages * PAGE_ROWS
        self._tail = self.rows(first, first + n_left)
        del self._pages[n_pages:]

    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[np.void]:
        """Copy of the rows ``start <= i < stop``."""
        stop = len(self) if stop is None else min(stop, len(self))
        rows = np.empty(max(0, stop - start), self._dtype)
        for name in self._names:
            self._fill(rows[name], name, start)
        return rows

    def column(
        self, name: str, start: int = 0, stop: int | None = None
    ) -> NDArray[Any]:
        """Copy of one field of these rows."""
        stop = len(self) if stop is None else min(stop, len(self))
        values = np.empty(max(0, stop - start), self._dtype[name])
        self._fill(values, name, start)
        return values

    @property
    def _names(self) -> tuple[str, ...]:
        return self._dtype.names or ()

    def _fill(self, out: NDArray[Any], name: str, start: int) -> None:
        """Write the values of a field from row *start* on."""
        done = 0
        while done < len(out):
            page, at = divmod(start + done, PAGE_ROWS)
            n = len(out) - done
            if page < len(self._pages):
                part = self._pages[page][name].values(at, n)
            else:
                part = self._tail[name][at : at + n]
            out[done : done + len(part)] = part
            done += len(part)
