"""Histograms of the tensors that findings name, and what narrow types would lose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.ridges import ridge_chart
from tdbg.report.page import Section, table
from tdbg.report.subject import GRADIENT, Subject
from tdbg.stats.histogram import Histogram
from tdbg.stats.shared_bins import counts_in, note_of, shared_edges
from tdbg.view import Histograms, accused_tensors

__all__ = ["distributions"]

# Tensors that are shown; of each so many steps.
MOST_TENSORS, OF_PROBLEM = 10, 2
MOST_STEPS = 7
DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# Values with more elements are not counted for a report; saved histograms are shown.
MOST_ELEMENTS = 1 << 22


def distributions(subject: Subject) -> Section | None:
    """Histograms of the accused tensors; of a healthy run, of some of its layers."""
    names = [
        name
        for name in accused_tensors(subject.diagnosis.problems, OF_PROBLEM)
        if _can_be_shown(subject, name)
    ]
    words = "Tensors that findings name."
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
            "No histograms or values of these tensors were saved. "
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
    """Histograms at some steps, the first and the last too."""
    n_elements = int(np.prod(subject.trial.tensor(name).first_shape))
    saved = Histograms(subject.trial, name, with_values=n_elements <= MOST_ELEMENTS)
    found: dict[int, Histogram] = {}
    for step in saved.spread(MOST_STEPS):
        histogram = subject.read(f"{name} at {step}", saved.at, step)
        if histogram is not None and histogram.count:
            found[step] = histogram
    return found


def _chart(name: str, found: dict[int, Histogram]) -> Markup:
    edges = shared_edges(found.values())
    counts = [counts_in(each, edges) for each in found.values()]
    notes = [note_of(each) for each in found.values()]
    labels = [f"step {step:,}" for step in found]
    return ridge_chart(
        edges,
        counts,
        labels,
        notes,
        alt=f"Histograms of {name} at {len(found)} steps.",
        caption="The outermost bins include everything beyond them.",
    )


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
        caption="Share of elements that would become zero or infinite in each type.",
    )


def _percent(share: float) -> str:
    if share <= 0:
        return "0"
    return "<0.01 %" if share < 0.0001 else f"{min(share, 1.0):.2%}".replace("%", " %")
