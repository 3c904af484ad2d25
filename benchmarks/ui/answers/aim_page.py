"""Aim: its explorer of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ui.answers._hand import Hand, names_of
from benchmarks.ui.answers._runs import LEAST_RATE, Run
from benchmarks.ui.contenders import aim_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENVIRONMENT = aim_page.ENVIRONMENT
PACKAGES = aim_page.PACKAGES
COMMAND = aim_page.COMMAND
VARIABLES = aim_page.VARIABLES


def write(folder: Path, run: Run) -> None:
    """A call a step; nothing of the machine beside the metrics."""
    import aim

    made = aim.Run(
        repo=str(folder),
        system_tracking_interval=None,
        log_system_params=False,
        capture_terminal_logs=False,
    )
    made.name = run.name
    made["hparams"] = dict(run.settings)
    for step, row in enumerate(run.rows()):
        made.track(dict(row), step=step)
    made.close()


def path(_folder: Path, _printed: str) -> str:
    """The runs."""
    return "/runs"


def is_ready(page: Page) -> bool:
    """Rows stand there."""
    return _rows(page) != ""


def few(hand: Hand) -> Callable[[], str]:
    hand.click(hand.page.locator(".monaco-editor").first)
    hand.type(f"run.hparams.lr < {LEAST_RATE}")
    hand.click(hand.page.get_by_role("button", name="Search"))
    return lambda: " ".join(sorted(_rows(hand.page).split()))


def _rows(page: Page) -> str:
    return names_of(page.locator('a[href*="/runs/"]').filter(has_text="sweep-"))


ANSWERS = {"filter": few}
WITHOUT = {
    "best": "runs are not sorted, and what appears over a line names no run",
    "sick": "runs are not sorted, and what appears over a line names no run",
}
