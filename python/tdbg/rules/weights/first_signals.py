"""What initial weights make of signals: of outputs, gradients and the first loss.

Each check looks at a step before the first update and answers with what it has found,
at the layer concerned, or with None.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from tdbg.findings import Severity
from tdbg.rules.columns import GRADIENT
from tdbg.rules.weights.chains import chain_of_most_change
from tdbg.rules.weights.first_step import WEIGHTED, FirstStep, Found
from tdbg.rules.window import Description

__all__ = ["first_loss", "gradients_change", "outputs_change", "outputs_one_sided"]

CROSS_ENTROPY = re.compile(r"cross_?entropy", re.IGNORECASE)
# A mean over fewer units may well be far from zero.
MIN_UNITS = 8


def outputs_change(step: FirstStep, threshold: float) -> Found | None:
    """Outputs that grow or shrink from layer to layer; they are to stay about as large.

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
    """Gradients of weights that grow or shrink from layer to layer.

    Args:
        step: The step.
        threshold: By how much their root mean square may change over a chain.
    """
    sizes = {
        GRADIENT + name: step.root(GRADIENT + name)
        for name in step.matrices
        if step.facts.parameters[name].module in WEIGHTED
    }
    chain = chain_of_most_change(sizes, threshold)
    if not chain:
        return None
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
    """Outputs far from zero, about which weights drawn about zero would have them.

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
    """A first cross-entropy above that of guessing, which is log(classes).

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
        # A mean cannot exceed this: what does is a sum.
        if guess + excess < loss <= guess + given.spread:
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


class _Given(NamedTuple):
    """What a cross-entropy was given: so many classes, and scores that far apart."""

    n_classes: float
    spread: float


def _given(step: FirstStep, loss: str) -> _Given | None:
    """What the loss was given; None: it is no cross-entropy of classes by number."""
    path = loss.rpartition("_output_")[0]
    outputs, labels = f"{path}_input_0", f"{path}_input_1"
    n_labels = step.field(labels, "count")
    if not n_labels > 0 or not CROSS_ENTROPY.search(loss):
        return None
    n_classes = step.field(outputs, "count") / n_labels
    if not n_classes >= 2 or not step.is_integer(labels):
        return None
    return _Given(n_classes, step.field(outputs, "max") - step.field(outputs, "min"))
