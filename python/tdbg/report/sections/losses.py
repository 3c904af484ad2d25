"""Losses, rates and the other numbers of a training, over the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.scales import number
from tdbg.modes import ModeKeys
from tdbg.report.page import Section, table
from tdbg.report.subject import Subject
from tdbg.trial import ScalarSeries, Series

__all__ = ["DrawnLoss", "loss_curves", "losses", "scalar_series", "scalars_of"]

# Charts of scalars beside losses and rates; the rest is in the table.
MOST_CHARTS = 12
MOST_ROWS = 200
MOST_SERIES = 8
GROUP = "scalar/optimizer/"


def losses(subject: Subject) -> Section:
    """Losses by mode, learning rates, and what else the training told in numbers."""
    content: list[Child] = []
    series = [each.series for each in loss_curves(subject)]
    if series:
        content.append(
            line_chart(
                series[:MOST_SERIES],
                alt="Losses over the steps.",
                y_label="loss",
                caption=_loss_caption(series),
                span=subject.span,
                interval=1,
            )
        )
    else:
        text = "No loss was recorded: register it with the hook."
        content.append(tag("p", text, class_="quiet"))
    told = scalars_of(subject)
    scalars = scalar_series(told)
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
        content.append(_table(still, told))
    return Section("losses", "Losses and rates", content)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLoss:
    """A loss in a mode, to be drawn.

    Attributes:
        name: Name of its tensor.
        mode: The mode that it was measured in.
        series: Its columns of steps.
    """

    name: str
    mode: ModeKeys
    series: Series


def loss_curves(subject: Subject) -> list[DrawnLoss]:
    """The losses that are one number, those of each mode by themselves."""
    names = subject.losses()
    found: list[DrawnLoss] = []
    for mode in subject.modes:
        label = "" if len(subject.modes) == 1 else f" ({mode.name})"
        found += [
            DrawnLoss(each.label, mode, each.named(f"{each.label}{label}"))
            for each in subject.series(names, "mean", mode)
            if len(each)
        ]
    return found


def scalars_of(subject: Subject) -> dict[str, ScalarSeries]:
    """Return the scalars by name, over training steps."""
    found = subject.read("scalars", subject.trial.scalars) or {}
    at = subject.trial.training_steps_at
    return {
        name: replace(each, steps=np.array(at(each.steps.tolist()), np.int64))
        for name, each in found.items()
    }


def scalar_series(scalars: Mapping[str, ScalarSeries]) -> dict[str, Series]:
    """The scalars by name, to be drawn."""
    return {
        name: Series.of_points(name, each.steps, each.values)
        for name, each in scalars.items()
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


def _table(series: Mapping[str, Series], told: Mapping[str, ScalarSeries]) -> Markup:
    rows = [
        (
            tag("code", _short(name)),
            number(float(np.nanmin(each.low)))
            if np.isfinite(each.low).any()
            else "NaN",
            number(float(np.nanmax(each.high)))
            if np.isfinite(each.high).any()
            else "NaN",
            number(_last(told[name])),
        )
        for name, each in list(series.items())[:MOST_ROWS]
        if len(each)
    ]
    return table(
        ("number", "least", "greatest", "last"),
        rows,
        right=("least", "greatest", "last"),
    )


def _last(scalar: ScalarSeries) -> float:
    newest = np.flatnonzero(scalar.steps == scalar.steps.max())[-1]
    return float(scalar.values[newest])
