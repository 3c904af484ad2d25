"""``smdebug.tensorflow.collection``: collections of layers, and of optimizers.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import re
from typing import Any

from tdbg.compat.smdebug.core import collection as core
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.config.collections import Role

__all__ = ["Collection", "CollectionManager"]

_ROLES = {
    CollectionKeys.INPUTS: frozenset({Role.INPUT, Role.MODEL_INPUT}),
    CollectionKeys.OUTPUTS: frozenset({Role.OUTPUT}),
    CollectionKeys.LAYERS: frozenset({Role.INPUT, Role.OUTPUT}),
    CollectionKeys.OPTIMIZER_VARIABLES: frozenset({Role.OPTIMIZER_STATE}),
    CollectionKeys.PREDICTIONS: frozenset({Role.PREDICTION}),
    CollectionKeys.LABELS: frozenset({Role.LABEL}),
}


class Collection(core.Collection):
    """A named set of tensors; its arguments are those of ``core.collection``.

    Those of TensorFlow's hook have more that is built in: inputs, outputs, layers,
    predictions, labels and the variables of optimizers.
    """

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        self.roles = _ROLES.get(self.name, self.roles)

    def add_keras_layer(
        self, layer: Any, inputs: bool = False, outputs: bool = True
    ) -> None:
        """Add what a layer is given, or what it returns.

        Args:
            layer: The layer of Keras.
            inputs: Whether to add its inputs.
            outputs: Whether to add its outputs.
        """
        directions = [*(["input"] if inputs else []), *(["output"] if outputs else [])]
        for direction in directions:
            name = re.escape(layer.name)
            self.include(rf"(^|/){name}(_[a-z_0-9]+)?_{direction}_\d+")


class CollectionManager(core.CollectionManager):
    """The collections of a hook of TensorFlow, by name."""

    kind = Collection
