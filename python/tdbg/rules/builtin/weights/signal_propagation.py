"""Checks of initial weights: of outputs, gradients and the first loss.

Each check reads a step before the first update and returns a finding at the layer
concerned, or None.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from tdbg.config.kinds import Kind
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


# The least number of transitions between layers in a chain.
MIN_TRANSITIONS = 3
# The least factor between consecutive layers of a chain.
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


# For losses of no kind, by name.
CROSS_ENTROPY = re.compile(r"cross_?entropy", re.IGNORECASE)
# The mean over fewer units may be far from zero by chance.
MIN_UNITS = 8


def outputs_change(step: FirstStep, threshold: float) -> Found | None:
    """Check for outputs that grow or shrink from layer to layer.

    Args:
        step: The step.
        threshold: By how much their root mean square may change over a chain.
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
                f"outputs {'grow' if grows else 'shrink'} from layer to layer, by "
                f"{gain:.2g} times each: root mean square {first:.2g} at {chain[0]}, "
                f"{last:.2g} here, {len(chain) - 1} layers on"
            ),
            value=change,
            threshold=threshold,
            advice=(
                "initialize for the width of the layers and the activation in use: "
                f"{'divide' if grows else 'multiply'} the initial weights by "
                f"{gain:.2g} (He: deviation sqrt(2/fan_in) for ReLU; Glorot for "
                "tanh), or normalize between the layers"
            ),
        ),
    )


def gradients_change(step: FirstStep, threshold: float) -> Found | None:
    """Check for gradients of weights that grow or shrink from layer to layer.

    Args:
        step: The step.
        threshold: By how much their root mean square may change over a chain.
    """
    # What another optimizer steps may follow another loss, as an adversary does.
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
                f"gradients {'shrink' if first < last else 'grow'} towards the "
                f"input, by {ratio:.2g} times over {len(chain)} layers: root mean "
                f"square {last:.2g} at {chain[-1]}, {first:.2g} here"
            ),
            value=ratio,
            threshold=threshold,
            advice=(
                "initialize for the width of the layers and the activation in use "
                "(He for ReLU, Glorot for tanh), normalize between the layers, or "
                "add residual connections"
            ),
        ),
    )


def outputs_one_sided(step: FirstStep, asymmetry: float) -> Found | None:
    """Check for outputs far from zero: initial weights should center them there.

    Args:
        step: The step.
        asymmetry: How many standard deviations away they may be; reported if they
            are further in half of the layers, and in two at least.
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
                f"outputs are {step.offset(first):.2g} deviations away from zero "
                f"(mean {step.field(first, 'mean'):.3g}), in {len(found)} of "
                f"{len(judged)} layers: all units say nearly the same"
            ),
            value=step.offset(first),
            threshold=asymmetry,
            advice=(
                "draw initial weights about zero, not all of one sign, with biases of "
                "zero; and see that the inputs are normalized"
            ),
        ),
    )


def first_loss(step: FirstStep, excess: float) -> Found | None:
    """Check for a first cross-entropy above that of guessing, which is log(classes).

    Scores grow with the inputs of a model: what is above is taken for inputs of the
    size of one, since larger ones are a fault of the data (NotNormalizedData).  So do
    they with a number by which a program multiplies them, as it does cosines.

    Args:
        step: The step.
        excess: By how much it may be above.
    """
    if step.has_frozen_layers:
        return None  # It was trained for something else, and is sure of that.
    for name in step.of_role("loss"):
        given = _given(step, name)
        if given is None:
            continue
        loss, guess = step.field(name, "mean"), math.log(given.n_classes)
        scale = step.model_info.logit_scale * _size_of_inputs(step)
        above = (loss - guess) / scale
        # A mean cannot exceed this: a larger loss is a sum.
        if above > excess and loss <= guess + given.spread:
            return Found(
                name,
                Severity.WARNING,
                Description(
                    message=(
                        f"the first loss is {loss:.3g}; guessing among "
                        f"{given.n_classes:.0f} classes gives {guess:.3g}. The model "
                        f"is sure before it has learned: its outputs range over "
                        f"{given.spread:.3g}"
                    ),
                    value=loss - guess,
                    threshold=excess,
                    advice=(
                        "the initial weights, those of the last layer above all, or "
                        "the inputs are too large: initialize by He or Glorot, "
                        "normalize the inputs; of a trained model see that labels "
                        "mean what they meant when it was trained"
                    ),
                ),
            )
    return None


def _size_of_inputs(step: FirstStep) -> float:
    """The root mean square of what the model is given first, but one at least."""
    given = (name for name in step.of_role("input") if not step.is_integer(name))
    first = next(given, None)
    return 1.0 if first is None else max(1.0, step.root(first))


class _Given(NamedTuple):
    """The inputs of a cross-entropy: number of classes, and range of the scores."""

    n_classes: float
    spread: float


def _given(step: FirstStep, loss: str) -> _Given | None:
    """The inputs of a loss; None: it is no cross-entropy of class numbers."""
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
