"""All layers at once: maps of gradients, weights and updates, and the gradient flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.dots import Dots, dot_chart
from tdbg.drawing.heat_map import Flag, heat_map
from tdbg.drawing.markup import Child, tag
from tdbg.modes import ModeKeys
from tdbg.report.page import Section
from tdbg.report.subject import GRADIENT, UPDATE, Subject
from tdbg.trial import Envelope
from tdbg.view.coverage import interval_of
from tdbg.view.layers import Cells, filled

__all__ = ["gradient_flow", "layer_map", "usual_magnitudes"]

Floats = NDArray[np.float64]

COLUMNS = 275
# Rows of a map: more parameters than that share rows.
MOST_ROWS = 300
HOW = {
    "gradients": 'include_collections=["gradients"]',
    "updates": 'include_collections=["updates"]',
    "weights": 'include_collections=["weights"]',
}


@dataclass(frozen=True, slots=True, eq=False)
class _Reach:
    """Least and greatest magnitude of each parameter in each column."""

    edges: NDArray[np.int64]
    low: Floats
    high: Floats
    bad: NDArray[np.bool_]


def layer_map(subject: Subject) -> Section | None:
    """Maps of gradients, weights and update/weight; None for a run without layers."""
    parameters = subject.parameters
    if not parameters:
        return None
    gradients = _reach(subject, [GRADIENT + each for each in parameters])
    weights = _reach(subject, parameters)
    updates = _reach(subject, [UPDATE + each for each in parameters])
    content: list[Child] = [
        tag(
            "p",
            "Each row is a parameter, in the order of the forward pass; steps run to "
            "the right. A cell has the colour of the step that is furthest from the "
            "usual value of its row, so that no spike or gap is averaged away.",
            class_="quiet",
        )
    ]
    for title, what, found, missing in (
        ("Gradients", "rms of gradients", gradients, "gradients"),
        ("Weights", "rms of weights", weights, "weights"),
        (
            "Update / weight",
            "size of the update relative to the weight",
            _ratio(updates, weights),
            "updates",
        ),
    ):
        content.append(tag("h3", title))
        if found is None:
            words = f"Not captured. To capture them, use Hook({HOW[missing]})."
            content.append(tag("p", words, class_="quiet"))
            continue
        prefix = {"gradients": GRADIENT, "updates": UPDATE}.get(missing, "")
        role = {"Gradients": "gradient", "Weights": "weight"}.get(title, "update")
        rows, cells = _folded(parameters, found, interval_of(subject.trial, role))
        content.append(
            heat_map(
                cells,
                alt=f"Map of layers over steps: {what}.",
                what=what,
                flags=_flags(subject, parameters, rows, prefix),
                caption=_caption(title, parameters, rows),
            )
        )
    return Section("layers", "Layer map", content)


def usual_magnitudes(subject: Subject, prefix: str) -> dict[str, float]:
    """The median magnitude of each parameter that has it, in the order of forward.

    Args:
        subject: The run.
        prefix: ``gradient/``, ``update/``, or nothing: of the weights.
    """
    parameters = subject.parameters
    found = _reach(subject, [prefix + each for each in parameters])
    if found is None:
        return {}
    return {
        name: float(np.median(row[np.isfinite(row)]))
        for name, row in zip(parameters, found.high, strict=True)
        if np.isfinite(row).any()
    }


def _caption(
    title: str, parameters: Sequence[str], rows: Sequence[slice]
) -> str | None:
    words = []
    if title == "Update / weight":
        words.append("Around 10⁻³ is usual. Far below it, a layer hardly learns.")
    if len(rows) < len(parameters):
        most = max(each.stop - each.start for each in rows)
        words.append(
            f"{len(parameters):,} parameters: up to {most} neighbours share a row."
        )
    return " ".join(words) or None


def _reach(subject: Subject, names: Sequence[str]) -> _Reach | None:
    """Return the reach of these tensors, a row for each; None if none is there."""
    there = [i for i, name in enumerate(names) if subject.trial.has_tensor(name)]
    if not there:
        return None
    first, last = subject.span
    found = subject.read(
        "layer map",
        subject.trial.envelope,
        [names[i] for i in there],
        start=first,
        stop=last + 1,
        columns=COLUMNS,
        fields="rms",
    )
    if found is None or not found.rows.any():
        return None
    return _spread(found, there, len(names))


def _spread(envelope: Envelope, there: Sequence[int], n: int) -> _Reach:
    """The rows of an envelope at the places of their names among all."""
    shape = n, len(envelope.edges) - 1
    low, high = np.full(shape, np.nan), np.full(shape, np.nan)
    bad = np.zeros(shape, bool)
    rows = there[: len(envelope.names)]
    low[rows], high[rows] = envelope.low["rms"], envelope.high["rms"]
    bad[rows] = envelope.bad > 0
    return _Reach(envelope.edges, low, high, bad)


def _ratio(updates: _Reach | None, weights: _Reach | None) -> _Reach | None:
    """Bounds of update/weight: exact where a column has one step."""
    if updates is None or weights is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = updates.low / weights.high, updates.high / weights.low
    # A weight of zero, as a bias begins, has no ratio.
    low, high = (np.where(np.isfinite(part), part, np.nan) for part in (low, high))
    low = np.where(np.isnan(low), high, low)
    high = np.where(np.isnan(high), low, high)
    return _Reach(updates.edges, low, high, updates.bad | weights.bad)


def _folded(
    parameters: Sequence[str], found: _Reach, interval: int | None
) -> tuple[list[slice], Cells]:
    """The rows of a map: one a parameter, or one of several neighbours."""
    rows = _row_slices(len(parameters))
    values = _unusual(found.low, found.high)
    parts, bad = [], []
    for each in rows:
        block = values[each]
        parts.append(
            _unusual(_least(block), _greatest(block)) if len(block) > 1 else block
        )
        bad.append(found.bad[each].any(axis=0, keepdims=True))
    names = _row_names(parameters, rows)
    whole, is_bad = np.vstack(parts), np.vstack(bad)
    whole = filled(whole, np.isfinite(whole) | is_bad, found.edges, interval)
    return rows, Cells(names, found.edges, whole, is_bad)


def _row_slices(n: int) -> list[slice]:
    """Which of *n* parameters share a row."""
    share = -(-n // MOST_ROWS)
    return [slice(i, min(i + share, n)) for i in range(0, n, share)]


def _row_names(parameters: Sequence[str], rows: Sequence[slice]) -> list[str]:
    return [
        parameters[r.start]
        if r.stop - r.start == 1
        else f"{parameters[r.start]} … {parameters[r.stop - 1]}"
        for r in rows
    ]


def _folded_dots(dots: Dots, rows: Sequence[slice]) -> Dots:
    low = np.array([np.fmin.reduce(dots.values[each]) for each in rows])
    high = np.array([np.fmax.reduce(dots.values[each]) for each in rows])
    bad = np.array([dots.bad[each].any() for each in rows])
    return Dots(dots.label, _unusual(low[np.newaxis], high[np.newaxis])[0], bad)


def _least(block: Floats) -> Floats:
    return np.fmin.reduce(block, axis=0, keepdims=True)


def _greatest(block: Floats) -> Floats:
    return np.fmax.reduce(block, axis=0, keepdims=True)


def _unusual(low: Floats, high: Floats) -> Floats:
    """Return each cell's bound that is further from its row's median, as a ratio."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(np.stack([low, high]))
    result = high.copy()
    for i, row in enumerate(logs.transpose(1, 0, 2)):
        finite = row[np.isfinite(row)]
        if len(finite):
            usual = np.median(finite)
            is_lower = np.abs(row[0] - usual) > np.abs(row[1] - usual)
            result[i] = np.where(is_lower, low[i], high[i])
    return result


def _flags(
    subject: Subject, parameters: Sequence[str], rows: Sequence[slice], prefix: str
) -> list[Flag]:
    """Where findings about these tensors began."""
    place = {
        prefix + parameters[k]: i
        for i, each in enumerate(rows)
        for k in range(each.start, each.stop)
    }
    found: dict[tuple[int, int], Flag] = {}
    for problem in subject.diagnosis.problems:
        for each in problem.findings:
            if each.tensor in place:
                flag = Flag(
                    place[each.tensor],
                    each.first_step,
                    f"{problem.rule}: {each.tensor} since step {each.first_step}",
                    problem.severity.label,
                )
                found.setdefault((flag.row, flag.step), flag)
    return list(found.values())


def gradient_flow(subject: Subject) -> Section | None:
    """Gradients along the layers, at the start, in the middle and at the end."""
    parameters = [
        p for p in subject.parameters if subject.trial.has_tensor(GRADIENT + p)
    ]
    names = [GRADIENT + each for each in parameters]
    steps = _steps_with(subject, names)
    if not steps:
        return None
    whole = _reach(subject, names)
    dots = [d for d in (_dots(subject, names, step) for step in steps) if d is not None]
    if not dots or whole is None:
        return None
    with np.errstate(all="ignore"):
        ranges = np.fmin.reduce(whole.low, axis=1), np.fmax.reduce(whole.high, axis=1)
    rows = _row_slices(len(parameters))
    words = "From the input (top) to the loss (bottom)."
    if len(rows) < len(parameters):
        dots = [_folded_dots(each, rows) for each in dots]
        ranges = (
            np.array([np.fmin.reduce(ranges[0][each]) for each in rows]),
            np.array([np.fmax.reduce(ranges[1][each]) for each in rows]),
        )
        words += " Neighbours share a row, which shows the most unusual of them."
    return Section(
        "flow",
        "Gradient flow",
        dot_chart(
            _row_names(parameters, rows),
            dots,
            alt="Gradients along the layers.",
            what="rms of gradients",
            ranges=ranges,
            caption=f"{words} A slope is a gradient that vanishes or explodes.",
        ),
    )


def _steps_with(subject: Subject, names: Sequence[str]) -> list[int]:
    """Return the first, middle and last global step with a row of the tensors."""
    for name in (*names[:1], *names[-1:]):
        steps = subject.trial.tensor(name).steps(ModeKeys.GLOBAL, what="statistics")
        if steps:
            return sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    return []


def _dots(subject: Subject, names: Sequence[str], step: int) -> Dots | None:
    found = subject.read(
        f"step {step}",
        subject.trial.statistics,
        names,
        start=step,
        end=step + 1,
    )
    if found is None or not found.present.size:
        return None
    finite = found.finite[:, 0].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(finite > 0, found.l2[:, 0] / np.sqrt(finite), np.nan)
    (shown,) = subject.trial.training_steps_at([step])
    return Dots(f"step {shown:,}", values, found.count[:, 0] != found.finite[:, 0])
