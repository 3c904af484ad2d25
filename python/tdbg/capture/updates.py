"""Tensors that belong to parameters: their entries, and the updates of optimizers.

An update is the parameter after the optimizer's step, less the parameter before it.
At a step that captures updates the parameters are copied before the optimizer steps,
and the differences are taken as soon as it has stepped.  The core does both for plain
parameters (cpp/python_capture/update_capture.h): it copies a parameter in the pass
that reduces it, and reduces the difference where parameter and copy lie.  All others
are copied by the framework, which then takes the difference in the memory of the copy.
No copy outlives the optimizer's step; only the memory of the core's is kept where the
next step needs it again.

Thread safety: the training's thread.

Errors: none of its own; a parameter for whose copy there is no memory, or that has
another shape afterwards, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role

if TYPE_CHECKING:
    from tdbg._core import UpdateCapture

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


class _Stepped(NamedTuple):
    entry: TensorEntry
    tensor: Any
    requested: int


class _Begun:
    """The parameters of an optimizer that is about to step.

    Attributes:
        in_core: Those that the core copies.
        others: The others; with their copies once these are made.
    """

    def __init__(self, parameters: list[_Stepped], others: Sequence[int]) -> None:
        chosen = set(others)
        self.in_core = [p for i, p in enumerate(parameters) if i not in chosen]
        self.others: list[tuple[_Stepped, Any]] = [
            (parameters[i], None) for i in others
        ]


_NO_COPY = "the parameter could not be copied before the optimizer's step"
_CHANGED = "the parameter changed its shape or type in the optimizer's step"


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
        self._begun: dict[Hashable, _Begun] = {}
        self._core: dict[Hashable, UpdateCapture | None] = {}

    @property
    def n_bytes(self) -> int:
        """Memory that the core holds for copies."""
        return sum(core.n_bytes for core in self._core.values() if core is not None)

    def prepare(
        self,
        key: Hashable,
        context: StepContext,
        parameters: Iterable[tuple[TensorEntry, Any, int]],
    ) -> None:
        """Say which parameters will be copied, before the step captures them.

        Args:
            key: The key of the optimizer.
            context: The step.
            parameters: The entries of the updates, the parameters, and the flags of
                what is captured.
        """
        self._begun.pop(key, None)  # Its last step never ended.
        # What an optimizer within another one does is part of the outer one's update.
        begun = self._begun.values()
        others = {p.entry for each in begun for p in each.in_core}
        others |= {p.entry for each in begun for p, _ in each.others}
        left = [
            _Stepped(*each)
            for each in parameters
            if each[0] not in context.done and each[0] not in others
        ]
        if not left:
            return
        if key not in self._core:
            self._core[key] = self._session.make_update_capture()
        core = self._core[key]
        by_framework: Sequence[int] = range(len(left))
        if core is not None:
            by_framework = core.begin(tuple(each.tensor for each in left))
        self._begun[key] = _Begun(left, by_framework)

    def has_begun(self, key: Hashable) -> bool:
        """Whether any update of an optimizer's step is to be captured."""
        return key in self._begun

    def begin(self, key: Hashable, context: StepContext) -> None:
        """Copy the parameters: the optimizer is about to step."""
        begun = self._begun.get(key)
        if begun is None:
            return
        core = self._core[key]
        if core is not None:
            core.copy()
        copies = []
        for parameter, _ in begun.others:
            before = self._copy(parameter.tensor)
            if before is None:
                self._session.refuse(context, parameter.entry.name, _NO_COPY)
            else:
                copies.append((parameter, before))
        begun.others = copies

    def end(self, key: Hashable, context: StepContext) -> None:
        """Capture the updates: the optimizer has stepped."""
        begun = self._begun.pop(key, None)
        if begun is None:
            return
        if begun.in_core:
            self._end_in_core(key, context, begun.in_core)
        entries, tensors, requested = [], [], []
        while begun.others:
            (entry, parameter, flags), before = begun.others.pop(0)
            update = self._difference(parameter, before)
            if update is None:
                self._session.refuse(context, entry.name, _NO_COPY)
                continue
            entries.append(entry)
            tensors.append(update)
            requested.append(flags)
        if entries:
            context.done.update(entries)
            self._session.take(context, entries, tensors, requested)

    def _end_in_core(
        self, key: Hashable, context: StepContext, parameters: list[_Stepped]
    ) -> None:
        core = self._core[key]
        if core is None:
            return
        following = self._session.next_plan(context.step.mode)
        context.has_data = True
        changed = core.end(
            context.step.number,
            tuple(each.entry.core for each in parameters),
            tuple(each.requested for each in parameters),
            any(following.of_entry(each.entry) for each in parameters),
        )
        for i in changed:
            self._session.refuse(context, parameters[i].entry.name, _CHANGED)
        context.done.update(
            each.entry for i, each in enumerate(parameters) if i not in changed
        )

    def forget(self, key: Hashable | None = None) -> None:
        """Free the copies: this optimizer (None: any of them) will not end its step."""
        for each in [*{**self._begun, **self._core}] if key is None else [key]:
            self._begun.pop(each, None)
            core = self._core.get(each)
            if core is not None:
                core.forget()
