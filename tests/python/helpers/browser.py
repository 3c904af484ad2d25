"""A real browser for tests, and pages of it that fail where something is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser_program import find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["Watched", "axe_violations", "browser", "new_page"]


@dataclass
class Watched:
    """A page, with all that went wrong on it."""

    page: Page
    home: str
    faults: list[str] = field(default_factory=list)
    forgiven: tuple[str, ...] = ()

    def check(self) -> None:
        left = [
            each for each in self.faults if not any(f in each for f in self.forgiven)
        ]
        assert not left, "\n".join(left)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Starts a browser once; pages of different tests share nothing.

    No longer than for a file: while Playwright is there, asyncio's loop of the process
    is its own, which other tests may need.
    """
    from playwright.sync_api import sync_playwright

    program = find_browser()
    environment: dict[str, Any] = os.environ | program.environment
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=program.path, args=["--no-sandbox"], env=environment
        )
        yield found
        found.close()


@contextmanager
def new_page(
    browser: Browser | BrowserContext,
    address: str,
    *,
    forgiven: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[Watched]:
    """Open a page; what it logs, throws, or asks of others is a fault.

    Args:
        browser: The browser, or a context of it for one more tab.
        address: What to open.
        forgiven: Parts of faults that the test brings about.
        options: Of Playwright's contexts.
    """
    from playwright.sync_api import BrowserContext, expect

    # A busy machine needs longer than the five seconds that are the default.
    expect.set_options(timeout=30_000)
    if isinstance(browser, BrowserContext):
        context, is_own = browser, False
    else:
        options.setdefault("viewport", {"width": 1200, "height": 900})
        context, is_own = browser.new_context(locale="en-US", **options), True
    page = context.new_page()
    page.set_default_timeout(30_000)
    home = address.partition("#")[0].rstrip("/").split("/", 3)
    watched = Watched(page, "/".join(home[:3]), forgiven=forgiven)
    page.on("pageerror", lambda error: watched.faults.append(f"error: {error}"))
    page.on(
        "console",
        lambda message: (
            watched.faults.append(
                f"console: {message.text} {message.location.get('url', '')}"
            )
            if message.type in ("error", "warning")
            else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            watched.faults.append(f"foreign request: {request.url}")
            if not request.url.startswith((watched.home, "data:"))
            else None
        ),
    )
    page.on("dialog", lambda dialog: watched.faults.append(f"dialog: {dialog.message}"))
    try:
        page.goto(address)
        yield watched
        watched.check()
    finally:
        page.close()
        if is_own:
            context.close()


def axe_violations(page: Page) -> list[tuple[str, str]]:
    """What keeps somebody out of a page: the rule and the first element, of each.

    The page must be one of a context with ``bypass_csp=True``: axe is an inline script.
    """
    import axe_playwright_python

    folder = Path(axe_playwright_python.__file__).parent
    page.evaluate((folder / "axe.min.js").read_text())
    result = page.evaluate("() => axe.run()")
    return [(each["id"], each["nodes"][0]["html"]) for each in result["violations"]]
