"""``WatchedNet``: one model of Gluon, and what is captured of its forwards.

Thread safety: the training's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from mxnet import autograd

from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.hooks.mxnet.activations import HeldCalls
from tdbg.hooks.mxnet.arrays import wait_for
from tdbg.hooks.mxnet.batches import Batches
from tdbg.hooks.mxnet.calls import see
from tdbg.hooks.mxnet.losses import LateLosses
from tdbg.hooks.mxnet.mode import GluonMode
from tdbg.hooks.mxnet.names import BlockNames
from tdbg.hooks.mxnet.parameters import ParameterBatch, Parameters
from tdbg.hooks.mxnet.taps import BlockTaps, ForwardTaps, is_symbolic
from tdbg.modes import TRAINING, ModeKeys

__all__ = ["WatchedNet"]


class WatchedNet:
    """Captures the forwards of one model.

    Args:
        session: Receives the tensors.
        net: The block.
        names: Names it, and the blocks inside.
        mode: Knows the present mode.
        model_info: Writes what is known of the model.
        late: What is held of losses.
        before_training: Called before a forward in training.
        batches: Is told the batches of training.

    Attributes:
        name: What the names of its inputs and outputs begin with.
        names: Names the blocks.
        parameters: Its parameters.
    """

    def __init__(
        self,
        session: Session,
        net: Any,
        names: BlockNames,
        mode: GluonMode,
        model_info: ModelInfoWriter,
        late: LateLosses,
        before_training: Callable[[], None],
        batches: Batches,
    ) -> None:
        self._samples = batches
        self._session = session
        self._ref = weakref.ref(net)
        self._mode = mode
        self._model_info = model_info
        self._late = late
        self._before_training = before_training
        self._batches: list[ParameterBatch] = []
        self.names = names
        self.name = names.of(net)
        self.parameters = Parameters(session, net, names)
        self._taps = BlockTaps(session, names)
        # Of the forward under way, if its activations are captured.
        self._forward: ForwardTaps | None = None
        self._seen = see(net, "forward", self)

    @property
    def net(self) -> Any:
        """The block, or None if it has been released."""
        return self._ref()

    def refresh(self) -> None:
        """Forget what is captured, because collections have changed."""
        self._taps.refresh()

    def remove(self) -> None:
        """Take everything off the model."""
        self._end_taps()
        self._seen.remove()

    # ---- a call of the model -----------------------------------------------------

    def begins(self, args: tuple[Any, ...]) -> None:
        """Begin a forward: the model is about to be called."""
        if is_symbolic(args):
            return
        self._late.wait()
        self._session.run(self._begin, args)
        if self._batches:
            batches, self._batches = self._batches, []
            for batch in batches:
                wait_for(batch.arrays)
                self._session.run(batch.take, self._session)

    def ends(self, args: tuple[Any, ...], result: Any) -> None:
        """End the forward: the model has returned."""
        if is_symbolic(args):
            return
        session = self._session
        held = session.run(self._end, args, result)
        if held is not None:
            try:
                wait_for(held.arrays())
            except BaseException:
                self.fails()
                raise
            session.run(held.take)
        session.run(self._after)

    def fails(self) -> None:
        """Note that the call has raised."""
        self._session.run(self._fail)

    def _begin(self, args: tuple[Any, ...]) -> None:
        session, mode = self._session, self._mode.of_call()
        self._end_taps()  # Of a call that was lost.
        self._late.take()
        if mode in TRAINING:
            self._before_training()
        context = session.forward_begins(id(self), mode)
        if mode in TRAINING:
            self._samples.forward_begins(args)
        else:
            session.clock.add_batch(args)
        if context is None or not context.takes:
            return
        if session.takes_activations:
            self._forward = self._taps.begin(self.net, args, context)
        self._batches = self.select_parameters(context, mode)

    def select_parameters(
        self, context: StepContext, mode: ModeKeys
    ) -> list[ParameterBatch]:
        """Return the parameters that are captured now, since no trainer will step."""
        trains = mode in TRAINING
        if context.step_plan.is_light or (trains and self._session.optimizers):
            return []
        self.parameters.look()
        batches = [self.parameters.select(context)]
        if not trains:
            batches.append(self.parameters.select_buffers(context))
        return batches

    def _end(self, args: tuple[Any, ...], result: Any) -> HeldCalls | None:
        forward = self._forward
        try:
            return None if forward is None else forward.end(self.net, args, result)
        finally:
            self._end_taps()

    def _after(self) -> None:
        session = self._session
        session.forward_ends()
        if self._mode.now() in TRAINING:
            self._model_info.forward_begins(
                has_optimizer=bool(session.optimizers),
                has_gradients=autograd.is_recording(),
            )

    def _fail(self) -> None:
        self._end_taps()
        self._session.forward_lost()

    def _end_taps(self) -> None:
        """Take the hooks off that a forward has put on the blocks inside."""
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.remove(self.net)
