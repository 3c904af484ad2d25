"""Work that is recorded once and replayed: CUDA graphs.

While a graph is recorded, the code of the training runs but the device does nothing:
no step passes.  What the hooks take then becomes part of the graph, and every replay
computes it anew.  A replay is the step, or the part of a step, that was recorded: a
forward if a root was called, and the end of a step if its optimizer stepped.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Hashable

from tdbg.capture.policy import Policy
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.steps import Change, Step, StepMachine
from tdbg.capture.wants import ROWS, StepWants
from tdbg.modes import ModeKeys

__all__ = ["GraphRecording", "Recordings"]


class GraphRecording(StepMachine):
    """Stands in for the step machine while a graph is recorded: no step passes.

    Args:
        machine: The real one.
        step: Of nobody; its context is that of everything recorded.
        graph: Its number in the core.

    Attributes:
        root: That was called in it, if any.
        stepped: The optimizers that stepped in it, in order.
        wants: What was wanted in it.
    """

    def __init__(self, machine: StepMachine, step: Step, graph: int) -> None:
        super().__init__()
        self.machine = machine
        self.graph = graph
        self.root: Hashable | None = None
        self.optimizers = machine.optimizers
        self.stepped: list[Hashable] = []
        self.wants: StepWants = step.context.wants
        self._step = step

    def optimizer_found(self, key: Hashable, *, defines_step: bool = False) -> None:
        """Told to the real one."""
        self.machine.optimizer_found(key, defines_step=defines_step)

    def optimizer_gone(self, key: Hashable) -> None:
        """Told to the real one."""
        self.machine.optimizer_gone(key)

    def defines_step(self, key: Hashable) -> bool:
        """As the real one has it; the first one does where none is known."""
        return self.machine.defines_step(key) or not self.machine.optimizers

    def optimizer_begins(self, key: Hashable, mode: ModeKeys) -> Change:  # noqa: ARG002
        """The optimizer's step is recorded."""
        return Change(self._step)

    def optimizer_ends(self, key: Hashable, *, skipped: bool = False) -> Change:  # noqa: ARG002
        """So it was."""
        self.stepped.append(key)
        return Change(self._step)

    def forward_begins(self, root: Hashable, mode: ModeKeys) -> Change:  # noqa: ARG002
        """The call of a root is recorded."""
        self.depth += 1
        self.root = root
        return Change(self._step)

    def forward_ends(self, *, failed: bool = False) -> Change:  # noqa: ARG002
        """So it was."""
        self.depth = max(0, self.depth - 1)
        return Change(self._step)

    def module_called(self, mode: ModeKeys) -> Change:  # noqa: ARG002
        """The call of a module is recorded."""
        return Change(self._step)

    def record_given(self, mode: ModeKeys) -> Change:  # noqa: ARG002
        """What is recorded by hand is part of the graph too."""
        return Change(self._step)

    def close(self) -> Change:
        """The training ends while it records."""
        return self.machine.close()


class Recordings:
    """Begins and ends recordings of a session, and makes steps of replays.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self, mode: ModeKeys, device: int, stream: int) -> GraphRecording | None:
        """A stream records from now on; None where another one does already."""
        session = self._session
        if isinstance(session.machine, GraphRecording):
            return None
        step = Step(-1, mode, -1)
        step.context = StepContext(step, _rows_only(session.policy, mode), 0)
        graph = session.sink.graph_id(device, stream)
        session.quiet.tell(False)  # It may be replayed when something is wanted.
        session.machine = GraphRecording(session.machine, step, graph)
        return session.machine

    def end(self, recording: GraphRecording) -> None:
        """The recording is over."""
        if self._session.machine is recording:
            self._session.machine = recording.machine

    def replayed(
        self, recording: GraphRecording, mode: ModeKeys, device: int, stream: int
    ) -> None:
        """The graph was put on this stream once more."""
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
            context = session.optimizer_begins(key, mode) or context
        if (
            recording.graph
            and context is not None
            and context.takes
            and context.wants.want_any_of(recording.wants)
        ):
            context.has_data = True
            session.sink.graph_replayed(
                recording.graph, context.step.number, device, stream
            )
        if is_forward:
            session.forward_ends()
        for key in recording.stepped:
            session.optimizer_ends(key)


def _rows_only(policy: Policy, mode: ModeKeys) -> StepWants:
    """What of the first step's wants can be part of a graph."""
    return policy.wants(mode, 0).only(ROWS)
