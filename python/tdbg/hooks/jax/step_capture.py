"""What one hook captures of steps in JAX, whichever function they are.

Thread safety: the training's thread.

Errors: a tensor that cannot be captured is refused and counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdbg._core import TapTensors, close_tap_step, open_tap_step, replace_tap_plan
from tdbg.capture.adapter import TensorRef
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.naming import group_scalar_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import ROWS
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.jax.adapter import pointer_of, refs
from tdbg.hooks.jax.argument_taps import ArgumentTaps, named_arrays
from tdbg.hooks.jax.arguments import Arguments
from tdbg.hooks.jax.facts import ModelFacts
from tdbg.hooks.jax.interception import Interception
from tdbg.hooks.jax.mode_flags import ModeFlags
from tdbg.hooks.jax.normalizations import IgnoredStatistics
from tdbg.hooks.jax.returned import Evaluations
from tdbg.hooks.jax.sites import SitePlan, Sites
from tdbg.hooks.jax.tracing import CaptureTrace, present_trace
from tdbg.hooks.jax.waits import Waits
from tdbg.modes import ModeKeys

__all__ = ["OF_STEP", "Execution", "StepCapture"]

LOSS = "loss"
_LOW = 0xFFFFFFFF
# What is lost if nothing of a step is captured.
OF_STEP = "activations and gradients of a step"
_RATES = ("learning_rate", "lr")


class _Chosen(NamedTuple):
    """An array that a step is called with, and what is captured of it."""

    entry: TensorEntry
    array: Any
    flags: int


class Execution:
    """One call of a variant with taps.

    Args:
        context: Its step.
        ticket: Of its step, as the core has opened it.
        plan: What is taken of the taps; that of taps which are traced in this call
            is added.
        arguments: The arguments that the program shows; None: it does not.
    """

    def __init__(
        self,
        context: StepContext,
        ticket: int,
        plan: SitePlan,
        arguments: ArgumentTaps | None,
    ) -> None:
        self.context = context
        self.ticket = ticket
        self.plan = plan
        self.arguments = arguments

    def operand(self) -> NDArray[np.int32]:
        """Return the ticket as the program takes it: low and high word."""
        words = np.array([self.ticket & _LOW, self.ticket >> 32], np.uint32)
        return words.view(np.int32)


class _Done:
    """The end of a program that has been started."""

    n_bytes = 0

    def __init__(self, arrays: Iterable[jax.Array]) -> None:
        self._arrays = tuple(arrays)

    def is_there(self) -> bool:
        """Return whether the program has ended."""
        return all(each.is_ready() for each in self._arrays)


class StepCapture:
    """What a hook captures of the steps of its functions.

    Args:
        session: Receives it.
        sites: The taps.
        facts: What is known of the model.
        model_info: Writes that.
        mode: Returns the present mode.

    Attributes:
        execution: The call under way of a variant with taps.
        interception: Of modules and functions, while a variant with taps is traced.
        waits: Measures where the program waits for steps; None: nothing does.
        evaluations: Look at what evaluations are given.
        ignored: Sees what evaluations are given, and do not use.
        flags: Sees modules that are in the wrong mode.
    """

    def __init__(
        self,
        session: Session,
        sites: Sites,
        facts: ModelFacts,
        model_info: ModelInfoWriter,
        mode: Callable[[], ModeKeys],
    ) -> None:
        self.session = session
        self.facts = facts
        self.model_info = model_info
        self.mode = mode
        self.execution: Execution | None = None
        self.interception = Interception()
        self.waits: Waits | None = None
        self.evaluations = Evaluations(session)
        self.ignored = IgnoredStatistics(session)
        self.flags = ModeFlags(session)
        self._sites = sites
        self._entries: dict[tuple[Role, str], TensorEntry] = {}
        self._ids: dict[tuple[TensorEntry, Any, tuple[int, ...]], int] = {}

    # ---- what a step is called with ------------------------------------------------

    def is_due(self, context: StepContext) -> bool:
        """Return whether this step may capture anything but the loss."""
        if not context.step_plan.is_light:
            return True
        step, session = context.step, self.session
        return session.may_capture(Role.SCALAR) and bool(
            session.scalars_due(step.mode, step.mode_step)
        )

    def choose(
        self,
        context: StepContext,
        found: Arguments,
        shown: AbstractSet[TensorEntry],
    ) -> list[_Chosen]:
        """Return those tensors of the arguments that are to be captured before a step.

        Args:
            context: The step.
            found: The arguments.
            shown: What its program shows.
        """
        self.facts.add_arguments(found)
        chosen: list[_Chosen] = []
        for role, name, array in named_arrays(found):
            entry = self._entries.get((role, name))
            if entry is None:
                entry = self._entries[role, name] = self.session.entry(name, role)
            flags = context.step_plan.of_entry(entry)
            if flags and entry not in shown:
                chosen.append(_Chosen(entry, array, flags))
        for key, value in found.numbers.items():
            name = group_scalar_name(0, "group_0", "lr" if key in _RATES else key)
            if self.session.captures(f"scalar/{name}", Role.SCALAR):
                self._record_number(context, name, value)
        return chosen

    def take(self, context: StepContext, chosen: list[_Chosen]) -> None:
        """Capture arrays, which are there, before the step changes them."""
        session = self.session
        ids: list[int] = []
        pointers: list[int] = []
        for entry, array, flags in chosen:
            if isinstance(array, np.ndarray):
                session.take(context, (entry,), (array,), (flags,))
            elif flags == ROWS and (pointer := pointer_of(array)):
                ids.append(self._id_of(entry, array))
                pointers.append(pointer)
            else:
                for ref in refs(array):
                    session.capture(context, entry, ref)
        if ids:
            session.note_data(context)
            session.writer.statistics(context.step.number, ids, pointers)

    def _id_of(self, entry: TensorEntry, array: jax.Array) -> int:
        """Return the id of the definition of an array that lies on one device."""
        key = entry, array.dtype, array.shape
        identity = self._ids.get(key)
        if identity is None:
            ref = TensorRef(0, array.dtype.name, array.shape)
            identity = self._ids[key] = entry.id_of(ref, self.session.writer)
        return identity

    def _record_number(self, context: StepContext, name: str, value: Any) -> None:
        """Record a number when it is there: the step before may still compute it."""
        session = self.session
        if not isinstance(value, jax.Array):
            session.record_number(context, name, float(value))
            return
        copied = value.addressable_data(0) + 0  # The step may take the memory over.

        def deliver() -> None:
            session.record_number(context, name, float(copied))

        session.expect(context, _Done([copied]), deliver)

    # ---- what it returns -----------------------------------------------------------

    def record_loss(self, context: StepContext, loss: Any) -> None:
        """Record the loss when it is there; None: the step has none."""
        if loss is None or not context.takes:
            return
        entry = self._loss_entry()
        flags = context.step_plan.of_entry(entry)
        if not flags:
            return
        session = self.session
        session.note_data(context)
        if not isinstance(loss, jax.Array):
            session.take(context, (entry,), (np.asarray(loss),), (flags,))
            return

        local = loss.addressable_data(0)

        def deliver() -> None:
            session.take(context, (entry,), (local,), (flags,))

        session.expect(context, _Done([local]), deliver)

    def _loss_entry(self) -> TensorEntry:
        entry = self._entries.get((Role.LOSS, LOSS))
        if entry is None:
            entry = self._entries[Role.LOSS, LOSS] = self.session.entry(LOSS, Role.LOSS)
        return entry

    def loss_reader(
        self, find: Callable[[Any], Any], outputs: Any
    ) -> tuple[bool, Callable[[Any], list[tuple[TensorEntry, Any]]] | None]:
        """Return whether losses of the next steps can be read afterwards, and how.

        Args:
            find: Returns the loss of what a step returns.
            outputs: What the step before has returned.
        """
        entry = self._loss_entry()
        if not self.session.next_plan(ModeKeys.TRAIN).of_entry(entry):
            return True, None
        loss = find(outputs)
        if loss is None:
            return True, None
        if not isinstance(loss, jax.Array) or loss.dtype != np.float32 or loss.ndim:
            return False, None

        def read(outputs: Any) -> list[tuple[TensorEntry, Any]]:
            return [(entry, find(outputs).addressable_data(0))]

        return True, read

    # ---- taps ----------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Number that grows when a step captures what traces have left out."""
        return self._sites.revision

    def open(
        self, context: StepContext, arguments: ArgumentTaps | None
    ) -> Execution | None:
        """Return the execution of a step with taps; None: nothing would be shown.

        Args:
            context: The step.
            arguments: Those of the function; None: it was not traced with taps, and
                nobody knows what it would show.
        """
        shown = arguments if arguments is not None and arguments.are_shown else None
        plan = self._sites.plan(context.step_plan, shown)
        if plan is None and arguments is not None:
            return None
        plan = plan or self._sites.empty()
        ticket = open_tap_step(plan.core)
        if not ticket:  # So far behind is no device.
            self.session.refuse(context, OF_STEP, "the device is too far behind")
            return None
        return Execution(context, ticket, plan, shown)

    def show_arguments(
        self, arguments: ArgumentTaps, found: Arguments, ticket: Any
    ) -> Any:
        """Tap the arguments of a step, whose trace begins; return the ticket.

        Args:
            arguments: Receives those that any step captures.
            found: They.
            ticket: The tracer of the ticket.
        """
        arrays = []
        for role, name, array in named_arrays(found):
            if self._sites.captures(name, role, frozenset()):
                tap = self._sites.add(name, role, frozenset(), None, arguments)
                arrays.append((tap, array))
        return arguments.show(arrays, ticket)

    @contextlib.contextmanager
    def tracing(self, ticket: Any, arguments: Any) -> Iterator[Callable[[Any], Any]]:
        """Trace a variant with taps inside; yields what its outputs go through.

        Args:
            ticket: The tracer of the ticket.
            arguments: What the function is called with.
        """
        trace = CaptureTrace(self._sites, ticket, self.facts)
        with trace.entered(), self.interception.of(trace, arguments) as restored:
            yield restored
        execution = self.execution
        if execution is not None:
            step_plan = execution.context.step_plan
            plan = self._sites.plan(step_plan, execution.arguments)
            plan = plan or self._sites.empty()
            execution.plan = plan
            replace_tap_plan(execution.ticket, plan.core)
            for name in trace.refused:
                self.session.refuse(execution.context, name, "no tap can show it")

    @staticmethod
    def makes_state() -> bool:
        """Return whether the step under trace makes the state that its optimizer uses.

        An optimizer that makes several steps in one, or is not the only one, may.
        """
        trace = present_trace()
        return trace is not None and trace.used_states == [True]

    def expect(self, execution: Execution, done: jax.Array) -> None:
        """Write what the taps of a step show when its program has ended."""
        session, context = self.session, execution.context
        session.note_data(context)
        if execution.arguments is not None and not execution.arguments.are_shown:
            # It was divided among devices, of which nobody knew before the call.
            why = "it is divided among devices"
            session.refuse(context, "the arguments of the step", why)

        def deliver() -> None:
            self._sites.deliver(context.step, execution.ticket, execution.plan)

        session.expect(context, _Done([done]), deliver, n_records=0)

    def close(self, execution: Execution) -> None:
        """Forget an execution that has failed."""
        close_tap_step(execution.ticket, execution.plan.core, TapTensors())
