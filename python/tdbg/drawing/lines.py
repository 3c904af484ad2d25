"""Series over steps: mean, low and high, and where there is NaN or infinity.

The rules of honesty: low and high are drawn wherever a column has more than one row;
NaN and infinities have a strip of their own above the plot, so that no axis is emptied;
what a logarithmic axis has no place for has one below it.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import plural
from tdbg.drawing.frame import (
    N_COLORS,
    Box,
    figure,
    hatching,
    legend,
    path,
    svg,
    text,
    x_axis,
    y_axis,
)
from tdbg.drawing.markup import Markup, join, tag
from tdbg.drawing.scales import Scale, number, scale_of, step_scale
from tdbg.trial import Series
from tdbg.view.coverage import gaps_of

__all__ = ["Limit", "Mark", "line_chart"]

Floats = NDArray[np.float64]
WIDTH, LEFT, RIGHT = 760, 66, 14
STRIP = 9
# A mark of a strip is at least so wide, however many steps the chart has.
LEAST_MARK = 2.5
# Narrower stretches without a record are not hatched: the rug shows them.
LEAST_GAP = 4.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of steps to be pointed out.

    Attributes:
        first: Its first step.
        last: Its last step.
        label: What is there.
        severity: "error", "warning" or "info": the colour.
    """

    first: int
    last: int
    label: str
    severity: str = "info"


@dataclass(frozen=True, slots=True)
class Limit:
    """A value beyond which something is wrong: a line across the chart.

    Attributes:
        value: Where it lies on the axis of values.
        label: What it is called, with the number.
    """

    value: float
    label: str


def line_chart(
    series: Sequence[Series],
    *,
    alt: str,
    y_label: str,
    x_label: str = "step",
    caption: str | Markup | None = None,
    marks: Sequence[Mark] = (),
    limit: Limit | None = None,
    span: tuple[int, int] | None = None,
    with_zero: bool = False,
    may_be_log: bool = True,
    interval: int | None = None,
    height: int = 250,
) -> Markup:
    """A figure of series over steps.

    Args:
        series: What to draw; each has a colour, in their order.
        alt: What the chart shows, for who cannot see it; what the series range over is
            added.
        y_label: What the values are.
        x_label: What the steps are.
        caption: Written below.
        marks: Stretches that are pointed out.
        limit: A value to compare with; it is always on the axis.
        span: First and last step of the axis; None: those of the series.
        with_zero: Whether zero is on the axis.
        may_be_log: Whether the axis may be logarithmic.
        interval: For how many steps a recorded one stands: longer stretches without
            one are hatched; None: none is.
        height: Of the drawing, in units of the SVG.
    """
    drawn = [each for each in series if len(each)]
    if not drawn:
        return tag("p", "Nothing was recorded to draw here.", class_="quiet")
    has_bad = any(each.bad.any() for each in drawn)
    top = 20 + 13 * bool(marks) + (STRIP + 6) * has_bad
    first, last = span or _span(drawn)
    values = _values(drawn, limit)
    y = scale_of(values, height - 38, top, may_be_log=may_be_log, with_zero=with_zero)
    beyond = y.is_log and any(np.any(each.low <= 0) for each in drawn)
    bottom = height - 38 - (STRIP + 6) * beyond
    y = Scale(y.low, y.high, bottom, top, y.is_log)
    box = Box(LEFT, top, WIDTH - RIGHT, bottom)
    x = step_scale(first, last, box.left, box.right)
    axis_box = Box(box.left, top, box.right, height - 38)
    gaps = _gaps(drawn, interval)
    label = f"{y_label} (logarithmic axis)" if y.is_log else y_label
    parts = [*_recorded(drawn, gaps, x, box)]
    parts += [y_axis(box, y, label), x_axis(axis_box, x, x_label)]
    parts += [_mark(mark, x, box) for mark in marks]
    for i, each in enumerate(drawn):
        parts += _curve(each, x, y, i % N_COLORS)
    parts += _limit(limit, y, box)
    if has_bad:
        parts.append(_strip(drawn, x, top - STRIP - 6, "NaN, Inf", is_bad=True))
    if beyond:
        parts.append(_strip(drawn, x, bottom + 6, "≤ 0", is_bad=False))
    return figure(
        svg(WIDTH, height, f"{alt} {_words(drawn, limit, gaps)}.", parts),
        caption,
        _legend(drawn, has_gaps=bool(gaps)),
    )


def _words(
    series: Sequence[Series], limit: Limit | None, gaps: Sequence[tuple[int, int]]
) -> str:
    """Describe a chart for readers who cannot see it."""
    said = [_said(each) for each in series[:N_COLORS]]
    if limit is not None:
        said.append(limit.label)
    if gaps:
        said.append(f"nothing recorded in {plural(len(gaps), 'stretch')} of steps")
    return "; ".join(said)


def _gaps(series: Sequence[Series], interval: int | None) -> list[tuple[int, int]]:
    """The stretches of steps in which no series has anything."""
    if interval is None:
        return []
    first = np.concatenate([each.first for each in series])
    order = np.argsort(first, kind="stable")
    last = np.maximum.accumulate(np.concatenate([s.last for s in series])[order])
    return gaps_of(first[order], last, interval)


def _recorded(
    series: Sequence[Series], gaps: Sequence[tuple[int, int]], x: Scale, box: Box
) -> Iterator[Markup]:
    """A rug of the steps that were recorded, and hatching where none was."""
    if not gaps:
        return
    for start, stop in gaps:
        left, right = x.at(start), x.at(stop)
        if right - left >= LEAST_GAP:
            yield hatching(Box(left, box.top, right, box.bottom))
    places = np.concatenate([x(each.centers) for each in series])
    marks = dict.fromkeys(f"M{at:.1f} {box.bottom:.1f}v-6" for at in np.sort(places))
    yield tag("path", d=Markup("".join(marks)), class_="rug")


def _span(series: Sequence[Series]) -> tuple[int, int]:
    """The first and the last step of any series."""
    first = min(int(each.first[0]) for each in series)
    return first, max(int(each.last[-1]) for each in series)


def _values(series: Sequence[Series], limit: Limit | None) -> list[Floats]:
    """All values that the axis must hold."""
    values = [part for each in series for part in (each.low, each.high)]
    return values if limit is None else [*values, np.array([limit.value])]


def _legend(series: Sequence[Series], *, has_gaps: bool) -> Markup | None:
    labels = enumerate(each.label for each in series if len(series) > 1)
    entries = [(f"b{i % N_COLORS}", label) for i, label in labels if label]
    if has_gaps:
        entries.append(("none", "nothing recorded; a stroke at the axis is a record"))
    return legend(entries)


def _said(series: Series) -> str:
    """Describe the range of a series in words."""
    finite = np.isfinite(series.mean)
    name = f"{series.label}: " if series.label else ""
    bad = int(series.bad.sum())
    if not finite.any():
        return f"{name}no finite value, {plural(bad, 'row')} with NaN or Inf"
    low, high = float(np.nanmin(series.low)), float(np.nanmax(series.high))
    words = f"{name}from {number(low)} to {number(high)}, {_end(series, finite)}"
    if bad:
        column = int(np.flatnonzero(series.bad)[0])
        first, last = int(series.first[column]), int(series.last[column])
        where = f"at step {first}" if first == last else f"in steps {first} to {last}"
        words += f", {plural(bad, 'row')} with NaN or Inf, the first {where}"
    return words


def _end(series: Series, finite: np.ndarray) -> str:
    """Say where a series ends: a column of several values has no last one."""
    i = int(np.flatnonzero(finite)[-1])
    low, high = float(series.low[i]), float(series.high[i])
    if low == high:
        return f"last {number(low)}"
    return f"at the end {number(low)} to {number(high)}"


def _curve(series: Series, x: Scale, y: Scale, color: int) -> list[Markup]:
    at = x(series.centers)
    mean, low, high = (y(part) for part in (series.mean, series.low, series.high))
    if y.is_log:
        # A low of zero or less goes down to the edge; the strip below tells of it.
        low = np.where(series.low <= 0, y.start, low)
        mean = np.where(series.mean <= 0, np.nan, mean)
        high = np.where(series.high <= 0, np.nan, high)
    parts: list[Markup] = []
    for piece in _pieces(np.isfinite(mean) & np.isfinite(high)):
        if len(piece) == 1:
            i = piece[0]
            parts.append(tag("circle", cx=at[i], cy=mean[i], r=2.2, class_=f"f{color}"))
        if np.any(low[piece] - high[piece] > 0.3):
            outline = [*zip(at[piece], high[piece], strict=True)]
            outline += [*zip(at[piece][::-1], low[piece][::-1], strict=True)]
            parts.append(
                tag("path", d=path(outline) + "Z", class_=f"range f{color} s{color}")
            )
        if len(piece) > 1:
            line = path(zip(at[piece], mean[piece], strict=True))
            parts.append(tag("path", d=line, class_=f"line s{color}"))
    return parts


def _pieces(there: np.ndarray) -> list[np.ndarray]:
    """The stretches of columns that have a value."""
    found = np.flatnonzero(there)
    return [
        p for p in np.split(found, np.flatnonzero(np.diff(found) > 1) + 1) if len(p)
    ]


def _mark(mark: Mark, x: Scale, box: Box) -> Markup:
    start = min(max(x.at(mark.first), box.left), box.right)
    end = min(max(x.at(mark.last), start), box.right)
    anchor = "end" if start > box.left + 0.75 * box.width else "start"
    shift = -5 if anchor == "end" else 5
    return tag(
        "g",
        tag("title", mark.label),
        tag(
            "rect",
            x=start - 1,
            y=box.top,
            width=max(end - start, 0) + 2,
            height=box.height,
            class_=f"stretch {mark.severity}",
        ),
        tag(
            "line",
            x1=start,
            x2=start,
            y1=16,
            y2=box.bottom,
            class_=f"flag {mark.severity}",
        ),
        text(
            start + shift, 24, mark.label, anchor=anchor, class_=f"flag {mark.severity}"
        ),
    )


def _limit(limit: Limit | None, y: Scale, box: Box) -> list[Markup]:
    """The line of a limit, if there is one and it lies on the axis."""
    if limit is None or (y.is_log and limit.value <= 0):
        return []
    at = y.at(limit.value)
    # Below the line where there is no room above it.
    beside = at - 5 if at - box.top > 16 else at + 13
    line = tag("line", x1=box.left, x2=box.right, y1=at, y2=at, class_="limit")
    label = text(box.right - 4, beside, limit.label, anchor="end", class_="limit")
    return [tag("g", line, label)]


def _strip(
    series: Sequence[Series], x: Scale, top: float, label: str, *, is_bad: bool
) -> Markup:
    """A strip with a mark at each column that has rows of that kind, of any series."""
    stretches: list[tuple[float, float]] = []
    for each in series:
        there = each.bad > 0 if is_bad else each.low <= 0
        first, last = x(each.first[there]), x(each.last[there])
        stretches += zip(first.tolist(), last.tolist(), strict=True)
    merged: list[list[float]] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1] + LEAST_MARK:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    class_ = "bad" if is_bad else "beyond"
    return join(
        [
            tag(
                "rect",
                x=x.start,
                y=top,
                width=x.end - x.start,
                height=STRIP,
                class_="strip",
            ),
            text(x.start - 7, top + STRIP - 1, label, anchor="end", class_=class_),
            *(
                tag(
                    "rect",
                    x=start - LEAST_MARK / 2,
                    y=top,
                    width=max(end - start, 0.0) + LEAST_MARK,
                    height=STRIP,
                    class_=class_,
                )
                for start, end in merged
            ),
        ]
    )
