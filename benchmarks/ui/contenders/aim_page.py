"""Aim: a metric of each tensor; the page is that of the metrics of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ui._series import Series
from benchmarks.ui._shown import Points, Shown, of_points

ENVIRONMENT = "dashboards"
PACKAGES = ("aim",)
COMMAND = ("{bin}/aim", "up", "--repo", "{folder}", "--port", "{port}")
VARIABLES = {"AIM_TELEMETRY": "0"}
DRAWN = """[...document.querySelectorAll('path.Line')].some(
  (each) => (each.getAttribute('d') ?? '').length > 50)"""
RELOAD_SECONDS = 0.0
ANSWER = "/metric/get-batch"


@contextmanager
def write(folder: Path, series: Series) -> Iterator[Callable[[int], None]]:
    """One call a step with all metrics; nothing of the machine beside them."""
    from aim import Run

    run = Run(
        repo=str(folder),
        system_tracking_interval=None,
        log_system_params=False,
        capture_terminal_logs=False,
    )

    def step(number: int) -> None:
        values = series.values(number).tolist()
        run.track(dict(zip(series.names, values, strict=True)), step=number)

    try:
        yield step
    finally:
        run.close()


def path(folder: Path, _printed: str) -> str:
    """Where its list of runs leads, since the page that it opens with has no chart."""
    (run,) = (folder / ".aim" / "meta" / "chunks").iterdir()
    return f"/runs/{run.name}/metrics"


def shown(series: Series, answers: list[bytes]) -> Shown:
    """The sampled points of the charts that are on the screen."""
    return of_points(series, (one for answer in answers for one in _points(answer)))


def _points(answer: bytes) -> Iterator[Points]:
    for metric in json.loads(answer):
        yield metric["name"], metric["iters"], metric["values"]


def newest(answer: bytes) -> int | None:
    """The last step of any chart."""
    last = [steps[-1] for _, steps, _ in _points(answer) if steps]
    return max(last, default=None)
