"""What is known of the model of a training, as a value that every layer may hold.

Implements docs/format.md, "What is known of the model".  A hook writes it as events
of the run, the trial reads it back, and rules are given it.

Thread safety: values that never change.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tdbg.config.class_kinds import (
    function_of,
    kind_of_class,
    kind_of_leaf,
    kind_of_loss,
)
from tdbg.config.collections import Collection, CollectionKeys, Role
from tdbg.config.tensor_names import PREFIXES, parameter_in
from tdbg.run.json_values import is_integer, list_of, mapping_of, texts_of
from tdbg.run.loss_facts import LossFact, UntrainedParameter
from tdbg.run.schedules import RateSchedule
from tdbg.run.tree_facts import TreeFacts

__all__ = [
    "MODEL",
    "TREES",
    "ModelInfo",
    "ParameterFacts",
    "are_trees",
    "gather",
    "owner_of",
]

_Value = TypeVar("_Value")

# What the event says it is about.
MODEL = "model"
# An event may have 1 MiB (docs/format.md).
MAX_PART_BYTES = 900_000


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
        has_gradient: Whether it was seen to have a gradient as an optimizer had
            stepped; None: nobody has looked.
        cut_by: An operation whose gradient is zero everywhere (``round``), if the loss
            depends on it through such ones alone; None: it does not.
        unit_axis: The dimension of a weight that numbers the units of its layer: 0 in
            PyTorch, usually the last one in Keras and JAX.
        package_model: The path of the largest model around it of which all classes come
            with installed packages, if the program did not put its layer together
            itself; None: it did, or nobody has looked.
    """

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    module: str
    optimizer: int | None = None
    has_gradient: bool | None = None
    cut_by: str | None = None
    unit_axis: int = 0
    package_model: str | None = None

    @property
    def n_units(self) -> int:
        """How many units its layer has; REQUIRES: it has a dimension."""
        return self.shape[self.unit_axis]

    @property
    def n_inputs(self) -> int:
        """How many weights each unit has."""
        others = (n for i, n in enumerate(self.shape) if i != self.unit_axis)
        return math.prod(others)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What is known of a model from one step on.

    Attributes:
        step: Global step from which it holds.
        models: Names of the classes of the registered modules, in their order.
        losses: The same of the losses.
        optimizers: The same of the optimizers, as they were found or registered,
            and then of those that step for models that are not captured.
        modules: The class of each module, by its path; that of a registered one
            by the name that its own inputs and outputs have.
        kinds: The kind (``tdbg.config.Kind``) of each of these classes that has one,
            and of the losses, by what the names of their tensors begin with.
        input_handling: What losses do to their inputs first
            (``tdbg.config.kinds.InputHandling``), by the same; for others, nothing.
        parameters: The parameters by name.
        complete: Whether an optimizer has been seen; if not, nothing follows from a
            parameter that has none.
        evaluating: Where a model is trained in evaluation mode, the paths of layers
            that work otherwise in training (Dropout, BatchNorm), and are meant to.
        dropping: The classes of modules in evaluation that call dropout without saying
            so: by default it drops.
        keeps_gradients: Whether the gradients of an optimizer are not cleared from one
            step to the next, and so are sums of all since the beginning.
        has_stopped: Whether the optimizers step no more, though forwards in training
            go on.
        loss_facts: What is wrong with the losses, as their graphs say.
        is_loss_open: Whether the graphs of the losses were read and hide nothing, so
            that `loss_facts` has all that is wrong there.
        is_surrogate: Whether a loss weighs logarithms of probabilities by how good it
            was what they are of, as policy gradients do: it need not fall.
        idle_losses: What the names of tensors of those losses begin with that the
            program computes in training, and that no backward pass begins at.
        logit_scale: The largest number that logits are multiplied by before a softmax,
            as those of cosines are.
        makes_targets: Whether the model makes its targets, with copies of itself that
            are moved after it, or as the rewards and values of later states.
        untrained: Parameters outside of the model that a loss depends on, and that
            nobody trains.
        made_inputs: Names of what models are given that other ones have made, and no
            data.
        evaluates: Of losses that other data than those of training have under names of
            their own, the loss of training that each is compared with, by name.
            Where both have one name, the mode says which is which.
        never_trained: Whether an optimizer was made, and the model was only evaluated
            until the end.
        empty_loader: The numbers of samples and of samples in a batch of a loader that
            then had no batch, since it leaves out the last one; empty: there was none.
        schedules: The learning-rate schedules that have a length, at the end.
        trees: What is set for boosted trees; None: the model is of another kind.
    """

    step: int
    models: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    input_handling: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, ParameterFacts] = field(default_factory=dict)
    complete: bool = False
    evaluating: tuple[str, ...] = ()
    dropping: tuple[str, ...] = ()
    keeps_gradients: bool = False
    has_stopped: bool = False
    loss_facts: tuple[LossFact, ...] = ()
    is_loss_open: bool = False
    is_surrogate: bool = False
    idle_losses: tuple[str, ...] = ()
    logit_scale: float = 1.0
    makes_targets: bool = False
    untrained: tuple[UntrainedParameter, ...] = ()
    made_inputs: tuple[str, ...] = ()
    evaluates: Mapping[str, str] = field(default_factory=dict)
    never_trained: bool = False
    empty_loader: tuple[int, ...] = ()
    schedules: tuple[RateSchedule, ...] = ()
    trees: TreeFacts | None = None

    @property
    def has_several_optimizers(self) -> bool:
        """Whether several optimizers step, each for parameters of its own.

        They may be adversaries, as generator and critic.  The last ones may have a
        model that is not captured.
        """
        owners = {
            each.optimizer
            for each in self.parameters.values()
            if each.optimizer is not None
        }
        return (
            len(owners) > 1 or 0 <= max(owners, default=-1) < len(self.optimizers) - 1
        )

    def module_of(self, tensor_name: str) -> str | None:
        """The class of the module, or the function, that a tensor is of, or None.

        A function's output is named after a module: ``fc1_relu_output_0``.

        Example:
            >>> ModelInfo(step=0, modules={"act": "Tanh"}).module_of("act_output_0")
            'Tanh'
        """
        name = parameter_in(tensor_name.removeprefix(PREFIXES[Role.UNIT_SUMMARY]))
        parameter = self.parameters.get(name)
        if parameter is not None:
            return parameter.module
        for path in _paths(name):
            if path in self.modules:
                return self.modules[path]
            found = function_of(path)
            if found is not None and found[0] in self.modules:
                return found[1]
        return None

    def kind_of(self, tensor_name: str) -> str | None:
        """The kind of the module or loss that a tensor is of; None: of none.

        Example:
            >>> ModelInfo(step=0, kinds={"main": "mse"}).kind_of("main_output_0")
            'mse'
        """
        module = self.module_of(tensor_name)
        if module is not None:
            return self.kind_of_class(module)
        return _of_loss(self.kinds, tensor_name) or kind_of_loss(tensor_name)

    def input_handling_of(self, tensor_name: str) -> str | None:
        """What the loss that a tensor is of does to its inputs first; None: nothing.

        Example:
            >>> info = ModelInfo(step=0, input_handling={"mse": "align_ranks"})
            >>> info.input_handling_of("mse_input_0")
            'align_ranks'
        """
        return _of_loss(self.input_handling, tensor_name)

    def kind_of_class(self, name: str) -> str | None:
        """The kind of the modules of a class; None: of none.

        Classes of runs that were recorded without kinds go by their names.
        """
        return self.kinds.get(name) or kind_of_class(name)

    def kind_of_leaf(self, name: str) -> str | None:
        """The same, or what the name of an author's own class says.

        REQUIRES: modules of the class contain no others, or own parameters themselves.
        """
        return self.kinds.get(name) or kind_of_leaf(name)

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        document = {item.name: getattr(self, item.name) for item in _FIELDS}
        for name, value in document.items():
            if isinstance(value, tuple):
                document[name] = list(value)
        for name in ("loss_facts", "untrained", "schedules"):
            document[name] = [each.to_json() for each in document[name]]
        document["trees"] = None if self.trees is None else self.trees.to_json()
        document["modules"] = dict(self.modules)
        document["kinds"] = dict(self.kinds)
        document["input_handling"] = dict(self.input_handling)
        document["evaluates"] = dict(self.evaluates)
        document["parameters"] = {
            name: _to_json(each) for name, each in self.parameters.items()
        }
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ModelInfo:
        """The facts that ``to_json`` made this of; what is unknown is ignored.

        Raises:
            ValueError: If it is not one.
        """
        parameters = {
            name: _from_json(each)
            for name, each in mapping_of(document.get("parameters")).items()
        }
        modules = mapping_of(document.get("modules"))
        step = document.get("step")
        if not is_integer(step):
            msg = f"no facts of a model: the step is {step!r}"
            raise ValueError(msg)
        return cls(
            step=step,
            models=tuple(texts_of(document.get("models"))),
            losses=tuple(texts_of(document.get("losses"))),
            optimizers=tuple(texts_of(document.get("optimizers"))),
            modules=_texts(modules),
            kinds=_texts(mapping_of(document.get("kinds"))),
            input_handling=_texts(mapping_of(document.get("input_handling"))),
            parameters={name: each for name, each in parameters.items() if each},
            complete=document.get("complete") is True,
            evaluating=tuple(texts_of(document.get("evaluating"))),
            dropping=tuple(texts_of(document.get("dropping"))),
            keeps_gradients=document.get("keeps_gradients") is True,
            has_stopped=document.get("has_stopped") is True,
            loss_facts=_values(LossFact.from_json, document.get("loss_facts")),
            is_loss_open=document.get("is_loss_open") is True,
            is_surrogate=document.get("is_surrogate") is True,
            idle_losses=tuple(texts_of(document.get("idle_losses"))),
            logit_scale=_number(document.get("logit_scale"), 1.0),
            makes_targets=document.get("makes_targets") is True,
            untrained=_values(UntrainedParameter.from_json, document.get("untrained")),
            made_inputs=tuple(texts_of(document.get("made_inputs"))),
            evaluates=_texts(mapping_of(document.get("evaluates"))),
            never_trained=document.get("never_trained") is True,
            empty_loader=tuple(
                filter(is_integer, list_of(document.get("empty_loader")))
            ),
            schedules=_values(RateSchedule.from_json, document.get("schedules")),
            trees=TreeFacts.from_json(document.get("trees")),
        )

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


TREES = frozenset({CollectionKeys.TREES, CollectionKeys.FEATURE_IMPORTANCE})
"""Collections that only hooks of boosted trees fill, whatever the settings."""


def are_trees(
    collections: Mapping[str, Collection], model_infos: Iterable[ModelInfo]
) -> bool:
    """Return whether a run is of boosted trees, whose steps are rounds.

    Args:
        collections: Those of the run, by name.
        model_infos: What is known of its model.
    """
    held = (collections.get(name) for name in TREES)
    if any(each is not None and each.tensor_names for each in held):
        return True
    return any("Booster" in info.models for info in model_infos)


def gather(documents: Iterable[Mapping[str, Any]]) -> list[ModelInfo]:
    """Facts from the documents of one writer's events, in their order.

    Facts of which a part is missing, and what is none, are left out.
    """
    found: list[ModelInfo] = []
    parts: list[ModelInfo] = []
    for document in documents:
        if document.get("what") != MODEL:
            continue
        number, n_parts = document.get("part"), document.get("parts")
        if not (is_integer(number) and is_integer(n_parts)):
            continue
        try:
            model_info = ModelInfo.from_json(document)
        except ValueError:
            continue  # A later tdbg's; the event itself is in events().
        parts = parts if number == len(parts) and number else []
        if number == len(parts):
            parts.append(model_info)
        if len(parts) == n_parts:
            found.append(_join(parts))
            parts = []
    return found


def owner_of(name: str) -> str:
    """The path of the module that owns a parameter, or of the one around a module.

    Example:
        >>> owner_of("encoder.fc.weight"), owner_of("encoder/d1/kernel"), owner_of("fc")
        ('encoder.fc', 'encoder/d1', '')
    """
    return name[: max(name.rfind("."), name.rfind("/"), 0)]


_FIELDS = dataclasses.fields(ModelInfo)


def _paths(tensor_name: str) -> Iterator[str]:
    """Yield the module paths that an output or input may belong to, by its name."""
    for direction in ("_output_", "_input_"):
        path, found, _ = tensor_name.rpartition(direction)
        if found:
            yield path


def _of_loss(known: Mapping[str, str], tensor_name: str) -> str | None:
    """Return what is known of the loss that a tensor is of; None: nothing."""
    found = (known[path] for path in _paths(tensor_name) if path in known)
    return next(found, None)


def _values(
    read: Callable[[Mapping[str, Any]], _Value | None], documents: object
) -> tuple[_Value, ...]:
    """Return the values that *read* finds in a list of documents."""
    values = (read(mapping_of(each)) for each in list_of(documents))
    return tuple(value for value in values if value is not None)


def _number(given: object, otherwise: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return otherwise
    return float(given)


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    return {key: text for key, text in given.items() if isinstance(text, str)}


def _join(parts: Sequence[ModelInfo]) -> ModelInfo:
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
        "has_gradient": parameter.has_gradient,
        "cut_by": parameter.cut_by,
        "unit_axis": parameter.unit_axis,
        "package_model": parameter.package_model,
    }


def _from_json(value: object) -> ParameterFacts | None:
    """The parameter, or None where that is none."""
    given = mapping_of(value)
    shape, optimizer = given.get("shape"), given.get("optimizer")
    has_gradient, cut_by = given.get("has_gradient"), given.get("cut_by")
    axis, package_model = given.get("unit_axis", 0), given.get("package_model")
    is_shape = isinstance(shape, list) and all(map(is_integer, shape))
    dtype, module = given.get("dtype"), given.get("module", "")
    if not (is_shape and isinstance(dtype, str) and isinstance(module, str)):
        return None
    has_axis = is_integer(axis) and 0 <= axis < len(shape or ())
    return ParameterFacts(
        shape=tuple(shape or ()),
        dtype=dtype,
        requires_grad=given.get("requires_grad") is True,
        module=module,
        optimizer=optimizer if is_integer(optimizer) else None,
        has_gradient=has_gradient if isinstance(has_gradient, bool) else None,
        cut_by=cut_by if isinstance(cut_by, str) else None,
        unit_axis=axis if has_axis else 0,
        package_model=package_model if isinstance(package_model, str) else None,
    )
