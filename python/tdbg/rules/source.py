"""What the engine asks of a trial, so that anything which answers can be judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tdbg.facts import Facts
    from tdbg.histogram import Histogram

__all__ = [
    "AttemptSource",
    "CollectionSource",
    "ColumnSource",
    "RowSource",
    "ScalarSource",
    "Source",
    "TensorSource",
]


class RowSource(Protocol):
    """One row of statistics; has every field of a row by its name."""

    @property
    def count(self) -> int:
        """How many elements."""
        ...

    @property
    def nan(self) -> int:
        """How many of them are NaN."""
        ...

    @property
    def positive_infinity(self) -> int:
        """How many are +Inf."""
        ...

    @property
    def negative_infinity(self) -> int:
        """How many are -Inf."""
        ...

    @property
    def zero(self) -> int:
        """How many are zero."""
        ...

    @property
    def min(self) -> float:
        """The least finite one."""
        ...

    @property
    def max(self) -> float:
        """The greatest."""
        ...

    @property
    def abs_min(self) -> float:
        """The least absolute value."""
        ...

    @property
    def mean(self) -> float:
        """The mean."""
        ...

    @property
    def m2(self) -> float:
        """Sum of squared deviations from the mean."""
        ...

    @property
    def l1(self) -> float:
        """Sum of absolute values."""
        ...

    @property
    def l2(self) -> float:
        """Square root of the sum of squares."""
        ...


class ColumnSource(Protocol):
    """Statistics, names x steps; whoever has asked for them may write into them."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """Where there is a row."""
        ...

    @property
    def fields(self) -> NDArray[np.float64]:
        """Fields, as in ``FIELDS``, x names x steps; NaN where there is no row."""
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

    @property
    def dtype(self) -> str:
        """Its element type."""
        ...

    def steps(self, *, what: str = "any") -> Sequence[int]:
        """Global steps at which it was saved: "any", "values" or "histograms"."""
        ...

    def value(self, step: int) -> NDArray[Any]:
        """Its values at a global step; raises QueryError if there are none."""
        ...

    def values_between(self, start: int, stop: int) -> Mapping[int, NDArray[Any]]:
        """Its values at global steps of which there are some, ascending."""
        ...

    def histogram(self, step: int) -> Histogram:
        """Its histogram at a global step; raises QueryError if there is none."""
        ...

    def workers(self, step: int) -> Sequence[str]:
        """Workers that saved it at a global step; raises QueryError if none did."""
        ...

    def stats(self, step: int, *, worker: str | None = None) -> RowSource:
        """Its row at a global step; raises QueryError if there is none."""
        ...


class ScalarSource(Protocol):
    """One scalar."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """Global steps at which it was saved, in the order of saving."""
        ...

    @property
    def values(self) -> NDArray[np.float64]:
        """What was saved there."""
        ...


class AttemptSource(Protocol):
    """One start of the training."""

    @property
    def started_ns(self) -> int:
        """When its last writer began, in ns since 1970 UTC."""
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

    @property
    def status(self) -> str:
        """Of the training: "running", "stalled", "closed", "dead" or "unknown"."""
        ...

    def workers(self) -> Sequence[str]:
        """Names of the workers."""
        ...

    def attempts(self) -> Sequence[AttemptSource]:
        """Starts of the training, oldest first."""
        ...

    def facts(self) -> Sequence[Facts]:
        """What is known of the model, by step."""
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

    def scalars(self, *, start: int, end: int) -> Mapping[str, ScalarSource]:
        """The scalars by name, at global steps in ``start <= step < end``."""
        ...

    def step_table(self, start: int | None = None) -> NDArray[np.void]:
        """Recorded steps from *start* on.

        Fields: step, mode, wall_ns, complete, lossless, settled, skipped, generation,
        and others.
        """
        ...

    def columns(self, names: Sequence[str], steps: NDArray[np.int64]) -> ColumnSource:
        """Rows of these tensors at these steps, which ascend."""
        ...
