"""Where the time went: phases of steps and of the job, and what to change."""

from __future__ import annotations

import math

from tdbg.config.quantities import plural
from tdbg.drawing.markup import Child, tag
from tdbg.drawing.time_charts import (
    breakdown_chart,
    duration_histogram,
    job_chart,
    phase_bands,
)
from tdbg.report.page import Section, table, tiles
from tdbg.report.subject import Subject
from tdbg.view.time import (
    NO_PROFILE,
    PhaseBreakdown,
    TimeView,
    duration_text,
    percent_text,
    span_text,
)

__all__ = ["time_spent"]

MOST_NAMED = 10


def time_spent(subject: Subject) -> Section:
    """Tell where the time went, and what would change that most."""
    view = subject.time
    title = "Where the time went"
    if view.is_empty:
        return Section("time", title, tag("p", NO_PROFILE, class_="quiet"))
    if view.breakdown is None:
        text = "The profile has no step of training."
        return Section("time", title, tag("p", text, class_="quiet"))
    content: list[Child] = [
        tag("p", tag("b", f"{_capital(view.sentence)}."), class_="sentence"),
        _change(view),
        _tiles(view),
        tag("h3", "The job"),
        tag("p", f"{_capital(view.job_text)}."),
        job_chart(view),
        tag("h3", "A step"),
        breakdown_chart(view.breakdowns),
        _phases(view.breakdown),
        [tag("p", f"{each}.", class_="note") for each in view.remarks],
        phase_bands(view),
        tag("h3", "How long steps take"),
        duration_histogram(view),
        _slow(view),
    ]
    return Section("time", title, content)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _change(view: TimeView) -> Child:
    """The most valuable change, if a rule knows one."""
    change = view.change
    if change is None:
        return None
    return tag(
        "p",
        tag("b", "What to change first: "),
        change.text,
        class_="advice",
    )


def _tiles(view: TimeView) -> Child:
    rows: list[tuple[str, Child]] = []
    if view.breakdown is not None:
        rows.append(("Median step", duration_text(view.breakdown.median_ns)))
        rows.append(("95 % of steps within", duration_text(view.breakdown.p95_ns)))
    found = view.throughput
    if found is not None:
        rows.append(("Steps a second", f"{found.steps_per_s:,.3g}"))
        if found.samples_per_s is not None:
            rows.append(("Samples a second", f"{found.samples_per_s:,.4g}"))
        if found.tokens_per_s is not None:
            rows.append(("Tokens a second", f"{found.tokens_per_s:,.4g}"))
    if math.isfinite(view.goodput):
        rows.append(("Goodput", percent_text(view.goodput)))
    return tiles(rows)


def _phases(breakdown: PhaseBreakdown) -> Child:
    """A table of the phases of training steps."""
    rows = [
        (
            each.name,
            percent_text(each.share),
            duration_text(each.median_ns),
            duration_text(each.p95_ns),
            span_text(each.total_ns),
        )
        for each in breakdown.phases
    ]
    columns = ("phase", "share", "median of a step", "95 %", "in all")
    return table(columns, rows, right=columns[1:])


def _slow(view: TimeView) -> Child:
    n, slowest = view.slow
    if not n:
        return tag("p", "No step took much longer than the others.", class_="quiet")
    rows = [
        (
            f"{each.step:,}",
            str(each.worker),
            duration_text(each.duration_ns),
            f"{duration_text(each.excess_ns)} more in {each.phase_name}",
        )
        for each in slowest[:MOST_NAMED]
    ]
    listed = f"; the {len(rows)} slowest" if n > len(rows) else ""
    columns = ("step", "rank", "took", "why")
    caption = f"{plural(n, 'step')} took much longer than the others{listed}"
    return table(columns, rows, right=("took",), caption=caption)
