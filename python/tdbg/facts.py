"""What is known of the model of a training, as a value that every layer may hold.

Implements docs/format.md, "What is known of the model".  A hook writes it as events
of the run, the trial reads it back, and rules are given it.

Thread safety: values that never change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MODEL", "Facts", "ParameterFacts", "gather"]

# What the event says it is about.
MODEL = "model"
# An event may have 1 MiB (docs/format.md).
MAX_PART_BYTES = 900_000
_UNITS, _GRADIENTS = "unit/", ("gradient/", "gradient_unclipped/", "update/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """What is known of a parameter.

    Attributes:
        shape: Of all of it, where ranks share it.
        dtype: Name of its element type, as NumPy or ml_dtypes has it.
        requires_grad: Whether a gradient is computed for it.
        module: Class of the module that owns it, such as ``Linear``.
        optimizer: Which of the optimizers holds it, by index; None: none that is
            known.
    """

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    module: str
    optimizer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a model from one step on.

    Attributes:
        step: Global step from which it holds.
        models: Names of the classes of the registered modules, in their order.
        losses: The same of the losses.
        optimizers: The same of the optimizers, as they were found or registered.
        modules: The class of each module, by its path; that of a registered one
            by the name that its own inputs and outputs have.
        parameters: The parameters by name.
        complete: Whether an optimizer has been seen; if not, nothing follows from a
            parameter that has none.
        evaluating: Where a model is trained in evaluation mode, the paths of layers
            that work otherwise in training (Dropout, BatchNorm), and are meant to.
    """

    step: int
    models: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, ParameterFacts] = field(default_factory=dict)
    complete: bool = False
    evaluating: tuple[str, ...] = ()

    def module_of(self, tensor_name: str) -> str | None:
        """The class of the module that a tensor is of; None where it is not known.

        Example:
            >>> Facts(step=0, modules={"act": "Tanh"}).module_of("act_output_0")
            'Tanh'
        """
        name = tensor_name.removeprefix(_UNITS)
        for prefix in _GRADIENTS:
            name = name.removeprefix(prefix)
        parameter = self.parameters.get(name)
        if parameter is not None:
            return parameter.module
        for direction in ("_output_", "_input_"):
            path, found, _ = name.rpartition(direction)
            if found and path in self.modules:
                return self.modules[path]
        return None

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        document = {item.name: getattr(self, item.name) for item in _FIELDS}
        for name in ("models", "losses", "optimizers", "evaluating"):
            document[name] = list(document[name])
        document["modules"] = dict(self.modules)
        document["parameters"] = {
            name: _to_json(each) for name, each in self.parameters.items()
        }
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Facts:
        """The facts that ``to_json`` made this of; what is unknown is ignored.

        Raises:
            ValueError: If it is not one.
        """
        parameters = {
            name: _from_json(each)
            for name, each in _mapping(document.get("parameters")).items()
        }
        modules = _mapping(document.get("modules"))
        try:
            return cls(
                step=int(document["step"]),
                models=_names(document.get("models")),
                losses=_names(document.get("losses")),
                optimizers=_names(document.get("optimizers")),
                modules={str(path): str(name) for path, name in modules.items()},
                parameters={name: each for name, each in parameters.items() if each},
                complete=document.get("complete") is True,
                evaluating=_names(document.get("evaluating")),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"no facts of a model: {error!r}"
            raise ValueError(msg) from error

    def parts(self, max_bytes: int = MAX_PART_BYTES) -> list[dict[str, Any]]:
        """The documents of the events that say it, each of at most so many bytes.

        ``gather`` puts them together again.
        """
        heads = dataclasses.replace(self, modules={}, parameters={}).to_json()
        room = max_bytes - len(json.dumps(heads)) - 200
        documents: list[dict[str, Any]] = []
        used = room + 1
        whole = self.to_json()
        for kind in ("modules", "parameters"):
            for name, value in whole[kind].items():
                size = len(json.dumps({name: value}))
                if used + size > room and used > 0:
                    documents.append({**heads, "modules": {}, "parameters": {}})
                    used = 0
                documents[-1][kind][name] = value
                used += size
        documents = documents or [heads]
        return [
            {"what": MODEL, "part": i, "parts": len(documents), **each}
            for i, each in enumerate(documents)
        ]


def gather(documents: Iterable[Mapping[str, Any]]) -> list[Facts]:
    """Facts from the documents of one writer's events, in their order.

    Facts of which a part is missing, and what is none, are left out.
    """
    found: list[Facts] = []
    parts: list[Facts] = []
    for document in documents:
        if document.get("what") != MODEL:
            continue
        try:
            number, n_parts = int(document["part"]), int(document["parts"])
            facts = Facts.from_json(document)
        except (KeyError, TypeError, ValueError):
            continue  # A later tdbg's; the event itself is in events().
        parts = parts if number == len(parts) and number else []
        if number == len(parts):
            parts.append(facts)
        if len(parts) == n_parts:
            found.append(_join(parts))
            parts = []
    return found


_FIELDS = dataclasses.fields(Facts)


def _join(parts: Sequence[Facts]) -> Facts:
    modules: dict[str, str] = {}
    parameters: dict[str, ParameterFacts] = {}
    for part in parts:
        modules.update(part.modules)
        parameters.update(part.parameters)
    return dataclasses.replace(parts[0], modules=modules, parameters=parameters)


def _to_json(parameter: ParameterFacts) -> dict[str, Any]:
    return {
        "shape": list(parameter.shape),
        "dtype": parameter.dtype,
        "requires_grad": parameter.requires_grad,
        "module": parameter.module,
        "optimizer": parameter.optimizer,
    }


def _from_json(value: object) -> ParameterFacts | None:
    """The parameter, or None where that is none."""
    given = _mapping(value)
    try:
        optimizer = given.get("optimizer")
        return ParameterFacts(
            shape=tuple(int(size) for size in given["shape"]),
            dtype=str(given["dtype"]),
            requires_grad=given["requires_grad"] is True,
            module=str(given.get("module", "")),
            optimizer=None if optimizer is None else int(optimizer),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(name) for name in value) if isinstance(value, list) else ()
