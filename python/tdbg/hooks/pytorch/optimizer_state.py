"""The state that optimizers keep: momenta, second moments, whatever they hold.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from tdbg.capture.naming import optimizer_state_name
from tdbg.capture.plans import TensorPlan
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.wants import StepWants
from tdbg.collections import Role
from tdbg.hooks.pytorch.modules import ModuleTap

__all__ = ["OptimizerStates"]


class OptimizerStates:
    """Takes the tensors that an optimizer keeps for parameters, in one call.

    They are whatever ``optimizer.state[parameter]`` holds directly; numbers (the
    count of steps) are no tensors.

    Args:
        recorder: Where they go.
        taps: The registered modules; grows.
    """

    def __init__(self, recorder: Recorder, taps: Sequence[ModuleTap]) -> None:
        self._recorder = recorder
        self._taps = taps
        # By kind and parameter; None: it is not captured.
        self._plans: dict[tuple[str, TensorPlan], TensorPlan | None] = {}
        # Of how many parameters an optimizer held a state when a step with these
        # wants had found nothing to take.
        self._in_vain: weakref.WeakKeyDictionary[Optimizer, dict[StepWants, int]] = (
            weakref.WeakKeyDictionary()
        )

    def refresh(self) -> None:
        """Think again after a change of collections."""
        self._plans.clear()
        self._in_vain.clear()

    def take(self, context: StepContext, optimizer: Optimizer) -> None:
        """Take what the step wants of the state as it is now."""
        states = optimizer.state
        in_vain = self._in_vain.setdefault(optimizer, {})
        if in_vain.get(context.wants) == len(states):
            return
        plans: list[TensorPlan] = []
        tensors: list[torch.Tensor] = []
        wanted: list[int] = []
        is_vain, done, of_plan = True, context.done, context.wants.of_plan
        for tap in self._taps:
            for entry in tap.parameters.entries():
                parameter = entry.parameter()
                state = None if parameter is None else states.get(parameter)
                if not isinstance(state, dict):
                    continue
                for kind, value in state.items():
                    if not isinstance(value, torch.Tensor) or value.dim() == 0:
                        continue
                    plan = self._plan(str(kind), entry.weight)
                    flags = 0 if plan is None else of_plan(plan)
                    if plan is None or not flags:
                        continue
                    is_vain = False
                    if plan not in done:
                        plans.append(plan)
                        tensors.append(value)
                        wanted.append(flags)
        if is_vain:
            in_vain[context.wants] = len(states)
        elif plans:
            done.update(plans)
            self._recorder.take(context, plans, tensors, wanted)

    def _plan(self, kind: str, weight: TensorPlan) -> TensorPlan | None:
        key = (kind, weight)
        if key not in self._plans:
            name, role = optimizer_state_name(kind, weight.name), Role.OPTIMIZER_STATE
            plan = None
            if self._recorder.policy.captures(name, role):
                aliases = [optimizer_state_name(kind, each) for each in weight.aliases]
                plan = self._recorder.plan(name, role, tuple(aliases))
            self._plans[key] = plan
        return self._plans[key]
