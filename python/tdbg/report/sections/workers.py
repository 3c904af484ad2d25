"""Workers and time: how long steps took, and whether one worker differs from others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, tag
from tdbg.errors import TdbgError
from tdbg.modes import TRAINING, ModeKeys
from tdbg.report.page import Section, table
from tdbg.report.subject import Subject
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.trial import Series, Trial
from tdbg.view import loss_text

__all__ = ["median_step_time", "step_time", "workers"]

MOST_WORKERS = 256
MOST_LOSSES = 3
# The last loss of a worker is looked for in so many of the newest steps.
NEWEST_STEPS = 16


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
    absent = subject.view.head.absent
    states = {
        **subject.trial.worker_states(),
        **{f"worker_{rank}": "wrote nothing" for rank in absent},
    }
    losses = subject.losses()[:MOST_LOSSES]
    rows = [
        (name, state, *_last_losses(subject, losses, name))
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
    return Series.of_points("step", *_times(subject, None))


def _capture_time(subject: Subject) -> Series:
    return Series.of_points("of it capture", *_times(subject, Phase.CAPTURE))


def median_step_time(subject: Subject) -> float:
    """The median duration of a step in ms; REQUIRES: ``step_time`` has one."""
    breakdown = subject.time.breakdown
    if breakdown is not None:
        return breakdown.median_ns / 1e6
    return float(np.median(_times(subject, None)[1]))


def _times(
    subject: Subject, phase: Phase | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps, and what each spent in a phase or in all, in ms.

    The profile knows the whole of a step.  Without one, it lasts from its first to its
    last record, so a wait for data is not in it.
    """
    view = subject.time
    if view.has_steps:
        column = "duration_ns" if phase is None else PHASE_COLUMNS[phase]
        steps, at, n = np.unique(view.places, return_inverse=True, return_counts=True)
        return steps, np.bincount(at, view.steps[column] / 1e6) / n
    rows = subject.table[subject.table["duration_ns"] > 0]
    column = "duration_ns" if phase is None else "capture_ns"
    times = rows[column] / np.maximum(rows["workers"], 1) / 1e6
    return rows["training_step"], np.asarray(times)


def _last_losses(subject: Subject, names: Sequence[str], worker: str) -> list[str]:
    """The last loss of a worker by name, in the mode that the run's last loss is of."""
    return [_last_loss(subject.trial, name, worker) for name in names]


def _last_loss(trial: Trial, name: str, worker: str) -> str:
    tensor = trial.tensor(name)
    modes = [m for m in ModeKeys if tensor.steps(m, what="statistics")]
    for mode in sorted(modes, key=lambda mode: mode not in TRAINING)[:1]:
        # Workers of a run that was killed ended at different steps.
        for step in tensor.steps(mode, what="statistics")[: -NEWEST_STEPS - 1 : -1]:
            try:
                stats = tensor.stats(step, mode=mode, worker=worker)
            except TdbgError:  # Not every worker has every loss.
                continue
            return loss_text(stats.mean if stats.finite == stats.count else math.nan)
    return "not there"
