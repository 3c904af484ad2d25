"""What a model of Keras says of itself: docs/format.md, "What is known of the model".

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from tdbg.capture.model_info import ModelMarks
from tdbg.hooks.keras.facts import loss_facts_of
from tdbg.hooks.keras.kinds import (
    class_name,
    kind_of,
    unit_axis_of,
)
from tdbg.hooks.keras.optimizers import inner_of
from tdbg.hooks.keras.variables import layers_of
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.run.loss_facts import LossFact
from tdbg.run.model_info import ModelInfo, ParameterFacts

__all__ = ["KerasModel"]


class KerasModel:
    """The models of a training: a ``ModelSource``.

    Args:
        watched: The models; grows.
    """

    def __init__(self, watched: Sequence[WatchedModel]) -> None:
        self._watched = watched

    def marks(self) -> ModelMarks:
        """Count what there is, and which parameters are trained."""
        found = [len(self._watched)]
        n_parameters = 0
        for watched in self._alive():
            parameters = watched.variables.tracked_parameters()
            n_parameters += len(parameters)
            found += [len(parameters), len(watched.optimizers())]
            found.append(watched.losses.n_finding_scores)
            found.append(watched.first_steps.targets.fact is not None)
            found.append(len(watched.first_steps.program.facts))
            found += [bool(each.variable.trainable) for each in parameters]
            found += [
                len(inner_of(each)._trainable_variables)
                for each in watched.optimizers()
                if inner_of(each).built
            ]
        return ModelMarks(n_parameters, tuple(found))

    def model_info(
        self,
        step: int,
        trained_in_evaluation: Collection[Hashable],  # noqa: ARG002
    ) -> ModelInfo:
        """Describe the models as they are now."""
        modules: dict[str, str] = {}
        kinds: dict[str, str] = {}
        input_handling: dict[str, str] = {}
        parameters: dict[str, ParameterFacts] = {}
        models, losses, optimizers = list[str](), list[str](), list[str]()
        loss_facts: list[LossFact] = []
        for watched in self._alive():
            model = watched.model
            models.append(type(model).__name__)
            modules[watched.root] = type(model).__name__
            for layer in layers_of(model):
                name = class_name(layer)
                modules[watched.paths.of_layer(layer)] = name
                kind = kind_of(layer)
                if kind is not None:
                    kinds.setdefault(name, str(kind))
            held = {
                id(variable): len(optimizers) + i
                for i, optimizer in enumerate(watched.optimizers())
                if inner_of(optimizer).built
                for variable in inner_of(optimizer)._trainable_variables
            }
            inner = map(inner_of, watched.optimizers())
            optimizers += [type(each).__name__ for each in inner]
            for each in watched.variables.tracked_parameters():
                parameters[each.weight.name] = ParameterFacts(
                    shape=tuple(int(size) for size in each.variable.shape),
                    dtype=str(each.variable.dtype),
                    requires_grad=bool(each.variable.trainable),
                    module=class_name(each.layer),
                    optimizer=held.get(id(each.variable)),
                    unit_axis=unit_axis_of(each.layer, each.variable),
                )
            functions = watched.losses.functions(model)
            first = watched.first_steps
            loss_facts += loss_facts_of(model, functions, first.targets.fact)
            loss_facts += first.program.facts
            for loss in functions:
                losses.append(loss.class_name)
                if loss.kind is not None:
                    kinds[loss.name] = str(loss.kind)
                if loss.input_handling is not None:
                    input_handling[loss.name] = str(loss.input_handling)
        return ModelInfo(
            step=step,
            models=tuple(models),
            losses=tuple(losses),
            optimizers=tuple(optimizers),
            modules=modules,
            kinds=kinds,
            input_handling=input_handling,
            parameters=parameters,
            loss_facts=tuple(loss_facts),
            complete=bool(optimizers),
        )

    def _alive(self) -> list[WatchedModel]:
        return [each for each in self._watched if each.model is not None]
