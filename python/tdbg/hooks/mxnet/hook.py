"""``Hook``: what users of Gluon make, register their blocks with, and close."""

from __future__ import annotations

from typing import Any

from mxnet.gluon import Block, Trainer
from mxnet.gluon.loss import Loss

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import FrameworkHook
from tdbg.hooks.mxnet.arrays import MxnetAdapter
from tdbg.hooks.mxnet.losses import LateLosses, WatchedLoss
from tdbg.hooks.mxnet.mode import GluonMode
from tdbg.hooks.mxnet.model_info import GluonModel
from tdbg.hooks.mxnet.names import BlockNames
from tdbg.hooks.mxnet.net import WatchedNet
from tdbg.hooks.mxnet.trainers import TrainerWatch

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

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
        model = GluonModel(self._nets, self._losses)
        self._model_info = ModelInfoWriter(session, model)
        self._trainers = model.watch = TrainerWatch(
            session,
            self._nets,
            self._model_info,
            self._gluon_mode.now,
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
                "the hook captures Gluon, and neither Module nor Symbol"
            )
            raise ConfigurationError(msg)

    def _before_training_forward(self) -> None:
        """Look for trainers: often until there is one."""
        self._countdown -= 1
        if self._countdown <= 0:
            self._trainers.search()
            if self._session.optimizers:
                self._countdown = _SEARCH_INTERVAL

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
