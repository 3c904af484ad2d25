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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from tdbg.capture.adapter import DeviceArray, FrameworkAdapter, array_ref
from tdbg.capture.events import StepWriter, write_event
from tdbg.capture.listeners import call_all
from tdbg.capture.overhead import Overhead
from tdbg.capture.passed_steps import PassingSteps
from tdbg.capture.policy import Policy
from tdbg.capture.process import Faults, watch_process
from tdbg.capture.profile_rows import ProfileRows
from tdbg.capture.recorder import Recorder
from tdbg.capture.requests import Obedience, Requests
from tdbg.capture.session_steps import SessionSteps
from tdbg.config.collections import Role
from tdbg.errors import TrainingStopped
from tdbg.modes import ModeKeys
from tdbg.run.observations import Fault, Observation
from tdbg.run.schema import EventKind

if TYPE_CHECKING:
    from tdbg._core import BatchCapture
    from tdbg.capture.ranks import WriterIdentity
    from tdbg.capture.replica_check import RankGroup
    from tdbg.capture.writer import Writer

__all__ = ["RankPlace", "Session"]

# A hook sees few things; more are a fault of its own.
MOST_OBSERVATIONS = 1000


class RankPlace(NamedTuple):
    """The run that a rank takes part in.

    Attributes:
        run: Its directory, which may not exist yet where this rank does not write.
        rank: Number of the rank.
    """

    run: Path
    rank: int


_Result = TypeVar("_Result")


class Session(SessionSteps):
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
        is_closed: Whether the run has ended.
        raises_on_stop: Whether a stop raises, or only sets ``should_stop``.
        writes_as: The run, the rank and the attempt that it writes; None: nothing.
        place: The directory of the run and the rank, also of a rank that writes
            nothing; None: the session belongs to no run.
        ranks: The ranks that may have replicas of one model; None: they share no
            store, or there is only one.
        may_probe: Whether a copy of the model may be called.
        framework: Name of the framework, as its adapter has it; may be empty.
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
        self.is_live = is_live
        self.writes_as: WriterIdentity | None = None
        self.place: RankPlace | None = None
        self.ranks: RankGroup | None = None
        self.framework = "" if adapter is None else adapter.name
        self.is_closed = False
        self.may_probe = False
        self.raises_on_stop = raises_on_stop
        self._profile_rows = ProfileRows(writer)
        self._observed: set[tuple[Fault, tuple[str, ...]]] = set()
        self._faults = Faults()
        recorder = Recorder(writer, policy, adapter, batch_capture)
        propose = None
        if requests is not None and requests.agreement is not None:
            propose = functools.partial(requests.propose, "throttle")
        step_writer = StepWriter(recorder, policy, budget, propose)
        obedience = Obedience(requests, raises_on_stop, recorder)
        obedience.on_request["throttle"] = step_writer.obey_throttle
        super().__init__(policy, recorder, step_writer, obedience)
        self._begins, self._ends = self.clock.tdbg_begins, self.clock.tdbg_ends
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
        passing = self._passing
        if passing is not None and not self._observe(passing):
            return None
        self._now_ns = start = self._begins()
        try:
            return function(*arguments)
        except TrainingStopped:
            raise
        except Exception as error:
            if not self._faults.bear(error):
                self._rest()
            return None
        finally:
            self.meter.total_ns += self._ends() - start

    def _observe(self, passing: PassingSteps) -> bool:
        """Let no more steps pass; return whether the session is live.

        In a ``run`` of its own: an error must not cost the event that comes next.
        """
        self._passing = None
        self.run(self._end_passing, passing)
        return self.is_live

    def overhead(self) -> Overhead:
        """Return the cost of capture so far."""
        self.settle()
        passing = self._passing
        if passing is None:
            return self.step_writer.overhead()
        return self.step_writer.overhead(passing.n, passing.duration_ns)

    def settle(self) -> None:
        """Call what waits for the next event; call it before you read a step's number.

        Steps that pass go on, so you may call this at every step.
        """
        if self.is_live:
            while self.unfinished:
                self.unfinished.pop()()

    def before_next_event(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, before the next event."""
        self.unfinished.append(callback)

    def listen(self, **callbacks: Callable[[], None] | None) -> None:
        """Call back when something happens: as ``Listeners.add``."""
        self.listeners.add(**callbacks)

    def spend(self, spent_ns: int) -> None:
        """Count time as a cost of tdbg that no call of ``run`` has measured."""
        self.meter.total_ns += spent_ns
        self.clock.spend(spent_ns)

    def spend_once(self, spent_ns: int) -> None:
        """Count time as a cost of tdbg that comes once, such as a compilation."""
        self.meter.spend_once(spent_ns)
        self.clock.spend(spent_ns)

    def excuse(self, spent_ns: int) -> None:
        """Say that so much of the call under way is a cost that comes once."""
        self.meter.excuse(spent_ns)

    # ---- what the user records by hand ---------------------------------------

    def record(self, mode: ModeKeys, name: str, role: Role, ref: Any | None) -> None:
        """Record a tensor, or where one lies, under a name; None counts as refused."""
        context = self.given(mode)
        if context is None:
            return
        if ref is None:
            self.recorder.refuse(context, name, "tdbg cannot read it as an array")
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

    def observe(self, observation: Observation) -> None:
        """Write what the hook saw, unless it has written the same before.

        The same is a fault with the same names.  Call it before the step ends at
        which it is known, so that a rule that follows the run sees it in time.
        """
        key = observation.fault, observation.names
        if key in self._observed:
            return
        if len(self._observed) >= MOST_OBSERVATIONS:
            self.recorder.refusals.add(
                observation.step,
                f"observation {observation.fault}",
                f"a run has {MOST_OBSERVATIONS:,} observations at most",
            )
            return
        self._observed.add(key)
        document = observation.to_json()
        self.write_event(EventKind.CONFIGURATION, document, observation.step)

    def write_samples(self, table: str, rows: NDArray[Any], instance: str = "") -> None:
        """Append rows to a table of the profile, from any thread.

        They reach the run about a second later, and when it closes.

        Args:
            table: One of ``tdbg.run.profile_tables.TABLES``, or ``"core"``.
            rows: A structured array of the table's type.
            instance: Whose rows these are where a table has several: a disk, ...
        """
        if not self.is_live:
            return
        try:
            self._profile_rows.append(table, rows, instance)
        except Exception as error:
            if not self._faults.bear(error):
                self._rest()

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
        if self._passing is not None:
            self.see()
        if self.is_live:
            self._profile_rows.flush()
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
        self.clock.stop()  # A step that is cut off now has no row.
        self._apply(self.machine.close())
        call_all(self.listeners.rows)
        # The last steps may have no record.
        content = {"what": "steps", "modes": self.steps_made()}
        self.write_event(EventKind.CHANGE, content)
        self.step_writer.conclude()
        self._profile_rows.flush()
        self.obedience.write_end(reason)

    def see(self) -> None:
        """Let no more steps pass: observe what happens now."""
        self.run(tuple)

    def _rest(self) -> None:
        """Stop capturing, for good."""
        self.is_live = False
        self.clock.stop()
        self.recorder.end_forward()
        call_all(self.listeners.rest)
