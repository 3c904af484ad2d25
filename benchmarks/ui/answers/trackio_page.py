"""Trackio: its charts of all runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ui.answers._hand import Hand
from benchmarks.ui.answers._runs import Run
from benchmarks.ui.contenders import trackio_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENVIRONMENT = trackio_page.ENVIRONMENT
PACKAGES = trackio_page.PACKAGES
COMMAND = trackio_page.COMMAND
VARIABLES = trackio_page.VARIABLES
path = trackio_page.path
# The first section has what has no folder in its name, by the alphabet.
CHARTS = ("grad_norm", "loss")


def write(folder: Path, run: Run) -> None:
    """A call a step, the settings as the configuration of the run."""
    import os

    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    trackio.init(
        project=trackio_page.PROJECT,
        name=run.name,
        config=dict(run.settings),
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    for step, row in enumerate(run.rows()):
        trackio.log(dict(row), step=step)
    trackio.finish()


def is_ready(page: Page) -> bool:
    """Both charts of the first section are there."""
    return page.locator(".vega-embed canvas").count() >= len(CHARTS)


def best(hand: Hand) -> Callable[[], str]:
    return _pointed(hand, "loss", top=False)


def sick(hand: Hand) -> Callable[[], str]:
    return _pointed(hand, "grad_norm", top=True)


def _pointed(hand: Hand, chart: str, *, top: bool) -> Callable[[], str]:
    """What the tooltip says of the line that lies apart."""
    canvas = hand.page.locator(".vega-embed canvas").nth(CHARTS.index(chart))
    hand.point_at_line(canvas, top=top)
    told = hand.page.locator("#vg-tooltip-element.visible")

    def read() -> str:
        text = told.inner_text() if told.count() else ""
        return next((word for word in text.split() if word.startswith("sweep")), "")

    return read


ANSWERS = {"best": best, "sick": sick}
WITHOUT = {"filter": "filters by names, groups equal settings"}
