"""What the tensors of a run are, as columns: a run may have 100,000.

To make an object of each of its definitions would take seconds, and 100 MB.  The core
gives their roles, element types and shapes as arrays, in a fifth of a second.

Thread safety: functions over sources, with the lock of their run held; what they give
are values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import NO_TENSORS, Role, role_numbered

if TYPE_CHECKING:
    from tdbg._core import DefinitionColumns
    from tdbg.trial.writers import Source

__all__ = ["SourceTensors", "TensorDescription", "TensorTable", "tensors_of"]

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """What a tensor is.

    Attributes:
        name: Its name.
        role: What it is: weight, bias, gradient, input, output, loss, scalar, ...
        dtype: Name of the element type of NumPy or ml_dtypes.
        shape: Its shape, of a sharded tensor that of the whole; None if it has changed,
            or differs between workers.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class SourceTensors:
    """The definitions of a source, ascending by id.

    Attributes:
        ids: Their ids.
        tensors: Of each the number of its tensor in the table.
        n_elements: How many elements the source's own part has.
    """

    ids: NDArray[np.uint32]
    tensors: NDArray[np.intp]
    n_elements: NDArray[np.uint64]

    def places(
        self, ids: NDArray[np.uint32]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Where these ids stand, and which do: one without a definition is damage."""
        if not len(self.ids):
            return np.zeros(len(ids), np.intp), np.zeros(len(ids), np.bool_)
        at = np.searchsorted(self.ids, ids)
        at[at == len(self.ids)] = 0
        return at, self.ids[at] == ids

    def of(self, ids: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Return the tensors of these ids; -1 where there is none."""
        at, known = self.places(ids)
        found = np.full(len(ids), -1, np.intp)
        found[known] = self.tensors[at[known]]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TensorTable:
    """What tensors are, by their newest definitions.

    Attributes:
        names: Their names, each once.
        roles: Number of the role of each; that of spans where only spans are defined.
        dtypes: Names of element types; "" for none.
        dtype_of: Which of them each tensor has; -1 where nothing is known of it.
        shapes: Shapes, of sharded tensors those of the whole.
        shape_of: Which of them each tensor has; -1 where it is not always the same.
        of_sources: Their definitions in each source, in the order of the sources.
    """

    names: list[str]
    roles: NDArray[np.uint16]
    dtypes: list[str]
    dtype_of: NDArray[np.int64]
    shapes: list[tuple[int, ...]]
    shape_of: NDArray[np.int64]
    of_sources: list[SourceTensors]

    @property
    def are_tensors(self) -> NDArray[np.bool_]:
        """Which are tensors, and neither spans nor tables."""
        return ~np.isin(self.roles, list(NO_TENSORS))

    def of_role(self, role: str) -> NDArray[np.bool_]:
        """Which tensors have a role."""
        found = np.zeros(len(self.roles), np.bool_)
        for number in np.unique(self.roles).tolist():
            if _name_of(number) == role:
                found |= self.roles == number
        return found

    def describe(self, number: int) -> TensorDescription:
        """Describe a tensor."""
        dtype, shape = int(self.dtype_of[number]), int(self.shape_of[number])
        if dtype < 0 or self.roles[number] in NO_TENSORS:
            return TensorDescription(self.names[number], "other", "", None)
        return TensorDescription(
            self.names[number],
            _name_of(int(self.roles[number])),
            self.dtypes[dtype] or "float64",
            None if shape < 0 else self.shapes[shape],
        )


def _name_of(role: int) -> str:
    return role_numbered(role).name.lower()


class _Merged(Generic[_Value]):
    """Values that sources have in lists of their own, in one."""

    def __init__(self) -> None:
        self._numbers: dict[_Value, int] = {}

    @property
    def values(self) -> list[_Value]:
        """The values, in the order in which they first came."""
        return list(self._numbers)

    def take(self, values: Sequence[_Value]) -> NDArray[np.int64]:
        """Return the numbers here of the values of a source."""
        numbers = self._numbers
        return np.array(
            [numbers.setdefault(each, len(numbers)) for each in values], np.int64
        )


def tensors_of(
    sources: Sequence[Source], names: Sequence[str] | None = None
) -> TensorTable:
    """Return what tensors are.

    Args:
        sources: Where they come from.
        names: Which, each once; None: all, in the order in which they first came.
    """
    known: _Merged[str] = _Merged()
    found: list[tuple[DefinitionColumns, NDArray[Any]]] = []
    for source in sources:
        writer = source.writer
        if names is None:
            of_source, places = writer.reader.definition_names()
            tensors = known.take(of_source)[places]
            found.append((writer.reader.definition_columns(), tensors))
        else:
            ids, places = writer.ids_of_names(names)
            found.append((writer.reader.definition_columns(ids), places))
    return _joined(known.values if names is None else list(names), found)


def _joined(
    names: list[str], found: Sequence[tuple[DefinitionColumns, NDArray[Any]]]
) -> TensorTable:
    """Join the definitions of all sources; the newest of a name counts."""
    n = len(names)
    roles = np.full(n, Role.SPAN.value, np.uint16)
    dtype_of, shape_of = np.full(n, -1), np.full(n, -1)
    dtypes: _Merged[str] = _Merged()
    shapes: _Merged[tuple[int, ...]] = _Merged()
    parts = [
        (tensors.astype(np.intp), shapes.take(columns["shapes"])[columns["shape"]])
        for columns, tensors in found
    ]
    for tensors, shape in reversed(parts):
        shape_of[tensors[::-1]] = shape[::-1]  # The first one stays.
    differs = [tensors[shape != shape_of[tensors]] for tensors, shape in parts]
    shape_of[np.concatenate([*differs, np.empty(0, np.intp)])] = -1
    of_sources = []
    for (columns, _), (tensors, _) in zip(found, parts, strict=True):
        last = np.full(n, -1)
        last[tensors] = np.arange(len(tensors))
        newest = last[last >= 0]
        newest = newest[~np.isin(columns["role"][newest], list(NO_TENSORS))]
        roles[tensors[newest]] = columns["role"][newest]
        of_these = dtypes.take(columns["dtypes"])[columns["dtype"][newest]]
        dtype_of[tensors[newest]] = of_these
        order = np.argsort(columns["id"], kind="stable")
        of_sources.append(
            SourceTensors(
                columns["id"][order], tensors[order], columns["n_elements"][order]
            )
        )
    return TensorTable(
        names, roles, dtypes.values, dtype_of, shapes.values, shape_of, of_sources
    )
