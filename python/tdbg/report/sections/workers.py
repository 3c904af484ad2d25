"""Workers and time: how long steps took, and whether one worker differs from others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, tag
from tdbg.drawing.scales import number
from tdbg.errors import TdbgError
from tdbg.modes import ModeKeys
from tdbg.report.page import Section, table
from tdbg.report.subject import Subject
from tdbg.trial import Series

__all__ = ["step_time", "workers"]

MOST_WORKERS = 256
MOST_LOSSES = 3


def workers(subject: Subject) -> Section:
    """The time of the steps, and of several workers a row each."""
    content: list[Child] = []
    time = step_time(subject)
    if len(time):
        content.append(
            line_chart(
                [time, _capture_time(subject)],
                alt="Time of the steps.",
                y_label="ms a step",
                span=subject.span,
                height=190,
                caption="How long a step took, and how much of that was capture.",
            )
        )
    states = subject.trial.worker_states()
    losses = [
        n for n in sorted(subject.in_collection("losses")) if subject.is_number(n)
    ]
    losses = losses[:MOST_LOSSES]
    rows = [
        (name, state, *_last_values(subject, losses, name))
        for name, state in list(states.items())[:MOST_WORKERS]
    ]
    if len(states) > MOST_WORKERS:
        text = f"{len(states) - MOST_WORKERS} more workers are not listed."
        content.append(tag("p", text, class_="quiet"))
    titles = [f"last {name}" for name in losses]
    if rows:
        content.append(table(("worker", "state", *titles), rows, right=titles))
    else:
        content.append(tag("p", "No worker has begun to write.", class_="quiet"))
    return Section("workers", "Workers and time", content)


def step_time(subject: Subject) -> Series:
    """Duration of the steps in ms; of several workers the mean."""
    return _times(subject, "duration_ns", "step")


def _capture_time(subject: Subject) -> Series:
    return _times(subject, "capture_ns", "of it capture")


def _times(subject: Subject, field: str, label: str) -> Series:
    rows = subject.table[subject.table["duration_ns"] > 0]
    mean_ns = rows[field] / np.maximum(rows["workers"], 1)
    return Series.of_points(label, rows["step"], mean_ns / 1e6)


def _last_values(subject: Subject, names: Sequence[str], worker: str) -> list[str]:
    found = []
    for name in names:
        tensor = subject.trial.tensor(name)
        steps = tensor.steps(ModeKeys.GLOBAL, what="statistics")
        value = ""
        if steps:
            try:
                stats = tensor.stats(steps[-1], worker=worker)
                value = number(stats.mean) if stats.finite else "NaN"
            except TdbgError:  # Not every worker has every loss.
                value = "not there"
        found.append(value)
    return found
