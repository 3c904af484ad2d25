"""WrongDimension: operations over a dimension that they are not meant for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["WrongDimension"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WrongDimension(ObservedRule):
    """Report operations over the wrong dimension of a tensor.

    The rule finds

    - an attention whose weights do not add up to one for a query;
    - a recurrent layer that takes the samples for the steps of one sequence;
    - a softmax or a norm over the samples of a batch;
    - outputs that a view has mixed, or that are flattened in another order than labels.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.ATTENTION_OVER_QUERIES,
            Fault.RECURRENT_OVER_BATCH,
            Fault.SOFTMAX_OF_BATCH,
            Fault.NORM_OF_BATCH,
            Fault.SCORES_MIXED,
            Fault.LABELS_IN_ANOTHER_ORDER,
        }
    )

    def describe(self, observation: Observation) -> Description:
        """Say over which dimension the operation goes, and which is right."""
        message, advice = _TEXTS[observation.fault]
        axis = round(observation.numbers.get("axis", 0))
        shape = observation.words.get("shape", "its input")
        where = f"dim={axis} of {shape}"
        return Description(
            message=message.format(where=where, shape=shape),
            value=float(axis),
            threshold=0.0,
            advice=advice,
        )


# What is wrong, and how it should be.
_TEXTS: Mapping[Fault, tuple[str, str]] = {
    Fault.ATTENTION_OVER_QUERIES: (
        (
            "An attention takes its softmax over the wrong dimension ({where}): the "
            "product with the values adds up over the keys, and there the weights of "
            "a query do not sum to 1."
        ),
        (
            "Take the softmax over the keys, which are the last dimension of query @ "
            "key.transpose(-2, -1): scores.softmax(dim=-1). Or call "
            "scaled_dot_product_attention."
        ),
    ),
    Fault.RECURRENT_OVER_BATCH: (
        (
            "A recurrent layer goes over the wrong dimension ({where}): the loss has "
            "one row for each sample there, and the layer takes the samples for the "
            "steps of one sequence, so each sample depends on those before it."
        ),
        (
            "Create the layer with batch_first=True if its input is (batch, sequence, "
            "features). Or transpose input and output: layer(x.transpose(0, 1)), and "
            "out[-1] for the last step."
        ),
    ),
    Fault.SOFTMAX_OF_BATCH: (
        (
            "A softmax goes over the wrong dimension, the batch ({where}): samples "
            "compete with each other, and the answer for one depends on the others."
        ),
        (
            "Take it over the features, classes or places: softmax(dim=-1). Without a "
            "dim, PyTorch takes dim=0 for tensors of three dimensions."
        ),
    ),
    Fault.NORM_OF_BATCH: (
        (
            "A norm goes over the wrong dimension, the batch ({where}): each feature "
            "is divided by its norm over all samples, so the answer for one sample "
            "depends on the others."
        ),
        (
            "Normalize each sample by itself: functional.normalize(x, dim=-1), or "
            "x / x.norm(dim=-1, keepdim=True)."
        ),
    ),
    Fault.SCORES_MIXED: (
        (
            "The loss takes its classes from the wrong dimension ({where}): the scores "
            "that it compares for one label belong to several places and to several "
            "classes. A view or a reshape has mixed them."
        ),
        (
            "Move the classes instead: logits.transpose(1, 2), or permute(0, 3, 1, 2). "
            "Before logits.reshape(-1, classes), the classes must be the last "
            "dimension: logits.permute(0, 2, 3, 1). view and reshape move nothing."
        ),
    ),
    Fault.LABELS_IN_ANOTHER_ORDER: (
        (
            "Outputs and labels are flattened in different orders: the outputs belong "
            "to {shape} places, and flat, one of the two counts along the other "
            "dimension first. Most outputs are compared with the label of another "
            "place."
        ),
        (
            "Flatten both in one order: transpose the outputs or the labels first, so "
            "that their first two dimensions agree, then logits.reshape(-1, classes) "
            "and labels.reshape(-1)."
        ),
    ),
}
