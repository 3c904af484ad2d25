"""What the engine asks of a trial, so that anything which answers can be judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["CollectionSource", "Source", "StatisticsSource", "TensorSource"]


class StatisticsSource(Protocol):
    """Statistics, names x steps; also has every field of a row by its name."""

    @property
    def names(self) -> Sequence[str]:
        """The tensors."""
        ...

    @property
    def steps(self) -> NDArray[np.int64]:
        """Global steps, ascending."""
        ...

    @property
    def present(self) -> NDArray[np.bool_]:
        """Where there is a row."""
        ...


class TensorSource(Protocol):
    """One tensor."""

    @property
    def role(self) -> str:
        """Its role."""
        ...

    @property
    def position(self) -> int:
        """Its place in the order of execution."""
        ...

    def steps(self) -> Sequence[int]:
        """Global steps at which it was saved in any way."""
        ...

    def value(self, step: int) -> NDArray[Any]:
        """Its values at a global step; raises QueryError if there are none."""
        ...


class CollectionSource(Protocol):
    """One collection."""

    @property
    def tensor_names(self) -> Iterable[str]:
        """Its tensors so far."""
        ...


class Source(Protocol):
    """A run being read: what the engine uses of ``tdbg.trial.Trial``."""

    @property
    def loaded_all_steps(self) -> bool:
        """Whether the training has ended and everything was read."""
        ...

    def refresh(self) -> object:
        """Take in what was written since."""
        ...

    def tensor_names(self) -> Sequence[str]:
        """Every tensor so far."""
        ...

    def tensor(self, name: str) -> TensorSource:
        """One of them."""
        ...

    def collections(self) -> Mapping[str, CollectionSource]:
        """Every collection, by name."""
        ...

    def step_table(self, start: int | None = None) -> NDArray[np.void]:
        """Recorded steps from *start* on.

        Fields: step, mode, complete, lossless, settled, skipped, and others.
        """
        ...

    def statistics(
        self,
        names: Sequence[str] | None = None,
        *,
        start: int | None = None,
        end: int | None = None,
    ) -> StatisticsSource:
        """Rows of these tensors in ``start <= step < end``."""
        ...
