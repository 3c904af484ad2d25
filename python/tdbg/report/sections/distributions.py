"""Histograms of the tensors that findings name, and what narrow types would lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import plural, reach
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.ridges import ridge_chart
from tdbg.report.page import Section, table
from tdbg.report.subject import GRADIENT, Subject
from tdbg.stats.histogram import Histogram
from tdbg.stats.shared_bins import counts_in, note_of, shared_edges
from tdbg.view import Histograms, accused_tensors

__all__ = ["distributions"]

# Tensors that are shown; of each so many stretches of steps.
MOST_TENSORS, OF_PROBLEM = 10, 2
MOST_STRETCHES = 7
DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# Values with more elements are not counted for a report; saved histograms are shown.
MOST_ELEMENTS = 1 << 22
# So many elements of values are counted for a tensor at most; histograms all.
MOST_COUNTED = 1 << 26


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The histograms of neighbouring steps, merged.

    Attributes:
        first: The first of the steps.
        last: The last of them.
        n_steps: Number of steps that have a histogram or a value.
        n_read: Number of those that were merged.
        histogram: All of them together.
        newest: That of the last step.
    """

    first: int
    last: int
    n_steps: int
    n_read: int
    histogram: Histogram
    newest: Histogram


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
    charts: list[tuple[str, list[_Stretch]]] = []
    for name in names:
        found = _stretches(subject, name)
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


def _stretches(subject: Subject, name: str) -> list[_Stretch]:
    """All histograms of a tensor, those of neighbouring steps merged."""
    n_elements = int(np.prod(subject.trial.tensor(name).first_shape))
    saved = Histograms(subject.trial, name, with_values=n_elements <= MOST_ELEMENTS)
    most = max(MOST_STRETCHES, MOST_COUNTED // max(1, n_elements))
    found = []
    for steps in saved.stretches(MOST_STRETCHES):
        chosen = steps if saved.are_saved else _some(steps, most // MOST_STRETCHES)
        read = [subject.read(f"{name} at {step}", saved.at, step) for step in chosen]
        there = [each for each in read if each is not None and each.count]
        if there:
            merged = Histogram.merge(there)
            counts = len(steps), len(there)
            found.append(_Stretch(steps[0], steps[-1], *counts, merged, there[-1]))
    return found


def _some(steps: list[int], most: int) -> list[int]:
    """At most so many of the steps, evenly spread, the last one too."""
    at = np.linspace(len(steps) - 1, 0, min(most, len(steps))).round()
    return [steps[i] for i in np.unique(at.astype(int)).tolist()]


def _chart(name: str, found: list[_Stretch]) -> Markup:
    histograms = [each.histogram for each in found]
    edges = shared_edges(histograms)
    n_steps, n_read = sum(s.n_steps for s in found), sum(s.n_read for s in found)
    whole = f"all {n_steps:,}" if n_read == n_steps else f"{n_read:,} of {n_steps:,}"
    return ridge_chart(
        edges,
        [counts_in(each, edges) for each in histograms],
        [reach(each.first, each.last) for each in found],
        [note_of(each) for each in histograms],
        alt=f"Histograms of {name} in {plural(len(found), 'stretch')}.",
        caption=(
            f"Each curve merges the histograms of its steps: {whole} that were saved. "
            "The outermost bins include everything beyond them."
        ),
    )


def _precision(charts: Sequence[tuple[str, list[_Stretch]]]) -> Markup:
    rows = []
    for name, found in charts:
        cells: list[Child] = [tag("code", name), f"{found[-1].last:,}"]
        for dtype in DTYPES:
            loss = found[-1].newest.lost_in(dtype)
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
