"""Writes the timeline of a run to a file.

    from tdbg.export import export_perfetto

    export_perfetto("runs/digits", "digits.pftrace", statistics=["l2"])

The file appears whole, or not at all, and replaces an earlier one.

Thread safety: functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.export.event_files import EventFile
from tdbg.export.timeline.build import TimelineOptions, timeline_of
from tdbg.export.timeline.chrome import chrome_trace
from tdbg.export.timeline.model import Timeline
from tdbg.export.timeline.perfetto import perfetto_trace
from tdbg.trial import Trial, create_trial

__all__ = ["TimelineReport", "export_chrome", "export_perfetto"]


@dataclass(frozen=True, slots=True)
class TimelineReport:
    """What an export of a timeline wrote.

    Attributes:
        run: The directory of the run.
        out: The file.
        slices: Number of slices.
        counters: Number of counters.
        values: Number of their values, together.
        n_bytes: Size of the file.
        lost_records: What the run lacks: ``LostRecords.to_json``.
        complete: Whether the training has ended.
    """

    run: str
    out: str
    slices: int
    counters: int
    values: int
    n_bytes: int
    lost_records: dict[str, Any]
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


def export_perfetto(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str],
    *,
    steps: tuple[int | None, int | None] | None = None,
    regex: str | Iterable[str] | None = None,
    statistics: Iterable[str] = (),
) -> TimelineReport:
    """Write the timeline of a run as a Perfetto trace (protocol buffers).

    Open it at https://ui.perfetto.dev, which reads it in your browser.

    Args:
        run: The run, or a trial of it.
        out: The file; by custom it ends with ``.pftrace``.
        steps: ``(first, last)``: only what overlaps these global steps.
        regex: Of which tensors *statistics* are shown: names in which one of these
            expressions is found; None: of all that have statistics.
        statistics: Statistics of tensors that are drawn as counters, such as "l2".

    Raises:
        ConfigurationError: If an argument can never work.
        NotARun: If there is no run.
        StorageError: If the run cannot be read, or the file not be written.
    """
    return _export(run, out, perfetto_trace, TimelineOptions(steps, regex, statistics))


def export_chrome(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str],
    *,
    steps: tuple[int | None, int | None] | None = None,
    regex: str | Iterable[str] | None = None,
    statistics: Iterable[str] = (),
) -> TimelineReport:
    """Write the timeline of a run as Chrome's JSON trace, of at most 200,000 events.

    Args:
        run: As ``export_perfetto``, like the other arguments.
        out: The file; by custom it ends with ``.json``.
        steps: As there.
        regex: As there.
        statistics: As there.

    Raises:
        ConfigurationError: If an argument can never work, or there are more events.
        NotARun: If there is no run.
        StorageError: If the run cannot be read, or the file not be written.
    """
    return _export(run, out, chrome_trace, TimelineOptions(steps, regex, statistics))


def _export(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str],
    encode: Callable[[Timeline], Iterator[bytes]],
    options: TimelineOptions,
) -> TimelineReport:
    trial = run if isinstance(run, Trial) else create_trial(run)
    timeline = timeline_of(trial, options)
    path = Path(out).expanduser()
    blocks = encode(timeline)
    first = next(blocks)  # Raises before anything is written.
    n_bytes = len(first)
    with closing(EventFile(path)) as file:
        file.append(first)
        for block in blocks:
            file.append(block)
            n_bytes += len(block)
        file.publish()
    return TimelineReport(
        run=trial.path,
        out=str(path),
        slices=timeline.n_slices,
        counters=len(timeline.counters),
        values=timeline.n_values,
        n_bytes=n_bytes,
        lost_records=trial.lost_records().to_json(),
        complete=trial.loaded_all_steps,
    )
