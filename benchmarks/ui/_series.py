"""The series that all dashboards show: statistics of tensors over steps, some planted.

A value depends on its tensor and its step alone, so that any answer can be checked
without what was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["SERIES", "SPIKE", "Series"]

#: What a planted value is multiplied by.
SPIKE = 1000.0
# Noise comes again after so many steps: a prime, so that no sampling is in step.
_PERIOD = 997


@dataclass(frozen=True)
class Series:
    """The l2 norm of each of some tensors at each of some steps.

    Attributes:
        name: Of the series.
        n_tensors: How many tensors.
        n_steps: How many steps, from 0 on.
        n_planted: So many tensors have one spike each, as many others one NaN each.
    """

    name: str
    n_tensors: int
    n_steps: int
    n_planted: int = 0

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors, four to a block."""
        parts = ("query", "key", "value", "output")
        return [
            f"gradient/blocks.{i // 4}.{parts[i % 4]}.weight"
            for i in range(self.n_tensors)
        ]

    @cached_property
    def spikes(self) -> dict[int, int]:
        """The step of the spike, by the number of the tensor."""
        return dict(zip(range(self.n_planted), self._planted[0].tolist(), strict=True))

    @cached_property
    def holes(self) -> dict[int, int]:
        """The step of the NaN, by the number of the tensor."""
        numbers = range(self.n_planted, 2 * self.n_planted)
        return dict(zip(numbers, self._planted[1].tolist(), strict=True))

    def values(self, step: int) -> NDArray[np.float32]:
        """float32 (n_tensors,): the values at a step."""
        slow = np.float32(1 + 0.5 * np.exp(-step / 2000))
        found: NDArray[np.float32] = self._levels * self._noise[step % _PERIOD] * slow
        for tensor, at in self.spikes.items():
            if at == step:
                found[tensor] *= SPIKE
        for tensor, at in self.holes.items():
            if at == step:
                found[tensor] = np.nan
        return found

    @cached_property
    def _levels(self) -> NDArray[np.float32]:
        return np.geomspace(1e-3, 10, self.n_tensors).astype(np.float32)

    @cached_property
    def _noise(self) -> NDArray[np.float32]:
        dice = np.random.default_rng(1)
        noise = dice.normal(1, 0.05, size=(_PERIOD, self.n_tensors))
        return np.clip(noise, 0.5, 1.5).astype(np.float32)

    @cached_property
    def _planted(self) -> NDArray[np.int64]:
        dice = np.random.default_rng(2)
        # Neither the first nor the last steps, which many ways of sampling keep.
        inner = np.arange(self.n_steps // 20, self.n_steps * 19 // 20)
        size = (2, self.n_planted)
        return (
            dice.choice(inner, size=size, replace=False)
            if self.n_planted
            else (np.zeros(size, np.int64))
        )


SERIES = {
    one.name: one
    for one in (
        Series("1,000 x 1,000", 1000, 1000),
        Series("1,000 x 10,000", 1000, 10_000),
        Series("planted", 12, 10_000, n_planted=6),
        Series("live", 1000, 100_000),
        Series("quick", 12, 200, n_planted=6),
    )
}
