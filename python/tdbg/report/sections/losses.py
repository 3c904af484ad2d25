"""Losses, rates and the other numbers of a training, over the steps."""

from __future__ import annotations

import numpy as np

from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.scales import number
from tdbg.modes import ModeKeys
from tdbg.report.page import Section, table
from tdbg.report.subject import Subject
from tdbg.trial import Series

__all__ = ["loss_series", "losses", "scalar_series"]

# Charts of scalars beside losses and rates; the rest is in the table.
MOST_CHARTS = 12
MOST_ROWS = 200
MOST_SERIES = 8
GROUP = "scalar/optimizer/"


def losses(subject: Subject) -> Section:
    """Losses by mode, learning rates, and what else the training told in numbers."""
    content: list[Child] = []
    series = loss_series(subject)
    if series:
        content.append(
            line_chart(
                series[:MOST_SERIES],
                alt="Losses over the steps.",
                y_label="loss",
                caption=_loss_caption(series),
                span=subject.span,
            )
        )
    else:
        text = "No loss was recorded: register it with the hook."
        content.append(tag("p", text, class_="quiet"))
    scalars = scalar_series(subject)
    rates = {n: s for n, s in scalars.items() if n.endswith("/lr") and _moves(s)}
    if rates:
        content += [
            tag("h3", "Learning rate"),
            line_chart(
                [
                    s.named(_short(name))
                    for name, s in list(rates.items())[:MOST_SERIES]
                ],
                alt="Learning rates over the steps.",
                y_label="learning rate",
                span=subject.span,
                height=170,
            ),
        ]
    rest = {n: s for n, s in scalars.items() if n not in rates}
    moving = {n: s for n, s in rest.items() if _moves(s)}
    if moving:
        content.append(tag("h3", "Other numbers"))
    for name, each in list(moving.items())[:MOST_CHARTS]:
        content.append(
            line_chart(
                [each.named("")],
                alt=f"{_short(name)} over the steps.",
                y_label=_short(name),
                span=subject.span,
                height=150,
            )
        )
    still = {n: s for n, s in rest.items() if n not in list(moving)[:MOST_CHARTS]}
    if still:
        content.append(_table(still))
    return Section("losses", "Losses and rates", content)


def loss_series(subject: Subject) -> list[Series]:
    """The losses that are one number, those of each mode by themselves."""
    names = [n for n in sorted(subject.in_collection("losses")) if subject.is_number(n)]
    found: list[Series] = []
    for mode in subject.modes:
        label = "" if len(subject.modes) == 1 else f" ({mode.name})"
        found += [
            each.named(f"{each.label}{label}")
            for each in subject.series(names, "mean", mode)
            if len(each)
        ]
    return found


def scalar_series(subject: Subject, mode: ModeKeys | None = None) -> dict[str, Series]:
    """The scalars by name."""
    told = subject.read("scalars", subject.trial.scalars, mode) or {}
    return {
        name: Series.of_points(name, each.steps, each.values)
        for name, each in told.items()
    }


def _short(name: str) -> str:
    return name.removeprefix(GROUP).removeprefix("scalar/")


def _moves(series: Series) -> bool:
    """Whether a series is worth a chart: a constant is a word."""
    if not len(series):
        return False
    values = np.concatenate([series.low, series.high])
    values = values[np.isfinite(values)]
    return bool(series.bad.any()) or (len(values) > 0 and values.min() != values.max())


def _loss_caption(series: list[Series]) -> str | None:
    words = []
    if any(np.any(each.high > each.low) for each in series):
        words.append(
            "The line is the mean of each column of steps; the area reaches from its "
            "minimum to its maximum."
        )
    if len(series) > MOST_SERIES:
        words.append(f"{len(series) - MOST_SERIES} more losses are not drawn.")
    return " ".join(words) or None


def _table(series: dict[str, Series]) -> Markup:
    rows = [
        (
            tag("code", _short(name)),
            number(float(np.nanmin(each.low)))
            if np.isfinite(each.low).any()
            else "NaN",
            number(float(np.nanmax(each.high)))
            if np.isfinite(each.high).any()
            else "NaN",
            number(float(each.mean[-1])),
        )
        for name, each in list(series.items())[:MOST_ROWS]
        if len(each)
    ]
    return table(
        ("number", "least", "greatest", "last"),
        rows,
        right=("least", "greatest", "last"),
    )
