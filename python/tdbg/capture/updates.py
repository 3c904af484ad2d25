"""Tensors that belong to parameters: their entries, and the updates of optimizers.

An update is the parameter after the optimizer's step, less the parameter before it.
At a step that captures updates the parameters are copied before the optimizer steps,
and the differences are taken, in the memory of the copies, as soon as it has stepped:
no copy outlives the optimizer's step.

Thread safety: the training's thread.

Errors: none of its own; a parameter for whose copy there is no memory, or that has
another shape afterwards, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role

__all__ = ["Derived", "DerivedEntries", "ModelParameter", "ParameterSource", "Updates"]

# So many step entries are remembered: more than a schedule has.
_MAX_STEP_PLANS = 64


class ModelParameter(Protocol):
    """A parameter of a framework, at its place in the model."""

    @property
    def weight(self) -> TensorEntry:
        """The entry of the parameter itself."""


_Parameter = TypeVar("_Parameter", bound=ModelParameter)


class ParameterSource(Protocol[_Parameter]):
    """The parameters of one root."""

    def tracked_parameters(self) -> list[_Parameter]:
        """All parameters; a new list whenever they may have changed."""


class Derived(NamedTuple, Generic[_Parameter]):
    """A parameter, the entry of a tensor that belongs to it, and its flags."""

    tracked: _Parameter
    entry: TensorEntry
    requested: int


class _Known(NamedTuple, Generic[_Parameter]):
    all_tracked: list[_Parameter]  # For which the rest holds.
    entries: list[tuple[_Parameter, TensorEntry]]
    by_step_plan: dict[StepPlan, list[Derived[_Parameter]]]


class DerivedEntries(Generic[_Parameter]):
    """Entries of tensors that belong to parameters, made for those that are captured.

    Args:
        session: Makes the entries.
        role: The role of the tensors.
        name_of: Makes the name of such a tensor from the name of its parameter.
    """

    def __init__(
        self, session: Session, role: Role, name_of: Callable[[str], str]
    ) -> None:
        self._session = session
        self._role = role
        self._name_of = name_of
        self._known: dict[ParameterSource[_Parameter], _Known[_Parameter]] = {}

    def refresh(self) -> None:
        """Forget what is captured, because collections have changed."""
        self._known.clear()

    def of(
        self, table: ParameterSource[_Parameter]
    ) -> list[tuple[_Parameter, TensorEntry]]:
        """Return the parameters whose tensor any step captures, with its entry."""
        return self._know(table).entries

    def requested(
        self, table: ParameterSource[_Parameter], step_plan: StepPlan
    ) -> list[Derived[_Parameter]]:
        """Return the parameters whose tensor a step captures."""
        known = self._know(table)
        found = known.by_step_plan.get(step_plan)
        if found is None:
            if len(known.by_step_plan) > _MAX_STEP_PLANS:
                known.by_step_plan.clear()
            found = known.by_step_plan[step_plan] = [
                Derived(tracked, entry, flags)
                for tracked, entry in known.entries
                if (flags := step_plan.of_entry(entry))
            ]
        return found

    def _know(self, table: ParameterSource[_Parameter]) -> _Known[_Parameter]:
        all_tracked = table.tracked_parameters()
        known = self._known.get(table)
        if known is None or known.all_tracked is not all_tracked:
            known = self._known[table] = _Known(
                all_tracked, self._entries(all_tracked), {}
            )
        return known

    def _entries(
        self, all_tracked: list[_Parameter]
    ) -> list[tuple[_Parameter, TensorEntry]]:
        session, role, name_of = self._session, self._role, self._name_of
        captures = session.captures
        found = []
        for tracked in all_tracked:
            weight = tracked.weight
            name = name_of(weight.name)
            if captures(name, role):
                aliases = tuple(name_of(alias) for alias in weight.aliases)
                found.append((tracked, session.entry(name, role, aliases)))
        return found


class _Copy(NamedTuple):
    entry: TensorEntry
    parameter: Any
    before: Any
    requested: int


class Updates:
    """Captures the updates that optimizers make to parameters.

    Args:
        session: Receives them.
        copy: Copies a parameter; None where it cannot.
        difference: Returns the first less the second, if possible in the memory of
            the second; None where it cannot.
    """

    def __init__(
        self,
        session: Session,
        copy: Callable[[Any], Any | None],
        difference: Callable[[Any, Any], Any | None],
    ) -> None:
        self._session = session
        self._copy = copy
        self._difference = difference
        self._copies: dict[Hashable, list[_Copy]] = {}

    @property
    def has_copies(self) -> bool:
        """Whether an optimizer is stepping whose updates will be captured."""
        return bool(self._copies)

    def begin(
        self,
        key: Hashable,
        context: StepContext,
        parameters: Iterable[tuple[TensorEntry, Any, int]],
    ) -> None:
        """Copy the parameters: the optimizer is about to step.

        Args:
            key: The key of the optimizer.
            context: The step.
            parameters: The entries of the updates, the parameters, and the flags of
                what is captured.
        """
        # What an optimizer within another one does is part of the outer one's update.
        others = {copy.entry for copies in self._copies.values() for copy in copies}
        copies = []
        for entry, parameter, requested in parameters:
            if entry in context.done or entry in others:
                continue
            before = self._copy(parameter)
            if before is None:
                self._session.refuse(context)
            else:
                copies.append(_Copy(entry, parameter, before, requested))
        if copies:
            self._copies[key] = copies

    def end(self, key: Hashable, context: StepContext) -> None:
        """Capture the updates: the optimizer has stepped."""
        copies = self._copies.pop(key, None)
        if copies is None:
            return
        entries, tensors, requested = [], [], []
        for entry, parameter, before, flags in copies:
            update = self._difference(parameter, before)
            if update is None:
                self._session.refuse(context)
                continue
            entries.append(entry)
            tensors.append(update)
            requested.append(flags)
        del copies, before
        if entries:
            context.done.update(entries)
            self._session.take(context, entries, tensors, requested)

    def forget(self, key: Hashable | None = None) -> None:
        """Free the copies: this optimizer (None: any of them) will not end its step."""
        if key is None:
            self._copies.clear()
        else:
            self._copies.pop(key, None)
