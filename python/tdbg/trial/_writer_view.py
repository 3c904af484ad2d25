"""One writer directory as the trial holds it: its reader and small indices.

Thread safety: none; the trial's lock is held around every use.

Errors: those of ``RunReader`` when it is made; afterwards damage is only ever
reported by ``problems()``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg._core import Event
from tdbg.run_directory import WriterDirectory
from tdbg.trial._definitions import Definitions, Ids
from tdbg.trial._histogram_index import HistogramIndex
from tdbg.trial._segments import Segments
from tdbg.trial._tables import StepOrdered

__all__ = ["EventRecord", "Problem", "WriterView"]

EVENT_KINDS = {
    1: "configuration",
    2: "collections",
    3: "change",
    4: "finding",
    5: "status",
    6: "message",
}
SEVERITIES = {0: "none", 1: "info", 2: "warning", 3: "error"}


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that a writer reported.

    Attributes:
        kind: configuration, collections, change, finding, status or message.
        step: Global step it belongs to; -1 for none.
        severity: none, info, warning or error.
        wall_ns: When, in ns since 1970 UTC.
        writer: Name of the writer's directory.
        data: What it says.
    """

    kind: str
    step: int
    severity: str
    wall_ns: int
    writer: str
    data: dict[str, Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the run's files that is not as it should be.

    Attributes:
        kind: damage, torn_tail, foreign, unsupported, io, missing or event.
        writer: Name of the writer's directory.
        file: File in that directory; empty where no single one is to blame.
        offset: Where in the file, in bytes.
        length: Bytes concerned; 0 where unknown.
        message: What was expected, and what was found.
    """

    kind: str
    writer: str
    file: str
    offset: int
    length: int
    message: str


class WriterView:
    """A writer's tables, and what is needed to find something in them."""

    def __init__(
        self, directory: WriterDirectory, run_uuid: bytes, options: Mapping[str, Any]
    ) -> None:
        self.directory = directory
        self.name = directory.path.name
        self.rank = directory.rank
        self.generation = directory.generation
        self.reader = _core.RunReader(str(directory.path), run_uuid, **options)
        self.identity = self.reader.identity()
        self.definitions = Definitions(self.reader)
        self.ids = Ids(self.reader)
        self.segments = Segments(self.reader)
        self.first_step: int | None = None  # Lowest that was recorded so far.
        self.last_step = -1  # Highest that was recorded so far.
        self._steps = StepOrdered(_core.STEP_DTYPE)
        self._events: list[EventRecord] = []
        self._histograms = HistogramIndex(self.reader)
        self._event_problems: list[Problem] = []
        self._n_events = 0
        self._final = False
        self.liveness = self.reader.liveness()
        self.take_in()

    def poll(self) -> bool:
        """Take in what was written meanwhile; True when there was something."""
        if self._final:
            return False
        grew = self.reader.poll()
        before = self.liveness, self.identity
        if grew:
            self.take_in()
        self.liveness = self.reader.liveness()
        self.identity = self.reader.identity()
        # The reader looks at the commit page first, then at the shards: when the
        # writer has ended, this poll has seen all there is.
        self._final = self.ended and not grew
        return grew or before != (self.liveness, self.identity)

    def take_in(self) -> None:
        """Bring up to what the reader has what is not asked for each time."""
        self.definitions.refresh()
        self.ids.refresh()
        recorded = self.reader.recorded_steps()
        if recorded is not None:
            self.first_step, self.last_step = recorded

    @property
    def steps(self) -> StepOrdered:
        """The records of steps."""
        if len(self._steps) != self.reader.n_steps:
            self._steps.extend(self.reader.steps(len(self._steps)))
        return self._steps

    @property
    def events(self) -> list[EventRecord]:
        """What was reported, in order."""
        for event in self.reader.events(self._n_events):
            self._n_events += 1
            self._add_event(event)
        return self._events

    @property
    def histograms(self) -> HistogramIndex:
        """The histograms, up to date."""
        self._histograms.take_in()
        return self._histograms

    @property
    def is_known(self) -> bool:
        """Whether a shard has said who writes; before, there is nothing to read."""
        return bool(self.identity["created_ns"])

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.liveness in ("closed", "dead")

    def ids_of(self, name: str) -> NDArray[np.uint32]:
        """Definitions of the tensor *name*."""
        return np.array(self.ids.get(name, ()), np.uint32)

    def problems(self) -> list[Problem]:
        """What is wrong in the directory, as far as it was looked at."""
        self.events  # noqa: B018 - those that are no JSON
        found = [
            Problem(p.kind, self.name, p.file, p.offset, p.length, p.message)
            for p in self.reader.problems()
        ]
        return found + self._event_problems

    def _add_event(self, event: Event) -> None:
        try:
            data = json.loads(event.json)
        except (ValueError, RecursionError) as error:
            data = error
        if not isinstance(data, dict):
            message = f"event {event.sequence} holds no JSON object"
            self._event_problems.append(
                Problem("event", self.name, "", 0, len(event.json), message)
            )
            return
        self._events.append(
            EventRecord(
                kind=EVENT_KINDS.get(event.kind, str(event.kind)),
                step=event.step,
                severity=SEVERITIES.get(event.severity, str(event.severity)),
                wall_ns=event.wall_ns,
                writer=self.name,
                data=data,
            )
        )
