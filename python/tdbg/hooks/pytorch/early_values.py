"""Values of parameters on CUDA devices, copied while the step goes on.

Nothing changes a parameter between the forward and the optimizer, so its value is
copied from the beginning of the forward on, beside the training, and only the
optimizer waits, on the device, for what is still under way.

Thread safety: the training's thread; ``fence`` may come from any.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from tdbg.capture.recorder import Recorder, StepContext, TensorPlan
from tdbg.hooks.pytorch import tensors

__all__ = ["EarlyValues"]


class _Copy(NamedTuple):
    """A copy that is under way."""

    plan: TensorPlan
    # Of the same memory, which it keeps, and with the same count of changes.
    alias: torch.Tensor
    version: int


class EarlyValues:
    """Begins the copies of a step, and ends them.

    Args:
        recorder: Where the values go.

    Attributes:
        copies: Those that are under way.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._context: StepContext | None = None
        self.copies: list[_Copy] = []
        # Of the step that is under way: what it has the values of.
        self._has: frozenset[TensorPlan] = frozenset()

    def begin(
        self, context: StepContext, wanted: Iterable[tuple[TensorPlan, torch.Tensor]]
    ) -> None:
        """The root's forward begins: copy these, once a step.

        Args:
            context: The step.
            wanted: Parameters of which it wants values, with their plans.
        """
        if context is self._context:
            return
        self.fence()  # Of a step that ended without its optimizer.
        self._context, self._has = context, frozenset()
        taker = self._recorder.taker
        candidates = [each for each in wanted if tensors.is_on_device(each[1])]
        if taker is None or not candidates:
            return
        plans = [plan for plan, _ in candidates]
        aliases = [tensor.detach() for _, tensor in candidates]
        versions = [_version_of(alias) for alias in aliases]
        begun = taker.begin_values(
            context.step.number,
            [plan.slot for plan in plans],
            [tensor for _, tensor in candidates],
        )
        if begun:
            context.has_data = True
        self.copies = [_Copy(plans[i], aliases[i], versions[i]) for i in begun]
        self._has = frozenset(copy.plan for copy in self.copies)

    def has(self, context: StepContext) -> frozenset[TensorPlan]:
        """Those whose values the step has, or will have."""
        return self._has if context is self._context else frozenset()

    def fence(self, *, is_last: bool = False) -> None:
        """From now on parameters may change: current streams wait for the copies.

        What was changed already is taken again with the rest of the step.

        Args:
            is_last: Nothing more will be taken in the step: what was changed is
                counted as dropped.
        """
        copies, self.copies = self.copies, []
        context = self._context
        if not copies or context is None:
            return
        self._recorder.fence()
        spoilt = [c for c in copies if _version_of(c.alias) != c.version]
        self._has -= {copy.plan for copy in spoilt}
        if not is_last and context.step.is_open:
            return
        for copy in spoilt:
            n_bytes = copy.alias.numel() * copy.alias.element_size()
            self._recorder.refuse(context, n_bytes)


def _version_of(tensor: torch.Tensor) -> int:
    """How often it was written to; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version
