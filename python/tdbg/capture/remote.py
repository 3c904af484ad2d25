"""Tensors that lie on a device, by the operations of their framework.

What is wanted of them is computed there and arrives later (``tdbg.capture.late``);
the rows of a step come in one copy for each stream.  This is how tensors on a device
are taken where the core's kernels cannot run; docs/gpu.md.

Thread safety: the recorder's.

Errors: what the framework cannot do is refused and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from tdbg.capture.late import Arrival, LateSteps
from tdbg.capture.sink import Sink
from tdbg.capture.steps import Step
from tdbg.capture.units import UnitQuestion

__all__ = ["RESCALED", "RemoteArray", "RemoteBackend", "RemoteTensors", "Site"]

# A row that a factor was applied to (docs/format.md).
RESCALED = 1


class Site(NamedTuple):
    """Which tensor of which call: what a row says beside its numbers."""

    identity: int
    call: int
    micro_batch: int


class RemoteArray(Arrival, Protocol):
    """An array on its way to the memory of the CPU."""

    @property
    def array(self) -> NDArray[Any]:
        """It, contiguous; only when it is there."""


class RemoteBackend(Protocol):
    """What a framework does on its device; nothing of it waits.

    What cannot be done now is None.
    """

    def n_bytes(self, tensor: Any) -> int:
        """Of its elements."""

    def lane(self, tensor: Any) -> Hashable:
        """Where its work is queued: device and stream."""

    def row(self, tensor: Any, scale: Any) -> Any | None:
        """Compute its row: something for ``bring``."""

    def bring(self, lane: Hashable, rows: Sequence[Any]) -> RemoteArray | None:
        """Send these rows of a lane: an array of uint64, 12 to a row."""

    def values(self, tensor: Any) -> RemoteArray | None:
        """Send its elements, as bytes."""

    def units(self, tensor: Any, question: UnitQuestion) -> RemoteArray | None:
        """Count its units, and send the three rows of counts."""


class _Lane(NamedTuple):
    rows: list[Any]
    sites: list[Site]
    flags: list[int]


class RemoteTensors:
    """Takes what is wanted of tensors on a device.

    Args:
        sink: The core's writer.
        late: Waits for what was asked for.
        backend: The framework.
        refuse: Counts step, records and bytes that are not taken.

    Attributes:
        lanes: The rows that were not sent, by the number of their step.
    """

    def __init__(
        self,
        sink: Sink,
        late: LateSteps,
        backend: RemoteBackend,
        refuse: Callable[[int, int, int], None],
    ) -> None:
        self._sink = sink
        self._late = late
        self._backend = backend
        self._refuse = refuse
        self.lanes: dict[int, tuple[Step, dict[Hashable, _Lane]]] = {}

    def row(self, step: Step, tensor: Any, site: Site, scale: Any) -> None:
        """Take its row; it goes with the others of the step, at ``send``."""
        row = self._backend.row(tensor, scale) if self._late.has_room(0) else None
        if row is None:
            self._refuse(step.number, 1, 0)
            return
        _, lanes = self.lanes.setdefault(step.number, (step, {}))
        lane = lanes.setdefault(self._backend.lane(tensor), _Lane([], [], []))
        lane.rows.append(row)
        lane.sites.append(site)
        is_scaled = not isinstance(scale, float) or scale != 1.0
        lane.flags.append(RESCALED if is_scaled else 0)
        if not step.is_open:
            self.send(step)

    def values(self, step: Step, tensor: Any, site: Site) -> None:
        """Send its values."""
        n_bytes = self._backend.n_bytes(tensor)
        has_room = self._late.has_room(n_bytes)
        arrival = self._backend.values(tensor) if has_room else None
        self._expect(step, arrival, site, n_bytes)

    def units(
        self, step: Step, tensor: Any, site: Site, question: UnitQuestion
    ) -> None:
        """Send the counts of its units."""
        arrival = None
        if self._late.has_room(0):
            arrival = self._backend.units(tensor, question)
        self._expect(step, arrival, site, 0)

    def send(self, step: Step) -> None:
        """Send the rows that the step has so far."""
        _, lanes = self.lanes.pop(step.number, (step, {}))
        for name, lane in lanes.items():
            arrival = self._backend.bring(name, lane.rows)
            if arrival is None:
                self._refuse(step.number, len(lane.rows), 0)
                continue
            self._late.expect(
                step,
                arrival,
                _Rows(self._sink, step.number, arrival, lane),
                n_records=len(lane.rows),
            )

    def send_all(self) -> None:
        """Send the rows of all steps."""
        for step, _ in list(self.lanes.values()):
            self.send(step)

    def _expect(
        self, step: Step, arrival: RemoteArray | None, site: Site, n_bytes: int
    ) -> None:
        if arrival is None:
            self._refuse(step.number, 1, n_bytes)
            return
        array = arrival

        def deliver() -> None:
            self._sink.values(
                step.number,
                site.identity,
                array.array.ctypes.data,
                None,
                call=site.call,
                micro_batch=site.micro_batch,
            )

        self._late.expect(step, arrival, deliver)


class _Rows:
    """Hands rows that have arrived to the core."""

    def __init__(
        self, sink: Sink, number: int, arrival: RemoteArray, lane: _Lane
    ) -> None:
        self._sink = sink
        self._number = number
        self._arrival = arrival
        self._sites = lane.sites
        self._flags = lane.flags

    def __call__(self) -> None:
        ids, calls, micro_batches = zip(*self._sites, strict=True)
        self._sink.add_rows(
            self._number, ids, calls, micro_batches, self._flags, self._arrival.array
        )
