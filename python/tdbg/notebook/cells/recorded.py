"""Recorded values in a notebook: a run, a tensor, a histogram.

Thread safety: functions; the trial's lock is held inside.

Errors: what cannot be read of a damaged run is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tdbg.config.quantities import plural
from tdbg.drawing.bars import columns_chart
from tdbg.drawing.heat_map import heat_map
from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, tag
from tdbg.drawing.scales import number
from tdbg.drawing.snippet import facts, listing, snippet, toned
from tdbg.drawing.time_charts import breakdown_chart, phase_bands, usage_map
from tdbg.errors import TdbgError
from tdbg.modes import TRAINING
from tdbg.notebook.cells.findings import findings_table
from tdbg.stats.histogram import Histogram
from tdbg.trial import TensorHandle, Trial
from tdbg.view import (
    RunView,
    interval_of,
    is_number,
    layer_cells,
    loss_series,
    series_of,
    view_of,
)
from tdbg.view.time import TimeView, time_of

__all__ = ["histogram_html", "tensor_html", "trial_html"]

COLUMNS = 150
MAP_ROWS, MAP_COLUMNS = 24, 48
MOST_FINDINGS = 5
MOST_LOSSES = 4
MOST_BARS = 8
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
MOST_BINS = 64
TONES = {"stalled": "warning", "dead": "error", "unknown": "warning"}


def trial_html(trial: Trial) -> str:
    """A run: how it stands, what was found, its losses, its layers over the steps."""
    with trial.no_refresh():
        view = view_of(trial)
        times = time_of(trial, view.diagnosis)
        return snippet(
            ["Run ", tag("code", trial.name)],
            facts([*_facts(trial, view), *_time_facts(times)]),
            findings_table(view.diagnosis, MOST_FINDINGS),
            _if_readable(lambda: _losses(trial)),
            _if_readable(lambda: _layers(trial)),
            *_time(times),
        )


def tensor_html(tensor: TensorHandle) -> str:
    """A tensor: what it is, its newest statistics, and its course over the steps."""
    trial = Trial(tensor._run, tensor.name)
    with trial.no_refresh():
        return snippet(
            ["Tensor ", tag("code", tensor.name)],
            facts(_tensor_facts(tensor)),
            _if_readable(lambda: _course(trial, tensor)),
        )


def _if_readable(draw: Callable[[], Child]) -> Child:
    try:
        return draw()
    except TdbgError as error:
        return tag("p", f"Not shown: {error}")


def _facts(trial: Trial, view: RunView) -> list[tuple[str, Child]]:
    head, verdict = view.head, view.verdict
    rows: list[tuple[str, Child]] = [
        ("verdict", toned(verdict.tone, verdict.sentence)),
        ("state", toned(TONES.get(head.state, ""), head.state)),
        ("directory", tag("code", trial.path)),
        ("steps", _recorded(view)),
        ("tensors", f"{len(trial.tensor_names()):,}"),
    ]
    if head.coverage.text:
        advice = f". {head.coverage.advice}" if head.coverage.advice else ""
        rows.append(("recorded", f"{head.coverage.text}{advice}"))
    if view.loss is not None:
        mode = "" if view.loss.mode in TRAINING else f", {view.loss.mode.name}"
        rows.append(("last loss", f"{view.loss.text} ({view.loss.name}{mode})"))
    workers, attempts = len(trial.workers()), len(trial.attempts())
    if workers > 1:
        rows.append(("workers", str(workers)))
    if attempts > 1:
        rows.append(("attempts", str(attempts)))
    if head.cost is not None:
        rows.append(("cost of capture", f"{head.cost:+.1%}"))
    problems = trial.problems()
    if problems:
        tone = toned("warning", plural(len(problems), "problem"))
        rows.append(("files", [tone, f": {problems[0].message}"]))
    return rows


def _recorded(view: RunView) -> str:
    head = view.head
    if head.first_step is None:
        return "none yet"
    span = f"from {head.first_step:,} to {head.last_step:,}"
    return f"{head.counted_steps}; {head.recorded:,} recorded, {span}"


def _steps(n: int, steps: list[int]) -> str:
    if not n:
        return "none yet"
    return f"{n:,} recorded, from {steps[0]:,} to {steps[-1]:,}"


def _time_facts(times: TimeView) -> list[tuple[str, Child]]:
    pairs = (each.partition(": ") for each in times.lines)
    return [(name, text) for name, _, text in pairs]


def _time(times: TimeView) -> list[Child]:
    if not times.has_steps:
        return []
    return [
        breakdown_chart(times.breakdowns[:MOST_BARS]),
        phase_bands(times, MAP_COLUMNS),
        usage_map(times, MAP_COLUMNS, is_vector=True),
    ]


def _losses(trial: Trial) -> Child:
    series = loss_series(trial, COLUMNS)[:MOST_LOSSES]
    if not series:
        return None
    return line_chart(series, alt="Losses.", y_label="loss", interval=1)


def _layers(trial: Trial) -> Child:
    for collection in ("gradients", "weights"):
        names = trial.tensor_names(collection=collection)
        if names and trial.count_steps(what="statistics"):
            cells = layer_cells(trial, names, "rms", rows=MAP_ROWS, columns=MAP_COLUMNS)
            what = f"rms of {collection}"
            alt = f"Map of layers over steps: {what}."
            return heat_map(cells, alt=alt, what=what, is_vector=True)
    return None


def _tensor_facts(tensor: TensorHandle) -> list[tuple[str, Child]]:
    steps = tensor.steps()
    rows: list[tuple[str, Child]] = [
        ("role", tensor.role),
        ("dtype", tensor.dtype),
        ("shape", " x ".join(map(str, tensor.first_shape)) or "scalar"),
        ("steps", _steps(len(steps), steps)),
    ]
    for what in ("values", "histograms"):
        n = len(tensor.steps(what=what))
        if n:
            rows.append((what, f"at {plural(n, 'step')}"))
    if steps and tensor.role != "scalar":
        rows += _newest(tensor, steps[-1])
    return rows


def _newest(tensor: TensorHandle, step: int) -> list[tuple[str, Child]]:
    try:
        stats = tensor.stats(step)
    except TdbgError:
        return []  # A part of a sharded tensor is missing there.
    words = f"mean {number(stats.mean)}, std {number(stats.std)}, "
    words += f"from {number(float(stats.min))} to {number(float(stats.max))}"
    if not stats.finite:
        words = "no finite element"
    rows: list[tuple[str, Child]] = [(f"at step {step:,}", words)]
    bad = stats.count - stats.finite
    if bad:
        rows.append(("", toned("error", f"{bad:,} of {stats.count:,} NaN or infinite")))
    return rows


def _course(trial: Trial, tensor: TensorHandle) -> Child:
    modes = [mode for mode in trial.modes() if tensor.steps(mode)]
    found = [
        series_of(trial, tensor.name, mode=mode, columns=COLUMNS).named(mode.name)
        for mode in modes
    ]
    found = [series for series in found if len(series)]
    if not found:
        return None
    label = "value" if is_number(trial, tensor.name) else "rms"
    interval = interval_of(trial, tensor.role)
    alt = f"{label} over steps."
    return line_chart(found, alt=alt, y_label=label, interval=interval)


def histogram_html(histogram: Histogram) -> str:
    """The histogram as a snippet."""
    rows: list[tuple[str, Child]] = [("elements", f"{histogram.count:,}")]
    infinite = histogram.positive_infinity + histogram.negative_infinity
    for name, n in (
        ("zero", histogram.zero),
        ("NaN", histogram.nan),
        ("infinite", infinite),
    ):
        if n:
            rows.append((name, f"{n:,} ({n / histogram.count:.2%})"))
    parts: list[Child] = [facts(rows)]
    if histogram.finite:
        # Of few elements many bins would be noise.
        n_bins = int(np.clip(2 * np.sqrt(histogram.finite), 8, MOST_BINS))
        counts, edges = histogram.to_numpy(n_bins)
        parts.append(
            columns_chart(
                edges,
                [counts],
                ["elements"],
                alt="Histogram of the finite elements.",
                x_label="value",
                y_label="elements",
            )
        )
        parts += [_quantiles(histogram), _lost(histogram)]
    return snippet("Histogram", *parts)


def _quantiles(histogram: Histogram) -> Child:
    if histogram.nan:
        return None  # NaN has no place in an order.
    names = ["least", "1 %", "25 %", "median", "75 %", "99 %", "greatest"]
    found = histogram.quantile(QUANTILES)
    return listing(["quantile", *names], [["value", *map(number, found.tolist())]])


def _lost(histogram: Histogram) -> Child:
    cells = []
    for dtype in DTYPES:
        loss = histogram.lost_in(dtype)
        share = min(loss.underflow + loss.overflow, 1.0)
        cells.append("0" if share <= 0 else f"{share:.2%}")
    return listing(["made zero or infinite by", *DTYPES], [["share", *cells]])
