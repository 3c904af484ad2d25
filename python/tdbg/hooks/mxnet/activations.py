"""Inputs and outputs of blocks: held during a forward, captured when it is over.

MXNet computes while the program goes on: to read an array at once would wait for it,
and for each block anew. Arrays of a forward do not change before it is over, since
autograd refuses operations in place on what it records.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tdbg.capture.activations import CallPlans
from tdbg.capture.naming import tensors_in
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.mxnet.arrays import is_tensor
from tdbg.hooks.mxnet.kinds import classes_and_kind, unit_range

__all__ = ["BlockPlans", "HeldCalls"]


class BlockPlans(NamedTuple):
    """What may be captured of the calls of one block.

    Attributes:
        inputs: Of what it is given; None: no step captures any.
        outputs: Of what it returns, likewise.
    """

    inputs: CallPlans | None
    outputs: CallPlans | None

    @classmethod
    def of(
        cls, session: Session, block: Any, name: str, *, is_root: bool
    ) -> BlockPlans:
        """Make those of a block.

        Args:
            session: Says what is captured.
            block: The block.
            name: Its name.
            is_root: Whether it is the model itself.
        """
        classes = classes_and_kind(block)
        given = Role.MODEL_INPUT if is_root else Role.INPUT
        inputs = outputs = None
        if session.may_capture(given, classes):
            inputs = CallPlans(session, name, given, is_tensor, (), classes)
        if session.may_capture(Role.OUTPUT, classes):
            units = unit_range(block)
            outputs = CallPlans(
                session, name, Role.OUTPUT, is_tensor, (), classes, units
            )
        return cls(inputs, outputs)

    def __bool__(self) -> bool:
        return self.inputs is not None or self.outputs is not None


class _Held(NamedTuple):
    """Tensors of one call.

    Attributes:
        plans: Say what is captured of them.
        site: How many calls there were before in this forward, and the number of the
            forward in the step.
        value: A structure with the tensors.
    """

    plans: CallPlans
    site: tuple[int, int]
    value: Any


class HeldCalls:
    """The tensors of the calls in one forward.

    Args:
        session: Takes them.
        context: The step.
    """

    def __init__(self, session: Session, context: StepContext) -> None:
        self._session = session
        self._held: list[_Held] = []
        self.context = context

    def hold(self, plans: CallPlans | None, value: Any) -> None:
        """Hold the arguments or results of a call; do nothing if *plans* is None."""
        if plans is not None:
            site = plans.count_call(self.context), self.context.step.micro_batch
            self._held.append(_Held(plans, site, value))

    def arrays(self) -> Iterator[Any]:
        """Return the arrays that are held; wait for them before you capture them."""
        for each in self._held:
            yield from tensors_in(each.value, is_tensor)

    def take(self) -> None:
        """Capture the held arrays in one call, except for repeated blocks."""
        by_site: dict[tuple[int, int], list[_Held]] = {}
        for each in self._held:
            by_site.setdefault(each.site, []).append(each)
        self._held = []
        for (call, micro_batch), calls in by_site.items():
            entries: list[Any] = []
            tensors: list[Any] = []
            flags: list[int] = []
            for each in calls:
                choice, found = each.plans.choose(each.value, call, self.context)
                entries += choice.entries
                flags += choice.requested
                tensors += found
            if entries:
                # Losses are captured when their step is over.
                self._session.note_data(self.context)
                self._session.take(
                    self.context, entries, tensors, flags, call, micro_batch
                )
