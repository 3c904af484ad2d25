"""Runs opened on a screen of the dashboard, and the colours that it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import new_page
from dashboard import dashboard, page_address

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = ["Show", "color_at", "show"]

Show = Callable[..., "Page"]

# The colour of a map's only row at a step, of those from *first* on.
COLOR_AT = """(canvas, [step, first, steps]) => {
  const ratio = canvas.width / canvas.clientWidth;
  const left = Number(canvas.dataset.labels);
  const x = left + ((step + 0.5 - first) / steps) * (canvas.clientWidth - left - 12);
  const y = Number(canvas.dataset.rowHeight) / 2;
  const ctx = canvas.getContext("2d");
  return [...ctx.getImageData(x * ratio, y * ratio, 1, 1).data].join();
}"""


@pytest.fixture
def show(browser: Browser) -> Iterator[Show]:
    """Opens a run on a screen."""
    with ExitStack() as stack:

        def opened(run: Path, **state: object) -> Page:
            served = stack.enter_context(dashboard(run))
            address = page_address(served, "run", **state)
            advice = ("willReadFrequently",)
            return stack.enter_context(new_page(browser, address, forgiven=advice)).page

        yield opened


def color_at(canvas: Locator, step: int, steps: int, first: int = 0) -> str:
    """Return the colour of a map's only row at a step, of *steps* that it shows."""
    found: str = canvas.evaluate(COLOR_AT, [step, first, steps])
    return found
