"""Records that were offered to a run and are not there, from all that report them.

Three sources report it.  The records of steps say how many records each step lost, the
gaps say why, and the commit page has the sum, even if the disk never recovered and the
others could not be written.  Each source may be missing or late, so the largest number
counts.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tdbg.config.quantities import plural
from tdbg.run.json_values import parse_document
from tdbg.run.refused import Refused, in_words
from tdbg.run.schema import EventKind, GapReason
from tdbg.trial.rivals import HiddenSteps
from tdbg.trial.row_index import step_records
from tdbg.trial.run import RunState

if TYPE_CHECKING:
    from tdbg._core import RunReader


__all__ = [
    "LOSS_REASONS",
    "LostRecords",
    "LostTensors",
    "WriterLostRecords",
    "lost_by_writer",
    "lost_records",
]

# What is lost for one of these reasons was left out as somebody wished, or nothing can
# store it.
IN_ORDER = ("sampled", "refused")
UNKNOWN = "unknown"
# The kind of the problem that a file was written and is gone, or its end is.
MISSING = "missing"
# The kind of the event that names tensors that lost records.
LOST = "lost"
# Complete what was lost by a reason why.
LOSS_REASONS = {
    GapReason.QUEUE_FULL: "the queue was full",
    GapReason.DISK_NEARLY_FULL: "the disk was nearly full",
    GapReason.IO_ERROR: "the disk refused to write",
    GapReason.LARGER_THAN_QUEUE: "it does not fit into the queue",
    GapReason.REFUSED: "nothing can store it",
    GapReason.STALLED: "the disk made no progress",
    GapReason.SAMPLED: "left out, so that other steps could be kept whole",
    GapReason.DEVICE_ERROR: "the device did not deliver it",
}


@dataclass(frozen=True, slots=True)
class LostTensors:
    """Tensors that lost records for one reason.

    Attributes:
        reason: Why.
        tensors: Those that the writer names; a row or a scalar counts as a record.
        more: How many others there are.
    """

    reason: GapReason
    tensors: tuple[Refused, ...]
    more: int

    @classmethod
    def of_event(cls, data: Mapping[str, Any]) -> LostTensors | None:
        """Return what an event says; None if it is about something else.

        Example:
            >>> event = {"what": "lost", "reason": 1, "tensors": [], "more": 2}
            >>> LostTensors.of_event(event).more
            2
        """
        if data.get("what") != LOST:
            return None
        try:
            reason = GapReason(int(data["reason"]))
            words = LOSS_REASONS[reason]
            tensors = tuple(
                Refused(
                    str(each["tensor"]),
                    words,
                    int(each["records"]),
                    int(each["step"]),
                )
                for each in data["tensors"]
            )
            return cls(reason, tensors, int(data["more"]))
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class WriterLostRecords:
    """What one writer lost.

    Attributes:
        writer: Name of its directory.
        records: How many records it lost in all.
        reasons: How many for which reason, as far as its gaps tell.
        unreported: How many no gap tells of: their steps, and steps after them, may be
            missing altogether.
        error: What the operating system last said when it refused to write; empty if
            it never did.
        unreadable: How many records were written and cannot be read, as far as was
            looked: ``problems()`` says where.
        files: Those that are gone, or have lost a part.
        refused: The tensors that could not be captured, and why.
        tensors: The tensors of other records that were lost, by reason.
    """

    writer: str
    records: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    unreported: int = 0
    error: str = ""
    unreadable: int = 0
    files: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    tensors: tuple[LostTensors, ...] = ()

    @property
    def in_order(self) -> bool:
        """Whether nothing is missing but what was left out on purpose."""
        on_purpose = sum(self.reasons.get(reason, 0) for reason in IN_ORDER)
        return not (self.records > on_purpose or self.unreadable or self.files)

    def __bool__(self) -> bool:
        return bool(self.records) or not self.in_order


@dataclass(frozen=True, slots=True)
class LostRecords:
    """What the writers of a run lost.

    Attributes:
        writers: Of each that lost something.
        hidden: Steps that nobody sees, since another training wrote to the run at the
            same time.
    """

    writers: tuple[WriterLostRecords, ...] = ()
    hidden: tuple[HiddenSteps, ...] = ()

    @property
    def records(self) -> int:
        """How many records were lost in all."""
        return sum(each.records for each in self.writers)

    @property
    def unreported(self) -> int:
        """How many of them no gap tells of."""
        return sum(each.unreported for each in self.writers)

    @property
    def unreadable(self) -> int:
        """How many records were written and cannot be read."""
        return sum(each.unreadable for each in self.writers)

    @property
    def reasons(self) -> dict[str, int]:
        """How many for which reason."""
        total: Counter[str] = Counter()
        for each in self.writers:
            total.update(each.reasons)
        return dict(total)

    @property
    def files(self) -> list[str]:
        """The files that are gone, or have lost a part, by their paths in the run."""
        return [
            f"w/{each.writer}/{name}" for each in self.writers for name in each.files
        ]

    @property
    def refused(self) -> list[Refused]:
        """Return the tensors that could not be captured, and why."""
        return [one for each in self.writers for one in each.refused]

    @property
    def tensors(self) -> list[Refused]:
        """Return the tensors of other records that were lost, and why."""
        return [one for each in self._lost() for one in each.tensors]

    @property
    def more_tensors(self) -> dict[str, int]:
        """Return, by reason, how many more tensors lost records, without a name."""
        total: Counter[str] = Counter()
        for each in self._lost():
            if each.more:
                total[LOSS_REASONS[each.reason]] += each.more
        return dict(total)

    def _lost(self) -> Iterator[LostTensors]:
        return (lost for each in self.writers for lost in each.tensors)

    @property
    def errors(self) -> list[str]:
        """Return the operating system's messages about writes that failed."""
        return sorted({each.error for each in self.writers if each.error})

    @property
    def in_order(self) -> bool:
        """Whether nothing is missing but what was left out on purpose."""
        return not self.hidden and all(each.in_order for each in self.writers)

    @property
    def hidden_steps(self) -> int:
        """How many steps are hidden."""
        return sum(each.steps for each in self.hidden)

    def __bool__(self) -> bool:
        return bool(self.writers or self.hidden)

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "in_order": self.in_order,
            "records": self.records,
            "unreported": self.unreported,
            "unreadable": self.unreadable,
            "reasons": self.reasons,
            "files": self.files,
            "errors": self.errors,
            "refused": [each.to_json() for each in self.refused],
            "tensors": [each.to_json() for each in self.tensors],
            "more_tensors": self.more_tensors,
            "hidden": [each.to_json() for each in self.hidden],
            "text": str(self) if self else "",
        }

    def __str__(self) -> str:
        if not self:
            return "nothing lost"
        parts = [str(each) for each in self.hidden]
        if self.records:
            reasons = [f"{n} {_words(name)}" for name, n in self.reasons.items()]
            why = f" ({', '.join(reasons)})" if reasons else ""
            parts.append(f"{plural(self.records, 'record')} lost{why}")
        if named := in_words(self.tensors, self.more_tensors):
            parts.append(f"lost from {named}")
        if self.refused:
            parts.append(f"could not be captured: {in_words(self.refused)}")
        if self.unreported:
            parts.append(
                f"no step reports {self.unreported} of them: steps may be missing at "
                "the end"
            )
        if self.errors and not self.in_order:
            parts.append(f"the disk said: {', '.join(self.errors)}")
        if self.unreadable:
            parts.append(f"{self.unreadable} were written and cannot be read")
        if self.files:
            parts.append(f"missing or truncated: {', '.join(self.files)}")
        return "; ".join(parts)


def _words(name: str) -> str:
    return name.replace("io_error", "I/O error").replace("_", " ")


def lost_records(run: RunState) -> LostRecords:
    """Return the records that any writer of the run lost."""
    found = [lost_by_writer(writer.name, writer.reader) for writer in run.everyone]
    return LostRecords(tuple(each for each in found if each), run.hidden)


def lost_by_writer(name: str, reader: RunReader) -> WriterLostRecords:
    """Return the records that one writer lost, as its files tell."""
    gaps, holes = reader.gaps(), reader.holes()
    gaps = gaps[gaps["reason"] != GapReason.RETENTION]  # Nobody lost it.
    reasons: Counter[str] = Counter()
    for reason in np.unique(gaps["reason"]).tolist():
        n = int(gaps["records"][gaps["reason"] == reason].sum())
        if n:
            reasons[_name(reason)] += n
    of_steps = sum(
        int(steps["dropped"].sum()) + int(steps["failed"].sum())
        for steps in step_records(reader)
    )
    commit = reader.commit() or {}
    messages = [*_messages(reader)]
    told = max(reasons.total(), of_steps)
    records = max(told, commit.get("lost", 0))
    error = commit.get("last_errno", 0)
    return WriterLostRecords(
        writer=name,
        records=records,
        reasons=dict(sorted(reasons.items())),
        unreported=records - told,
        error=os.strerror(error) if error and records else "",
        unreadable=int(np.sum(holes["end_sequence"] - holes["first_sequence"])),
        refused=_refused(messages),
        tensors=_lost_tensors(messages),
        files=tuple(sorted({p.file for p in reader.problems() if p.kind == MISSING})),
    )


def _messages(reader: RunReader) -> Iterator[dict[str, Any]]:
    """Yield what a writer said, oldest first."""
    for event in reader.events():
        if event.kind == EventKind.MESSAGE:
            with contextlib.suppress(ValueError):  # problems() reports it.
                data = parse_document(event.json)
                if isinstance(data, dict):
                    yield data


def _refused(messages: Iterable[Mapping[str, Any]]) -> tuple[Refused, ...]:
    """The tensors that a writer reports as refused; the last report of each counts."""
    found = (Refused.of_event(data) for data in messages)
    last = {(each.tensor, each.reason): each for each in found if each is not None}
    return tuple(last.values())


def _lost_tensors(messages: Iterable[Mapping[str, Any]]) -> tuple[LostTensors, ...]:
    """The tensors whose records were lost; the last report of each reason counts."""
    found = (LostTensors.of_event(data) for data in messages)
    last = {each.reason: each for each in found if each is not None}
    return tuple(last.values())


def _name(reason: int) -> str:
    try:
        return GapReason(reason).name.lower()
    except ValueError:
        return UNKNOWN  # A later tdbg's.
