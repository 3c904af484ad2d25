"""TensorBoard: a scalar of each tensor; the page it opens with is Time Series."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ui._series import Series
from benchmarks.ui._shown import Points, Shown, of_points

ENVIRONMENT = "dashboards"
PACKAGES = ("tensorboard", "tensorboard-data-server")
COMMAND = ("{bin}/tensorboard", "--logdir", "{folder}", "--port", "{port}")
VARIABLES: Mapping[str, str] = {}
# Charts are canvases that a worker draws into, or SVG where there is no WebGL.
DRAWN = """[...document.querySelectorAll('line-chart .series-view canvas')].some(hasInk)
|| [...document.querySelectorAll('line-chart .series-view path')].some(
  (each) => (each.getAttribute('d') ?? '').length > 50)"""
# Opened before the first scalars were read, it stays empty.
RELOAD_SECONDS = 10.0
ANSWER = "/timeSeries"


@contextmanager
def write(folder: Path, series: Series) -> Iterator[Callable[[int], None]]:
    """One event a step with all scalars: it is read faster than an event for each."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder / "run"), flush_secs=1)

    def step(number: int) -> None:
        values = series.values(number).tolist()
        scalars = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in zip(series.names, values, strict=True)
        ]
        event = Event(wall_time=time.time(), step=number)
        event.summary.CopyFrom(Summary(value=scalars))
        writer.add_event(event)

    try:
        yield step
    finally:
        writer.close()


def path(_folder: Path, _printed: str) -> str:
    """The printed one."""
    return "/"


def shown(series: Series, answers: list[bytes]) -> Shown:
    """The sampled points of the charts that are on the screen."""
    return of_points(series, (one for answer in answers for one in _points(answer)))


def _points(answer: bytes) -> Iterator[Points]:
    for chart in json.loads(answer):
        for run in chart.get("runToSeries", {}).values():
            steps = [point["step"] for point in run]
            yield chart["tag"], steps, [point["value"] for point in run]


def newest(answer: bytes) -> int | None:
    """The last step of any chart."""
    last = [steps[-1] for _, steps, _ in _points(answer) if steps]
    return max(last, default=None)
