"""Kinds of Keras's layers and losses, by their classes and the bases of these.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.config.kinds import REGRESSIONS, InputHandling, Kind

__all__ = [
    "FUSING",
    "activation_of",
    "class_name",
    "classes_and_kind",
    "input_handling_of",
    "kind_of",
    "loss_class",
    "loss_kind",
    "unit_axis_of",
    "unit_range",
]

# Layers whose output is what their `activation` makes of a weighted sum.
FUSING = frozenset({Kind.LINEAR, Kind.CONV, Kind.CONV_TRANSPOSE})
_DIMENSIONS = ("1D", "2D", "3D")
# The class of Keras that makes a loss of a function.
_WRAPPER = "LossFunctionWrapper"
_LAYERS = {
    **{f"Conv{n}": Kind.CONV for n in _DIMENSIONS},
    **{f"Conv{n}Transpose": Kind.CONV_TRANSPOSE for n in _DIMENSIONS},
    **{f"SeparableConv{n}": Kind.CONV for n in _DIMENSIONS},
    **{f"DepthwiseConv{n}": Kind.CONV for n in _DIMENSIONS},
    "Dense": Kind.LINEAR,
    "EinsumDense": Kind.LINEAR,
    "Embedding": Kind.EMBEDDING,
    "SimpleRNN": Kind.RNN,
    "GRU": Kind.GRU,
    "LSTM": Kind.LSTM,
    "BatchNormalization": Kind.BATCH_NORM,
    "LayerNormalization": Kind.LAYER_NORM,
    "GroupNormalization": Kind.GROUP_NORM,
    "RMSNormalization": Kind.RMS_NORM,
    "UnitNormalization": Kind.NORM,
    "Normalization": Kind.NORM,
    "SpectralNormalization": Kind.NORM,
    "ReLU": Kind.RELU,
    "Flatten": Kind.FLATTEN,
    "Reshape": Kind.FLATTEN,
    "Identity": Kind.IDENTITY,
}
# Keras's activation functions, by the names that they have in tensor names.
_FUNCTIONS = {
    "celu": "celu",
    "elu": "elu",
    "gelu": "gelu",
    "glu": "glu",
    "hard_sigmoid": "hardsigmoid",
    "hard_silu": "hardswish",
    "hard_swish": "hardswish",
    "hard_tanh": "hardtanh",
    "leaky_relu": "leaky_relu",
    "log_sigmoid": "logsigmoid",
    "log_softmax": "log_softmax",
    "mish": "mish",
    "relu": "relu",
    "relu6": "relu6",
    "selu": "selu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "softmax": "softmax",
    "softplus": "softplus",
    "softsign": "softsign",
    "swish": "silu",
    "tanh": "tanh",
    "threshold": "threshold",
}
_OF_FUNCTIONS = {
    "relu": Kind.RELU,
    "relu6": Kind.RELU,
    "threshold": Kind.RELU,
    "tanh": Kind.TANH,
    "sigmoid": Kind.SIGMOID,
    "hardtanh": Kind.HARD_TANH,
    "hardsigmoid": Kind.HARD_SIGMOID,
}
# Between which values an output is not saturated: docs/statistics.md.
_RANGES = {
    "tanh": (-0.99, 0.99),
    "sigmoid": (0.01, 0.99),
}
_ANY = UnitSummarySpec(units_last=True)
# The losses that are given scores where `from_logits` says so, else probabilities.
_ENTROPIES = {
    "SparseCategoricalCrossentropy": (
        Kind.CROSS_ENTROPY,
        Kind.CROSS_ENTROPY_OF_PROBABILITIES,
    ),
    "CategoricalCrossentropy": (
        Kind.CROSS_ENTROPY,
        Kind.CROSS_ENTROPY_OF_PROBABILITIES,
    ),
    "BinaryCrossentropy": (Kind.BCE_WITH_LOGITS, Kind.BCE),
}
_LOSSES = {
    "MeanSquaredError": Kind.MSE,
    "MeanAbsoluteError": Kind.L1,
    "Huber": Kind.HUBER,
}
# Losses that are functions go by the classes that compute the same.
_LOSS_FUNCTIONS = {
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "binary_crossentropy": "BinaryCrossentropy",
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "huber": "Huber",
}


def activation_of(layer: Any) -> str | None:
    """Return the function by which a layer ends, as tensor names have it.

    None where it has none, the identity, or one that is not in Keras.
    """
    if type(layer).__name__ != "Activation" and _own_kind(layer) not in FUSING:
        return None
    name = getattr(getattr(layer, "activation", None), "__name__", "")
    return _FUNCTIONS.get(name)


def class_name(layer: Any) -> str:
    """Return the class of a layer, with what it computes where that is left open.

    ``Activation(relu)``, ``ReLU(negative_slope)``.
    """
    name = type(layer).__name__
    if name == "Activation":
        return f"Activation({activation_of(layer) or 'function'})"
    if name == "ReLU" and getattr(layer, "negative_slope", None):
        return "ReLU(negative_slope)"
    return name


def kind_of(layer: Any) -> Kind | None:
    """Return the kind of a layer, or of a loss; None: of none."""
    if type(layer).__name__ == "Activation":
        return _OF_FUNCTIONS.get(activation_of(layer) or "")
    if type(layer).__name__ == "ReLU" and getattr(layer, "negative_slope", None):
        return None
    return _own_kind(layer) or loss_kind(layer)


def classes_and_kind(layer: Any, function: str | None = None) -> frozenset[str]:
    """Return what a need may call a layer: by its kind, its class or a base class.

    Args:
        layer: The layer.
        function: The activation by which it ends; then the names are those of that.
    """
    if function is not None:
        kind = _OF_FUNCTIONS.get(function)
        return frozenset({function} | ({kind} if kind else set()))
    kind = kind_of(layer)
    return frozenset(_classes(layer)) | ({kind} if kind else set())


def unit_range(layer: Any) -> UnitSummarySpec:
    """Between which values an output of this layer is not saturated."""
    low, high = _RANGES.get(activation_of(layer) or "", (None, None))
    if low is not None and high is not None:
        return UnitSummarySpec(low, high, units_last=True)
    return _ANY


def unit_axis_of(layer: Any, variable: Any) -> int:
    """The dimension of a weight that numbers the units of its layer."""
    n_dimensions = len(variable.shape)
    kind = _own_kind(layer)
    if n_dimensions < 2 or kind is Kind.EMBEDDING:
        return 0
    # Kernels have inputs before units; of a transposed convolution it is the reverse.
    return n_dimensions - (2 if kind is Kind.CONV_TRANSPOSE else 1)


def loss_kind(loss: Any) -> Kind | None:
    """Return the kind of a loss of Keras, as it is configured; None: of none."""
    name = loss_class(loss)
    if name in _ENTROPIES:
        scores, probabilities = _ENTROPIES[name]
        return scores if _takes_logits(loss) else probabilities
    return _LOSSES.get(name)


def loss_class(loss: Any) -> str:
    """Return the class of a loss, or the one that computes the same as a function."""
    function = getattr(loss, "fn", None) if _is_wrapper(loss) else loss
    name = getattr(function, "__name__", "")
    return _LOSS_FUNCTIONS.get(name) or name or type(loss).__name__


def input_handling_of(loss: Any) -> InputHandling | None:
    """Return what a loss of Keras does to the shapes of its inputs; None: nothing.

    Keras aligns what functions of yours are given, too, but for a class of yours whose
    ``call`` compares labels and predictions itself.
    """
    is_wrapped = any(each.__name__ == _WRAPPER for each in type(loss).__mro__)
    is_function_of_keras = getattr(loss, "__module__", "").startswith("keras.")
    if loss_kind(loss) in REGRESSIONS and (is_wrapped or is_function_of_keras):
        return InputHandling.ALIGN_RANKS
    return None


def _takes_logits(loss: Any) -> bool:
    keywords = getattr(loss, "_fn_kwargs", None)
    return bool(keywords.get("from_logits")) if isinstance(keywords, dict) else False


def _is_wrapper(loss: Any) -> bool:
    """Whether it only wraps a function, as `compile(loss="mse")` makes it."""
    return type(loss).__name__ == _WRAPPER


def _own_kind(layer: Any) -> Kind | None:
    return next(filter(None, map(_LAYERS.get, _classes(layer))), None)


def _classes(layer: Any) -> Iterator[str]:
    """The names of its class and of those of its bases that say something."""
    for each in type(layer).__mro__:
        if each.__name__ in {"Layer", "Loss", "Operation"} or each is object:
            return
        yield each.__name__
