"""A step before the first update, as the checks of initial weights see it.

Thread safety: read-only once made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.facts import Facts
from tdbg.findings import Severity
from tdbg.rules.columns import is_matrix
from tdbg.rules.window import Description, Table

__all__ = ["WEIGHTED", "FirstStep", "Found"]

# Modules of PyTorch that multiply by weights; their outputs are compared.
WEIGHTED = frozenset(
    f"{kind}{n}d" for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)
) | {"Linear", "Bilinear"}


class Found(NamedTuple):
    """What a check has found: at which tensor, how bad it is, and in words."""

    name: str
    severity: Severity
    description: Description


class FirstStep:
    """The rows of a step at which the weights are those that training began with.

    Args:
        table: All rows.
        j: The column.
        facts: What is known of the model.
    """

    def __init__(self, table: Table, j: int, facts: Facts) -> None:
        self.table, self.j, self.facts = table, j, facts
        known = table.known[:, j] & (table.not_finite[:, j] == 0)
        self._index: Mapping[str, int] = {
            table.names[i]: int(i) for i in np.flatnonzero(known)
        }
        self.matrices = [
            name
            for name, parameter in facts.parameters.items()
            if parameter.requires_grad
            and is_matrix(parameter)
            and "Embedding" not in parameter.module
            and name in self._index
        ]
        self.has_frozen_layers = any(
            not parameter.requires_grad and parameter.module in WEIGHTED
            for parameter in facts.parameters.values()
        )
        layers = {name.rpartition(".")[0]: name for name in self.matrices}
        self._weights = {f"{path}_output_0": name for path, name in layers.items()}
        order = sorted(self._index.items(), key=lambda item: item[1])
        self.outputs = [name for name, _ in order if name in self._weights]

    def field(self, name: str, field: str) -> float:
        """A field of a row; NaN where there is none."""
        i = self._index.get(name)
        return math.nan if i is None else float(self.table[field][i, self.j])

    def root(self, name: str) -> float:
        """The root mean square."""
        return self.field(name, "l2") / math.sqrt(self.field(name, "count") or 1.0)

    def offset(self, name: str) -> float:
        """How many standard deviations the mean is away from zero."""
        deviation = math.sqrt(self.field(name, "m2") / (self.field(name, "count") or 1))
        mean = abs(self.field(name, "mean"))
        return mean / deviation if deviation > 0 else 0.0

    def units(self, name: str) -> int:
        """How many units the layer of a weight or an output has."""
        weight = self._weights.get(name, name)
        parameter = self.facts.parameters.get(weight)
        return 0 if parameter is None else parameter.shape[0]

    def is_integer(self, name: str) -> bool:
        """Whether the tensor holds whole numbers."""
        i = self._index.get(name)
        return i is not None and "int" in self.table.dtypes[i]

    def of_role(self, role: str) -> Sequence[str]:
        """The tensors of that role."""
        return [n for n, i in self._index.items() if self.table.roles[i] == role]

    def has_equal_units(self, name: str) -> bool:
        """Whether the units of a layer have equal weights."""
        return self.field(name, "m2") == 0 or len(set(self.unit_kinds(name))) == 1

    def unit_kinds(self, name: str) -> Sequence[int]:
        """A number for each unit of a layer, the same for those of equal weights.

        Empty where no values were captured; where the first weight alone tells most
        units apart, all of them are.
        """
        values = self._values(name)
        if values is None:
            return ()
        units = values.reshape(len(values), -1)
        if 2 * len(np.unique(units[:, 0])) > len(units) > 1:
            return range(len(units))
        _, kinds = np.unique(units, axis=0, return_inverse=True)
        return tuple(kinds.ravel().tolist())

    def takes_alike(self, name: str, kinds: Sequence[int]) -> bool:
        """Whether the units of a layer weigh inputs of the same kind alike.

        Args:
            name: The weight.
            kinds: The kind of each input.
        """
        values = self._values(name)
        if values is None or values.shape[1] != len(kinds):
            return False
        _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
        return bool((values == values[:, first[kind]]).all())

    def _values(self, name: str) -> NDArray[np.generic] | None:
        """The values of a matrix, if they were captured."""
        if "weight" not in name.rpartition(".")[2]:
            return None  # Of others no values are captured.
        values = self.table.value(name, int(self.table.steps[self.j]))
        return None if values is None or values.ndim < 2 else values
