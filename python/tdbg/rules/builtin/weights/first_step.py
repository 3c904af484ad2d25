"""A step before the first update, and checks of initial weights.

Thread safety: read-only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.quantities import affected, number, plural, times
from tdbg.rules.columns import GRADIENT, by_unit, is_matrix
from tdbg.rules.window import Description, Table
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo, owner_of

__all__ = [
    "WEIGHTED",
    "FirstStep",
    "Found",
    "stay_zero",
    "too_large",
    "units_alike",
    "units_copied",
]


# Modules that multiply by weights, and whose outputs the checks compare.
WEIGHTED = frozenset({Kind.LINEAR, Kind.BILINEAR, Kind.CONV, Kind.CONV_TRANSPOSE})


class Found(NamedTuple):
    """A finding of a check: tensor, severity, and description."""

    name: str
    severity: Severity
    description: Description


class FirstStep:
    """The rows of a step at which the weights still have their initial values.

    Args:
        table: The table of the step.
        j: Column of the step.
        model_info: The model info as of the step.
    """

    def __init__(self, table: Table, j: int, model_info: ModelInfo) -> None:
        self.table, self.j, self.model_info = table, j, model_info
        known = table.known[:, j] & (table.not_finite[:, j] == 0)
        self._index: Mapping[str, int] = {
            table.names[i]: int(i) for i in np.flatnonzero(known)
        }
        # Rows of an embedding are no units: checks look for zeros there, nothing else.
        self.factors = [
            name
            for name, parameter in model_info.parameters.items()
            if parameter.requires_grad and is_matrix(parameter) and name in self._index
        ]
        self.matrices = [
            name
            for name in self.factors
            if model_info.kind_of_leaf(model_info.parameters[name].module)
            != Kind.EMBEDDING
        ]
        self.has_frozen_layers = any(
            not parameter.requires_grad
            and model_info.kind_of_class(parameter.module) in WEIGHTED
            for parameter in model_info.parameters.values()
        )
        layers = {owner_of(name): name for name in self.matrices}
        self._weights = {f"{path}_output_0": name for path, name in layers.items()}
        order = sorted(self._index.items(), key=lambda item: item[1])
        self.outputs = [name for name, _ in order if name in self._weights]

    def field(self, name: str, field: str) -> float:
        """Return a field of a tensor's row; NaN if there is no row."""
        i = self._index.get(name)
        return math.nan if i is None else float(self.table[field][i, self.j])

    def root(self, name: str) -> float:
        """Return the root mean square of a tensor."""
        return self.field(name, "l2") / math.sqrt(self.field(name, "count") or 1.0)

    def offset(self, name: str) -> float:
        """Return the distance of the mean from zero, in standard deviations."""
        deviation = math.sqrt(self.field(name, "m2") / (self.field(name, "count") or 1))
        mean = abs(self.field(name, "mean"))
        return mean / deviation if deviation > 0 else 0.0

    def units(self, name: str) -> int:
        """Return the number of units of the layer of a weight or output."""
        weight = self._weights.get(name, name)
        parameter = self.model_info.parameters.get(weight)
        return 0 if parameter is None else parameter.n_units

    def is_integer(self, name: str) -> bool:
        """Return whether the tensor holds integers."""
        i = self._index.get(name)
        return i is not None and "int" in self.table.dtypes[i]

    def of_role(self, role: str) -> Sequence[str]:
        """Return the tensors of a role."""
        return [n for n, i in self._index.items() if self.table.roles[i] == role]

    def has_equal_units(self, name: str) -> bool:
        """Return whether all units of a layer have equal weights."""
        return self.field(name, "m2") == 0 or len(set(self.unit_kinds(name))) == 1

    def unit_kinds(self, name: str) -> Sequence[int]:
        """Return a number for each unit of a layer; units with equal weights share it.

        Empty if no values were captured.  If the first weight alone distinguishes most
        units, all units count as different.
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
        """Return whether each unit has equal weights for inputs of the same kind.

        Args:
            name: The weight.
            kinds: The kind of each input.
        """
        values = self._values(name)
        if values is None or values.shape[1] != len(kinds):
            return False
        _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
        return bool((values == values[:, first[kind]]).all())

    def part_at_once(self, name: str) -> bool:
        """Return whether the units of a layer get different gradients, as captured."""
        values = self._values(GRADIENT + name)
        if values is None:
            return False
        gradients = values.astype(np.float64)
        if not np.isfinite(gradients).all():
            return False
        apart = np.abs(gradients - gradients[:1]).max(initial=0.0)
        return bool(apart > APART * np.abs(gradients).max(initial=0.0))

    def _values(self, name: str) -> NDArray[np.generic] | None:
        """Return the values of a matrix or its gradient, units and inputs first.

        None: not captured.
        """
        i = self._index.get(name)
        if i is None or self.table.roles[i] not in {"weight", "gradient"}:
            return None  # The hook captures values of these only.
        values = self.table.value(name, int(self.table.steps[self.j]))
        parameter = self.model_info.parameters.get(name.removeprefix(GRADIENT))
        if values is None or values.ndim < 2:
            return None
        return values if parameter is None else by_unit(values, parameter.unit_axis)


# Gradients of units differ if they do by this share of the largest: more than rounding.
APART = 1e-3
# Units of these modules sum over all dimensions of their weights but the first.
SUMMING = frozenset({Kind.LINEAR, Kind.CONV})
# The gain of He's initialization for ReLU, the largest common one.
HE = math.sqrt(2.0)
# With fewer inputs, the scale of a unit's weights scatters too much.
MIN_INPUTS = 16


def units_alike(step: FirstStep) -> Found | None:
    """Check for layers whose units all have equal weights and learn the same.

    They do not if they get different gradients: the layers after them, or inputs of
    their own as the channels of a state-space model have, tell them apart.
    """
    alike = [
        name
        for name in step.matrices
        if step.has_equal_units(name)
        and not _is_scale(step, name)
        and not step.part_at_once(name)
    ]
    nonzero = [name for name in alike if step.field(name, "l2") > 0]
    if not nonzero:
        return None
    first = nonzero[0]
    # Units stay alike forever only between two such layers.
    order = {name: i for i, name in enumerate(step.matrices)}
    places = sorted(order[name] for name in alike)
    adjacent = any(b - a == 1 for a, b in pairwise(places))
    return Found(
        first,
        Severity.ERROR if adjacent else Severity.WARNING,
        Description(
            message=(
                f"All {step.units(first):,} units have the same initial weights (mean "
                f"{number(step.field(first, 'mean'))}), so they all learn the same. "
                f"{affected(len(alike), len(step.matrices), 'layer', alike)}"
            ),
            value=float(len(alike)),
            threshold=0.0,
            advice=lambda words: (
                "Units that start equal get equal gradients and stay equal, like a "
                f"single unit. Draw weights at random ({words.he} for ReLU, "
                f"{words.glorot} for tanh and sigmoid)."
            ),
        ),
    )


def _is_scale(step: FirstStep, name: str) -> bool:
    """Return whether a custom module holds it beside weights drawn at random.

    A weight that multiplies element by element may start with equal values.
    """
    module = step.model_info.parameters[name].module
    return step.model_info.kind_of_class(module) is None and any(
        owner_of(other) == owner_of(name) and not step.has_equal_units(other)
        for other in step.matrices
    )


def units_copied(step: FirstStep) -> Found | None:
    """Check for copied units, with equal weights in the next layer too."""
    for name, following in pairwise(step.matrices):
        kinds = step.unit_kinds(name)
        n_kinds = len(set(kinds))
        if not 1 < n_kinds <= len(kinds) / 2 or not step.takes_alike(following, kinds):
            continue
        return Found(
            name,
            Severity.WARNING,
            Description(
                message=(
                    f"Only {n_kinds:,} of {len(kinds):,} units have different initial "
                    f"weights; the others are copies. {following} weighs the copies "
                    "of a unit equally, so they all learn the same."
                ),
                value=float(n_kinds),
                threshold=len(kinds) / 2,
                advice=(
                    "Copies get equal gradients and stay copies, so the layer is no "
                    f"better than one of {plural(n_kinds, 'unit')}. Add noise of about "
                    "1% of the weights to the copies, or draw new units at random."
                ),
            ),
        )
    return None


def stay_zero(step: FirstStep) -> Found | None:
    """Check for layers that are zero, get no gradient and so cannot learn."""
    stuck = [
        name
        for name in step.factors
        if step.field(name, "l2") == 0 and step.field(GRADIENT + name, "l2") == 0
    ]
    if not stuck:
        return None
    return Found(
        stuck[0],
        Severity.ERROR,
        Description(
            message=(
                "All initial weights of this layer are zero, and so is their gradient, "
                "so the layer cannot learn. "
                f"{affected(len(stuck), len(step.factors), 'layer', stuck)}"
            ),
            value=0.0,
            threshold=0.0,
            advice=lambda words: (
                "Of two layers or factors that multiply each other, only one may start "
                "at zero, such as the last layer of a residual branch or LoRA's second "
                f"factor. Draw the other at random ({words.he_or_normal})."
            ),
        ),
    )


def too_large(step: FirstStep, gain: float) -> Found | None:
    """Check for weights that are too large for a unit's number of inputs.

    Half of the layers, and at least two, must exceed the limit.

    Args:
        step: The step.
        gain: The limit of the weights' root mean square times the square root of the
            number of inputs.
    """
    inputs = {
        name: n
        for name in step.matrices
        if step.model_info.kind_of(name) in SUMMING
        and (n := step.model_info.parameters[name].n_inputs) >= MIN_INPUTS
    }
    gains = {name: step.root(name) * math.sqrt(n) for name, n in inputs.items()}
    found = [name for name, its_gain in gains.items() if its_gain > gain]
    if len(found) < 2 or 2 * len(found) < len(gains):
        return None
    first, n = found[0], inputs[found[0]]
    return Found(
        first,
        Severity.WARNING,
        Description(
            message=(
                f"The initial weights are too large: their root mean square is "
                f"{number(step.root(first), 2)} with {plural(n, 'input')} for each "
                f"unit, so outputs are {times(gains[first])} as large as inputs. "
                f"{affected(len(found), len(gains), 'layer', found)}"
            ),
            value=gains[first],
            threshold=gain,
            advice=lambda words: (
                "Draw them with a standard deviation of "
                f"{number(HE / math.sqrt(n), 2)} (He, {words.he}; Glorot's is smaller "
                f"still). {words.normal_default}"
            ),
        ),
    )
