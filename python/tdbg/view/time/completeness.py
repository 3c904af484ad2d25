"""The cost of a profile to the training, and the gaps in it.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import plural
from tdbg.run.json_values import is_integer, mapping_of
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.run.told_phases import (
    UNREPORTED_WORDS,
    spent_phases,
    told_phases,
    unrecorded_ranks,
)
from tdbg.view.time.loading import LoaderUse
from tdbg.view.time.phases import span_text

if TYPE_CHECKING:
    from tdbg.trial import RecordedWindow

__all__ = [
    "OwnCost",
    "missing_ranks",
    "missing_rows",
    "not_measured",
    "own_cost",
    "parts_off",
    "refused",
    "sample_gaps",
    "unmeasured_fetches",
    "unreported",
]

# A pause between samples is a gap from so many usual intervals on.
GAP = 3.0


@dataclass(frozen=True, slots=True)
class OwnCost:
    """The cost of capture and profiling to the steps of a training.

    Attributes:
        seconds: In which tdbg worked while the training waited, all ranks together.
        share: Of the time of the steps, 0 to 1.
        windows: How many windows ended.
        window_seconds: What these cost.
    """

    seconds: float
    share: float
    windows: int
    window_seconds: float

    @property
    def sentence(self) -> str:
        """The cost in words.

        Example:
            >>> OwnCost(0.5, 0.01, 0, 0.0).sentence
            'Capture and profiling took 500 ms of the steps: 1 %'
        """
        share = f"{100 * self.share:.2g} %"
        text = f"Capture and profiling took {span_text(self.seconds * 1e9)} of the "
        text += f"steps: {share}"
        if self.windows:
            cost = span_text(self.window_seconds * 1e9)
            text += f". {plural(self.windows, 'window')} cost {cost}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {**asdict(self), "sentence": self.sentence}


def own_cost(steps: NDArray[np.void], windows: Iterable[RecordedWindow]) -> OwnCost:
    """Return what tdbg cost.

    Args:
        steps: Rows of the table ``step``, of all modes and ranks.
        windows: Those of the run.
    """
    spent = int(steps[PHASE_COLUMNS[Phase.CAPTURE]].sum())
    costs = [each.cost_ns for each in windows if each.cost_ns >= 0]
    whole = max(int(steps["duration_ns"].sum()), 1)
    return OwnCost(spent / 1e9, spent / whole, len(costs), sum(costs) / 1e9)


def sample_gaps(node: str, rows: NDArray[np.void]) -> Iterator[str]:
    """Yield what the samples of a node lack, in words.

    Args:
        node: Its name; empty if there is one alone.
        rows: Of the table ``system``, by time.
    """
    where = f" of {node}" if node else ""
    late = int(rows["is_late"].sum())
    if late:
        yield (
            f"{plural(late, 'sample')}{where} of {len(rows):,} came late by more than "
            "half an interval"
        )
    if len(rows) < 3:
        return
    pauses = np.diff(rows["time"])
    usual = float(np.median(pauses))
    long = pauses[pauses > GAP * usual]
    if len(long):
        yield (
            f"no sample{where} was taken in {plural(len(long), 'pause')}, together "
            f"{span_text(float(long.sum()))}"
        )


def missing_rows(worker: str, places: NDArray[np.int64]) -> Iterator[str]:
    """Yield how many steps of a rank have no row, in words.

    Args:
        worker: Its name.
        places: The training steps that have one.
    """
    known = np.unique(places)
    lacking = int(known[-1] - known[0] + 1 - len(known)) if len(known) else 0
    if lacking:
        has = "has" if lacking == 1 else "have"
        yield f"{plural(lacking, 'step')} of {worker} {has} no row"


def missing_ranks(events: Iterable[Mapping[str, Any]], recorded: int) -> Iterator[str]:
    """Yield how many ranks of a process group wrote nothing, in words.

    Args:
        events: What the run says of collectives; other events are passed over.
        recorded: How many ranks wrote.
    """
    told = (each.get("size") for each in events if each.get("what") == "collectives")
    size = max((each for each in told if is_integer(each)), default=0)
    text = unrecorded_ranks(recorded, size)
    if text:
        yield text


def parts_off(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the parts of the profiler that were off, and why."""
    for each in events:
        if each.get("what") == "profiler" and each.get("off"):
            part = str(each.get("part", "a part")).replace("_", " ")
            yield f"{part}: off, because {each['off']}"


def not_measured(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what could not be measured on a machine, and why.

    Args:
        events: What the run says of machines and of the profiler.
    """
    for each in events:
        for name, why in mapping_of(each.get("not_measured")).items():
            words = "GPUs" if name == "gpu" else name.replace("_", " ")
            yield f"{words}: not measured, because {why}"


def refused(windows: Iterable[RecordedWindow]) -> Iterator[str]:
    """Yield the windows that were refused, and why."""
    for each in windows:
        if each.state == "refused":
            yield f"window {each.id}: refused, because {each.reason}"


def unreported(
    configuration: Mapping[str, Any],
    steps: NDArray[np.void],
    batches: NDArray[np.void],
) -> Iterator[str]:
    """Yield what the framework does not tell of steps, in words.

    Args:
        configuration: That of the run.
        steps: Rows of the table ``step``.
        batches: Rows of the table ``loader``.
    """
    if len(steps):
        told = told_phases(configuration, spent_phases(steps, batches))
        for phase in UNREPORTED_WORDS:
            text = told.lacks([phase])
            if text:
                yield text


def unmeasured_fetches(loaders: Iterable[LoaderUse]) -> Iterator[str]:
    """Yield the loaders of which nobody knows how long fetches take."""
    for each in loaders:
        if not math.isfinite(each.fetch_ns[0]):
            yield f"loader {each.loader}: how long fetches take was not measured"
