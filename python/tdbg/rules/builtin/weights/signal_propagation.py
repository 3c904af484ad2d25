"""Checks of initial weights by outputs, gradients and the first loss.

Each check reads a step before the first update, and returns a finding at the affected
layer, or None.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from tdbg.config.kinds import Kind
from tdbg.config.quantities import affected, fold, number, plural
from tdbg.rules.builtin.weights.first_step import WEIGHTED, FirstStep, Found
from tdbg.rules.columns import GRADIENT
from tdbg.rules.window import Description
from tdbg.run.findings import Severity

__all__ = [
    "chain_of_most_change",
    "first_loss",
    "gradients_change",
    "outputs_change",
    "outputs_one_sided",
]


_SQUASHING = {Kind.SIGMOID, Kind.HARD_SIGMOID, Kind.TANH, Kind.HARD_TANH}
# Least number of transitions between layers in a chain.
MIN_TRANSITIONS = 3
# Least factor between consecutive layers of a chain.
MIN_FACTOR = 1.5


def chain_of_most_change(sizes: Mapping[str, float], threshold: float) -> list[str]:
    """Return the layers over which sizes change the most, in one direction.

    Args:
        sizes: Sizes by layer, in order; those that are not above zero are skipped.
        threshold: The least change over the whole chain, as a ratio.

    Returns:
        Their names; empty if there is no such chain.

    Example:
        >>> chain_of_most_change(
        ...     {"a": 1.0, "b": 10.0, "c": 100.0, "d": 1e3, "e": 2.0}, 100
        ... )
        ['a', 'b', 'c', 'd']
    """
    layers = [(name, size) for name, size in sizes.items() if size > 0]
    best: list[str] = []
    greatest = threshold
    for direction in (1.0, -1.0):
        start = 0
        for end in range(1, len(layers) + 1):
            if end < len(layers):
                factor = (layers[end][1] / layers[end - 1][1]) ** direction
                if factor >= MIN_FACTOR:
                    continue
            change = (layers[end - 1][1] / layers[start][1]) ** direction
            if end - 1 - start >= MIN_TRANSITIONS and change >= greatest:
                greatest = change
                best = [name for name, _ in layers[start:end]]
            start = end
    return best


# Names of losses without a kind.
CROSS_ENTROPY = re.compile(r"cross_?entropy", re.IGNORECASE)
# The mean over fewer units may be far from zero by chance.
MIN_UNITS = 8


def outputs_change(step: FirstStep, threshold: float) -> Found | None:
    """Check for outputs that grow or shrink from layer to layer.

    Args:
        step: The step.
        threshold: Largest factor by which their root mean square may change over a
            chain.
    """
    sizes = {name: step.root(name) for name in step.outputs}
    chain = chain_of_most_change(sizes, threshold)
    if not chain:
        return None
    first, last = sizes[chain[0]], sizes[chain[-1]]
    grows = last > first
    change = max(first, last) / min(first, last)
    gain = change ** (1 / (len(chain) - 1))
    return Found(
        chain[-1],
        Severity.WARNING,
        Description(
            message=(
                f"Outputs {'grow' if grows else 'shrink'} from layer to layer, "
                f"{fold(gain)} each time: their root mean square is {number(first, 2)} "
                f"at {chain[0]} and {number(last, 2)} here, "
                f"{plural(len(chain) - 1, 'layer')} later."
            ),
            value=change,
            threshold=threshold,
            advice=(
                "Initialize for the width of the layers and the activation: "
                f"{'divide' if grows else 'multiply'} the initial weights by "
                f"{number(gain, 2)} (He for ReLU, with a deviation of sqrt(2/fan_in); "
                "Glorot for tanh), or normalize between the layers."
            ),
        ),
    )


def gradients_change(step: FirstStep, threshold: float) -> Found | None:
    """Check for gradients of weights that grow or shrink from layer to layer.

    Args:
        step: The step.
        threshold: Largest factor by which their root mean square may change over a
            chain.
    """
    # Parameters of another optimizer may follow another loss, as in an adversary.
    optimizers: dict[int | None, dict[str, float]] = {}
    for name in step.matrices:
        if step.model_info.kind_of(name) in WEIGHTED:
            facts = step.model_info.parameters[name]
            of_one = optimizers.setdefault(facts.optimizer, {})
            of_one[GRADIENT + name] = step.root(GRADIENT + name)
    chains = (chain_of_most_change(sizes, threshold) for sizes in optimizers.values())
    chain = next(filter(None, chains), None)
    if chain is None:
        return None
    sizes = {name: step.root(name) for name in chain}
    first, last = sizes[chain[0]], sizes[chain[-1]]
    ratio = max(first, last) / min(first, last)
    return Found(
        chain[0],
        Severity.WARNING,
        Description(
            message=(
                f"Gradients {'shrink' if first < last else 'grow'} towards the input, "
                f"{fold(ratio)} over {plural(len(chain), 'layer')}: their root mean "
                f"square is {number(last, 2)} at {chain[-1]} and {number(first, 2)} "
                "here."
            ),
            value=ratio,
            threshold=threshold,
            advice=_SQUASHED if _squashes(step) and first < last else _BY_WIDTH,
        ),
    )


_BY_WIDTH = (
    "Initialize for the width of the layers and the activation (He for ReLU, Glorot "
    "for tanh), normalize between the layers, or add residual connections."
)
# The gradient of a sigmoid is 1/4 at most.
_SQUASHED = (
    "Use ReLU or GELU instead of sigmoid or tanh between the layers, with initial "
    "weights by He. No initialization helps a deep network of sigmoids; normalizing "
    "between the layers, or residual connections, do."
)


def _squashes(step: FirstStep) -> bool:
    """Return whether the model has a sigmoid or tanh for every second layer or more."""
    modules = step.model_info.modules.values()
    kinds = [step.model_info.kind_of_class(each) for each in modules]
    n_layers = sum(kind in WEIGHTED for kind in kinds)
    return 2 * sum(kind in _SQUASHING for kind in kinds) >= n_layers > 0


def outputs_one_sided(step: FirstStep, asymmetry: float) -> Found | None:
    """Check for outputs far from zero, where initial weights should center them.

    Half of the layers, and at least two, must exceed the limit.

    Args:
        step: The step.
        asymmetry: Largest distance from zero, in standard deviations.
    """
    judged = [name for name in step.outputs if step.units(name) >= MIN_UNITS]
    found = [name for name in judged if step.offset(name) > asymmetry]
    if len(found) < 2 or 2 * len(found) < len(judged):
        return None
    first = found[0]
    return Found(
        first,
        Severity.WARNING,
        Description(
            message=(
                "Outputs are nearly constant: their mean, "
                f"{number(step.field(first, 'mean'))}, is "
                f"{number(step.offset(first), 2)} standard deviations from zero. "
                f"{affected(len(found), len(judged), 'layer')}"
            ),
            value=step.offset(first),
            threshold=asymmetry,
            advice=(
                "Draw initial weights around zero instead of with one sign, set biases "
                "to zero, and normalize the inputs."
            ),
        ),
    )


def first_loss(step: FirstStep, excess: float) -> Found | None:
    """Check for a first cross-entropy above that of guessing, which is log(classes).

    Scores grow with the inputs of a model, and with a factor by which the program
    multiplies them, as it does with cosines.  So the check divides the excess by that
    factor and by the size of the inputs: large inputs are a fault of the data
    (NotNormalizedData).

    Args:
        step: The step.
        excess: Largest excess.
    """
    if step.has_frozen_layers:
        return None  # The model learned another task, and is confident in that.
    for name in step.of_role("loss"):
        given = _given(step, name)
        if given is None:
            continue
        loss, guess = step.field(name, "mean"), math.log(given.n_classes)
        scale = step.model_info.logit_scale * _size_of_inputs(step)
        above = (loss - guess) / scale
        # A mean cannot exceed this, so a larger loss is a sum.
        if above > excess and loss <= guess + given.spread:
            return Found(
                name,
                Severity.WARNING,
                Description(
                    message=(
                        f"The first loss is {number(loss)}, while guessing among "
                        f"{given.n_classes:,.0f} classes gives {number(guess)}. The "
                        "model is confident before it has learned anything: its "
                        f"outputs spread over {number(given.spread)}."
                    ),
                    value=loss - guess,
                    threshold=excess,
                    advice=(
                        "The inputs or the initial weights are too large, above all "
                        "those of the last layer. Initialize by He or Glorot, and "
                        "normalize the inputs. For a pretrained model, check that "
                        "labels mean what they meant in its training."
                    ),
                ),
            )
    return None


def _size_of_inputs(step: FirstStep) -> float:
    """Return the root mean square of the model's first input, or 1 if that is less."""
    given = (name for name in step.of_role("input") if not step.is_integer(name))
    first = next(given, None)
    return 1.0 if first is None else max(1.0, step.root(first))


class _Given(NamedTuple):
    """The inputs of a cross-entropy: number of classes, and range of the scores."""

    n_classes: float
    spread: float


def _given(step: FirstStep, loss: str) -> _Given | None:
    """Return the inputs of a cross-entropy of class numbers; None for another loss."""
    path = loss.rpartition("_output_")[0]
    outputs, labels = f"{path}_input_0", f"{path}_input_1"
    n_labels = step.field(labels, "count")
    kind = step.model_info.kind_of(loss)
    is_entropy = kind == Kind.CROSS_ENTROPY if kind else CROSS_ENTROPY.search(loss)
    if not n_labels > 0 or not is_entropy:
        return None
    n_classes = step.field(outputs, "count") / n_labels
    if not n_classes >= 2 or not step.is_integer(labels):
        return None
    return _Given(n_classes, step.field(outputs, "max") - step.field(outputs, "min"))
