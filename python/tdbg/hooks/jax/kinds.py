"""Kinds of the classes and functions of Flax and Equinox, by their names.

Thread safety: pure functions.
"""

from __future__ import annotations

from typing import Any

from tdbg.config.kinds import Kind

__all__ = ["FUNCTIONS", "kind_of", "kind_of_name"]

FUNCTIONS = {
    "relu": Kind.RELU,
    "relu6": Kind.RELU,
    "tanh": Kind.TANH,
    "sigmoid": Kind.SIGMOID,
    "hard_tanh": Kind.HARD_TANH,
    "hard_sigmoid": Kind.HARD_SIGMOID,
}
"""Activations of ``jax.nn`` that have a kind."""

_CLASSES = {
    "Dense": Kind.LINEAR,
    "DenseGeneral": Kind.LINEAR,
    "Linear": Kind.LINEAR,
    "LinearGeneral": Kind.LINEAR,
    "Conv": Kind.CONV,
    "ConvLocal": Kind.CONV,
    "Conv1d": Kind.CONV,
    "Conv2d": Kind.CONV,
    "Conv3d": Kind.CONV,
    "ConvTranspose": Kind.CONV_TRANSPOSE,
    "ConvTranspose1d": Kind.CONV_TRANSPOSE,
    "ConvTranspose2d": Kind.CONV_TRANSPOSE,
    "ConvTranspose3d": Kind.CONV_TRANSPOSE,
    "Embed": Kind.EMBEDDING,
    "Embedding": Kind.EMBEDDING,
    "BatchNorm": Kind.BATCH_NORM,
    "LayerNorm": Kind.LAYER_NORM,
    "GroupNorm": Kind.GROUP_NORM,
    "InstanceNorm": Kind.INSTANCE_NORM,
    "RMSNorm": Kind.RMS_NORM,
    "WeightNorm": Kind.NORM,
    "SpectralNorm": Kind.NORM,
    "Identity": Kind.IDENTITY,
}
_KINDS = frozenset(kind.value for kind in Kind)


def kind_of_name(name: str) -> Kind | None:
    """Return the kind of a class or function by its name, or of a kind itself.

    Example:
        >>> kind_of_name("Dense"), kind_of_name("relu")
        (<Kind.LINEAR: 'linear'>, <Kind.RELU: 'relu'>)
    """
    found = _CLASSES.get(name) or FUNCTIONS.get(name)
    return found or (Kind(name) if name in _KINDS else None)


def kind_of(module: Any) -> Kind | None:
    """Return the kind of a module, by its class and base classes, or of a function."""
    name = getattr(module, "__name__", None)
    if isinstance(name, str):
        return kind_of_name(name)
    kinds = (kind_of_name(each.__name__) for each in type(module).__mro__)
    return next((kind for kind in kinds if kind is not None), None)
