"""Names of layers, parameters and optimizer variables: docs/keras.md, "Names".

A path of Keras begins with the name of the model where the model built the layer, and
that counts up in a process (``sequential_1``).  Names are relative to the model, so
that they stay what they were when a cell of a notebook is run again.

Thread safety: pure functions, and one object a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from tdbg.capture.naming import UniqueNames
from tdbg.config.collections import Role

__all__ = ["Paths", "role_of_parameter", "state_of", "strip_root"]

_SHIFTS = ("bias", "beta")


def strip_root(path: str, root: str) -> str:
    """Return a path relative to the model.

    Example:
        >>> strip_root("sequential_1/d1/kernel", "sequential_1")
        'd1/kernel'
    """
    return path.removeprefix(f"{root}/")


def role_of_parameter(path: str) -> Role:
    """Return BIAS for what is added, WEIGHT for anything else.

    Example:
        >>> role_of_parameter("bn/beta"), role_of_parameter("d1/kernel")
        (<Role.BIAS: 2>, <Role.WEIGHT: 1>)
    """
    last = path.rpartition("/")[2]
    return Role.BIAS if any(word in last for word in _SHIFTS) else Role.WEIGHT


def state_of(path: str, parameters: Mapping[str, str]) -> tuple[str, str] | None:
    """Split the path of an optimizer's variable into parameter and state.

    Args:
        path: Such as ``adam/sequential_d1_kernel_momentum``.
        parameters: The names of parameters, by their full paths in Keras with ``_``
            for ``/``.

    Returns:
        The name of the parameter and that of the state; None: it is of none.
    """
    last = path.rpartition("/")[2]
    fitting = [each for each in parameters if last.startswith(f"{each}_")]
    found = max(fitting, key=len, default=None)
    return None if found is None else (parameters[found], last[len(found) + 1 :])


class Paths:
    """The paths of the layers of one model, each its own.

    Args:
        root: The model's name in Keras.
        prefix: What comes before all names of this model.
    """

    def __init__(self, root: str, prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        self._unique = UniqueNames()
        # The path of a layer, and the names of its variables by their ids.
        self._known: WeakKeyDictionary[Any, tuple[str, dict[int, str]]]
        self._known = WeakKeyDictionary()

    def of_layer(self, layer: Any) -> str:
        """Return the path of a layer, always the same one."""
        return self._of(layer)[0]

    def of_variable(self, layer: Any, variable: Any) -> str:
        """Return the name of a variable that a layer owns."""
        path, names = self._of(layer)
        known = names.get(id(variable))
        if known is None:
            last = variable.path.rpartition("/")[2]
            known = names[id(variable)] = self._unique.take(f"{path}/{last}")
        return known

    def _of(self, layer: Any) -> tuple[str, dict[int, str]]:
        known = self._known.get(layer)
        if known is None:
            given = getattr(layer, "path", None) or layer.name
            path = self._unique.take(strip_root(given, self._root))
            known = self._known[layer] = self._prefix + path, {}
        return known
