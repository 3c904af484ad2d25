"""Kinds by PyTorch's names of classes and functions: the only table of them.

PyTorch's adapter looks names up here, and so do readers: runs that were recorded before
kinds were written, and names of tensors, have nothing but these names.

Thread safety: pure functions.
"""

from __future__ import annotations

from tdbg.config.kinds import Kind

__all__ = [
    "ACTIVATION_FUNCTIONS",
    "function_of",
    "kind_of_class",
    "kind_of_leaf",
    "kind_of_loss",
]

# Modules with a class for each number of dimensions.
_OF_DIMENSIONS = {
    "Conv": Kind.CONV,
    "ConvTranspose": Kind.CONV_TRANSPOSE,
    "BatchNorm": Kind.BATCH_NORM,
    "InstanceNorm": Kind.INSTANCE_NORM,
}
_LOSSES = {
    "CrossEntropyLoss": Kind.CROSS_ENTROPY,
    "cross_entropy": Kind.CROSS_ENTROPY,
    "BCEWithLogitsLoss": Kind.BCE_WITH_LOGITS,
    "binary_cross_entropy_with_logits": Kind.BCE_WITH_LOGITS,
    "NLLLoss": Kind.NLL,
    "nll_loss": Kind.NLL,
    "KLDivLoss": Kind.KL_DIV,
    "kl_div": Kind.KL_DIV,
    "MSELoss": Kind.MSE,
    "mse_loss": Kind.MSE,
    "L1Loss": Kind.L1,
    "l1_loss": Kind.L1,
    "SmoothL1Loss": Kind.SMOOTH_L1,
    "smooth_l1_loss": Kind.SMOOTH_L1,
    "HuberLoss": Kind.HUBER,
    "huber_loss": Kind.HUBER,
}
_CLASSES = {
    **{f"{name}{n}d": kind for name, kind in _OF_DIMENSIONS.items() for n in (1, 2, 3)},
    **_LOSSES,
    "Linear": Kind.LINEAR,
    "Bilinear": Kind.BILINEAR,
    "Embedding": Kind.EMBEDDING,
    "EmbeddingBag": Kind.EMBEDDING,
    "RNN": Kind.RNN,
    "GRU": Kind.GRU,
    "LSTM": Kind.LSTM,
    "SyncBatchNorm": Kind.BATCH_NORM,
    "LayerNorm": Kind.LAYER_NORM,
    "GroupNorm": Kind.GROUP_NORM,
    "RMSNorm": Kind.RMS_NORM,
    "ReLU": Kind.RELU,
    "ReLU6": Kind.RELU,
    "Threshold": Kind.RELU,
    "Tanh": Kind.TANH,
    "Sigmoid": Kind.SIGMOID,
    "Hardtanh": Kind.HARD_TANH,
    "Hardsigmoid": Kind.HARD_SIGMOID,
    "Flatten": Kind.FLATTEN,
    "Identity": Kind.IDENTITY,
    "relu": Kind.RELU,
    "relu6": Kind.RELU,
    "threshold": Kind.RELU,
    "tanh": Kind.TANH,
    "sigmoid": Kind.SIGMOID,
    "hardtanh": Kind.HARD_TANH,
    "hardsigmoid": Kind.HARD_SIGMOID,
}
ACTIVATION_FUNCTIONS = (
    "celu",
    "elu",
    "gelu",
    "glu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_softmax",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
    "threshold",
)
"""Functions of PyTorch that are captured where a model calls them in its forward."""

# What authors call their own classes after; the first that is in a name counts.
_WORDS = {
    "BatchNorm": Kind.BATCH_NORM,
    "LayerNorm": Kind.LAYER_NORM,
    "InstanceNorm": Kind.INSTANCE_NORM,
    "GroupNorm": Kind.GROUP_NORM,
    "RMSNorm": Kind.RMS_NORM,
    "Norm": Kind.NORM,
    "Embedding": Kind.EMBEDDING,
    "Flatten": Kind.FLATTEN,
    "Identity": Kind.IDENTITY,
}


def kind_of_class(name: str) -> Kind | None:
    """Return the kind of a class or function of this name; None: of none.

    Example:
        >>> kind_of_class("Conv2d"), kind_of_class("cross_entropy")
        (<Kind.CONV: 'conv'>, <Kind.CROSS_ENTROPY: 'cross_entropy'>)
    """
    return _CLASSES.get(name)


def function_of(path: str) -> tuple[str, str] | None:
    """Split what the name of a function's output begins with; None: it is of none.

    Returns:
        The path of the module that finished last before it, and the function.

    Example:
        >>> function_of("layer1.bn2_leaky_relu")
        ('layer1.bn2', 'leaky_relu')
    """
    fitting = [each for each in ACTIVATION_FUNCTIONS if path.endswith(f"_{each}")]
    function = max(fitting, key=len, default=None)
    return None if function is None else (path[: -len(function) - 1], function)


def kind_of_leaf(name: str) -> Kind | None:
    """Return the kind of a class, or that of a word in its name.

    REQUIRES: modules of the class contain no others, or own parameters themselves:
    what is around other modules may be called after one of them.

    Example:
        >>> kind_of_leaf("LlamaRMSNorm")
        <Kind.RMS_NORM: 'rms_norm'>
    """
    words = (kind for word, kind in _WORDS.items() if word in name)
    return kind_of_class(name) or next(words, None)


def kind_of_loss(tensor_name: str) -> Kind | None:
    """Return the kind of the loss after which an input or output is named.

    Example:
        >>> kind_of_loss("MSELoss_1_input_0")
        <Kind.MSE: 'mse'>
    """
    kinds = (kind for name, kind in _LOSSES.items() if tensor_name.startswith(name))
    return next(kinds, None)
