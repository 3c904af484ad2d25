"""A session: one training, from the events of its hook to what is captured.

Thread safety: the training's thread; a call from another one is safe, though its
step may be that of either thread.

Errors: after construction nothing raises but ``TrainingStopped``, and that only
from ``forward_begins``.  What goes wrong inside is counted, logged once, and
after ten times the session rests.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Collection as AbstractCollection
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from tdbg.capture.adapter import (
    AsyncResult,
    DeviceArray,
    FrameworkAdapter,
    UnitSummarySpec,
    array_ref,
)
from tdbg.capture.counted_steps import CountedSteps, StepEvent
from tdbg.capture.events import StepWriter, write_event
from tdbg.capture.listeners import Listeners, call_all
from tdbg.capture.overhead import Overhead
from tdbg.capture.policy import Policy
from tdbg.capture.process import Faults, watch_process
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.replicas import Replicas
from tdbg.capture.requests import Obedience, Requests
from tdbg.capture.schedule import IdleState, StepPlan
from tdbg.capture.steps import Counters, Step, StepChange, StepMachine
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.errors import TrainingStopped
from tdbg.modes import EVAL, TRAIN, TRAINING, ModeKeys
from tdbg.run.schema import StepFlag

if TYPE_CHECKING:
    from tdbg._core import (
        BatchCapture,
        ModuleCallCapture,
        ParameterCapture,
        StepCounter,
        UpdateCapture,
    )
    from tdbg.capture.ranks import WriterIdentity
    from tdbg.capture.writer import Writer

__all__ = ["Session"]


_Result = TypeVar("_Result")


class Session:
    """One training: takes the events of its hook, and captures.

    Hooks call its methods, and know none of its parts.  An event goes through
    ``run``, which measures it and lets nothing escape.

    Args:
        writer: The core's writer.
        policy: What is captured.
        requests: Requests to the training; polled before each root forward.
        raises_on_stop: Whether a stop raises, or only sets ``should_stop``.
        is_live: False makes a session that never does anything.
        adapter: Reads the framework's tensors.
        batch_capture: Captures many of them in one call; None: nothing does.
        budget: Share of the training's time that capture may cost, or AUTO; None: any.

    Attributes:
        optimizers: The keys of the optimizers that are known; to be read only.
        collections: The collections of the hook; changes hold from the next step on.
        naming: The scheme of names.
        takes_activations: False while a forward is under way in which no input or
            output of any module is captured; saves the hooks the rest.
        forward_context: The step of the forward under way, if anything is captured
            in it.
        raises_on_stop: Whether a stop raises, or only sets ``should_stop``.
        step_writer: Writes the ends of steps.
        n_replicas: Copies of a root that are being called, in threads of their own;
            nothing inside them is captured.
        idle: Reports when no input or output of a module will be captured for a
            while.
        counted: Counts steps that have losses at most.  Hooks tell it of the
            events of each step; a call of ``run`` ends the counting.
        unfinished: Ends of what goes on; called once, before the next event.
        listeners: Who is called back; ``listen`` adds to them.
        on_request: Handles the requests of each type.
        obedience: Obeys requests.
        writes_as: The run, the rank and the attempt that it writes; None: nothing.
        replicas: The workers of this process: one, or each of its replicas.
    """

    add_event: Callable[[StepEvent], None]
    """Adds to what the step under way consists of; counted steps repeat that.

    Bound to ``CountedSteps.events.append``: it is called four times in every step.
    """

    def __init__(
        self,
        writer: Writer,
        policy: Policy,
        *,
        requests: Requests | None = None,
        raises_on_stop: bool = True,
        is_live: bool = True,
        adapter: FrameworkAdapter | None = None,
        batch_capture: BatchCapture | None = None,
        budget: float | str | None = None,
    ) -> None:
        self.writer = writer
        self.policy = policy
        self.recorder = Recorder(writer, policy, adapter, batch_capture)
        self.machine = StepMachine()
        self.optimizers = self.machine.optimizers
        self.collections = policy.registry
        self.naming = policy.naming
        propose = None
        if requests is not None and requests.agreement is not None:
            propose = functools.partial(requests.propose, "throttle")
        self.step_writer = StepWriter(self.recorder, policy, budget, propose)
        self.meter = self.step_writer.meter
        self.replicas = Replicas(self.recorder, self.step_writer)
        self.is_live = is_live
        self.writes_as: WriterIdentity | None = None
        self.is_closed = False
        self._faults = Faults()
        self.takes_activations = True
        self.forward_context: StepContext | None = None
        self.n_replicas = 0
        self.idle = IdleState()
        self.unfinished: list[Callable[[], None]] = []
        self.listeners = Listeners()
        self.raises_on_stop = raises_on_stop
        self.obedience = Obedience(requests, raises_on_stop, self.recorder)
        self.on_request = self.obedience.on_request
        self.on_request["throttle"] = self.step_writer.obey_throttle
        self.counted = CountedSteps(
            self.recorder, self.step_writer, self.obedience, self.listeners
        )
        self.add_event = self.counted.events.append
        self._counter = self.counted.counter
        # Whether at most losses are requested of the training step that comes next.
        self._is_next_light = False
        # When the call under way began: that is "now" until it ends.
        self._now_ns = 0
        if is_live:
            watch_process(self)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close("the hook is gone")

    def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result | None:
        """Call *function*; nothing escapes but ``TrainingStopped``."""
        if not self.is_live:
            return None
        while self.unfinished:
            self.unfinished.pop()()
        self._now_ns = start = time.perf_counter_ns()
        try:
            if self._counter.is_on:
                self._end_counting()
            return function(*arguments)
        except TrainingStopped:
            raise
        except Exception as error:
            if not self._faults.bear(error):
                self._rest()
            return None
        finally:
            self.meter.total_ns += time.perf_counter_ns() - start

    def overhead(self) -> Overhead:
        """What capture has cost so far."""
        self.settle()
        counter = self._counter
        return self.step_writer.overhead(counter.n, counter.duration_ns)

    @property
    def stop_reason(self) -> str | None:
        """Who asked the training to stop and why, or None."""
        return self.obedience.stop_reason

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked the training to stop."""
        return self.stop_reason is not None

    def settle(self) -> None:
        """End what goes on: whoever reads a count of steps calls it before."""
        if self.is_live:
            while self.unfinished:
                self.unfinished.pop()()

    def before_next_event(self, callback: Callable[[], None]) -> None:
        """Call something once, before the session hears of anything else."""
        self.unfinished.append(callback)

    def listen(self, **callbacks: Callable[[], None] | None) -> None:
        """Call back when something happens: as ``Listeners.add``."""
        self.listeners.add(**callbacks)

    def spend(self, spent_ns: int) -> None:
        """Count time as a cost of tdbg that no call of ``run`` has measured."""
        self.meter.total_ns += spent_ns

    def spend_once(self, spent_ns: int) -> None:
        """Count time as a cost of tdbg that comes once, such as a compilation."""
        self.meter.spend_once(spent_ns)

    # ---- what is captured ----------------------------------------------------

    def may_capture(
        self, role: Role, classes: AbstractCollection[str] | None = None
    ) -> bool:
        """Whether a tensor of that role may be captured at some step.

        Args:
            role: The role.
            classes: Those of the module that it belongs to, and its kind; None: any
                module.
        """
        return self.policy.may_capture(role, classes)

    def captures(
        self, name: str, role: Role, classes: AbstractCollection[str] = ()
    ) -> bool:
        """Whether the tensor of this name may be captured at some step.

        Args:
            name: The tensor's name.
            role: The tensor's role.
            classes: Those of the module that it belongs to, and its kind.
        """
        return self.policy.captures(name, role, classes)

    def step_plan(self, mode: ModeKeys, mode_step: int) -> StepPlan:
        """Return what a step of *mode* captures, by its number in that mode."""
        return self.policy.step_plan(mode, mode_step)

    def next_plan(self, mode: ModeKeys) -> StepPlan:
        """Return what the next step of *mode* captures."""
        return self.policy.step_plan(mode, self.machine.following(mode))

    def scalars_due(self, mode: ModeKeys, mode_step: int) -> bool | None:
        """Whether all numbers of optimizers are due, or changed ones; None: none is."""
        return self.policy.scalars_due(mode, mode_step)

    # ---- tensors and numbers -------------------------------------------------

    def entry(
        self,
        name: str,
        role: Role,
        aliases: tuple[str, ...] = (),
        classes: frozenset[str] = frozenset(),
        unit_spec: UnitSummarySpec | None = None,
    ) -> TensorEntry:
        """Return the entry of a name, always the same one: ``Recorder.entry``."""
        return self.recorder.entry(name, role, aliases, classes, unit_spec)

    def take(
        self,
        context: StepContext,
        entries: Sequence[TensorEntry],
        tensors: Sequence[Any],
        flags: Sequence[int],
        call: int = 0,
        micro_batch: int = 0,
        scale: Any = 1.0,
        *,
        reuses: bool = False,
    ) -> None:
        """Capture tensors of the framework now: ``Recorder.take``."""
        self.recorder.take(
            context, entries, tensors, flags, call, micro_batch, scale, reuses=reuses
        )

    def take_unhandled(
        self, context: StepContext, requests: Iterable[tuple[TensorEntry, Any, int]]
    ) -> None:
        """Capture tensors that the core could not read: entries, tensors and flags."""
        self.recorder.take_unhandled(context, requests)

    def take_numbers(
        self,
        context: StepContext,
        entries: Sequence[TensorEntry],
        numbers: NDArray[Any],
        flags: Sequence[int],
    ) -> None:
        """Capture numbers now, each as a tensor: ``Recorder.take_numbers``."""
        self.recorder.take_numbers(context, entries, numbers, flags)

    def capture(
        self, context: StepContext, entry: TensorEntry, tensor: Any, call: int = 0
    ) -> None:
        """Capture one tensor, or where one lies (``TensorRef``), if it is due."""
        self.recorder.capture(context, entry, tensor, call)

    def refuse(self, context: StepContext, n_bytes: int = 0, n: int = 1) -> None:
        """Count tensors that cannot be captured."""
        self.recorder.refuse(context, n_bytes, n)

    def record_number(
        self, context: StepContext, name: str, value: float | DeviceArray | None
    ) -> None:
        """Record ``scalar/<name>``, now or when it has arrived; None is refused."""
        self.recorder.scalar(context, name, value)

    def note_data(self, context: StepContext) -> None:
        """Note that a step has data, even if it has ended."""
        context.note_data(self.recorder.pending)

    def expect(
        self,
        context: StepContext,
        result: AsyncResult,
        deliver: Callable[[], None],
        *,
        n_records: int = 1,
    ) -> None:
        """Keep a step from being complete until a result has arrived.

        Args:
            context: The step.
            result: Says when it has.
            deliver: Called then.
            n_records: How many records are lost if it never does.
        """
        self.recorder.pending.expect(context.step, result, deliver, n_records=n_records)

    def begin_values(
        self, context: StepContext, entries: Sequence[TensorEntry], tensors: list[Any]
    ) -> list[int]:
        """Begin to copy values on their devices: ``Recorder.begin_values``."""
        return self.recorder.begin_values(context, entries, tensors)

    def fence(self) -> None:
        """Let the devices wait for the copies that ``begin_values`` has begun."""
        self.recorder.fence()

    def make_call_capture(
        self, key: object, backward_id: Callable[[], int]
    ) -> ModuleCallCapture | None:
        """Make what captures the calls of one module: ``Recorder.calls_of``."""
        return self.recorder.calls_of(key, backward_id)

    def make_parameter_capture(
        self, parameters: Sequence[Any]
    ) -> ParameterCapture | None:
        """Make what captures parameters: ``Recorder.parameters``."""
        return self.recorder.parameters(parameters)

    def make_update_capture(self) -> UpdateCapture | None:
        """Make what captures the updates of one optimizer: ``Recorder.updates``."""
        return self.recorder.updates()

    # ---- the present step ----------------------------------------------------

    @property
    def training(self) -> Step | None:
        """The training step under way, or None."""
        return self.machine.training

    @property
    def depth(self) -> int:
        """Number of nested calls of roots under way."""
        return self.machine.depth or self._counter.depth

    @property
    def is_in_closure(self) -> bool:
        """Whether an optimizer is evaluating its closure."""
        return self.machine.is_in_closure

    def defines_step(self, key: Hashable) -> bool:
        """Whether the end of this optimizer's step is the end of a step."""
        return self.machine.defines_step(key)

    def next_step(self, mode: ModeKeys) -> int:
        """Return the number that the next step of *mode* will have in it."""
        return self.machine.following(mode)

    def next_steps(self) -> Counters:
        """Return the numbers that a training resumed from here continues with."""
        return self.machine.counters()

    def continue_from(self, counters: Counters) -> bool:
        """Continue from these numbers; False, and no change, if that would go back."""
        return self.machine.continue_from(counters)

    # ---- steps that are only counted -----------------------------------------

    @property
    def step_counter(self) -> StepCounter | None:
        """The core's counter of steps that need no Python; None: all are seen."""
        return self.counted.counter_of_core

    @property
    def is_noted(self) -> bool:
        """Whether losses of the step under way, which is only counted, are noted."""
        return self._counter.is_noted

    @property
    def is_quiet(self) -> bool:
        """Whether the step under way is only counted, and none of its losses noted."""
        return self._counter.is_quiet

    @property
    def n_counted_events(self) -> int:
        """Number of all events that were ever counted instead of seen."""
        return self._counter.n_events

    def count_if(self, may_count: Callable[[], bool]) -> None:
        """Count steps that need no Python where *may_count* says so."""
        self.counted.may_count = may_count

    @property
    def noted_plan(self) -> StepPlan | None:
        """What is captured of the losses that are noted."""
        return self.counted.step_plan

    def note_loss(
        self, key: object, entry: TensorEntry, flags: int, value: float
    ) -> bool:
        """Note a loss of the step under way; False: it has had one of that name.

        REQUIRES: ``is_noted``.

        Args:
            key: Names the calls of the loss in ``StepContext.calls``.
            entry: The name of the loss.
            flags: What to capture of it, as ``noted_plan`` says.
            value: The loss.
        """
        return self.counted.note(key, entry, flags, value)

    # ---- events of the training ----------------------------------------------

    def obey(self, mode: ModeKeys) -> None:
        """Do what requests ask for, as a forward that begins does; know collections."""
        self._refresh()
        if self._now_ns >= self.obedience.next_poll_ns and not self.machine.depth:
            self._obey_requests(mode)

    def forward_begins(
        self, root: Hashable, mode: ModeKeys, *, has_obeyed: bool = False
    ) -> StepContext | None:
        """A root is about to be called.

        *has_obeyed* says that ``obey`` was called for this forward, which may be over.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        if not has_obeyed:
            # As `obey`, in every step: without its calls.
            policy = self.policy
            if policy.registry.changes.count != policy.revision:
                self._refresh()
            if self._now_ns >= self.obedience.next_poll_ns and not self.machine.depth:
                self._obey_requests(mode)
        change = self.machine.forward_begins(root, mode)
        for ended in change.ended:
            self._end(ended)
        step = change.step
        if step is None:
            return None
        if change.began:
            self._begin(step)
        context: StepContext | None = step.context
        if context is not None:
            step_plan = context.step_plan
            takes = step_plan.is_active and not step.is_taken
            self.forward_context = context if takes else None
            if context.calls:
                context.calls = {}
            if takes and step_plan.takes_activations and not self.n_replicas:
                self.takes_activations = True
                self.idle.set(False)
                self.recorder.begin_forward(context)
            else:
                self.takes_activations = False
        return context

    def forward_ends(self, failed: bool = False) -> None:
        """The call of a root is over."""
        change = self.machine.forward_ends(failed=failed)
        if change.ended:
            self._apply(change)
        if not self.machine.depth:
            if self.recorder.is_in_forward:
                self.recorder.end_forward()
            # Of a module that is called by itself.
            self.takes_activations = not self.n_replicas
            self.forward_context = None
        step = change.step
        if step is not None and step.mode not in TRAINING and step.context is not None:
            step.context.extend(self._now_ns, self.meter.spent_ns)

    def forward_lost(self) -> None:
        """The call of a root ended without a word (an interrupt)."""
        self._apply(self.machine.forward_lost())

    def module_called(
        self, mode: ModeKeys, key: object | None = None
    ) -> StepContext | None:
        """A module or a loss was called: return its step, if captured.

        Args:
            mode: The present mode.
            key: Of its calls; in evaluation, outside the call of a root, the second
                call of what began a step begins another one.
        """
        machine, again = self.machine, False
        step = machine.training
        if step is None or machine.depth or mode not in TRAINING:
            step = machine.evaluation
            if step is not None and key is not None and not step.forwards:
                again = step.context is not None and key in step.context.calls
            change = machine.module_called(mode, again=again)
            if change.began:
                self._apply(change)
            step = change.step
        # Else it is that of every step of a training: it changes nothing.
        if step is None:
            return None
        context: StepContext | None = step.context
        if context is None or step.is_taken or not context.step_plan.is_active:
            return None
        context.last_ns = self._now_ns
        return context

    def optimizer_begins(
        self, key: Hashable, mode: Callable[[], ModeKeys], *, from_latest: bool = True
    ) -> StepContext | None:
        """An optimizer is about to step: return the step that it ends, if captured.

        Args:
            key: The optimizer's.
            mode: Returns the present mode; called only where a step begins here.
            from_latest: Whether the gradients are those of the latest forward; not
                with a closure, which is yet to compute them.
        """
        machine, present = self.machine, TRAIN
        if machine.training is None:
            present = mode()
            if present is EVAL and from_latest:
                self._train_in_evaluation(key)
        change = machine.optimizer_begins(key, present)
        if change.began:
            self._apply(change)
        context: StepContext | None = None
        if change.step is not None:
            context = change.step.context
        return context

    def _train_in_evaluation(self, key: Hashable) -> None:
        """Make a step of evaluation one of training, if the optimizer used it so."""
        step = self.machine.evaluation_trains(key)
        if step is None:
            return
        self.eval_training_changed()
        if step.context is not None:
            step.context.step_plan = self.policy.step_plan(step.mode, step.mode_step)

    def optimizer_ends(
        self, key: Hashable, skipped: bool | DeviceArray = False
    ) -> None:
        """An optimizer has stepped, or was skipped, as a device may say later."""
        if not isinstance(skipped, bool):
            self.recorder.flag_later(self.machine.training, StepFlag.SKIPPED, skipped)
            skipped = False
        for step in self.machine.optimizer_ends(key, skipped=skipped).ended:
            self._end(step)
            if self._is_next_light and self.counted.begin(
                self.machine, step, self._now_ns
            ):
                self.takes_activations = False

    def optimizer_found(self, key: Hashable, *, defines_step: bool = False) -> None:
        """An optimizer of the model's parameters exists; it need not have stepped."""
        self.machine.optimizer_found(key, defines_step=defines_step)

    def optimizer_gone(self, key: Hashable) -> None:
        """The optimizer does not exist any longer."""
        self.machine.optimizer_gone(key)

    def optimizers_stop(self) -> None:
        """No optimizer has stepped for so long that steps end without one."""
        self.machine.optimizers_stop()

    def closure_begins(self) -> None:
        """The optimizer that steps evaluates its closure."""
        self.machine.closure_begins()

    def closure_ends(self) -> None:
        """The evaluation of the closure is over."""
        self.machine.closure_ends()

    def closure_fails(self) -> None:
        """The closure raised; so will the optimizer's step."""
        self.machine.closure_fails()

    def eval_training_changed(self) -> None:
        """The model is trained in evaluation mode from now on, or no longer."""
        for callback in self.listeners.eval_training:
            callback()

    def steps_end(self) -> None:
        """End the steps that are open: the training is over, or pauses."""
        self._apply(self.machine.close())

    def latest_step(self, mode: ModeKeys) -> tuple[int, int]:
        """The numbers of the step that began last: global, and in *mode*; -1: none."""
        number, in_mode = self.machine.latest(mode)
        n_counted = self.counted.n_begun
        return number + n_counted, in_mode + (n_counted if mode is TRAIN else 0)

    @property
    def n_training_steps(self) -> int:
        """How many steps of training have begun, or were resumed from."""
        return self.machine.next_training()[0] + self.counted.n_begun

    @property
    def n_forwards(self) -> int:
        """Number that grows with every forward in training."""
        return self.machine.n_forwards + self.counted.n_begun

    # ---- what the user records by hand ---------------------------------------

    def given(self, mode: ModeKeys) -> StepContext | None:
        """Return the step that a value recorded by hand now belongs to."""
        return self._apply(self.machine.record_given(mode))

    def record(self, mode: ModeKeys, name: str, role: Role, ref: Any | None) -> None:
        """Record a tensor, or where one lies, under a name; None counts as refused."""
        context = self.given(mode)
        if context is None:
            return
        if ref is None:
            self.recorder.refuse(context)
            return
        entry = self.recorder.entry(name, role)
        self.recorder.capture(context, entry, ref, context.count_call(("given", name)))

    def record_into(
        self, mode: ModeKeys, name: str, collections: list[str], ref: Any | None
    ) -> None:
        """Record a tensor into collections, which are made if need be."""
        for collection in collections:
            self.policy.registry.put(collection, name)
        context = self.given(mode)
        if context is not None and self.policy.refresh():
            self._collections_change()
            # The new collection holds for this step already.
            step = context.step
            context.step_plan = self.policy.step_plan(step.mode, step.mode_step)
        self.record(mode, name, Role.OTHER, ref)

    def record_array(
        self, mode: ModeKeys, name: str, collections: list[str], value: object
    ) -> None:
        """Record anything that NumPy takes for an array of plain elements."""
        self.record_into(mode, name, collections, array_ref(value))

    def record_scalar(
        self,
        mode: ModeKeys,
        name: str,
        value: float | DeviceArray | None,
        wall_ns: int | None = None,
    ) -> None:
        """Record a number, now or when it has arrived; None counts as refused."""
        context = self.given(mode)
        if context is not None:
            self.recorder.scalar(context, name, value, wall_ns)

    def write_event(self, kind: int, content: dict[str, Any], step: int = -1) -> None:
        """Write an event of the run."""
        write_event(self.recorder, kind, content, step)

    # ---- state ---------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Records offered, written, dropped, failed and more; errors of tdbg."""
        self.settle()
        own = {
            "refused_tensors": self.replicas.n_refused,
            "repeated_rows": self.replicas.n_repeated,
            "internal_errors": self._faults.n,
            "is_live": int(self.is_live),
        }
        return {**self.replicas.counters(), **own}

    def device_state(self) -> dict[int, dict[str, Any]]:
        """How tensors of each device are captured, by the device's number."""
        return self.recorder.device_state()

    # ---- the end -------------------------------------------------------------

    def flush(self, *, durable: bool, timeout: float) -> None:
        """Return when everything recorded so far can be read.

        Raises:
            StorageError: If it could not be written, or a device did not deliver it.
        """
        self.settle()
        if self._counter.is_on:
            self.see()
        if self.is_live:
            timeout -= self.recorder.fetch(timeout)
            self.replicas.flush(durable, max(0.0, timeout))

    def close(self, reason: str = "closed", timeout: float = 5.0) -> bool:
        """End the open steps and the writer; True when everything was written."""
        if self.is_closed:
            return True
        self.is_closed = True
        call_all(self.listeners.close)
        self.run(self._conclude, reason)
        self.is_live = False
        self.recorder.end_forward()
        with contextlib.suppress(Exception):
            self.obedience.close()
        with contextlib.suppress(Exception):
            timeout -= self.recorder.pending.wait(timeout / 2, gives_up=True)
        all_written = self.replicas.close(max(0.0, timeout))
        call_all((self.step_writer.close, *self.listeners.closed))
        return all_written

    def make_inert(self) -> None:
        """Do nothing from now on: this is a forked child."""
        self.is_closed = True
        self._rest()

    def _conclude(self, reason: str) -> None:
        self._apply(self.machine.close())
        self.step_writer.conclude()
        self.obedience.write_end(reason)

    def _obey_requests(self, mode: ModeKeys) -> None:
        """Do what requests ask of the training."""
        if self.obedience.obey(self.machine, mode):
            self._apply(self.machine.close())
            self.obedience.write_stopped()
            last, _ = self.machine.latest(mode)
            raise TrainingStopped(self.stop_reason or "", None if last < 0 else last)

    # ---- steps ---------------------------------------------------------------

    def _apply(self, change: StepChange) -> StepContext | None:
        for step in change.ended:
            self._end(step)
        step_now = change.step
        if step_now is None:
            return None
        if change.began:
            self._begin(step_now)
        context: StepContext | None = step_now.context
        return context

    def _begin(self, step: Step) -> None:
        self.counted.events.clear()
        policy = self.policy
        if policy.registry.changes.count != policy.revision:
            self._refresh()
        step_plan = policy.step_plan(step.mode, step.mode_step)
        if step_plan.takes_activations:
            self.idle.set(False)
        step.context = StepContext(step, step_plan, self._now_ns, self.meter.spent_ns)

    def see(self) -> None:
        """Count no steps any longer: what happens now is to be seen."""
        self.run(tuple)

    def _end_counting(self) -> None:
        """See what happens from now on."""
        begun = self.counted.end(self.machine, self._now_ns)
        self.takes_activations = not self.n_replicas
        obedience = self.obedience
        next_poll_ns, obedience.next_poll_ns = obedience.next_poll_ns, sys.maxsize
        for event in begun:  # A stop is obeyed by forwards, not here.
            event.repeat()
        self.counted.record_begun(self.machine)
        obedience.next_poll_ns = next_poll_ns

    def _end(self, step: Step) -> None:
        context: StepContext | None = step.context
        if context is None:
            return  # An interrupt came between its beginning and this.
        mode = step.mode
        is_training = mode in TRAINING
        spent_ns = self.meter.spent_ns
        if is_training:  # It goes on until now; of the others the last forward ends it.
            context.last_ns, context.last_spent_ns = self._now_ns, spent_ns
        self.step_writer.step_ended(step, self._now_ns, spent_ns, context)
        if is_training and not self.machine.depth:
            # Now, so that the next step may begin with any module.  A root that is
            # compiled says nothing, and would be compiled anew without its hooks.
            following = self.policy.step_plan(mode, step.mode_step + 1)
            self._is_next_light = following.is_light
            is_idle = bool(step.forwards) and not following.takes_activations
            if is_idle is not self.idle.is_idle:
                self.idle.set(is_idle)

    def _refresh(self) -> None:
        policy = self.policy
        if policy.registry.changes.count != policy.revision and policy.refresh():
            self._collections_change()

    def _collections_change(self) -> None:
        self.step_writer.collections_change()
        self.replicas.refresh()
        for callback in self.listeners.change:
            callback()

    def _rest(self) -> None:
        """Stop capturing, for good."""
        self.is_live = False
        self.recorder.end_forward()
        call_all(self.listeners.rest)
