"""Pages of a real browser: when they first show something, what they hold and ask."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, Request, Response, sync_playwright

from benchmarks._harness import WrongAnswer
from benchmarks.ui._server import Memory, memory_of

__all__ = ["Paints", "Visit", "browser", "opened"]

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Nothing outside of this machine is asked, and nobody waits for it.
ARGUMENTS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
POLL_MS = 20
# Looks at every frame whether a chart is there.
WATCH = """
(() => {
  const scratch = document.createElement('canvas');
  const hasInk = (canvas) => {
    if (!canvas.width || !canvas.height) return false;
    [scratch.width, scratch.height] = [canvas.width, canvas.height];
    const context = scratch.getContext('2d', { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 3; i < data.length; i += 4) if (data[i]) return true;
    return false;
  };
  const isDrawn = () => Boolean(%s);
  const look = () => {
    if (document.body && isDrawn())
      window.benchmarkDrawn(performance.timeOrigin + performance.now());
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})();
"""
FIRST = """() => {
  const [first] = performance.getEntriesByName('first-contentful-paint');
  return first ? performance.timeOrigin + first.startTime : null;
}"""


@dataclass(frozen=True)
class Paints:
    """When something, and a chart, was first on the screen: ``time.time()``."""

    contentful: float
    chart: float


@dataclass
class Visit:
    """A page that is open.

    Attributes:
        page: Playwright's.
        opened: When its address was entered.
        drawn: When it drew a chart first, in ms of its own clock; one number, or none.
        foreign: Addresses of other machines that it asked for.
        asked: Requests that were answered, the newest of each question last.
    """

    page: Page
    opened: float = 0.0
    drawn: list[float] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    asked: dict[tuple[str, str, bytes | None], Request] = field(default_factory=dict)

    def await_chart(self, seconds: float, reload: float = 0.0) -> Paints | None:
        """When a chart was first drawn; None: not within so many seconds.

        Args:
            seconds: At most.
            reload: Load the page again each time so many seconds have passed; 0: never.
        """
        now = time.monotonic()
        end, next_load = now + seconds, now + reload
        # Whoever asked a page that is busy would wait for it, for minutes.
        while not self.drawn and now < end:
            self.page.wait_for_timeout(POLL_MS)
            now = time.monotonic()
            if reload and now >= next_load:
                next_load = now + reload
                self.page.reload(wait_until="commit", timeout=1e3 * seconds)
        if not self.drawn:
            return None
        chart = self.drawn[0]
        return Paints((self.page.evaluate(FIRST) or chart) / 1e3, chart / 1e3)

    def answers(self, part: str) -> list[bytes]:
        """The bodies of answers at addresses with that part, asked for once more.

        A browser keeps no large bodies; who asks the same gets the same.
        """
        bodies = []
        for (address, method, content), request in self.asked.items():
            if part in address:
                names = ("content-type", "x-tdbg-token")
                headers = {k: v for k, v in request.headers.items() if k in names}
                found = self.page.request.fetch(
                    address,
                    method=method,
                    data=content,
                    headers=headers,
                    timeout=180_000,
                )
                if not found.ok:
                    msg = f"{address}: {found.status}"
                    raise WrongAnswer(msg)
                bodies.append(found.body())
        return bodies

    def heap(self) -> float:
        """What JavaScript holds after a collection, in MB; not that of workers."""
        session = self.page.context.new_cdp_session(self.page)
        session.send("HeapProfiler.collectGarbage")
        found = session.send("Runtime.getHeapUsage")
        session.detach()
        return float(found["usedSize"]) / 1e6


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser that ``TDBG_TEST_BROWSER`` names, or the first that is installed.

    Raises:
        FileNotFoundError: If there is none.
    """
    given = os.environ.get("TDBG_TEST_BROWSER")
    program = given or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        msg = f"no browser: install one of {NAMES}, or set TDBG_TEST_BROWSER"
        raise FileNotFoundError(msg)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield found
        found.close()


@contextmanager
def opened(
    found: Browser, address: str, drawn: str, *, height: int = 900
) -> Iterator[Visit]:
    """A page of a browser that knows nothing yet."""
    context = found.new_context(
        locale="en-US", viewport={"width": 1440, "height": height}
    )
    context.add_init_script(WATCH % drawn)
    page = context.new_page()
    visit = Visit(page)
    home = "/".join(address.split("/", 3)[:3])

    def note(request: Request) -> None:
        if not request.url.startswith((home, "data:", "blob:")):
            visit.foreign.append(request.url)

    def keep(response: Response) -> None:
        request = response.request
        key = (request.url, request.method, request.post_data_buffer)
        visit.asked[key] = request

    def draw(at: float) -> None:
        visit.drawn.append(at)

    page.expose_function("benchmarkDrawn", draw)
    page.on("request", note)
    page.on("response", keep)
    visit.opened = time.time()
    try:
        page.goto(address, wait_until="commit", timeout=120_000)
        yield visit
    finally:
        context.close()


def renderers(found: Browser) -> tuple[float, Memory]:
    """Processor time and memory of the processes that pages live in."""
    session = found.new_browser_cdp_session()
    processes: list[dict[str, Any]] = session.send("SystemInfo.getProcessInfo")[
        "processInfo"
    ]
    session.detach()
    pages = [each for each in processes if each["type"] == "renderer"]
    seconds = sum(float(each["cpuTime"]) for each in pages)
    return seconds, memory_of([int(each["id"]) for each in pages])
