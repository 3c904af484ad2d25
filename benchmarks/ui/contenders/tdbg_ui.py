"""``tdbg ui``: every tensor's statistics in one picture of all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks._harness import check
from benchmarks.ui._series import Series
from benchmarks.ui._shown import Shown

ENVIRONMENT = ""
PACKAGES = ("tdbg", "starlette", "uvicorn")
COMMAND = (
    "{python}",
    "-m",
    "tdbg",
    "ui",
    "{folder}",
    "--no-browser",
    "--no-judge",
    "--port",
    "{port}",
)
VARIABLES: Mapping[str, str] = {}
DRAWN = "document.querySelector('canvas.map-canvas')?.dataset.drawn"
RELOAD_SECONDS = 0.0
ANSWER = "/api/envelope"


@contextmanager
def write(folder: Path, series: Series) -> Iterator[Callable[[int], None]]:
    """Tensors of two elements, whose norm is the value, by the core alone."""
    from tdbg import _core
    from tdbg.config import Role
    from tdbg.modes import ModeKeys
    from tdbg.run.directory import create_run

    run = create_run(folder / "run")
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    role = int(Role.GRADIENT)
    ids = [capture.define(name, role, "float32", (2,)) for name in series.names]
    tensors = np.zeros((series.n_tensors, 2), np.float32)
    pointers = [tensors.ctypes.data + 8 * i for i in range(series.n_tensors)]

    def step(number: int) -> None:
        tensors[:, 0] = series.values(number)
        capture.statistics(number, ids, pointers)
        capture.end_step(number, ModeKeys.TRAIN.value, number)

    try:
        yield step
    finally:
        capture.flush()
        check(capture.close(), "the run was not written")


def path(_folder: Path, printed: str) -> str:
    """The printed one, which has a token."""
    return "/" + printed.split("/", 3)[3].split(maxsplit=1)[0]


def shown(series: Series, answers: list[bytes]) -> Shown:
    """Cells: each stands for all rows of its tensor and columns of steps."""
    from tdbg.ui.packing import unpack

    place = {name: i for i, name in enumerate(series.names)}
    n_series = n_rows = n_spikes = n_holes = 0
    for answer in answers:
        header, arrays = unpack(answer)
        names = [place[name] for name in header["names"]]
        edges, rows = arrays["edges"], arrays["rows"]
        usual = np.nanmedian(arrays["mean"], axis=1)
        at = {
            tensor: int(np.searchsorted(edges, step, side="right")) - 1
            for tensor, step in (series.spikes | series.holes).items()
            if edges[0] <= step < edges[-1]
        }
        high = [arrays["high"][names.index(i)] / usual[names.index(i)] for i in names]
        bad = [arrays["bad"][names.index(i)] for i in names]
        marks = {
            (i, j)
            for i, row in zip(names, high, strict=True)
            for j in np.flatnonzero(row > 100).tolist()
        }
        holes = {
            (i, j)
            for i, row in zip(names, bad, strict=True)
            for j in np.flatnonzero(row > 0).tolist()
        }
        planted = set(at.items())
        check(marks | holes <= planted, "a spike or a NaN where there is none")
        n_series = max(n_series, int((rows.sum(axis=1) > 0).sum()))
        n_rows = max(n_rows, int(rows.sum(axis=1).max(initial=0)))
        n_spikes = max(n_spikes, len(marks))
        n_holes = max(n_holes, len(holes))
    return Shown(n_series, n_rows, n_spikes, n_holes)


def newest(answer: bytes) -> int | None:
    """The last step of the last column with rows."""
    from tdbg.ui.packing import unpack

    arrays = unpack(answer)[1]
    columns = np.flatnonzero(arrays["rows"].sum(axis=0))
    return int(arrays["edges"][columns[-1] + 1]) - 1 if len(columns) else None
