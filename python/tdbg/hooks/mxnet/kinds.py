"""Kinds of Gluon's blocks and losses, by their classes and the bases of these.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.config.collections import Role
from tdbg.config.kinds import REGRESSIONS, InputHandling, Kind

__all__ = [
    "class_name",
    "classes_and_kind",
    "input_handling_of",
    "kind_of",
    "role_of_parameter",
    "unit_axis_of",
    "unit_range",
]

_DIMENSIONS = ("1D", "2D", "3D")
_BLOCKS = {
    **{f"Conv{n}": Kind.CONV for n in _DIMENSIONS},
    **{f"Conv{n}Transpose": Kind.CONV_TRANSPOSE for n in _DIMENSIONS},
    "Dense": Kind.LINEAR,
    "Embedding": Kind.EMBEDDING,
    "SparseEmbedding": Kind.EMBEDDING,
    "RNN": Kind.RNN,
    "GRU": Kind.GRU,
    "LSTM": Kind.LSTM,
    "BatchNorm": Kind.BATCH_NORM,
    "LayerNorm": Kind.LAYER_NORM,
    "InstanceNorm": Kind.INSTANCE_NORM,
    "GroupNorm": Kind.GROUP_NORM,
    "Flatten": Kind.FLATTEN,
    "Identity": Kind.IDENTITY,
    # Losses that are of one kind however they are made.
    "L2Loss": Kind.MSE,
    "L1Loss": Kind.L1,
    "HuberLoss": Kind.HUBER,
}
_FUNCTIONS = {
    "relu": Kind.RELU,
    "sigmoid": Kind.SIGMOID,
    "tanh": Kind.TANH,
}
# Losses by the attribute that says what they are given: the kind where it is false, and
# the kind where it is true.
_BY_ARGUMENT: dict[str, tuple[str, Kind | None, Kind]] = {
    "SoftmaxCrossEntropyLoss": ("_from_logits", Kind.CROSS_ENTROPY, Kind.NLL),
    "SigmoidBinaryCrossEntropyLoss": (
        "_from_sigmoid",
        Kind.BCE_WITH_LOGITS,
        Kind.BCE,
    ),
    # Otherwise it takes the log_softmax of scores itself.
    "KLDivLoss": ("_from_logits", None, Kind.KL_DIV),
}
# Between which values an output is not saturated: docs/statistics.md.
_RANGES = {
    Kind.TANH: (-0.99, 0.99),
    Kind.SIGMOID: (0.01, 0.99),
}
# How the names of parameters end that are added to something.
_SHIFTS = ("bias", "beta")
_COMMON = frozenset({"Block", "HybridBlock", "Loss"})


def class_name(block: Any) -> str:
    """Return the class of a block, with what it computes where that is left open.

    ``Activation(relu)``, ``Dense``.
    """
    name = type(block).__name__
    return f"Activation({_function_of(block)})" if name == "Activation" else name


def kind_of(module: Any) -> Kind | None:
    """Return the kind of a block, or of a loss as it is configured; None: of none."""
    for name in _classes(module):
        if name == "Activation":
            return _FUNCTIONS.get(_function_of(module))
        if name in _BY_ARGUMENT:
            attribute, scores, other = _BY_ARGUMENT[name]
            return other if getattr(module, attribute, False) else scores
        if name in _BLOCKS:
            return _BLOCKS[name]
    return None


def input_handling_of(loss: Any) -> InputHandling | None:
    """Return what a loss of Gluon does to its inputs first; None: nothing.

    A loss of your own does what you wrote, whatever its class is called.
    """
    computing = (c for c in type(loss).__mro__ if "hybrid_forward" in vars(c))
    is_own = not next(computing, type(loss)).__module__.startswith("mxnet.")
    kind = None if is_own else kind_of(loss)
    if kind is Kind.NLL and getattr(loss, "_axis", -1) == -1:
        return InputHandling.CLASSES_LAST
    return InputHandling.RESHAPE_TARGETS if kind in REGRESSIONS else None


def classes_and_kind(block: Any) -> frozenset[str]:
    """Return what a need may call a block: by its kind, its class or a base class."""
    kind = kind_of(block)
    return frozenset(_classes(block)) | ({kind} if kind else set())


def unit_range(block: Any) -> UnitSummarySpec:
    """Between which values an output is not saturated, and which dimension has units.

    Units are in the second dimension, or the last one where channels come last.
    """
    kind = kind_of(block)
    last = _channels_are_last(block)
    if kind not in _RANGES:
        return UnitSummarySpec(units_last=last)
    low, high = _RANGES[kind]
    return UnitSummarySpec(low, high, units_last=last)


def unit_axis_of(block: Any, n_dimensions: int) -> int:
    """The dimension of a weight that numbers the units of its block."""
    # Weights of a transposed convolution have inputs before units.
    is_transposed = kind_of(block) is Kind.CONV_TRANSPOSE and n_dimensions > 1
    if not is_transposed:
        return 0
    return n_dimensions - 1 if _channels_are_last(block) else 1


def role_of_parameter(name: str) -> Role:
    """Return BIAS for what is added, WEIGHT for anything else.

    Example:
        >>> role_of_parameter("batchnorm0_beta"), role_of_parameter("dense0_weight")
        (<Role.BIAS: 2>, <Role.WEIGHT: 1>)
    """
    return Role.BIAS if name.endswith(_SHIFTS) else Role.WEIGHT


def _function_of(block: Any) -> str:
    return str(getattr(block, "_act_type", ""))


def _channels_are_last(block: Any) -> bool:
    settings = getattr(block, "_kwargs", None)
    layout = settings.get("layout") if isinstance(settings, dict) else None
    return isinstance(layout, str) and layout.endswith("C")


def _classes(block: Any) -> Iterator[str]:
    """The names of its class and of those of its bases that say something."""
    for each in type(block).__mro__:
        if each is not object and each.__name__ not in _COMMON:
            yield each.__name__
