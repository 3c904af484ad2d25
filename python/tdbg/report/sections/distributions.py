"""Histograms of the tensors that findings name, and what narrow types would lose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.ridges import ridge_chart
from tdbg.errors import TdbgError
from tdbg.modes import ModeKeys
from tdbg.report.page import Section, table
from tdbg.report.problems import accused_tensors
from tdbg.report.subject import GRADIENT, Subject
from tdbg.stats.histogram import Histogram

__all__ = ["distributions"]

Floats = NDArray[np.float64]

# Tensors that are shown; of each so many steps; and bins.
MOST_TENSORS, OF_PROBLEM = 10, 2
MOST_STEPS = 7
MOST_BINS, LEAST_BINS = 96, 16
# Quantiles between which the bins lie: one element far out would put all others into
# one bin.  The outermost bins hold what lies beyond.
TAIL = 0.001
DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# More elements than that are not counted for a report; stored histograms are.
MOST_ELEMENTS = 1 << 22


def distributions(subject: Subject) -> Section | None:
    """Histograms of the accused tensors; of a healthy run, of some of its layers."""
    names = [
        name
        for name in accused_tensors(subject.judgement.problems, OF_PROBLEM)
        if _can_be_shown(subject, name)
    ]
    words = "Of the tensors that findings name."
    if not names:
        names = _ends(subject)
        words = (
            "No finding names a tensor with histograms; these are the outermost layers."
        )
    charts: list[tuple[str, dict[int, Histogram]]] = []
    for name in names:
        found = _histograms(subject, name)
        if found:
            charts.append((name, found))
        if len(charts) == MOST_TENSORS:
            break
    if not charts:
        if not subject.parameters:
            return None
        text = (
            "No histogram and no value of these tensors was saved. "
            "Hook(save_histogram=True) saves histograms, at a small cost."
        )
        return Section("histograms", "Histograms", tag("p", text, class_="quiet"))
    content: list[Child] = [tag("p", words, class_="quiet")]
    for name, found in charts:
        content += [tag("h3", tag("code", name)), _chart(name, found)]
    content += [tag("h3", "Precision"), _precision(charts)]
    return Section("histograms", "Histograms", content)


def _can_be_shown(subject: Subject, name: str) -> bool:
    return subject.trial.has_tensor(name) and not subject.is_number(name)


def _ends(subject: Subject) -> list[str]:
    """Gradient and weight of the first and of the last layer."""
    weights = [p for p in subject.parameters if not p.endswith("bias")]
    ends = dict.fromkeys([*weights[:1], *weights[-1:]])
    names = [n for each in ends for n in (GRADIENT + each, each)]
    return [name for name in names if _can_be_shown(subject, name)]


def _histograms(subject: Subject, name: str) -> dict[int, Histogram]:
    """Of some steps, the first and the last too; of values where none is stored."""
    tensor = subject.trial.tensor(name)
    found: dict[int, Histogram] = {}
    for step in _chosen(tensor.steps(ModeKeys.GLOBAL, what="histograms")):
        histogram = subject.read(f"{name} at {step}", tensor.histogram, step)
        if histogram is not None and histogram.count:
            found[step] = histogram
    if found or int(np.prod(tensor.first_shape)) > MOST_ELEMENTS:
        return found
    for step in _chosen(tensor.steps(ModeKeys.GLOBAL, what="values")):
        try:
            histogram = Histogram.of(tensor.value(step))
        except (
            TdbgError,
            TypeError,
        ) as error:  # Text, or another dtype without numbers.
            subject.unread.append(f"{name} at {step}: {error}")
            continue
        if histogram.count:
            found[step] = histogram
    return found


def _chosen(steps: Sequence[int]) -> list[int]:
    if len(steps) <= MOST_STEPS:
        return list(steps)
    at = np.unique(np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(int))
    return [steps[i] for i in at]


def _chart(name: str, found: dict[int, Histogram]) -> Markup:
    clean = [h for h in found.values() if h.finite]
    lows, highs = [], []
    for each in clean:
        low, high = _range(each)
        lows.append(low)
        highs.append(high)
    low, high = (min(lows), max(highs)) if lows else (-1.0, 1.0)
    if low == high:
        reach = abs(low) / 2 or 0.5
        low, high = low - reach, high + reach
    edges = np.linspace(low, high, _n_bins(found) + 1)
    counts = [_counts(each, edges) for each in found.values()]
    notes = [_note(each) for each in found.values()]
    labels = [f"step {step:,}" for step in found]
    return ridge_chart(
        edges,
        counts,
        labels,
        notes,
        alt=f"Histograms of {name} at {len(found)} steps.",
        caption="The outermost bins hold all that lies beyond.",
    )


def _n_bins(found: dict[int, Histogram]) -> int:
    """Twice the root of the number of elements: of fewer, bins would be noise."""
    most = max(each.count for each in found.values())
    return int(np.clip(2 * np.sqrt(most), LEAST_BINS, MOST_BINS))


def _range(histogram: Histogram) -> tuple[float, float]:
    edges, counts = histogram.edges, histogram.counts
    finite = np.isfinite(edges[:, 0]) & np.isfinite(edges[:, 1])
    bounds = edges[finite]
    order = np.argsort(bounds[:, 0], kind="stable")
    bounds, n = bounds[order], counts[finite][order].astype(np.float64)
    shares = np.cumsum(n) / n.sum()
    first = int(np.searchsorted(shares, TAIL))
    last = int(np.searchsorted(shares, 1 - TAIL))
    return float(bounds[first, 0]), float(bounds[min(last, len(bounds) - 1), 1])


def _counts(histogram: Histogram, edges: Floats) -> Floats:
    """What each bin holds; the outermost also what lies beyond."""
    if not histogram.finite:
        return np.zeros(len(edges) - 1)
    counts = np.array(histogram.to_numpy(edges)[0], np.float64)
    beyond = histogram.finite - counts.sum()
    above = float(histogram.counts[_is_finite_above(histogram, edges[-1])].sum())
    # What an outer edge divides is less than one bin of the histogram.
    counts[-1] += min(above, beyond)
    counts[0] += max(0.0, beyond - above)
    return counts


def _is_finite_above(histogram: Histogram, edge: float) -> NDArray[np.bool_]:
    low = histogram.edges[:, 0]
    return np.isfinite(low) & (low >= edge)


def _note(histogram: Histogram) -> str:
    parts = []
    if histogram.nan:
        parts.append(f"{histogram.nan:,} NaN")
    infinite = histogram.positive_infinity + histogram.negative_infinity
    if infinite:
        parts.append(f"{infinite:,} Inf")
    zero = histogram.zero / histogram.count
    if zero >= 0.005:
        parts.append(f"{zero:.0%} zero")
    return ", ".join(parts) or f"{histogram.count:,} values"


def _precision(charts: Sequence[tuple[str, dict[int, Histogram]]]) -> Markup:
    rows = []
    for name, found in charts:
        step, histogram = list(found.items())[-1]
        cells: list[Child] = [tag("code", name), f"{step:,}"]
        for dtype in DTYPES:
            loss = histogram.lost_in(dtype)
            cells.append(_percent(loss.underflow + loss.overflow))
        rows.append(cells)
    return table(
        ("tensor", "step", *DTYPES),
        rows,
        right=("step", *DTYPES),
        caption="Share of elements that a narrow type would make zero or infinite.",
    )


def _percent(share: float) -> str:
    if share <= 0:
        return "0"
    return "<0.01 %" if share < 0.0001 else f"{min(share, 1.0):.2%}".replace("%", " %")
