"""What is wrong with initial weights by themselves: alike, zero, or too large.

Each check looks at a step before the first update and answers with what it has found,
at the first layer concerned, or with None.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from itertools import pairwise

from tdbg.findings import Severity
from tdbg.rules.columns import GRADIENT, others
from tdbg.rules.weights.first_step import FirstStep, Found
from tdbg.rules.window import Description

__all__ = ["stay_zero", "too_large", "units_alike", "units_copied"]

# Of these each unit sums over all but the first dimension of its weights.
SUMMING = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d"})
# He's gain, for ReLU: the largest that is usual.
HE = math.sqrt(2.0)
# The fewer inputs a unit has, the further its weights may be from their scale.
MIN_INPUTS = 16


def units_alike(step: FirstStep) -> Found | None:
    """Units of a layer with equal weights: they learn the same."""
    alike = [name for name in step.matrices if step.has_equal_units(name)]
    nonzero = [name for name in alike if step.field(name, "l2") > 0]
    if not nonzero:
        return None
    first = nonzero[0]
    # Only between two such layers do units stay alike for ever.
    order = {name: i for i, name in enumerate(step.matrices)}
    places = sorted(order[name] for name in alike)
    adjacent = any(b - a == 1 for a, b in pairwise(places))
    return Found(
        first,
        Severity.ERROR if adjacent else Severity.WARNING,
        Description(
            message=(
                f"all {step.units(first)} units have the same initial weights "
                f"(mean {step.field(first, 'mean'):.3g}); so it is in {len(alike)} of "
                f"{len(step.matrices)} layers: {others(alike)}"
            ),
            value=float(len(alike)),
            threshold=0.0,
            advice=(
                "units that begin alike get the same gradients and stay alike, as if "
                "there were one: draw weights at random (torch.nn.init."
                "kaiming_normal_ for ReLU, xavier_normal_ for tanh and sigmoid)"
            ),
        ),
    )


def units_copied(step: FirstStep) -> Found | None:
    """Layers made wider by copies of their units, which what follows weighs alike."""
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
                    f"of {len(kinds)} units only {n_kinds} have different initial "
                    f"weights, and {following} weighs those that are alike alike"
                ),
                value=float(n_kinds),
                threshold=len(kinds) / 2,
                advice=(
                    "copies get the same gradients and stay copies, so the layer is as "
                    "good as one of that few units: add some noise to the copies, to "
                    "a hundredth of their weights, or draw the new ones at random"
                ),
            ),
        )
    return None


def stay_zero(step: FirstStep) -> Found | None:
    """Layers that are zero and get no gradient: with one they would learn."""
    stuck = [
        name
        for name in step.matrices
        if step.field(name, "l2") == 0 and step.field(GRADIENT + name, "l2") == 0
    ]
    if not stuck:
        return None
    return Found(
        stuck[0],
        Severity.ERROR,
        Description(
            message=(
                f"all weights are zero and so is their gradient, in {len(stuck)} of "
                f"{len(step.matrices)} layers: {others(stuck)}"
            ),
            value=0.0,
            threshold=0.0,
            advice=(
                "they stay zero: of two layers that multiply each other only one may "
                "begin at zero (as the last one of a residual branch); draw the "
                "others at random (torch.nn.init.kaiming_normal_)"
            ),
        ),
    )


def too_large(step: FirstStep, gain: float) -> Found | None:
    """Weights too large for the number of inputs, over whose products units sum.

    Args:
        step: The step.
        gain: Their root mean square times the square root of the number of inputs
            may be so large; reported if it is larger in half of the layers, and in
            two at least.
    """
    inputs = {
        name: n
        for name in step.matrices
        if step.facts.parameters[name].module in SUMMING
        and (n := math.prod(step.facts.parameters[name].shape[1:])) >= MIN_INPUTS
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
                f"the initial weights have a root mean square of "
                f"{step.root(first):.2g}, with {n} inputs to a unit: outputs are "
                f"{gains[first]:.2g} times their inputs; so it is in {len(found)} of "
                f"{len(gains)} layers: {others(found)}"
            ),
            value=gains[first],
            threshold=gain,
            advice=(
                f"draw them with a deviation of {HE / math.sqrt(n):.2g} (He, "
                "torch.nn.init.kaiming_normal_; Glorot's is smaller still): the "
                "default of torch.nn.init.normal_ is 1, whatever the width"
            ),
        ),
    )
