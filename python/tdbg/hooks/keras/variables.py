"""The variables of a model of Keras, and what belongs to each of them.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.capture.naming import (
    buffer_name,
    gradient_name,
    local_gradient_name,
    unclipped_gradient_name,
)
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.config.kinds import Kind
from tdbg.hooks.keras.kinds import classes_and_kind
from tdbg.hooks.keras.names import Paths, role_of_parameter

__all__ = ["Parameter", "Variables", "captures", "layers_of"]

_ROWS = UnitSummarySpec(rows_are_units=True)
_GRADIENT_NAMES = {
    Role.GRADIENT: gradient_name,
    Role.GRADIENT_UNCLIPPED: unclipped_gradient_name,
    Role.GRADIENT_LOCAL: local_gradient_name,
}


def layers_of(model: Any) -> Iterator[Any]:
    """All layers of a model but itself, and but the graph that a Sequential keeps."""
    inner = vars(model).get("_functional")
    for layer in model._flatten_layers(include_self=False):
        if layer is not inner and type(layer).__name__ != "InputLayer":
            yield layer


def captures(session: Session, name: str, role: Role, classes: frozenset[str]) -> bool:
    """Whether any step may capture a tensor of a layer of these classes."""
    return session.may_capture(role, classes) and session.captures(name, role, classes)


@dataclass(frozen=True, eq=False)
class Parameter:
    """A variable that is trained, or could be.

    Attributes:
        weight: Its entry.
        variable: The variable of Keras.
        layer: Its owner.
    """

    weight: TensorEntry
    variable: Any
    layer: Any


class Variables:
    """The parameters and the buffers of one model.

    Args:
        session: Makes the entries.
        model: The model.
        paths: Names them.

    Attributes:
        weights: The entries of the parameters, with their variables.
        buffers: Those of the other variables, but for seeds.
    """

    def __init__(self, session: Session, model: Any, paths: Paths) -> None:
        self._session = session
        self._paths = paths
        self._parameters: list[Parameter] = []
        self._known: list[int] | None = None
        self._may_differ = True
        self._gradients: dict[tuple[int, Role], TensorEntry | None] = {}
        self._by_id: dict[int, Parameter] = {}
        self.weights: list[tuple[TensorEntry, Any]] = []
        self.buffers: list[tuple[TensorEntry, Any]] = []
        self.look(model)

    def tracked_parameters(self) -> list[Parameter]:
        """All parameters; a new list whenever they may have changed."""
        return self._parameters

    def may_differ(self) -> None:
        """Note that there may be others: a layer has made its own, perhaps."""
        self._may_differ = True

    def know(self, model: Any) -> None:
        """Look, if there may be others."""
        if self._may_differ:
            self.look(model)

    def look(self, model: Any) -> None:
        """Look for variables that are new, or gone."""
        self._may_differ = False
        layers = [model, *layers_of(model)]
        owned = [
            (layer, variable, is_parameter)
            for layer in layers
            for attribute, is_parameter in (
                ("_trainable_variables", True),
                ("_non_trainable_variables", False),
            )
            for variable in getattr(layer, attribute, ())
        ]
        known = [id(variable) for _, variable, _ in owned]
        if known == self._known:
            return
        self._known = known
        self._gradients.clear()
        self.buffers = []
        found: dict[int, Parameter] = {}
        for layer, variable, is_parameter in owned:
            if id(variable) in found:
                continue
            name = self._paths.of_variable(layer, variable)
            aliases = () if variable.path == name else (variable.path,)
            classes = classes_and_kind(layer)
            if is_parameter:
                role = role_of_parameter(name)
                entry = self._session.entry(name, role, aliases, classes)
                found[id(variable)] = Parameter(entry, variable, layer)
            elif "seed_generator" not in variable.path:
                full = buffer_name(name)
                entry = self._session.entry(full, Role.BUFFER, (), classes)
                self.buffers.append((entry, variable))
        self._by_id = found
        self._parameters = list(found.values())
        self.weights = [(each.weight, each.variable) for each in self._parameters]

    def of(self, variable: Any) -> Parameter | None:
        """The parameter that a variable is; None: it is none of the model."""
        return self._by_id.get(id(variable))

    def gradient(self, parameter: Parameter, role: Role) -> TensorEntry | None:
        """The entry of a gradient; None: no step captures it.

        Args:
            parameter: The parameter.
            role: GRADIENT, GRADIENT_UNCLIPPED or GRADIENT_LOCAL.
        """
        key = id(parameter.variable), role
        if key not in self._gradients:
            self._gradients[key] = self._gradient(parameter, role)
        return self._gradients[key]

    def refresh(self) -> None:
        """Forget what is captured: collections have changed."""
        self._gradients.clear()

    def _gradient(self, parameter: Parameter, role: Role) -> TensorEntry | None:
        of = _GRADIENT_NAMES[role]
        weight = parameter.weight
        name = of(weight.name)
        classes = weight.classes
        has_rows = Kind.EMBEDDING in classes and role is Role.GRADIENT
        if not captures(self._session, name, role, classes):
            return None
        aliases = tuple(of(alias) for alias in weight.aliases)
        units = _ROWS if has_rows else None
        return self._session.entry(name, role, aliases, classes, units)
