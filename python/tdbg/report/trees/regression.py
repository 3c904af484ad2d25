"""Sections of regression: residuals, and the error by label over the iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.bars import columns_chart
from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, tag
from tdbg.drawing.scales import number
from tdbg.report.page import Section, table
from tdbg.report.trees.evaluation import label_bins
from tdbg.report.trees.samples import Samples
from tdbg.trial import Series

__all__ = ["regression"]

Floats = NDArray[np.float64]
BINS, LABEL_BINS = 32, 6


def regression(samples: Sequence[Samples], step_word: str) -> list[Section]:
    """The sections 8 and 9 of the report."""
    return [_residuals(samples, step_word), _by_label(samples, step_word)]


def _residuals_of(samples: Samples, i: int) -> Floats:
    """Label minus prediction of each sample."""
    labels = samples.labels[i].astype(np.float64)
    return np.asarray(
        labels - samples.predictions[i].astype(np.float64).reshape(len(labels))
    )


def _residuals(samples: Sequence[Samples], step_word: str) -> Section:
    found = [_residuals_of(each, -1) for each in samples]
    finite = [each[np.isfinite(each)] for each in found]
    together = np.concatenate(finite)
    if not len(together):
        text = "No prediction is finite at the last saved step."
        return Section(
            "residuals",
            "8 · Distribution of residuals at the last saved step",
            tag("p", text, class_="bad"),
            "Residuals",
        )
    reach = float(np.abs(together).max()) or 1.0
    edges = np.linspace(-reach, reach, BINS + 1)
    shares = [100 * np.histogram(each, edges)[0] / max(len(each), 1) for each in finite]
    rows = []
    for each, residuals, known in zip(samples, found, finite, strict=True):
        rows.append(
            (
                f"{each.name}, {step_word} {each.steps[-1]:,}",
                f"{len(residuals):,}",
                number(float(known.mean())) if len(known) else "NaN",
                number(float(np.sqrt(np.mean(known**2)))) if len(known) else "NaN",
                number(float(np.mean(np.abs(known)))) if len(known) else "NaN",
                f"{len(residuals) - len(known):,}",
            )
        )
    columns = ("data", "samples", "mean", "rmse", "mae", "NaN, Inf")
    return Section(
        "residuals",
        "8 · Distribution of residuals at the last saved step",
        [
            columns_chart(
                edges,
                shares,
                [each.name for each in samples],
                alt="Distribution of residuals.",
                x_label="label minus prediction",
                y_label="% of samples",
                marks=[(0.0, "no error")],
                caption="Left of zero, predictions are too high; right of it, too low.",
            ),
            table(columns, rows, right=columns[1:]),
        ],
        "Residuals",
    )


def _by_label(samples: Sequence[Samples], step_word: str) -> Section:
    bounds = label_bins([each.labels[-1] for each in samples], LABEL_BINS)
    content: list[Child] = []
    for each in samples:
        errors = np.full((len(bounds) - 1, len(each.steps)), np.nan)
        for i in range(len(each.steps)):
            size = np.abs(_residuals_of(each, i))
            at = np.clip(
                np.searchsorted(bounds, each.labels[i], side="right") - 1,
                0,
                len(bounds) - 2,
            )
            for k in range(len(bounds) - 1):
                inside = size[(at == k) & np.isfinite(size)]
                if len(inside):
                    errors[k, i] = inside.mean()
        lines = []
        for k in range(len(bounds) - 1):
            there = np.isfinite(errors[k])
            label = (
                f"labels {number(float(bounds[k]))} to {number(float(bounds[k + 1]))}"
            )
            lines.append(
                Series.of_points(label, np.asarray(each.steps)[there], errors[k][there])
            )
        content += [
            tag("h3", each.name.capitalize()),
            line_chart(
                lines,
                alt=f"Mean absolute error by label, {each.name}.",
                y_label="mean absolute error",
                x_label=step_word,
                height=220,
            ),
        ]
    return Section(
        "errors",
        "9 · Absolute validation error per label bin over iteration",
        [
            tag(
                "p",
                "Each line is a sixth of the samples, by their labels.",
                class_="quiet",
            ),
            *content,
        ],
        "Error by label",
    )
