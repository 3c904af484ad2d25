"""Trainings that wrote to a run at the same time, so that one hides steps of another.

A training that is resumed replaces steps of one that is over.  Where the earlier one
went on, steps of a living training are replaced, which nobody asked for.

Thread safety: functions over readers that nobody else uses meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tdbg._core import RunReader
from tdbg.config.quantities import plural
from tdbg.run.directory import WriterDirectory
from tdbg.trial.row_index import step_records

if TYPE_CHECKING:
    from tdbg.trial.places import RunPlace

__all__ = ["CONCURRENT", "HiddenSteps", "hidden_steps"]

#: The kind of the problem.
CONCURRENT = "concurrent"
# By so much the clocks of processes may differ, in ns: one process, one machine, two.
_SAME_PROCESS = 0
_SAME_MACHINE = 1_000_000_000
_ELSEWHERE = 60_000_000_000


@dataclass(frozen=True, slots=True)
class HiddenSteps:
    """Steps of a writer that another one hides, which wrote at the same time.

    Attributes:
        writer: Name of the directory of the writer that began first.
        behind: Name of that of the other.
        steps: How many recorded steps are hidden.
    """

    writer: str
    behind: str
    steps: int

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {"writer": self.writer, "behind": self.behind, "steps": self.steps}

    def __str__(self) -> str:
        verb = "is" if self.steps == 1 else "are"
        return (
            f"{plural(self.steps, 'step')} of {self.writer} {verb} hidden behind those "
            f"of {self.behind}, which wrote to the run at the same time"
        )


def hidden_steps(
    place: RunPlace, writers: Mapping[WriterDirectory, RunReader]
) -> tuple[HiddenSteps, ...]:
    """Return the steps that are hidden, by writer.

    Args:
        place: Where the run lies.
        writers: The writers of the run, and what reads them.
    """
    training = sorted(each for each in writers if each.role == "train")
    found = (
        _hidden(
            place,
            earlier,
            writers[earlier],
            (
                (each, writers[each])
                for each in training
                if each.rank == earlier.rank and each.generation > earlier.generation
            ),
        )
        for earlier in training
    )
    return tuple(each for each in found if each is not None)


def _hidden(
    place: RunPlace,
    earlier: WriterDirectory,
    reader: RunReader,
    later: Iterable[tuple[WriterDirectory, RunReader]],
) -> HiddenSteps | None:
    """Return the steps that the first hiding writer of *later* hides; None: none."""
    if not reader.n_steps:
        return None
    last_ns = int(reader.steps(reader.n_steps - 1)["wall_ns"][0])
    for behind, other in later:
        recorded = other.recorded_steps()
        began_ns = int(other.identity()["created_ns"])
        if recorded is None or last_ns <= began_ns + _slack(place, earlier, behind):
            continue
        steps = sum(
            int(np.sum(table["step"] >= recorded[0])) for table in step_records(reader)
        )
        if steps:
            return HiddenSteps(earlier.path.name, behind.path.name, steps)
    return None


def _slack(place: RunPlace, one: WriterDirectory, two: WriterDirectory) -> int:
    """By how much the clocks of two writers may differ, in ns."""
    pages = [place.page(each) or {} for each in (one, two)]

    def agree(*names: str) -> bool:
        return all(pages[0].get(n, 0) == pages[1].get(n, 1) for n in names)

    if not agree("boot_id"):
        return _ELSEWHERE
    return _SAME_PROCESS if agree("host", "pid", "process_start") else _SAME_MACHINE
