"""The pictures of the dashboard that the documentation shows can be taken anew."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ui import pictures, report_pictures
from benchmarks.ui._pages import browser
from benchmarks.ui._server import served
from benchmarks.ui._trainings import TRAININGS
from benchmarks.ui.contenders import tdbg_ui
from run_builder import simple_run

# Made by the benchmark of dashboards, of a series and not of a training.
OTHERS = {"planted"}


def test_every_picture_of_the_documentation_is_taken_by_the_program(
    repository: Path,
) -> None:
    found = repository.glob("docs/images/dashboard-*.png")
    names = {path.stem.removeprefix("dashboard-") for path in found}
    assert names - OTHERS == {*pictures.PICTURES, *pictures.SWEEP_PICTURES}
    named = {
        name
        for picture in pictures.PICTURES.values()
        for name in re.findall(r"\{(.*?)\}", picture.state)
    }
    assert named <= set(TRAININGS)


def test_every_picture_of_a_report_is_taken_by_the_program(repository: Path) -> None:
    images = repository / "docs/images"
    found = [*images.glob("report_*.png"), *images.glob("notebook-live-*.png")]
    taken = {*report_pictures.REPORTS, *report_pictures.CELLS}
    assert {path.stem for path in found} == taken
    runs = {run for each in report_pictures.REPORTS.values() for run in each.runs}
    assert runs <= set(report_pictures.TRAININGS)


def test_a_picture_shows_the_run_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        simple_run(tmp_path / "runs" / name)
    monkeypatch.setattr(pictures, "TRAININGS", dict.fromkeys(("one", "two")))
    monkeypatch.setattr(pictures, "SETTLE_MS", 200)
    taken = tmp_path / "taken.png"
    with served(tdbg_ui, tmp_path / "runs") as server, browser() as found:
        home = pictures.address("tdbg", tmp_path / "runs", server)
        picture = pictures.Picture("run={two}", True, 390, 300)
        pictures.take(found, home, picture, taken)
    assert taken.read_bytes().startswith(b"\x89PNG")
    size = np.frombuffer(taken.read_bytes()[16:24], ">u4")
    assert size.tolist() == [390, 300]
