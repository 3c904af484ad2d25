"""The pictures of the dashboard that the documentation shows.

    python -m benchmarks.ui.pictures [--runs FOLDER] [--out docs/images] [NAME ...]

What they show is trained and judged first, where it is not there yet, with what capture
costs on this machine: it should have nothing else to do.  Needs torch, scikit-learn and
the browser that ``python -m benchmarks.ui`` needs.  Names are those of the pictures,
such as ``run-light``; without one all are taken.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from playwright.sync_api import Browser, Page

from benchmarks._harness import check
from benchmarks._harness.machine import ROOT
from benchmarks.ui.__main__ import address
from benchmarks.ui._pages import browser
from benchmarks.ui._server import served
from benchmarks.ui._sweep import Trial, sweep, train
from benchmarks.ui._trainings import TRAININGS, Training
from benchmarks.ui.contenders import tdbg_ui

WIDE, NARROW = 1280, 390
# What is still being read has its chart afterwards.
SETTLE_MS = 3000
# What `tdbg check` says of a run: nothing is wrong, or something is.
JUDGED = (0, 1)
SICK = "gradient/blocks.3.down.weight"


class Picture(NamedTuple):
    """One of them: which state of the page, and how much of it.

    Attributes:
        state: Its address; what stands in braces is the id of the run of that name.
        is_dark: Which theme.
        width: Of the window.
        height: Of the picture; None: all of the page.
    """

    state: str
    is_dark: bool = False
    width: int = WIDE
    height: int | None = None


_COMPARED = "screen=compare&runs={resnet-steady},{resnet-warmup}"
_RANKS = "run={ranks}&screen=tensor&tensor=CrossEntropyLoss_output_0&field=mean&at=120"
PICTURES = {
    "run-light": Picture("run={resnet-warmup}"),
    "run-dark": Picture("run={resnet-warmup}", is_dark=True),
    "narrow-dark": Picture("run={resnet-warmup}", True, NARROW, 844),
    "runs-light": Picture("", height=420),
    "runs-dark": Picture("", is_dark=True, height=420),
    "tensor-dark": Picture(
        f"run={{resnet-warmup}}&screen=tensor&tensor={SICK}&at=375&field=l2", True
    ),
    "tensor-light": Picture(f"run={{resnet-warmup}}&screen=tensor&tensor={SICK}"),
    "ranks-light": Picture(_RANKS),
    "findings-light": Picture("run={resnet-warmup}&screen=findings", height=900),
    "compare-light": Picture(_COMPARED, height=1180),
    "compare-dark": Picture(_COMPARED, is_dark=True, height=1180),
    "time-light": Picture("run={loader-bound}&screen=time", height=1420),
    "compare-narrow-dark": Picture(_COMPARED, True, NARROW, 1500),
}
#: Of the sweep, which has a folder of its own.
SWEEP_PICTURES = {
    "sweep-light": Picture("sort=-best.val/accuracy@EVAL", height=640),
    "herd-light": Picture("view=herd&role=weight&of={sweep-19}", height=760),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "build/pictures/runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    known = [*PICTURES, *SWEEP_PICTURES]
    parser.add_argument("names", nargs="*", help=", ".join(known))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, training in TRAININGS.items():
        record(given.runs / name, training)
    swept = given.runs.with_name("sweep")
    for trial in sweep():
        record(swept / trial.name, partial(_of_sweep, trial))
    asked = given.names or known
    for folder, pictures in ((given.runs, PICTURES), (swept, SWEEP_PICTURES)):
        with served(tdbg_ui, folder) as server, browser() as found:
            home = address("tdbg", folder, server)
            for name in [each for each in asked if each in pictures]:
                path = given.out / f"dashboard-{name}.png"
                take(found, home, pictures[name], path)
                print(path)


def _of_sweep(trial: Trial, path: Path) -> None:
    train(path.parent, trial)


def record(path: Path, training: Training) -> None:
    """Train and judge, unless that was done."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    training(path)
    command = [sys.executable, "-m", "tdbg", "check", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    check(done.returncode in JUDGED, f"{path} was not judged: {done.stderr}")


def take(found: Browser, home: str, picture: Picture, path: Path) -> None:
    """Open a page, and keep what it shows."""
    context = found.new_context(
        locale="en-US",
        viewport={"width": picture.width, "height": picture.height or 900},
        color_scheme="dark" if picture.is_dark else "light",
    )
    faults: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(home)
    ids = runs_of(page)
    state = picture.state
    for name, id_ in ids.items():
        state = state.replace(f"{{{name}}}", id_)
    head, _, token = home.partition("#")
    page.goto(f"{head}?{state}#{token}")
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=path, full_page=picture.height is None)
    check(not faults, f"{path.name}: {faults}")
    context.close()


def runs_of(page: Page) -> dict[str, str]:
    """The ids of the runs that are listed, by name."""
    rows = page.locator(".run-row")
    page.locator(".runs-head h1", has_not_text="reading").wait_for()
    found = {}
    for row in rows.all():
        name = row.locator(".run-name b").inner_text()
        link = row.locator(".run-link").get_attribute("href")
        found[name] = str(link).partition("run=")[2]
    return found


if __name__ == "__main__":
    main()
