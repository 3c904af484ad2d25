"""A session: one training, from the events of its hook to what is captured.

Thread safety: the training's thread; a call from another one is safe, though its
step may be that of either thread.

Errors: after construction nothing raises but ``TrainingStopped``, and that only
from ``forward_begins``.  What goes wrong inside is counted, logged once, and
after ten times the session rests.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from tdbg.capture.attached import Attached
from tdbg.capture.events import STATUS, write_event
from tdbg.capture.faults import tell_fault
from tdbg.capture.overhead import Overhead
from tdbg.capture.policy import Policy
from tdbg.capture.process import watch_process
from tdbg.capture.quiet import Quiet
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.records import StepRecords
from tdbg.capture.remote import RemoteArray
from tdbg.capture.requests import Requests
from tdbg.capture.sink import Sink
from tdbg.capture.steps import SKIPPED, Change, Step, StepMachine
from tdbg.capture.stopping import Stopping
from tdbg.capture.tensors import Tensors, array_ref
from tdbg.collections import Role
from tdbg.control import Request
from tdbg.errors import TrainingStopped
from tdbg.modes import TRAINING, ModeKeys

__all__ = ["MAX_FAULTS", "Session"]

MAX_FAULTS = 10

_Result = TypeVar("_Result")


class Session:
    """Where the hooks of a framework call.

    Every event goes through ``run``, which measures it and lets nothing escape.

    Args:
        sink: The core's writer.
        policy: What is wanted.
        requests: What is asked of the training; looked at before each root forward.
        raises_on_stop: Whether a stop raises, or only sets ``should_stop``.
        is_live: False makes a session that never does anything.
        tensors: How the framework's tensors are read.
        budget: Share of the training's time that capture may cost; None: any.

    Attributes:
        takes_activations: False while a forward is under way of which no input or
            output of any module is wanted; saves the hooks the rest.
        forward_context: Of the forward under way, if something is wanted in it.
        n_replicas: Copies of a root that are being called, in threads of their own:
            of what is inside them nothing is wanted.
        quiet: Says when no input or output of a module will be wanted for a while.
        unfinished: Ends of what goes on; called once, before the next event.
        on_rest: Called when an error, or a fork, ends capture without ``close``.
        on_request: Who takes the requests of each type.
        writes_to: Names the run and the rank that it writes for; None: nowhere.
        on_closed: Called when the run has ended and everything is written.
    """

    def __init__(
        self,
        sink: Sink,
        policy: Policy,
        *,
        requests: Requests | None = None,
        raises_on_stop: bool = True,
        is_live: bool = True,
        tensors: Tensors | None = None,
        budget: float | None = None,
    ) -> None:
        self.sink = sink
        self.policy = policy
        self.recorder = Recorder(sink, policy, tensors)
        self.machine = StepMachine()
        self._records = StepRecords(self.recorder, policy, budget)
        self.meter = self._records.meter
        self.is_live = is_live
        self.writes_to: Hashable | None = None
        self.is_closed = False
        self.n_faults = 0
        self.takes_activations = True
        self.forward_context: StepContext | None = None
        self.n_replicas = 0
        self.quiet = Quiet()
        self.unfinished: list[Callable[[], None]] = []
        self.on_change: list[Callable[[], None]] = []
        self.on_close: list[Callable[[], None]] = []
        self.on_closed: list[Callable[[], None]] = []
        self.on_rest: list[Callable[[], None]] = []
        self._requests = requests
        self._stopping = Stopping(raises_on_stop)
        self._has_stopped = False
        self._attached = Attached(policy.registry, self.recorder)
        self.on_request: dict[str, Callable[[Request], None]] = {
            "stop": self._stopping.hear,
            "capture": self._attached.take,
        }
        # When the call that goes on began: that is "now" until it ends.
        self._now_ns = 0
        # Before that nothing is asked of the training, or under way of what was.
        self._hear_ns = 0 if requests is not None else sys.maxsize
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
            return function(*arguments)
        except TrainingStopped:
            raise
        except Exception as error:
            self._fault(error)
            return None
        finally:
            self.meter.total_ns += time.perf_counter_ns() - start

    def overhead(self) -> Overhead:
        """What capture has cost so far."""
        return self._records.overhead()

    @property
    def stop_reason(self) -> str | None:
        """Who asked the training to stop and why, or None."""
        return self._stopping.reason

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked the training to stop."""
        return self.stop_reason is not None

    # ---- events of the training ----------------------------------------------

    def forward_begins(self, root: Hashable, mode: ModeKeys) -> StepContext | None:
        """A root is about to be called.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        if self._now_ns >= self._hear_ns and not self.machine.depth:
            self._hear(mode)
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
            wants = context.wants
            takes = wants.is_active and not step.is_taken
            self.forward_context = context if takes else None
            if context.calls:
                context.calls = {}
            if takes and wants.takes_activations and not self.n_replicas:
                self.takes_activations = True
                self.quiet.tell(False)
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
            step.context.reaches(self._now_ns, self.meter.spent_ns)

    def forward_lost(self) -> None:
        """The call of a root ended without a word (an interrupt)."""
        self._apply(self.machine.forward_lost())

    def module_called(self, mode: ModeKeys) -> StepContext | None:
        """A module or a loss was called: the step it belongs to, if captured."""
        change = self.machine.module_called(mode)
        if change.began:
            self._apply(change)
        if change.step is None:
            return None
        context: StepContext | None = change.step.context
        if context is None or not context.takes:
            return None
        context.last_ns = self._now_ns
        return context

    def optimizer_begins(self, key: Hashable, mode: ModeKeys) -> StepContext | None:
        """An optimizer is about to step."""
        change = self.machine.optimizer_begins(key, mode)
        if change.began:
            self._apply(change)
        context: StepContext | None = None
        if change.step is not None:
            context = change.step.context
        return context

    def optimizer_ends(
        self, key: Hashable, skipped: bool | RemoteArray = False
    ) -> None:
        """An optimizer has stepped, or was skipped, as a device may say later."""
        if not isinstance(skipped, bool):
            self.recorder.flag_later(self.machine.training, SKIPPED, skipped)
            skipped = False
        for step in self.machine.optimizer_ends(key, skipped=skipped).ended:
            self._end(step)

    # ---- what the user records by hand ---------------------------------------

    def given(self, mode: ModeKeys) -> StepContext | None:
        """The step that what is recorded now belongs to."""
        return self._apply(self.machine.record_given(mode))

    def record(self, mode: ModeKeys, name: str, role: Role, ref: Any | None) -> None:
        """Record a tensor, or where one lies, under a name; None counts as refused."""
        context = self.given(mode)
        if context is None:
            return
        if ref is None:
            self.recorder.refuse(context)
            return
        plan = self.recorder.plan(name, role)
        self.recorder.capture(context, plan, ref, context.count_call(("given", name)))

    def record_into(
        self, mode: ModeKeys, name: str, collections: list[str], ref: Any | None
    ) -> None:
        """The same into collections, which are made if need be."""
        for collection in collections:
            self.policy.registry.put(collection, name)
        context = self.given(mode)
        if context is not None and self.policy.refresh():
            self._collections_change()
            # The new collection holds for this step already.
            step = context.step
            context.wants = self.policy.wants(step.mode, step.mode_step)
        self.record(mode, name, Role.OTHER, ref)

    def record_array(
        self, mode: ModeKeys, name: str, collections: list[str], value: object
    ) -> None:
        """Record anything that NumPy takes for an array of plain elements."""
        self.record_into(mode, name, collections, array_ref(value))

    def write_event(self, kind: int, content: dict[str, Any], step: int = -1) -> None:
        """Write an event of the run."""
        write_event(self.recorder, kind, content, step)

    # ---- the end -------------------------------------------------------------

    def close(self, reason: str = "closed", timeout: float = 5.0) -> bool:
        """End the open steps and the writer; True when everything was written."""
        if self.is_closed:
            return True
        self.is_closed = True
        for callback in self.on_close:
            with contextlib.suppress(Exception):
                callback()
        self.run(self._say_goodbye, reason)
        self.is_live = False
        self.recorder.end_forward()
        with contextlib.suppress(Exception):
            timeout -= self.recorder.late.wait(timeout / 2, gives_up=True)
        all_written = self.sink.close(timeout)
        for end in (self._records.close, *self.on_closed):
            with contextlib.suppress(Exception):
                end()
        return all_written

    def make_inert(self) -> None:
        """Do nothing from now on: this is a forked child."""
        self.is_closed = True
        self._rest()

    def _say_goodbye(self, reason: str) -> None:
        self._apply(self.machine.close())
        self._records.conclude()
        if self.stop_reason is None:
            self.write_event(STATUS, {"training": "ended", "reason": reason})
        else:
            self._tell_stopped()

    def _tell_stopped(self) -> None:
        if not self._has_stopped:
            self._has_stopped = True
            self.write_event(
                STATUS, {"training": "stopped", "reason": self.stop_reason}
            )

    def _hear(self, mode: ModeKeys) -> None:
        """Do what is asked of the training."""
        self._hear_ns = 0  # Until nothing is left to do.
        if self._requests is None:
            return
        is_training = mode in TRAINING
        number = self.machine.training_number
        self._attached.step_begins(*self.machine.next_training())
        for request in self._requests.poll(number, is_training=is_training):
            take = self.on_request.get(request.type)
            if take is not None:
                take(request)
        if self._stopping.is_due(is_training=is_training):
            self._apply(self.machine.close())
            self._tell_stopped()
            last, _ = self.machine.latest(mode)
            step = None if last < 0 else last
            raise TrainingStopped(self._stopping.reason or "", step)
        if self._stopping.request is None and not self._attached.is_active:
            self._hear_ns = self._requests.next_ns

    # ---- steps ---------------------------------------------------------------

    def _apply(self, change: Change) -> StepContext | None:
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
        policy = self.policy
        if policy.registry.changes.count != policy.revision and policy.refresh():
            self._collections_change()
        wants = policy.wants(step.mode, step.mode_step)
        if wants.takes_activations:
            self.quiet.tell(False)
        step.context = StepContext(step, wants, self._now_ns, self.meter.spent_ns)

    def _end(self, step: Step) -> None:
        context: StepContext | None = step.context
        if context is None:
            return  # An interrupt came between its beginning and this.
        now, mode = self._now_ns, step.mode
        is_training = mode in TRAINING
        if is_training:  # It goes on until now; of the others the last forward ends it.
            context.reaches(now, self.meter.spent_ns)
        self._records.step_ended(step, now, context.rest_ns, has_data=context.has_data)
        if is_training and not self.machine.depth:
            # Now, so that the next step may begin with any module.  A root that is
            # compiled says nothing, and would be compiled anew without its hooks.
            following = self.policy.wants(mode, step.mode_step + 1)
            is_quiet = bool(step.forwards) and not following.takes_activations
            if is_quiet is not self.quiet.is_quiet:
                self.quiet.tell(is_quiet)

    def _collections_change(self) -> None:
        self._records.collections_change()
        self.recorder.refresh()
        for callback in self.on_change:
            callback()

    def _fault(self, error: Exception) -> None:
        self.n_faults += 1
        tell_fault(error, self.n_faults, MAX_FAULTS)
        if self.n_faults >= MAX_FAULTS:
            self._rest()

    def _rest(self) -> None:
        """Nothing is captured from now on."""
        self.is_live = False
        self.recorder.end_forward()
        for callback in self.on_rest:
            with contextlib.suppress(Exception):
                callback()
