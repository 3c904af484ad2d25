"""Rows of a table as columns of NumPy arrays: what every conversion starts from.

Thread safety: values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tdbg.config.messages import nearest_recorded, short
from tdbg.errors import QueryError
from tdbg.modes import ModeKeys
from tdbg.trial.tables.columns import Column

__all__ = ["Batch", "Scope", "Values", "Words", "empty", "joined"]


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Text of which there are few values.

    Attributes:
        codes: int32: of each row the number of its word; -1 for none.
        words: The words, each once.
    """

    codes: NDArray[np.int32]
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> Words:
        """Number the words of a column."""
        numbers: dict[str, int] = {}
        codes = [
            -1 if text is None else numbers.setdefault(text, len(numbers))
            for text in texts
        ]
        return cls(np.array(codes, np.int32), list(numbers))


#: Values of a column: of text an array of objects; a masked array where some lack.
Values: TypeAlias = NDArray[Any] | Words
#: Columns of as many rows, by name.
Batch: TypeAlias = Mapping[str, Values]


_EMPTY: Mapping[str, Any] = {
    "text": object,
    "time": "M8[ns]",
    "int64": np.int64,
    "uint64": np.uint64,
    "float64": np.float64,
    "bool": np.bool_,
}


def empty(columns: Sequence[Column]) -> Batch:
    """Return a batch without rows."""
    return {
        each.name: Words(np.empty(0, np.int32), [])
        if each.kind == "word"
        else np.empty(0, _EMPTY[each.kind])
        for each in columns
    }


def joined(batches: Iterable[Batch], columns: Sequence[Column]) -> Batch:
    """Return all rows as one batch."""
    found = list(batches) or [empty(columns)]
    if len(found) == 1:
        return found[0]
    return {each.name: _joined([one[each.name] for one in found]) for each in columns}


def _joined(parts: Sequence[Values]) -> Values:
    words = [each for each in parts if isinstance(each, Words)]
    arrays = [each for each in parts if not isinstance(each, Words)]
    if not words:
        return np.concatenate(arrays)
    numbers: dict[str, int] = {}
    codes = []
    for part in words:
        own = [numbers.setdefault(word, len(numbers)) for word in part.words]
        codes.append(np.array([*own, -1], np.int32)[part.codes])
    return Words(np.concatenate(codes), list(numbers))


@dataclass(frozen=True, slots=True)
class Scope:
    """Which rows of a table are asked for; None: all.

    Attributes:
        names: Tensors, or scalars.
        start: First global step.
        end: Global step before which to end.
        mode: Only steps of this mode; GLOBAL: of all.
    """

    names: tuple[str, ...] | None = None
    start: int | None = None
    end: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL

    def has_step(self, step: int) -> bool:
        """Whether a global step is in the range."""
        return (self.start is None or step >= self.start) and (
            self.end is None or step < self.end
        )

    def chosen(self, known: Sequence[str], what: str) -> list[str]:
        """Return those of the known names that are asked for, in their order.

        Raises:
            QueryError: If one is not known; the message proposes the nearest.
        """
        if self.names is None:
            return list(known)
        there = set(known)
        for name in self.names:
            if name not in there:
                msg = f"no {what} {short(name)}; {nearest_recorded(name, known)}"
                raise QueryError(msg)
        asked = set(self.names)
        return [name for name in known if name in asked]
