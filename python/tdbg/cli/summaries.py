"""What the verbs say about tensors: one summary a tensor, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tdbg.cli.output import number, shape, table
from tdbg.cli.sparkline import sparkline
from tdbg.modes import ModeKeys

if TYPE_CHECKING:
    from rich.table import Table

    from tdbg.trial import Trial

__all__ = ["TensorSummary", "summarize", "summary_table"]

# From this width of the screen on all columns are shown.
WIDE = 112


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """One tensor over the steps at which its statistics were taken.

    ``mean`` to ``not_finite`` are those of the last of these steps; ``series`` has
    the root mean square, or the value of a single element, at each of them.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    steps: list[int]
    mean: float
    std: float
    min: float
    max: float
    zero_share: float
    not_finite: int
    series: list[float]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def summarize(
    trial: Trial, names: Sequence[str], mode: ModeKeys = ModeKeys.GLOBAL
) -> list[TensorSummary]:
    """Summarize those of *names* that have statistics, in the order given."""
    rows = trial.statistics(names, mode=None if mode is ModeKeys.GLOBAL else mode)
    summaries = []
    for i, name in enumerate(rows.names):
        at = np.flatnonzero(rows.present[i])
        if not len(at):
            continue
        tensor = trial.tensor(name)
        count = rows.count[i, at].astype(np.float64)
        not_finite = (
            rows.nan[i, at] + rows.positive_infinity[i, at]
        ) + rows.negative_infinity[i, at]
        finite = np.maximum(count - not_finite, 1.0)
        std = np.sqrt(rows.m2[i, at] / finite)
        single = np.all(count == 1)
        series = rows.mean[i, at] if single else rows.l2[i, at] / np.sqrt(finite)
        series = np.where(not_finite > 0, np.nan, series)
        steps = [int(step) for step in rows.steps[at]]
        summaries.append(
            TensorSummary(
                name=name,
                role=tensor.role,
                dtype=tensor.dtype,
                shape=tensor.shape(steps[-1]),
                steps=steps,
                mean=float(rows.mean[i, at[-1]]),
                std=float(std[-1]),
                min=float(rows.min[i, at[-1]]),
                max=float(rows.max[i, at[-1]]),
                zero_share=float(rows.zero[i, at[-1]] / max(count[-1], 1.0)),
                not_finite=int(not_finite[-1]),
                series=[float(value) for value in series],
            )
        )
    return summaries


def summary_table(summaries: Sequence[TensorSummary], width: int) -> Table:
    """Draw the summaries, a line each, with a sparkline of the magnitude.

    Steps, minimum and maximum are left out where a line of *width* characters has no
    room for them.
    """
    numbers: dict[str, Callable[[TensorSummary], str]] = {
        "steps": lambda summary: str(len(summary.steps)),
        "mean": lambda summary: number(summary.mean),
        "std": lambda summary: number(summary.std),
        "min": lambda summary: number(summary.min),
        "max": lambda summary: number(summary.max),
        "zero": lambda summary: f"{summary.zero_share:.0%}",
        "nan/inf": lambda summary: str(summary.not_finite or "-"),
    }
    if width < WIDE:
        for column in ("steps", "min", "max"):
            del numbers[column]
    if not any(summary.not_finite for summary in summaries):
        del numbers["nan/inf"]
    return table(
        ["tensor", "shape", *numbers, "rms over steps"],
        [
            [
                summary.name,
                shape(summary.shape),
                *(write(summary) for write in numbers.values()),
                sparkline(summary.series, width=14),
            ]
            for summary in summaries
        ],
        right=numbers,
    )
