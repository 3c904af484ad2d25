"""Kinds: what a module or a loss computes, in words that hold for every framework.

The adapter of a framework says which kind a module or a loss is; rules and their needs
ask for kinds, so that they judge a ``Dense`` of Keras as they judge PyTorch's
``Linear``.  There are the kinds that rules ask for; most modules are of none.
"""

from __future__ import annotations

import enum

__all__ = ["CLASSIFICATIONS", "NORMS", "REGRESSIONS", "InputHandling", "Kind"]


class Kind(enum.StrEnum):
    """The computation of a module or a loss.  On disk by name: never rename."""

    # Layers with weights; an embedding also where it sums up its rows by bags.
    LINEAR = "linear"
    BILINEAR = "bilinear"
    CONV = "conv"
    CONV_TRANSPOSE = "conv_transpose"
    EMBEDDING = "embedding"

    # Recurrent layers: all steps of a sequence, not the cell of one step.
    RNN = "rnn"
    GRU = "gru"
    LSTM = "lstm"

    # Normalizations of what passes through; `norm` is any other one, of weights even.
    BATCH_NORM = "batch_norm"
    LAYER_NORM = "layer_norm"
    INSTANCE_NORM = "instance_norm"
    GROUP_NORM = "group_norm"
    RMS_NORM = "rms_norm"
    NORM = "norm"

    # Activations; `relu` is any that is constant below a threshold and linear above
    # it, until a bound perhaps; the hard ones are made of straight lines.
    RELU = "relu"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    HARD_TANH = "hard_tanh"
    HARD_SIGMOID = "hard_sigmoid"

    # What passes its input on as it is, in another shape at most.
    FLATTEN = "flatten"
    IDENTITY = "identity"

    # Losses, by what they are given: scores (logits) for the first two, probabilities
    # and logarithms of probabilities for two each, numbers for the others.
    CROSS_ENTROPY = "cross_entropy"
    BCE_WITH_LOGITS = "bce_with_logits"
    CROSS_ENTROPY_OF_PROBABILITIES = "cross_entropy_of_probabilities"
    BCE = "bce"
    NLL = "nll"
    KL_DIV = "kl_div"
    MSE = "mse"
    L1 = "l1"
    SMOOTH_L1 = "smooth_l1"
    HUBER = "huber"


class InputHandling(enum.StrEnum):
    """What a loss does to its inputs first.  On disk by name: never rename.

    A loss without one takes its inputs as they are: PyTorch's do, with the classes in
    the second dimension, and so do sums and products of tensors.
    """

    # Where ranks differ by one, a last dimension of size 1 is added or dropped.
    ALIGN_RANKS = "align_ranks"
    # Targets are given the shape of the outputs.
    RESHAPE_TARGETS = "reshape_targets"
    # It takes the scores of which the outputs are the softmax or the sigmoid.
    FIND_SCORES = "find_scores"
    # The classes are in the last dimension.
    CLASSES_LAST = "classes_last"


NORMS = frozenset(
    {
        Kind.BATCH_NORM,
        Kind.LAYER_NORM,
        Kind.INSTANCE_NORM,
        Kind.GROUP_NORM,
        Kind.RMS_NORM,
        Kind.NORM,
    }
)
"""The kinds that normalize."""

REGRESSIONS = frozenset({Kind.MSE, Kind.L1, Kind.SMOOTH_L1, Kind.HUBER})
"""The losses that compare numbers, element by element."""

CLASSIFICATIONS = frozenset(
    {
        Kind.CROSS_ENTROPY,
        Kind.CROSS_ENTROPY_OF_PROBABILITIES,
        Kind.NLL,
        Kind.BCE,
        Kind.BCE_WITH_LOGITS,
    }
)
"""The losses that compare scores or probabilities of classes with labels."""
