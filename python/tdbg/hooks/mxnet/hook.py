"""``Hook``: what users of Gluon make, register their blocks with, and close."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from mxnet.gluon import Block, Trainer
from mxnet.gluon.loss import Loss

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.model_info import ModelInfoWriter, ModelMarks
from tdbg.capture.modes import CurrentMode
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import FrameworkHook
from tdbg.hooks.mxnet.array_calls import ArrayCalls
from tdbg.hooks.mxnet.arrays import MxnetAdapter
from tdbg.hooks.mxnet.batches import Batches
from tdbg.hooks.mxnet.kinds import class_name, kind_of, unit_axis_of
from tdbg.hooks.mxnet.losses import LateLosses, WatchedLoss
from tdbg.hooks.mxnet.mode import GluonMode
from tdbg.hooks.mxnet.names import BlockNames
from tdbg.hooks.mxnet.net import WatchedNet
from tdbg.hooks.mxnet.trainers import TrainerWatch
from tdbg.run.model_info import ModelInfo, ParameterFacts

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]


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
        kinds.update(_texts_of(self._losses, "kind"))
        return ModelInfo(
            step=step,
            models=tuple(models),
            losses=tuple(each.class_name for each in self._losses),
            optimizers=tuple(type(each._optimizer).__name__ for each in trainers),
            modules=modules,
            kinds=kinds,
            input_handling=_texts_of(self._losses, "input_handling"),
            parameters=parameters,
            complete=bool(trainers),
        )

    def _trainers(self) -> list[Any]:
        return [] if self.watch is None else self.watch.trainers()


def _texts_of(losses: Iterable[WatchedLoss], attribute: str) -> dict[str, str]:
    """Return an attribute of each loss that has it, by the name of the loss."""
    found = ((each.name, getattr(each, attribute)) for each in losses)
    return {name: str(value) for name, value in found if value is not None}


# Forwards in training between two searches for trainers, once one has been found.
_SEARCH_INTERVAL = 100


class Hook(FrameworkHook):
    """Captures a training of Gluon; losses unless told otherwise.

    Its arguments are those of ``HookBase``: docs/configuration.md.  The
    ``register_...`` methods raise ConfigurationError for what they cannot use;
    nothing else raises into the training but ``TrainingStopped``.

    Example::

        hook = tdbg.mxnet.Hook("runs/digits", include_collections=["gradients"])
        hook.register_block(net)
        hook.register_loss(loss)
    """

    def _make_adapter(self) -> FrameworkAdapter:
        return MxnetAdapter()

    def _attach(self, session: Session) -> CurrentMode:
        self._names = BlockNames()
        self._nets: list[WatchedNet] = []
        self._losses: list[WatchedLoss] = []
        self._gluon_mode = GluonMode(session)
        self._late = LateLosses(self._losses)
        self._countdown = 0
        self._batches = Batches(session.clock)
        model = GluonModel(self._nets, self._losses)
        self._model_info = ModelInfoWriter(session, model)
        self._trainers = model.watch = TrainerWatch(
            session,
            self._nets,
            self._model_info,
            self._gluon_mode.now,
            self._batches,
        )
        session.listen(change=_Refresh(self._nets, self._losses, self._trainers))
        return self._gluon_mode

    # ---- registration ----------------------------------------------------------

    def register_block(self, block: Any) -> None:
        """Capture this block, and all blocks inside; a loss as ``register_loss`` does.

        Its trainer is found by its parameters, whether it exists already or not.

        Raises:
            ConfigurationError: If it is no block of Gluon.
        """
        if isinstance(block, Loss):
            self.register_loss(block)
            return
        self._check(block, "register_block", Block)
        if not self._session.is_live or self.captures(block):
            return
        net = WatchedNet(
            self._session,
            block,
            self._names,
            self._gluon_mode,
            self._model_info,
            self._late,
            self._before_training_forward,
            self._batches,
        )
        self._nets.append(net)
        self._countdown = 0

    def captures(self, block: Any) -> bool:
        """Return whether a block was registered."""
        return any(each.net is block for each in self._nets)

    def register_loss(self, loss: Any) -> Any:
        """Capture what this block returns as a loss, at every step.

        Returns:
            The block itself.

        Raises:
            ConfigurationError: If it is no block of Gluon.
        """
        self._check(loss, "register_loss", Block)
        if not self._session.is_live or any(each.loss is loss for each in self._losses):
            return loss
        name = self._names.of(loss)
        self._losses.append(WatchedLoss(self._session, loss, name, self._gluon_mode))
        self._model_info.changed()
        return loss

    def register_trainer(self, trainer: Any) -> None:
        """Capture the steps of this trainer; needed only before the first forward.

        Raises:
            ConfigurationError: If it is no ``gluon.Trainer``.
        """
        self._check(trainer, "register_trainer", Trainer)
        if self._session.is_live:
            self._trainers.add(trainer)

    # ---- inside ----------------------------------------------------------------

    def _check(self, given: object, method: str, kind: type) -> None:
        if not isinstance(given, kind):
            msg = (
                f"{method} needs a gluon.{kind.__name__}, not {type(given).__name__}: "
                "tdbg captures Gluon, not Module or Symbol"
            )
            raise ConfigurationError(msg)

    def _before_training_forward(self) -> None:
        """Look for trainers: often until there is one."""
        self._countdown -= 1
        if self._countdown <= 0:
            self._trainers.search()
            if self._session.optimizers:
                self._countdown = _SEARCH_INTERVAL

    def _start_profiler(self, session: Session, settings: ProfilerConfig) -> None:
        super()._start_profiler(session, settings)
        self._array_calls = ArrayCalls(session)

    def _capture_before_forward(
        self,
        context: StepContext,
        *,
        is_training: bool,  # noqa: ARG002
    ) -> None:
        mode = self._gluon_mode.now()
        for net in self._nets:
            for batch in net.select_parameters(context, mode):
                batch.take(self._session)

    def _detach(self) -> None:
        self._session.run(self._late.take)
        self._session.run(self._model_info.conclude)
        watched: list[Any] = [*self._nets, *self._losses, self._trainers]
        for each in watched:
            each.remove()


class _Refresh:
    """Lets all that captures forget what is captured: collections have changed."""

    def __init__(
        self, nets: list[WatchedNet], losses: list[WatchedLoss], trainers: TrainerWatch
    ) -> None:
        self._nets = nets
        self._losses = losses
        self._trainers = trainers

    def __call__(self) -> None:
        watching: list[Any] = [*self._nets, *self._losses, self._trainers]
        for each in watching:
            each.refresh()


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
