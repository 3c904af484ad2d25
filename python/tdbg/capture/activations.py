"""Names and entries of the tensors that a call takes or returns.

They are the tensors of a nested structure, in order: docs/steps.md, "Names".

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.capture.naming import MAX_CALLS, activation_name, tensors_in
from tdbg.capture.recorder import StepContext, TensorEntry
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.config.collections import Role

__all__ = ["CallPlans", "Choice"]

_INPUT_ROLES = frozenset({Role.INPUT, Role.MODEL_INPUT, Role.PREDICTION, Role.LABEL})
# So many step plans are remembered: more than a schedule has.
_MAX_STEP_PLANS = 64


class Choice(NamedTuple):
    """The entries of one call's tensors that are captured, and their flags."""

    entries: tuple[TensorEntry, ...] = ()
    requested: tuple[int, ...] = ()

    def __add__(self, other: object) -> Choice:
        if not isinstance(other, Choice):
            return NotImplemented
        return Choice(self.entries + other.entries, self.requested + other.requested)

    def of_single(self) -> tuple[Any, int]:
        """Return the entry and the flags of the only tensor, for the core."""
        return (self.entries[0].core, self.requested[0]) if self.entries else (None, 0)


class CallPlans:
    """Entries of the inputs, or of the outputs, of the calls of one module or loss.

    Args:
        session: Receives the tensors.
        path: The beginning of their names.
        role: Their role.
        is_tensor: Recognizes the framework's tensors.
        aliases: Further paths of the same module.
        kinds: The kinds of the module.
        units: How units are counted, where a rule needs it; None: they are not.

    Attributes:
        key: Names the calls in ``StepContext.calls``.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        role: Role,
        is_tensor: Callable[[Any], bool],
        aliases: tuple[str, ...] = (),
        kinds: frozenset[str] = frozenset(),
        units: UnitSummarySpec | None = None,
    ) -> None:
        self._session = session
        self._path = path
        self._role = role
        self._is_tensor = is_tensor
        self._is_input = role in _INPUT_ROLES
        self._direction = "input" if self._is_input else "output"
        self._aliases = aliases
        self._kinds = kinds
        self._units = units
        self.key = object()
        self._index_runs = session.naming.index_runs
        self._entries: dict[tuple[int, int], TensorEntry] = {}
        # Nearly every call is the first in its forward, of a single tensor.
        self._single: dict[StepPlan, Choice] = {}

    def count_call(self, context: StepContext) -> int:
        """Count a call; return how many there were before in this forward."""
        calls = context.calls
        call = calls.pop(self.key, 0)  # The latest call is the last one in the dict.
        calls[self.key] = call + 1
        return call

    def calls_so_far(self, context: StepContext) -> int:
        """Return how often the module was called in the latest forward."""
        return context.calls.get(self.key, 0)

    def single(self, step_plan: StepPlan) -> Choice:
        """Return what is captured of the only tensor of a first call."""
        choice = self._single.get(step_plan)
        if choice is None:
            choice, _ = self._choose([None], 0, 0, step_plan)
            if len(self._single) > _MAX_STEP_PLANS:
                self._single.clear()
            self._single[step_plan] = choice
        return choice

    def choose(
        self, value: Any, call: int, context: StepContext
    ) -> tuple[Choice, tuple[Any, ...]]:
        """Return what is captured of the tensors in *value*, and these tensors."""
        if call >= MAX_CALLS:
            return Choice(), ()
        found = tensors_in(value, self._is_tensor)
        if not self._index_runs:
            return self._choose(found, 0, call, context.step_plan)
        found, calls = tuple(found), context.calls
        # A call that is not counted here was taken as that of a single tensor.
        first = calls.get(self, call)
        calls[self] = first + len(found)
        return self._choose(found, first, 0, context.step_plan)

    def _choose(
        self, found: Any, first: int, call: int, step_plan: StepPlan
    ) -> tuple[Choice, tuple[Any, ...]]:
        chosen = []
        for index, tensor in enumerate(found, first):
            entry = self._entries.get((index, call)) or self._entry(index, call)
            requested = step_plan.of_entry(entry)
            if requested:
                chosen.append((entry, requested, tensor))
        if not chosen:
            return Choice(), ()
        entries, flags, tensors = zip(*chosen, strict=True)
        return Choice(entries, flags), tensors

    def _entry(self, index: int, call: int) -> TensorEntry:
        name, *aliases = (
            activation_name(path, self._direction, index, call)
            for path in (self._path, *self._aliases)
        )
        role = self.role_of(index)
        entry = self._session.entry(
            name, role, tuple(aliases), self._kinds, self._units
        )
        self._entries[(index, call)] = entry
        return entry

    def role_of(self, index: int) -> Role:  # noqa: ARG002
        """Return the role of the tensor of that index."""
        return self._role
