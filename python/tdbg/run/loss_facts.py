"""What the graph of a loss says is wrong with it, as values that every layer may hold.

A hook reads it from the framework's graph at the first backward passes, as part of the
model info; rules judge it.  Implements docs/format.md, "What is known of the model".

Thread safety: values that never change.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.run.json_values import is_integer

__all__ = ["LossFact", "LossFault", "UntrainedParameter"]


class LossFault(enum.StrEnum):
    """A fault in the use of a loss.  On disk by name: never rename."""

    # A softmax or sigmoid is taken of what already is one.
    SOFTMAX_TWICE = "softmax_twice"
    SIGMOID_TWICE = "sigmoid_twice"
    # The negative log-likelihood is given what is no logarithm of probabilities.
    LIKELIHOOD_OF_SCORES = "likelihood_of_scores"
    LIKELIHOOD_OF_PROBABILITIES = "likelihood_of_probabilities"
    # A softmax over the samples, or over a single class.
    SOFTMAX_OVER_SAMPLES = "softmax_over_samples"
    SOFTMAX_OF_ONE = "softmax_of_one"
    # Outputs and targets are broadcast to all pairs.
    BROADCAST = "broadcast"
    # A distance is maximized.
    NEGATED = "negated"
    # The sum over the batch and not the mean.
    SUMMED = "summed"
    # CTC leaves out targets that are longer than their inputs.
    TARGETS_TOO_LONG = "targets_too_long"
    # A divergence is divided by the number of classes, too.
    MEAN_OVER_CLASSES = "mean_over_classes"
    # Targets lie where the last activation, or the loss, does not reach.
    TARGETS_OUT_OF_REACH = "targets_out_of_reach"
    # A loss of probabilities is given scores; one of independent outputs the shares of
    # classes, or the reverse; a metric of probabilities the scores of a loss.
    PROBABILITIES_ARE_SCORES = "probabilities_are_scores"
    SOFTMAX_FOR_BITS = "softmax_for_bits"
    BITS_FOR_CLASSES = "bits_for_classes"
    METRIC_OF_SCORES = "metric_of_scores"
    # Scores that cannot be large or below zero, or that dropout has thinned out.
    SCORES_BOUNDED = "scores_bounded"
    SCORES_DROPPED = "scores_dropped"
    # Errors of both signs are added up before they are squared.
    ERRORS_CANCEL = "errors_cancel"
    # A rate of events is the exponential of an exponential.
    EXPONENTIAL_TWICE = "exponential_twice"
    # Labels that are 0 where -1 is meant, and symbols of a text that are the blank.
    LABELS_NOT_SIGNS = "labels_not_signs"
    SYMBOL_IS_BLANK = "symbol_is_blank"
    # Labels stand where outputs belong, and outputs where labels do.
    ARGUMENTS_SWAPPED = "arguments_swapped"
    # No operation has made the loss.
    NO_GRAPH = "no_graph"


@dataclass(frozen=True, slots=True)
class LossFact:
    """One fault of a loss.

    Attributes:
        fault: Which one.
        operation: What computes the loss, such as ``nll_loss`` or ``sub``.
        shapes: Shapes of what the fault is about: what it is given; of BROADCAST the
            outputs and the result; of TARGETS_TOO_LONG one pair, the number of
            samples that are left out and that of all; of MEAN_OVER_CLASSES after what
            is given the number of classes and that of the loss's terms; of
            TARGETS_OUT_OF_REACH the number of targets that are out of reach and that
            of all, then the whole numbers between which all lie; of LABELS_NOT_SIGNS
            and SYMBOL_IS_BLANK one pair, the number of labels that are 0, or the blank,
            and that of all.
    """

    fault: LossFault
    operation: str
    shapes: tuple[tuple[int, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "fault": str(self.fault),
            "operation": self.operation,
            "shapes": [list(shape) for shape in self.shapes],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LossFact | None:
        """The fact that ``to_json`` made this of; None if it is none that is known."""
        fault, operation = document.get("fault"), document.get("operation")
        shapes = document.get("shapes")
        if fault not in list(LossFault) or not isinstance(operation, str):
            return None
        if not isinstance(shapes, list) or not all(
            isinstance(shape, list) and all(map(is_integer, shape)) for shape in shapes
        ):
            return None
        return cls(LossFault(fault), operation, tuple(map(tuple, shapes)))


@dataclass(frozen=True, slots=True)
class UntrainedParameter:
    """A parameter that a loss depends on, and that stays as it was made.

    It belongs to no registered module and to no optimizer.

    Attributes:
        name: Where it was found, such as ``Net.layers[0].weight``; None: nowhere.
        shape: Its shape.
        is_training: Whether its module is in training mode, or has none.
        since: Global step of the loss that was first seen to depend on it.
        n_made: The number of losses that each depend on a new one; 0: it stays.
    """

    name: str | None
    shape: tuple[int, ...]
    is_training: bool
    since: int = 0
    n_made: int = 0

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "is_training": self.is_training,
            "since": self.since,
            "n_made": self.n_made,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> UntrainedParameter | None:
        """The parameter that ``to_json`` made this of; None if it is none."""
        name, shape = document.get("name"), document.get("shape")
        if not (name is None or isinstance(name, str)):
            return None
        if not isinstance(shape, list) or not all(map(is_integer, shape)):
            return None
        since, n_made = document.get("since"), document.get("n_made")
        return cls(
            name,
            tuple(shape),
            document.get("is_training") is True,
            since if is_integer(since) else 0,
            n_made if is_integer(n_made) else 0,
        )
