"""Sections of classification: confusion, its evaluation, its diagonal, and ROC."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tdbg.drawing.classification import matrix_chart, unit_chart
from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.report.page import Section, table
from tdbg.report.trees.evaluation import (
    Ints,
    PredictionKind,
    area_below,
    classes_of,
    confusion_of,
    measures_of,
    roc_of,
    scores_of,
)
from tdbg.report.trees.samples import Samples
from tdbg.trial import Series

__all__ = ["classification"]

# Up to so many classes a matrix is drawn; of more, the pairs that are mixed up most.
MOST_DRAWN, MOST_PAIRS = 40, 20
MOST_LINES = 8


def classification(samples: Sequence[Samples], step_word: str) -> list[Section]:
    """The sections 4 to 7 of the report."""
    n = max(each.n_classes for each in samples)
    found = [
        _confusion(samples, n, step_word),
        _evaluation(samples, n, step_word),
        _diagonal(samples, n, step_word),
    ]
    if samples[0].kind is PredictionKind.BINARY:
        found.append(_roc(samples, step_word))
    return found


def _matrix(samples: Samples, n: int, i: int = -1) -> Ints:
    predicted = classes_of(samples.kind, samples.predictions[i])
    return confusion_of(samples.labels[i].astype(np.int64), predicted, n)


def _confusion(samples: Sequence[Samples], n: int, step_word: str) -> Section:
    charts: list[Child] = []
    for each in samples:
        counts = _matrix(each, n)
        title = f"{each.name}, {step_word} {each.steps[-1]:,}"
        if n <= MOST_DRAWN:
            chart = matrix_chart(
                counts,
                [str(k) for k in range(n)],
                alt=f"Confusion matrix of {title}.",
                title=f"{title}: {counts.sum():,} samples",
            )
        else:
            chart = _pairs(counts, title)
        charts.append(chart)
    return Section(
        "confusion",
        "4 · Confusion matrix",
        [
            tag(
                "p",
                "Rows are true classes, columns predicted ones; the colour is "
                "the share of the row.",
                class_="quiet",
            ),
            tag("div", charts, class_="pair"),
        ],
        "Confusion",
    )


def _where(samples: Samples, step_word: str) -> str:
    return f"{samples.name}, {step_word} {samples.steps[-1]:,}"


def _pairs(counts: Ints, title: str) -> Markup:
    """The pairs that are mixed up most, where a matrix would be too large."""
    off = counts.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[:MOST_PAIRS]
    rows = [
        (str(i), str(j), f"{off[i, j]:,}", f"{off[i, j] / max(counts[i].sum(), 1):.1%}")
        for i, j in (divmod(int(k), len(counts)) for k in order)
        if off[i, j]
    ]
    return table(
        ("true", "taken for", "samples", "of the class"),
        rows,
        right=("samples", "of the class"),
        caption=f"{title}: the pairs of {len(counts)} classes that are mixed up most",
    )


def _evaluation(samples: Sequence[Samples], n: int, step_word: str) -> Section:
    content: list[Child] = []
    for each in samples:
        counts = _matrix(each, n)
        found = measures_of(counts)
        there = np.flatnonzero((found.support > 0) | (counts.sum(axis=0) > 0))
        rows: list[Sequence[Child]] = [
            (
                f"class {k}",
                f"{found.precision[k]:.3f}",
                f"{found.recall[k]:.3f}",
                f"{found.f1[k]:.3f}",
                f"{found.support[k]:,}",
            )
            for k in there.tolist()
        ]
        total = int(counts.sum())
        accuracy = np.trace(counts) / max(total, 1)
        macro = [
            float(part[there].mean())
            for part in (found.precision, found.recall, found.f1)
        ]
        rows.append(
            (
                tag("b", "macro average"),
                *(f"{value:.3f}" for value in macro),
                f"{total:,}",
            )
        )
        content.append(
            table(
                ("class", "precision", "recall", "F1", "samples"),
                rows,
                right=("precision", "recall", "F1", "samples"),
                caption=f"{_where(each, step_word)}: accuracy {accuracy:.3f}",
            )
        )
    return Section(
        "evaluation",
        "5 · Evaluation of the confusion matrix",
        content,
        "Precision, recall, F1",
    )


def _diagonal(samples: Sequence[Samples], n: int, step_word: str) -> Section:
    content: list[Child] = []
    for each in samples:
        shares = np.full((n, len(each.steps)), np.nan)
        for i in range(len(each.steps)):
            found = measures_of(_matrix(each, n, i))
            shares[found.support > 0, i] = found.recall[found.support > 0]
        known = [k for k in range(n) if np.isfinite(shares[k]).any()]
        # Of many classes those that are recognized worst at the end.
        shown = sorted(known, key=lambda k: (_last(shares[k]), k))[:MOST_LINES]
        caption = None
        if len(known) > len(shown):
            caption = (
                f"Of {len(known)} classes the {len(shown)} recognized worst at the end."
            )
        lines = []
        for k in sorted(shown):
            there = np.isfinite(shares[k])
            at = np.asarray(each.steps)[there]
            lines.append(Series.of_points(f"class {k}", at, shares[k][there]))
        content += [
            tag("h3", each.name.capitalize()),
            line_chart(
                lines,
                alt=f"Share of each class that is recognized, {each.name}.",
                y_label="share recognized",
                x_label=step_word,
                caption=caption,
                may_be_log=False,
                height=210,
            ),
        ]
    return Section(
        "diagonal",
        "6 · Accuracy rate of each diagonal element over iteration",
        content,
        "Accuracy by class",
    )


def _last(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite[-1])


def _roc(samples: Sequence[Samples], step_word: str) -> Section:
    curves = []
    for each in samples:
        found = roc_of(
            each.labels[-1].astype(np.int64), scores_of(each.predictions[-1])
        )
        if found is not None:
            area = area_below(*found)
            curves.append(
                (
                    f"{each.name}, {step_word} {each.steps[-1]:,}: area {area:.4f}",
                    *found,
                )
            )
    if not curves:
        content: Child = tag(
            "p", "All samples are of one class: there is no curve.", class_="quiet"
        )
    else:
        content = unit_chart(
            curves,
            alt="Receiver operating characteristic.",
            x_label="false positive rate",
            y_label="true positive rate",
            caption="A model that guesses is on the dashed line.",
        )
    return Section("roc", "7 · Receiver operating characteristic curve", content, "ROC")
