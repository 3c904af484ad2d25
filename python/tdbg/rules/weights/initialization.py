"""Weights that a training cannot begin well with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tdbg.findings import Severity
from tdbg.modes import TRAINING
from tdbg.needs import Needs
from tdbg.rules._base import Rule, check_number
from tdbg.rules.columns import others
from tdbg.rules.registry import register
from tdbg.rules.weights.chains import longest_chain
from tdbg.rules.weights.first_step import FirstStep
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Description,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["PoorWeightInitialization"]

# What multiplies by weights, of PyTorch; their outputs are compared.
WEIGHTED = frozenset(
    f"{kind}{n}d" for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)
) | {"Linear", "Bilinear"}
# Of these each unit sums over all but the first dimension of its weights.
SUMMING = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d"})
ROLES = {"weight", "gradient", "output", "loss", "prediction", "label"}
GRADIENT = "gradient/"
RAW_LIMIT = 1 << 18
CROSS_ENTROPY = re.compile(r"cross_?entropy", re.IGNORECASE)
# The largest that is usual, He's for ReLU; and fewer inputs say little of it.
HE = math.sqrt(2.0)
MIN_INPUTS = 16
# A mean over fewer units may well be far from zero.
MIN_UNITS = 8

Found = tuple[str, Severity, Description]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class PoorWeightInitialization(Rule):
    """Report initial weights that are alike, or let signals explode or die out.

    Judged is what the first forward and backward show, before any update: units of a
    layer that have equal weights; layers that are zero and get no gradient; weights far
    too large for the number of inputs; outputs or gradients that grow or shrink from
    layer to layer; outputs far from zero beside their spread; and a first loss far
    above that of guessing.

    Args:
        steps: Recorded steps of training that are judged, at most: those after the
            first one only while the loss scaler has skipped every update before.
        threshold: By how much the outputs' root mean square may grow or shrink over
            a chain of layers, each more or less than the one before.
        gradient_threshold: The same of the gradients of weights.
        asymmetry: How many standard deviations outputs may be away from zero.
        gain: How large weights may be: their root mean square times the square root
            of the number of inputs of a unit.
        loss_excess: By how much the first cross-entropy may exceed that of guessing.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    steps: int = 3
    threshold: float = 100.0
    gradient_threshold: float = 1000.0
    asymmetry: float = 5.0
    gain: float = 4.0
    loss_excess: float = 5.0

    def __post_init__(self) -> None:
        check_number(self, "steps", least=1, whole=True)
        for parameter in ("threshold", "gradient_threshold", "asymmetry", "gain"):
            check_number(self, parameter, above=1.0)
        check_number(self, "loss_excess", above=0.0)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of the first steps, and once the values of small weights."""
        return (
            Needs(
                collections=frozenset({"weights", "gradients", "losses"}),
                interval=1,
                first_steps=self.steps,
            ),
            Needs(
                collections=frozenset({"outputs"}),
                modules=WEIGHTED,
                interval=1,
                first_steps=self.steps,
            ),
            Needs(
                collections=frozenset({"predictions", "labels"}),
                first_steps=1,
            ),
            Needs(
                collections=frozenset({"weights"}),
                raw=True,
                first_steps=1,
                raw_limit=RAW_LIMIT,
            ),
        )

    @property
    def look_back(self) -> int:
        """The steps before, which say whether there were any, and were skipped."""
        return self.steps

    def selects(self, tensor: TensorInfo) -> bool:
        """What it needs the rows of."""
        return tensor.role in ROLES

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge the steps before the first update, each by itself."""
        for table in window.tables(*TRAINING):
            for j in self._before_updates(table):
                facts = window.facts_at(int(table.steps[j]))
                if facts is not None:
                    yield self._judge(FirstStep(table, j, facts))

    def _before_updates(self, table: Table) -> Iterator[int]:
        """The new steps, as columns, at which the weights are those it began with."""
        nth = table.ordinal.max(axis=0, initial=0)
        columns = np.flatnonzero(nth > 0)[: self.steps].tolist()
        for n, j in enumerate(columns):
            # Between steps that are not recorded, or not whole, may be an update.
            follows = table.steps[j] - table.steps[columns[0]] == n
            if nth[j] != n + 1 or not follows or not table.usable[j]:
                return
            if j >= table.start:
                yield j
            if not table.skipped[j]:
                return

    def _judge(self, step: FirstStep) -> Judgement:
        checks: tuple[Callable[[FirstStep], Found | None], ...] = (
            self._alike,
            self._stays_zero,
            self._too_large,
            self._outputs,
            self._gradients,
            self._asymmetric,
            self._first_loss,
        )
        table, j = step.table, step.j
        found: dict[str, Found] = {}
        for check in checks:
            result = check(step)
            if result is not None and result[0] not in found:
                found[result[0]] = result
        levels = np.full((len(table.names), 1), UNKNOWN, dtype=np.int8)
        levels[table.known[:, j]] = HEALTHY
        for i, name in enumerate(table.names):
            if name in found:
                levels[i] = found[name][1]
        return Judgement(
            names=table.names,
            steps=table.steps[j : j + 1],
            mode=table.mode,
            levels=levels,
            describe=lambda i, _: found[table.names[i]][2],
        )

    def _alike(self, step: FirstStep) -> Found | None:
        """Units of a layer with equal weights learn the same."""
        alike = [name for name in step.matrices if step.is_alike(name)]
        nonzero = [name for name in alike if step.field(name, "l2") > 0]
        if not nonzero:
            return None
        # Only between two such layers do units stay alike for ever.
        order = {name: i for i, name in enumerate(step.matrices)}
        places = sorted(order[name] for name in alike)
        adjacent = any(b - a == 1 for a, b in pairwise(places))
        return (
            nonzero[0],
            Severity.ERROR if adjacent else Severity.WARNING,
            Description(
                message=(
                    f"all {step.units(nonzero[0])} units have the same initial "
                    f"weights (mean {step.field(nonzero[0], 'mean'):.3g}); so it is "
                    f"in {len(alike)} of {len(step.matrices)} layers: {others(alike)}"
                ),
                value=float(len(alike)),
                threshold=0.0,
                advice=(
                    "units that begin alike get the same gradients and stay alike, "
                    "as if there were one: draw weights at random (torch.nn.init."
                    "kaiming_normal_ for ReLU, xavier_normal_ for tanh and sigmoid)"
                ),
            ),
        )

    def _stays_zero(self, step: FirstStep) -> Found | None:
        """A layer that is zero learns if a gradient reaches it; otherwise never."""
        stuck = [
            name
            for name in step.matrices
            if step.field(name, "l2") == 0 and step.field(GRADIENT + name, "l2") == 0
        ]
        if not stuck:
            return None
        return (
            stuck[0],
            Severity.ERROR,
            Description(
                message=(
                    f"all weights are zero and so is their gradient, in {len(stuck)} "
                    f"of {len(step.matrices)} layers: {others(stuck)}"
                ),
                value=0.0,
                threshold=0.0,
                advice=(
                    "they stay zero: of two layers that multiply each other only one "
                    "may begin at zero (as the last one of a residual branch); draw "
                    "the others at random (torch.nn.init.kaiming_normal_)"
                ),
            ),
        )

    def _too_large(self, step: FirstStep) -> Found | None:
        """Each output adds up as many products as there are inputs."""
        inputs = {
            name: n
            for name in step.matrices
            if step.facts.parameters[name].module in SUMMING
            and (n := math.prod(step.facts.parameters[name].shape[1:])) >= MIN_INPUTS
        }
        gains = {name: step.root(name) * math.sqrt(n) for name, n in inputs.items()}
        found = [name for name, gain in gains.items() if gain > self.gain]
        if len(found) < 2 or 2 * len(found) < len(gains):
            return None
        first, n = found[0], inputs[found[0]]
        return (
            first,
            Severity.WARNING,
            Description(
                message=(
                    f"the initial weights have a root mean square of "
                    f"{step.root(first):.2g}, with {n} inputs to a unit: outputs are "
                    f"{gains[first]:.2g} times their inputs; so it is in {len(found)} "
                    f"of {len(gains)} layers: {others(found)}"
                ),
                value=gains[first],
                threshold=self.gain,
                advice=(
                    f"draw them with a deviation of {HE / math.sqrt(n):.2g} (He, "
                    "torch.nn.init.kaiming_normal_; Glorot's is smaller still): the "
                    "default of torch.nn.init.normal_ is 1, whatever the width"
                ),
            ),
        )

    def _outputs(self, step: FirstStep) -> Found | None:
        """The variance of outputs is to be about that of the layer before."""
        sizes = {name: step.root(name) for name in step.outputs}
        chain = longest_chain(sizes, self.threshold)
        if not chain:
            return None
        first, last = sizes[chain[0]], sizes[chain[-1]]
        grows = last > first
        change = max(first, last) / min(first, last)
        gain = change ** (1 / (len(chain) - 1))
        return (
            chain[-1],
            Severity.WARNING,
            Description(
                message=(
                    f"outputs {'grow' if grows else 'shrink'} from layer to layer, by "
                    f"{gain:.2g} times each: root mean square {first:.2g} at "
                    f"{chain[0]}, {last:.2g} here, {len(chain) - 1} layers on"
                ),
                value=change,
                threshold=self.threshold,
                advice=(
                    "initialize for the width of the layers and the activation in "
                    f"use: {'divide' if grows else 'multiply'} the initial weights by "
                    f"{gain:.2g} (He: deviation sqrt(2/fan_in) for ReLU; Glorot for "
                    "tanh), or normalize between the layers"
                ),
            ),
        )

    def _gradients(self, step: FirstStep) -> Found | None:
        """The variance of gradients is to be alike in all layers."""
        sizes = {
            GRADIENT + name: step.root(GRADIENT + name)
            for name in step.matrices
            if step.facts.parameters[name].module in WEIGHTED
        }
        chain = longest_chain(sizes, self.gradient_threshold)
        if not chain:
            return None
        first, last = sizes[chain[0]], sizes[chain[-1]]
        ratio = max(first, last) / min(first, last)
        return (
            chain[0],
            Severity.WARNING,
            Description(
                message=(
                    f"gradients {'shrink' if first < last else 'grow'} towards the "
                    f"input, by {ratio:.2g} times over {len(chain)} layers: root mean "
                    f"square {last:.2g} at {chain[-1]}, {first:.2g} here"
                ),
                value=ratio,
                threshold=self.gradient_threshold,
                advice=(
                    "initialize for the width of the layers and the activation in use "
                    "(He for ReLU, Glorot for tanh), normalize between the layers, or "
                    "add residual connections"
                ),
            ),
        )

    def _asymmetric(self, step: FirstStep) -> Found | None:
        """Weights drawn about zero give outputs about zero."""
        judged = [name for name in step.outputs if step.units(name) >= MIN_UNITS]
        found = [name for name in judged if step.offset(name) > self.asymmetry]
        if len(found) < 2 or 2 * len(found) < len(judged):
            return None
        return (
            found[0],
            Severity.WARNING,
            Description(
                message=(
                    f"outputs are {step.offset(found[0]):.2g} deviations away from "
                    f"zero (mean {step.field(found[0], 'mean'):.3g}), in {len(found)} "
                    f"of {len(judged)} layers: all units say nearly the same"
                ),
                value=step.offset(found[0]),
                threshold=self.asymmetry,
                advice=(
                    "draw initial weights about zero, not all of one sign, with "
                    "biases of zero; and see that the inputs are normalized"
                ),
            ),
        )

    def _first_loss(self, step: FirstStep) -> Found | None:
        """The first cross-entropy is to be about that of guessing, log(classes)."""
        for name in step.of_role("loss"):
            path = name.rpartition("_output_")[0]
            outputs, labels = f"{path}_input_0", f"{path}_input_1"
            n_labels = step.field(labels, "count")
            if not n_labels > 0 or not CROSS_ENTROPY.search(name):
                continue
            n_classes = step.field(outputs, "count") / n_labels
            if not n_classes >= 2 or not step.is_integer(labels):
                continue
            loss, guess = step.field(name, "mean"), math.log(n_classes)
            spread = step.field(outputs, "max") - step.field(outputs, "min")
            # A mean cannot exceed this: what does is a sum.
            if guess + self.loss_excess < loss <= guess + spread:
                return (
                    name,
                    Severity.WARNING,
                    Description(
                        message=(
                            f"the first loss is {loss:.3g}; guessing among "
                            f"{n_classes:.0f} classes gives {guess:.3g}. The model is "
                            f"sure before it has learned: its outputs range over "
                            f"{spread:.3g}"
                        ),
                        value=loss - guess,
                        threshold=self.loss_excess,
                        advice=(
                            "the initial weights, those of the last layer above all, "
                            "or the inputs are too large: initialize by He or Glorot, "
                            "normalize the inputs; of a trained model see that labels "
                            "mean what they meant when it was trained"
                        ),
                    ),
                )
        return None
