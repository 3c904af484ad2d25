"""Steps of work that is recorded once and replayed: CUDA graphs.

While a graph is recorded, the code of the training runs but the device does nothing:
no step passes.  What the hooks capture then becomes part of the graph, and every
replay computes it anew.  A replay is the step, or the part of a step, that was
recorded: a forward if a root was called, and the end of a step if its optimizer
stepped.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Hashable

from tdbg.capture.policy import Policy
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import ROWS, StepPlan
from tdbg.capture.session import Session
from tdbg.capture.steps import Step, StepChange, StepMachine
from tdbg.modes import ModeKeys

__all__ = ["GraphRecording", "Recordings"]


class GraphRecording(StepMachine):
    """Stands in for the step machine while a graph is recorded: no step passes.

    Args:
        machine: The step machine of the session.
        step: A step without a number, whose context everything recorded gets.
        graph: Id of the graph in the core.

    Attributes:
        machine: The step machine of the session.
        graph: Id of the graph in the core.
        root: The root that was called in the graph, if any.
        stepped: The optimizers that stepped in the graph, in order.
        step_plan: What the graph captures.
    """

    def __init__(self, machine: StepMachine, step: Step, graph: int) -> None:
        super().__init__()
        self.machine = machine
        self.graph = graph
        self.root: Hashable | None = None
        self.optimizers = machine.optimizers
        self.stepped: list[Hashable] = []
        self.step_plan: StepPlan = step.context.step_plan
        self._step = step

    def optimizer_found(self, key: Hashable, *, defines_step: bool = False) -> None:
        """Pass on to the session's machine."""
        self.machine.optimizer_found(key, defines_step=defines_step)

    def optimizer_gone(self, key: Hashable) -> None:
        """Pass on to the session's machine."""
        self.machine.optimizer_gone(key)

    def defines_step(self, key: Hashable) -> bool:
        """Return whether this optimizer ends steps; any one does until one is known."""
        return self.machine.defines_step(key) or not self.machine.optimizers

    def optimizer_begins(self, key: Hashable, mode: ModeKeys) -> StepChange:  # noqa: ARG002
        """Return the recorded step."""
        return StepChange(self._step)

    def optimizer_ends(self, key: Hashable, *, skipped: bool = False) -> StepChange:  # noqa: ARG002
        """Note that the optimizer stepped; return the recorded step."""
        self.stepped.append(key)
        return StepChange(self._step)

    def forward_begins(self, root: Hashable, mode: ModeKeys) -> StepChange:  # noqa: ARG002
        """Note the root; return the recorded step."""
        self.depth += 1
        self.root = root
        return StepChange(self._step)

    def forward_ends(self, *, failed: bool = False) -> StepChange:  # noqa: ARG002
        """Return the recorded step."""
        self.depth = max(0, self.depth - 1)
        return StepChange(self._step)

    def module_called(self, mode: ModeKeys, *, again: bool = False) -> StepChange:  # noqa: ARG002
        """Return the recorded step."""
        return StepChange(self._step)

    def record_given(self, mode: ModeKeys) -> StepChange:  # noqa: ARG002
        """Return the recorded step: values recorded by hand are part of the graph."""
        return StepChange(self._step)

    def close(self) -> StepChange:
        """Close the session's machine: the training ends while it records."""
        return self.machine.close()


class Recordings:
    """Begins and ends recordings of a session, and turns replays into steps.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self, mode: ModeKeys, device: int, stream: int) -> GraphRecording | None:
        """Begin a recording of a stream; None if another one is under way."""
        session = self._session
        if isinstance(session.machine, GraphRecording):
            return None
        step = Step(-1, mode, -1)
        step.context = StepContext(step, _rows_only(session.policy, mode), 0)
        graph = session.writer.graph_id(device, stream)
        session.idle.set(False)  # A replay may capture something.
        session.machine = GraphRecording(session.machine, step, graph)
        return session.machine

    def end(self, recording: GraphRecording) -> None:
        """End the recording."""
        if self._session.machine is recording:
            self._session.machine = recording.machine

    def replayed(
        self, recording: GraphRecording, mode: ModeKeys, device: int, stream: int
    ) -> None:
        """Turn a replay of the graph, on this stream, into events of the session."""
        session = self._session
        machine = session.machine
        if isinstance(machine, GraphRecording):
            return  # A graph within a graph.
        is_forward = recording.root is not None and not machine.depth
        if is_forward:
            context = session.forward_begins(recording.root, mode)
        else:
            context = session.module_called(mode)
        for key in recording.stepped:
            begun = session.optimizer_begins(key, lambda: mode, from_latest=False)
            context = begun or context
        if (
            recording.graph
            and context is not None
            and context.takes
            and context.step_plan.overlaps(recording.step_plan)
        ):
            context.has_data = True
            session.writer.graph_replayed(
                recording.graph, context.step.number, device, stream
            )
        if is_forward:
            session.forward_ends()
        for key in recording.stepped:
            session.optimizer_ends(key)


def _rows_only(policy: Policy, mode: ModeKeys) -> StepPlan:
    """Return what a graph can capture of a mode's first step: statistics."""
    return policy.step_plan(mode, 0).only(ROWS)
