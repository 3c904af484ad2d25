"""What a model of Gluon says of itself: docs/format.md, "What is known of the model".

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from tdbg.capture.model_info import ModelMarks
from tdbg.hooks.mxnet.kinds import class_name, kind_of, unit_axis_of
from tdbg.hooks.mxnet.losses import WatchedLoss
from tdbg.hooks.mxnet.net import WatchedNet
from tdbg.hooks.mxnet.trainers import TrainerWatch
from tdbg.run.model_info import ModelInfo, ParameterFacts

__all__ = ["GluonModel"]


class GluonModel:
    """The models of a training: a ``ModelSource``.

    Args:
        nets: The models; grows.
        losses: The losses; grows.

    Attributes:
        watch: Knows the trainers; None: nothing does yet.
    """

    def __init__(
        self, nets: Sequence[WatchedNet], losses: Sequence[WatchedLoss]
    ) -> None:
        self._nets = nets
        self._losses = losses
        self.watch: TrainerWatch | None = None

    def marks(self) -> ModelMarks:
        """Count the parts of the model and its trained parameters."""
        tracked = [
            each for net in self._nets for each in net.parameters.tracked_parameters()
        ]
        trainers = self._trainers()
        found = [len(self._nets), len(self._losses), len(trainers), len(tracked)]
        for each in tracked:
            parameter = each.ref()
            found.append(parameter is not None and parameter.grad_req != "null")
        found += [len(each._params) for each in trainers]
        return ModelMarks(len(tracked), tuple(found))

    def model_info(
        self,
        step: int,
        trained_in_evaluation: Collection[Hashable],  # noqa: ARG002
    ) -> ModelInfo:
        """Describe the models as they are now."""
        modules: dict[str, str] = {}
        kinds: dict[str, str] = {}
        parameters: dict[str, ParameterFacts] = {}
        models: list[str] = []
        trainers = self._trainers()
        held = {
            id(parameter): i
            for i, trainer in enumerate(trainers)
            for parameter in trainer._params
        }
        for net in self._nets:
            root = net.net
            if root is None:
                continue
            models.append(class_name(root))
            for path, block in net.names.walk(root):
                name, kind = class_name(block), kind_of(block)
                modules[path] = name
                if kind is not None:
                    kinds.setdefault(name, str(kind))
            for each in net.parameters.tracked_parameters():
                parameter, owner = each.ref(), each.owner()
                if parameter is None or owner is None or parameter.shape is None:
                    continue
                shape = tuple(int(size) for size in parameter.shape)
                parameters[each.weight.name] = ParameterFacts(
                    shape=shape,
                    dtype=np.dtype(parameter.dtype).name,
                    requires_grad=parameter.grad_req != "null",
                    module=class_name(owner),
                    optimizer=held.get(id(parameter)),
                    unit_axis=unit_axis_of(owner, len(shape)),
                )
        for loss in self._losses:
            if loss.kind is not None:
                kinds[loss.name] = str(loss.kind)
        return ModelInfo(
            step=step,
            models=tuple(models),
            losses=tuple(each.class_name for each in self._losses),
            optimizers=tuple(type(each._optimizer).__name__ for each in trainers),
            modules=modules,
            kinds=kinds,
            parameters=parameters,
            complete=bool(trainers),
        )

    def _trainers(self) -> list[Any]:
        return [] if self.watch is None else self.watch.trainers()
