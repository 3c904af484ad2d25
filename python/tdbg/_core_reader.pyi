"""The readers of ``tdbg._core``, whose stub imports this one.

A stub only: there is no such module to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

class Definition:
    def __init__(self, *args: object, **kwargs: object) -> NoReturn:
        """Made by RunReader only: raises TypeError."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def role(self) -> int: ...
    @property
    def dtype(self) -> str:
        """NumPy or ml_dtypes name, or dtype.str; "" for scalars and spans."""

    @property
    def item_size(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def global_shape(self) -> tuple[int, ...]: ...
    @property
    def global_offset(self) -> tuple[int, ...]: ...
    @property
    def placements(self) -> tuple[tuple[int, int, int, int, int], ...]: ...

class Event:
    def __init__(self, *args: object, **kwargs: object) -> NoReturn:
        """Made by RunReader only: raises TypeError."""

    @property
    def step(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def severity(self) -> int: ...
    @property
    def wall_ns(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def json(self) -> bytes: ...

class Problem:
    def __init__(self, *args: object, **kwargs: object) -> NoReturn:
        """Made by RunReader only: raises TypeError."""

    @property
    def kind(self) -> str:
        """damage, torn_tail, foreign, unsupported, io or missing."""

    @property
    def file(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def message(self) -> str: ...

class RunReader:
    """Reader of one writer directory; see cpp/reader/run_reader.h.

    Safe to share between threads.  Raises tdbg.errors.StorageError and its
    subclasses.
    """

    def __init__(
        self,
        directory: str,
        run_uuid: bytes | None = None,
        use_caches: bool = True,
        map_files: bool = True,
        max_tensor_bytes: int = ...,
        threads: int = 0,
    ) -> None:
        """With use_caches off every record is checked at once; threads: as many
        decode a large tensor, 0: one for each processor, and at most 4."""

    def poll(self) -> bool: ...
    def definitions(self, start: int = 0) -> list[Definition]: ...
    def steps(self, start: int = 0) -> NDArray[np.void]: ...
    @property
    def n_rows(self) -> int: ...
    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[np.void]: ...
    def column(
        self,
        definitions: Sequence[int],
        start: int | None = None,
        stop: int | None = None,
    ) -> NDArray[np.void]:
        """Rows of these definitions with start <= step < stop, by step in a shard."""

    def segments(
        self, start: int | None = None, stop: int | None = None
    ) -> NDArray[np.void]:
        """Which rows each `rows` record with start <= step < stop has."""

    def signature(self, number: int) -> NDArray[np.uint32]:
        """The definitions of the rows of a segment."""

    def find_tensors(
        self,
        start: int | None = None,
        stop: int | None = None,
        definitions: Sequence[int] | None = None,
    ) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        """Entries of tensors() with start <= step < stop, and their places in it."""

    def find_scalars(
        self,
        start: int | None = None,
        stop: int | None = None,
        definitions: Sequence[int] | None = None,
    ) -> tuple[NDArray[np.void], NDArray[np.uint64]]: ...
    def recorded_steps(self) -> tuple[int, int] | None:
        """The lowest and the highest step that was ended."""

    def has_data(self, step: int) -> bool:
        """Whether there is a row, a tensor or a scalar of this step."""

    def definition(self, id: int) -> Definition | None:
        """The last definition of this id."""

    def ids_of(self, name: str) -> list[int]: ...
    def names(self) -> list[str]:
        """Names of all definitions but those of spans, each once."""

    @property
    def n_definitions(self) -> int: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def n_tensors(self) -> int: ...
    def verify(self) -> list[Problem]:
        """Everything that is wrong: walks all records and decodes all values."""

    def tensors(self, start: int = 0) -> NDArray[np.void]: ...
    def read_tensor(self, index: int) -> NDArray[np.uint8]:
        """Raw bytes in C order, read-only; the caller views them as dtype, shape."""

    def scalars(self, start: int = 0) -> NDArray[np.void]: ...
    def events(self, start: int = 0) -> list[Event]: ...
    def spans(self, start: int = 0) -> NDArray[np.void]: ...
    def gaps(self, start: int = 0) -> NDArray[np.void]: ...
    def histograms(self, start: int = 0) -> NDArray[np.void]: ...
    def read_histogram(
        self, index: int
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
        """Keys and counts of ``histograms()[index]``."""

    def problems(self, start: int = 0) -> list[Problem]: ...
    def identity(self) -> dict[str, Any]:
        """role, rank, world_size, generation, run, attempt (bytes), attempt_ordinal,
        created_ns."""

    def liveness(self) -> str:
        """unknown, running, stalled, closed or dead."""

    def commit(self) -> dict[str, int] | None: ...
    @property
    def n_bytes(self) -> int: ...
