"""The charts of where the time of a run went: for reports and for notebooks.

They draw the values of ``view.time`` and decide nothing about them.

Thread safety: functions; a ``TimeView`` belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tdbg.config.quantities import plural
from tdbg.drawing.bands import BarPart, bands_chart, shares_chart
from tdbg.drawing.bars import columns_chart
from tdbg.drawing.linear_map import linear_map
from tdbg.drawing.lines import Limit, Mark, line_chart
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.run.profile_tables import Phase
from tdbg.trial import Series
from tdbg.view.time import (
    AFTER,
    STARTUP,
    Forecast,
    LoaderUse,
    MemoryUse,
    PhaseBreakdown,
    TimeView,
    duration_text,
    even_edges,
    lateness_in,
    percent_text,
)

__all__ = [
    "breakdown_chart",
    "depth_chart",
    "duration_histogram",
    "job_chart",
    "lateness_map",
    "memory_chart",
    "phase_bands",
    "usage_map",
    "what_if_chart",
]

COLUMNS = 400
BINS = 48
GIGA = 1e9
# Colours of the parts of a job that are no phase of a step.
_BEGINNING, _END = f"ph{Phase.COMPILE.value}", f"ph{Phase.OTHER.value}"


def class_of(phase: Phase) -> str:
    """The class that has the colour of a phase."""
    return f"ph{phase.value}"


def breakdown_chart(
    breakdowns: Sequence[PhaseBreakdown], caption: Child = None
) -> Markup:
    """Bars of steps, divided into phases; right of each the median of a step."""
    bars = [
        [
            BarPart(p.name, class_of(p.phase), p.share, percent_text(p.share))
            for p in each.phases
        ]
        for each in breakdowns
    ]
    return shares_chart(
        [each.title for each in breakdowns],
        bars,
        alt="Where the time of a step goes.",
        caption=caption,
        notes=[duration_text(each.median_ns) for each in breakdowns],
    )


def job_chart(view: TimeView) -> Markup:
    """One bar: the phases of the job."""
    names = {each.name: each.phase for b in view.breakdowns for each in b.phases}
    others = {
        STARTUP: _BEGINNING,
        "computing": class_of(Phase.BACKWARD),
        AFTER: _END,
    }
    parts = [
        BarPart(
            each.name,
            others.get(each.name) or class_of(names.get(each.name, Phase.OTHER)),
            each.share,
            percent_text(each.share),
        )
        for each in view.job
    ]
    return shares_chart(["the job"], [parts], alt="Phases of the job.", left=70)


def phase_bands(view: TimeView, columns: int = COLUMNS) -> Markup:
    """The phases of a step over all training steps, stacked."""
    edges = view.edges(columns)
    bands = view.bands(edges)
    width = int(edges[1] - edges[0])
    of_columns = f" Each column is the mean of {width:,} steps;" if width > 1 else ""
    caption = f"{of_columns} the line shows the longest one." if width > 1 else None
    return bands_chart(
        edges,
        bands.mean_ns / 1e6,
        bands.durations.high / 1e6,
        bands.names,
        [class_of(each) for each in bands.phases],
        alt="Phases of a step over the steps.",
        y_label="ms a step",
        caption=caption,
    )


def duration_histogram(view: TimeView) -> Markup:
    """How many steps took how long; those beyond 99.5 % are in the last bin."""
    milliseconds = view.steps["duration_ns"] / 1e6
    least, greatest = (
        float(milliseconds.min()),
        float(np.percentile(milliseconds, 99.5)),
    )
    margin = 0.02 * greatest + 1e-6
    edges = np.linspace(max(0.0, least - margin), greatest + margin, BINS + 1)
    counts, _ = np.histogram(np.minimum(milliseconds, edges[-1]), edges)
    beyond = int((milliseconds > edges[-1]).sum())
    last = f" The last bin has {plural(beyond, 'longer step')}." if beyond else ""
    median, p95 = np.percentile(milliseconds, [50, 95])
    marks = [(float(median), "median")]
    if p95 - median > 0.1 * (edges[-1] - edges[0]):
        marks.append((float(p95), "95 %"))
    return columns_chart(
        edges,
        [counts.astype(np.float64)],
        ["steps"],
        alt="How many steps took how long.",
        x_label="ms a step",
        y_label="steps",
        caption=f"How many steps took how long.{last}",
        marks=marks,
    )


def usage_map(
    view: TimeView, columns: int = COLUMNS, *, is_vector: bool = False
) -> Markup | None:
    """Cores and GPUs over time, with the findings above; None without samples."""
    span = view.machine.span
    if span is None:
        return None
    first, last = span
    edges = even_edges(first, last + 1, columns)
    usage = view.machine.usage(edges)
    if not usage.names:
        return None
    seconds = (edges - first) / 1e9
    marks = []
    if view.has_steps:
        for problem in view.problems[:3]:
            finding = problem.worst
            steps = np.array([finding.first_step, finding.last_step + 1])
            start, stop = (view.times_at(steps) - first) / 1e9
            label = problem.severity.label
            marks.append(Mark(int(start), math.ceil(stop), problem.rule, label))
    return linear_map(
        usage.names,
        seconds,
        usage.columns.mean,
        alt="How busy cores and GPUs were.",
        what="busy",
        ends=("0 %", "100 %"),
        x_label="seconds since the first sample",
        marks=marks,
        is_vector=is_vector,
    )


def memory_chart(uses: Sequence[MemoryUse], first: int) -> Markup:
    """Memories over time, with the limit and the forecast of the one that is fullest.

    Args:
        uses: Memories of one kind.
        first: When the axis begins, in ns of the monotonic clock.
    """
    series = [
        Series.of_points(each.name, (each.times - first) // 10**9, each.used / GIGA)
        for each in uses
    ]
    limit = None
    fullest = max(uses, key=_share)
    if math.isfinite(fullest.limit):
        name = f"{fullest.name}: {fullest.limit / GIGA:,.1f} GB"
        limit = Limit(fullest.limit / GIGA, name)
    series += [_forecast(each, each.forecast, first) for each in uses if each.forecast]
    return line_chart(
        series,
        alt="Memory over time.",
        y_label="GB",
        x_label="seconds since the first sample",
        limit=limit,
        with_zero=True,
        height=210,
    )


def _forecast(use: MemoryUse, found: Forecast, first: int) -> Series:
    """The line on which memory goes on: to its limit, or as long as it was recorded."""
    began, end = (int((use.times[i] - first) // 10**9) for i in (0, -1))
    seconds = max(1, min(math.ceil(found.seconds), end - began))
    points = np.array([found.now, found.now + seconds * found.slope]) / GIGA
    return Series.of_points(f"{use.name}, forecast", [end, end + seconds], points)


def _share(use: MemoryUse) -> float:
    known = use.used[np.isfinite(use.used)]
    if not len(known) or not math.isfinite(use.limit):
        return 0.0
    return float(known.max()) / use.limit


def depth_chart(view: TimeView) -> Markup | None:
    """How many batches were ready when the training asked; None if nobody counted."""
    at, depth = view.depths()
    if not len(at):
        return None
    capacity = max(each.capacity for each in view.loading)
    return line_chart(
        [Series.of_points("", at, depth)],
        alt="Batches that were ready.",
        y_label="batches ready",
        limit=Limit(float(capacity), f"room for {capacity:,}"),
        span=view.span,
        with_zero=True,
        height=190,
        caption="How many batches were ready when the training asked for one. At 0, "
        "the training waits for the loader.",
    )


def what_if_chart(loading: LoaderUse) -> Markup | None:
    """How long a step would take with other numbers of workers."""
    curve = loading.what_if
    if curve is None:
        return None
    step_ms = [ns / 1e6 for ns in curve.step_ns]
    marks = [Mark(loading.workers, loading.workers, f"now: {loading.workers}")]
    if curve.best != loading.workers:
        marks.append(Mark(curve.best, curve.best, f"enough: {curve.best}"))
    return line_chart(
        [Series.of_points("", curve.workers, step_ms)],
        alt="What if: the time of a step by the number of workers.",
        y_label="ms a step, predicted",
        x_label="workers",
        marks=marks,
        with_zero=True,
        may_be_log=False,
        height=210,
    )


def lateness_map(view: TimeView, *, is_vector: bool = False) -> Markup | None:
    """How late each rank came, over the steps; None for one rank."""
    lateness = view.lateness
    if lateness is None:
        return None
    columns = lateness_in(lateness, view.edges(60 if is_vector else COLUMNS))
    known = columns.mean[np.isfinite(columns.mean)]
    high = float(np.percentile(known, 99)) if len(known) else 1.0
    return linear_map(
        [each.worker for each in lateness.ranks],
        columns.edges,
        columns.mean,
        alt="How late each rank came.",
        what="lateness",
        ends=("0", duration_text(max(high, 1e3))),
        high=max(high, 1e3),
        caption=tag("span", _LATENESS[lateness.source]),
        is_vector=is_vector,
    )


_LATENESS = {
    "collectives": "How much later than the first rank each one called a collective "
    "operation. The others wait for the one that comes last.",
    "own work": "How much longer than the fastest rank each one worked in a step, "
    "without waiting for data and for other ranks.",
}
