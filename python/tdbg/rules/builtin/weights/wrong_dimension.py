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
    - a recurrent layer that is read where one direction has just begun;
    - a softmax or a norm over the samples of a batch;
    - outputs that a view has mixed, or that are flattened in another order than labels;
    - images that a reshape has mixed, and views where a transposition was meant;
    - a table of parameters with fewer rows than the indices that read it.
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
            Fault.IMAGES_MIXED,
            Fault.AXES_MIXED,
            Fault.ROWS_BEYOND_TABLE,
            Fault.DIRECTION_HAS_JUST_BEGUN,
        }
    )
    hooks = frozenset({"JAX", "PyTorch"})

    def describe(self, observation: Observation) -> Description:
        """Say over which dimension the operation goes, and which is right."""
        if observation.fault is Fault.ROWS_BEYOND_TABLE:
            return _of_table(observation)
        message, advice = _text_of(observation)
        axis = round(observation.numbers.get("axis", 0))
        shape = observation.words.get("shape", "its input")
        where = f"dim={axis} of {shape}"
        return Description(
            message=message.format(
                where=where,
                shape=shape,
                to=observation.words.get("to", ""),
                end=observation.words.get("end", "last"),
            ),
            value=float(axis),
            threshold=0.0,
            advice=advice,
        )


def _of_table(observation: Observation) -> Description:
    beyond, n, largest, n_rows = (
        round(observation.numbers.get(key, 0))
        for key in ("beyond", "ids", "largest", "rows")
    )
    what = "all of these read its last row, and the loss falls all the same"
    if observation.words.get("reads") == "nan":
        what = "JAX fills NaN in for them"
    return Description(
        message=(
            f"{observation.names[0]} has {n_rows:,} rows, and {beyond:,} of {n:,} "
            f"indices of a batch are larger than {n_rows - 1:,} (up to {largest:,}). "
            f"JAX raises no error: {what}."
        ),
        value=float(largest),
        threshold=float(n_rows - 1),
        advice=(
            f"Give the table a row for each index, at least {largest + 1:,}: the size "
            "of the vocabulary with its special tokens, or the longest sequence for "
            "positions. Check that the tokenizer belongs to the model."
        ),
    )


def _text_of(observation: Observation) -> tuple[str, str]:
    is_planar = observation.words.get("kind") == "planar"
    return _PLANAR if is_planar else _TEXTS[observation.fault]


_PLANAR = (
    (
        "A reshape has scrambled the images of {shape}: by their numbers, each has "
        "one whole channel after the other, and they were taken for images with the "
        "channels last. What the model sees as neighbours are places apart."
    ),
    (
        "Reshape to the order that the data have, (samples, channels, height, width), "
        "and permute nothing: x.reshape(-1, 3, 32, 32). If you need the channels last, "
        "write x.reshape(-1, 3, 32, 32).permute(0, 2, 3, 1)."
    ),
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
    Fault.DIRECTION_HAS_JUST_BEGUN: (
        (
            "Your model reads a recurrent layer with two directions at the {end} place "
            "only ({where}), where one direction has read a single element. Half the "
            "features depend on that element alone."
        ),
        (
            "Concatenate the last states of both directions, h_n[-2] and h_n[-1]. Or "
            "take a mean over all places, out.mean(1) for (batch, sequence, features)."
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
            "view and reshape move nothing. If you flatten the scores, move the "
            "classes to the end before: logits.permute(0, 2, 3, 1).reshape(-1, "
            "classes). If you do not, the loss takes dimension 1 for the classes: "
            "logits.transpose(1, 2) for (batch, place, class), and permute(0, 3, 1, 2) "
            "for (batch, height, width, class)."
        ),
    ),
    Fault.AXES_MIXED: (
        (
            "A view or reshape makes {to} of {shape}: a dimension stands at another "
            "place, but no number has moved. So what the model takes for one place, "
            "step or head has the numbers of several."
        ),
        (
            "Move dimensions with transpose or permute: x.transpose(1, 2) makes "
            "(batch, features, steps) of (batch, steps, features). Split and merge "
            "neighbours only: x.view(batch, steps, heads, -1).transpose(1, 2), and "
            "x.transpose(1, 2).reshape(batch, steps, -1) to merge the heads."
        ),
    ),
    Fault.IMAGES_MIXED: (
        (
            "A reshape has scrambled the images of {shape}: by their numbers, each "
            "has the channels of one pixel side by side, and the shape says that it "
            "has one whole channel after the other. So each channel that the model "
            "sees is a mixture of all, and its neighbours are no neighbours."
        ),
        (
            "Permute instead: image.permute(2, 0, 1), for a batch "
            "permute(0, 3, 1, 2). view and reshape move nothing. Show one image that "
            "the model gets: plt.imshow(x[0].permute(1, 2, 0))."
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
