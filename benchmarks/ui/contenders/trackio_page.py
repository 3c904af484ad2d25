"""Trackio: a metric of each tensor; the page shows all of a project."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ui._series import Series
from benchmarks.ui._shown import Shown, of_points

ENVIRONMENT = "dashboards"
PACKAGES = ("trackio",)
PROJECT = "bench"
COMMAND = ("{bin}/trackio", "show", "--project", PROJECT)
VARIABLES = {"TRACKIO_DIR": "{folder}", "GRADIO_SERVER_PORT": "{port}"}
DRAWN = """[...document.querySelectorAll('.vega-embed canvas, .plot canvas')].some(
  hasInk)
|| [...document.querySelectorAll('.vega-embed svg path, svg.marks path')].some(
  (each) => (each.getAttribute('d') ?? '').length > 50)"""
RELOAD_SECONDS = 0.0
ANSWER = "/api/get_logs_batch"


@contextmanager
def write(folder: Path, series: Series) -> Iterator[Callable[[int], None]]:
    """One call a step with all metrics; nothing of the machine beside them."""
    import os

    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    trackio.init(project=PROJECT, name="run", auto_log_gpu=False, auto_log_cpu=False)

    def step(number: int) -> None:
        values = series.values(number).tolist()
        trackio.log(dict(zip(series.names, values, strict=True)), step=number)

    try:
        yield step
    finally:
        trackio.finish()


def path(_folder: Path, _printed: str) -> str:
    """The printed one."""
    return f"/?project={PROJECT}"


def shown(series: Series, answers: list[bytes]) -> Shown:
    """The points of all charts: rows at even distances, the same of all metrics."""
    points = []
    for answer in answers:
        for logs in _logs(answer):
            for name in series.names:
                rows = [row for row in logs if name in row]
                points.append(
                    (name, [row["step"] for row in rows], [row[name] for row in rows])
                )
    return of_points(series, points)


def _logs(answer: bytes) -> Iterator[list[dict[str, float]]]:
    for run in json.loads(answer)["data"]:
        yield run["logs"]


def newest(answer: bytes) -> int | None:
    """The last step of any run."""
    last = [int(logs[-1]["step"]) for logs in _logs(answer) if logs]
    return max(last, default=None)
