"""How far two runs that should be the same are apart: what other runs are judged by.

Thread safety: values; one thread while it is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.execution import execution_of
from tdbg.compare.matching import match, mode_pairs, no_match
from tdbg.compare.pairing import NameMap, pair
from tdbg.compare.scan import RunScan
from tdbg.compare.tolerance import LOOSEST
from tdbg.trial import Trial

__all__ = ["Noise", "measure_noise"]

# Two runs show one sample of the noise; others may be further apart.
SAFETY = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """The largest deviation of each tensor up to each step.

    Attributes:
        places: By name the places at which it was measured, ascending.
        largest: By name the largest deviation up to each of them.
    """

    places: dict[str, NDArray[np.int64]]
    largest: dict[str, NDArray[np.float64]]

    def tolerances(
        self,
        names: Sequence[str],
        places: NDArray[np.int64],
        otherwise: NDArray[np.float64],
        least: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the relative deviations that noise explains: (names, places).

        Infinity is where the noise is as large as the tensor.

        Args:
            names: Tensors.
            places: Where they are compared.
            otherwise: (names, places): what is allowed where no noise was measured.
            least: (names,): what is always allowed.
        """
        found = otherwise.copy()
        for i, name in enumerate(names):
            if name in self.places:
                at = np.searchsorted(self.places[name], places, side="right") - 1
                # Before the first measurement, that one is all there is.
                allowed = SAFETY * self.largest[name][np.maximum(at, 0)]
                allowed[allowed > LOOSEST] = np.inf
                found[i] = np.maximum(allowed, least[i])
        return found


def measure_noise(
    first: Trial, second: Trial, mode: str | None, by: str, regex: Sequence[str]
) -> Noise:
    """Measure how far two runs of one program are apart.

    Raises:
        QueryError: If they share no step or no name.
    """
    paired = pair(first, second, NameMap(), regex)
    execution = execution_of(first, list(paired.names))
    scan = RunScan((first, second), paired.names, execution)
    places: dict[str, list[int]] = {}
    sizes: dict[str, list[float]] = {}
    n_steps = 0
    for modes in mode_pairs(first, second, mode):
        matched = match(first, second, modes, by)
        n_steps += len(matched)
        for block in scan.blocks(matched):
            for i, name in enumerate(scan.names):
                here = block.present[i]
                places.setdefault(name, []).extend(block.places[here].tolist())
                sizes.setdefault(name, []).extend(block.size[i, here].tolist())
    if not n_steps:
        raise no_match(first, second, by)
    measured = [name for name in places if places[name]]
    order = {name: np.argsort(places[name], kind="stable") for name in measured}
    return Noise(
        {name: np.array(places[name], np.int64)[order[name]] for name in measured},
        {
            name: np.maximum.accumulate(np.array(sizes[name])[order[name]])
            for name in measured
        },
    )
