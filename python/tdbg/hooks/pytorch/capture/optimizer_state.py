"""The tensors that an optimizer keeps for parameters.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from tdbg.capture.naming import optimizer_state_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.parameters_and_gradients import ParameterTable

__all__ = ["OptimizerStates"]


class OptimizerStates:
    """Capture the tensors that an optimizer keeps for parameters, in one call.

    These are the tensors directly in ``optimizer.state[parameter]``, apart from single
    numbers like the count of steps.

    Args:
        session: Where they go.
        tables: The parameters of the registered modules; grows.
    """

    def __init__(self, session: Session, tables: Sequence[ParameterTable]) -> None:
        self._session = session
        self._tables = tables
        # By kind and parameter; None: it is not captured.
        self._entries: dict[tuple[str, TensorEntry], TensorEntry | None] = {}
        # The number of parameters with a state when a step of this plan had found
        # nothing to capture.
        self._found_nothing: weakref.WeakKeyDictionary[
            Optimizer, dict[StepPlan, int]
        ] = weakref.WeakKeyDictionary()

    def refresh(self) -> None:
        """Decide anew what is captured: collections have changed."""
        self._entries.clear()
        self._found_nothing.clear()

    def take(self, context: StepContext, optimizer: Optimizer) -> None:
        """Capture the state as it is now, as far as the step needs it."""
        states = optimizer.state
        found_nothing = self._found_nothing.setdefault(optimizer, {})
        if found_nothing.get(context.step_plan) == len(states):
            return
        entries: list[TensorEntry] = []
        tensors: list[torch.Tensor] = []
        requested: list[int] = []
        finds_nothing, done, of_entry = True, context.done, context.step_plan.of_entry
        for table in self._tables:
            for tracked in table.tracked_parameters():
                parameter = tracked.parameter()
                state = None if parameter is None else states.get(parameter)
                if not isinstance(state, dict):
                    continue
                for kind, value in state.items():
                    if not isinstance(value, torch.Tensor) or value.dim() == 0:
                        continue
                    entry = self._entry(str(kind), tracked.weight)
                    flags = 0 if entry is None else of_entry(entry)
                    if entry is None or not flags:
                        continue
                    finds_nothing = False
                    if entry not in done:
                        entries.append(entry)
                        tensors.append(value)
                        requested.append(flags)
        if finds_nothing:
            found_nothing[context.step_plan] = len(states)
        elif entries:
            done.update(entries)
            self._session.take(context, entries, tensors, requested)

    def _entry(self, kind: str, weight: TensorEntry) -> TensorEntry | None:
        key = (kind, weight)
        if key not in self._entries:
            name, role = optimizer_state_name(kind, weight.name), Role.OPTIMIZER_STATE
            entry = None
            if self._session.captures(name, role):
                aliases = [optimizer_state_name(kind, each) for each in weight.aliases]
                entry = self._session.entry(name, role, tuple(aliases))
            self._entries[key] = entry
        return self._entries[key]
