"""Data that retention removed from a run: what the writers say of it.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tdbg.config.quantities import plural, reach
from tdbg.run.schema import GapContent, GapReason
from tdbg.trial.run import RunState

__all__ = ["Removed", "removed", "removed_at"]


@dataclass(frozen=True, slots=True)
class Removed:
    """What retention removed from some shards of a writer.

    Attributes:
        writer: Name of its directory.
        first_step: The first global step that lacks something; -1: no step does.
        last_step: The last one.
        values_only: Whether only raw values went; else all but events.
        records: How many records.
        n_bytes: Their size, in bytes.
    """

    writer: str
    first_step: int
    last_step: int
    values_only: bool
    records: int
    n_bytes: int

    def __str__(self) -> str:
        what = "values" if self.values_only else "all data"
        steps = reach(self.first_step, self.last_step)
        noun = "step" if self.first_step == self.last_step else "steps"
        return (
            f"{what} of {noun} {steps} ({plural(self.records, 'record')}) of "
            f"{self.writer} were removed by retention"
        )

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return asdict(self)


def removed(run: RunState) -> list[Removed]:
    """Return what retention removed, by writer and step."""
    return [each for writer in run.everyone for each in _of_writer(writer)]


def removed_at(run: RunState, step: int) -> Removed | None:
    """Return what retention removed of a global step; most of it, if several did."""
    found = [each for each in removed(run) if each.first_step <= step <= each.last_step]
    return min(found, key=lambda each: each.values_only, default=None)


def _of_writer(writer: Any) -> Iterator[Removed]:
    gaps = writer.reader.gaps()
    for gap in gaps[gaps["reason"] == GapReason.RETENTION]:
        if gap["records"]:
            yield Removed(
                writer=writer.name,
                first_step=int(gap["first_step"]),
                last_step=int(gap["last_step"]),
                values_only=int(gap["what"]) == GapContent.TENSORS,
                records=int(gap["records"]),
                n_bytes=int(gap["bytes"]),
            )
