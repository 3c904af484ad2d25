"""The part of ``tdbg._core`` that its reader answers with.

No module of its own: cpp/bindings/bind_records.cc and bind_envelope.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

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

class EnvelopeGrid:
    """What is drawn of many tensors over many steps; see cpp/reader/envelope.h.

    Of one thread at a time.
    """

    def __init__(
        self, n_names: int, edges: NDArray[np.int64], fields: Sequence[int]
    ) -> None:
        """Column i covers the steps edges[i] <= step < edges[i + 1]."""

    def low(self, field: int) -> NDArray[np.float32]:
        """Of the field of that number of *fields*: names x columns."""

    def high(self, field: int) -> NDArray[np.float32]: ...
    def mean(self, field: int) -> NDArray[np.float32]: ...
    def rows(self) -> NDArray[np.uint32]: ...
    def bad(self) -> NDArray[np.uint32]: ...
    def first_bad(self) -> NDArray[np.int64]: ...
    @property
    def n_rows(self) -> int: ...
