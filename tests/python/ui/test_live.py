"""The dashboard in a real browser while trainings run, end, and are killed."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from browser import new_page
from dashboard import Dashboard, dashboard, page_address
from run_builder import RunBuilder, simple_run

PROGRAM = Path(__file__).parents[1] / "helpers/programs/train_for_the_dashboard.py"
# A training imports torch first, beside other tests.
SLOW_MS = 60_000


# As a link of the page does.
GO_TO_THE_RUN = """() => {
  const query = new URLSearchParams(location.search);
  query.delete("screen");
  history.pushState(null, "", `?${query}`);
  dispatchEvent(new PopStateEvent("popstate"));
}"""


@contextmanager
def training(run: Path) -> Iterator[subprocess.Popen[str]]:
    """A real training that goes on until somebody stops it."""
    helpers = str(PROGRAM.parents[1])
    path = os.pathsep.join([helpers, os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(run)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def step_of(page: Page) -> int:
    return int(page.locator(".pulse b").inner_text().replace(",", ""))


def expect_more_steps(page: Page, n: int = 3) -> None:
    """The page shows further steps, by itself."""
    before = step_of(page)
    pattern = "|".join(f"{step:,}" for step in range(before + n, before + n + 400))
    shown = page.locator(".pulse b")
    expect(shown).to_have_text(re.compile(f"^({pattern})$"), timeout=SLOW_MS)


def test_a_training_is_followed_asked_for_more_and_stopped_from_the_page(
    browser: Browser,
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "digits"
    with training(run) as process, dashboard(run.parent) as served:
        with new_page(browser, served.address) as watched:
            page = watched.page
            expect(page.locator(".pulse b")).to_be_visible(timeout=SLOW_MS)
            expect(page.locator(".state")).to_have_text("running")
            expect_more_steps(page)
            canvas = page.locator("canvas.map-canvas")
            drawn = str(canvas.get_attribute("data-drawn"))
            expect(canvas).not_to_have_attribute("data-drawn", drawn, timeout=SLOW_MS)

            expect(page.get_by_text("No gradients were captured.")).to_be_visible()
            page.get_by_role("button", name="Capture now").first.click()
            page.get_by_label("For … steps").fill("20")
            page.get_by_role("button", name="Capture", exact=True).click()
            outcome = page.locator(".outcome")
            expect(outcome).to_contain_text("Accepted", timeout=SLOW_MS)
            page.get_by_role("button", name="Close").click()
            expect(page.locator(".flow canvas")).to_be_visible(timeout=SLOW_MS)
            expect(page.locator(".change")).to_have_count(1)

            page.get_by_role("button", name="Stop", exact=True).click()
            page.get_by_label("Why, in one sentence").fill("seen <b>enough</b>")
            page.get_by_role("button", name="Stop the training").click()
            expect(outcome).to_contain_text("has stopped", timeout=SLOW_MS)
            page.get_by_role("button", name="Close").click()
            expect(page.locator(".state")).to_have_text("stopped")
            expect(page.locator(".verdict")).to_contain_text("seen <b>enough</b>")
            expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        out, _ = process.communicate(timeout=60)
        assert "stopped: seen <b>enough</b>" in out


def test_a_killed_training_is_said_to_be_killed_and_keeps_its_steps(
    browser: Browser,
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "digits"
    with (
        training(run) as process,
        dashboard(run.parent) as served,
        new_page(browser, served.address) as watched,
    ):
        page = watched.page
        expect(page.locator(".pulse b")).to_be_visible(timeout=SLOW_MS)
        expect_more_steps(page)
        process.send_signal(signal.SIGKILL)
        process.wait()
        expect(page.locator(".banner")).to_contain_text("was killed")
        expect(page.locator(".state")).to_have_text("killed")
        expect(page.locator(".map")).to_be_visible()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[RunBuilder]:
    """A run that the test writes."""
    builder = RunBuilder(tmp_path / "runs" / "run")
    write(builder, 0)
    yield builder
    builder.close()


def write(builder: RunBuilder, step: int) -> None:
    builder.step(step, {"w": np.full(3, step, np.float32)}, what="statistics")
    builder.flush()


def test_a_server_that_is_gone_is_said_so_and_comes_back_by_itself(
    browser: Browser,
    tmp_path: Path,
    written: RunBuilder,
) -> None:
    forgiven = ("ERR_CONNECTION", "Failed to fetch", "ERR_INCOMPLETE", "ERR_EMPTY")
    folder = tmp_path / "runs"
    with dashboard(folder) as served:
        access, port = served.access, served.port
        with new_page(browser, served.address, forgiven=forgiven) as watched:
            page = watched.page
            expect(page.locator(".lamp")).to_have_text("live")
            expect(page.locator(".map")).to_be_visible()
            served.process.kill()
            served.process.wait()
            expect(page.locator(".banner")).to_contain_text("does not answer")
            expect(page.locator(".map")).to_be_visible()
            write(written, 1)
            with dashboard(folder, access=access, port=port):
                expect(page.locator(".lamp")).to_have_text("live")
                expect(page.locator(".pulse b")).to_have_text("1")
                expect(page.locator(".banner")).to_have_count(0)


def test_eight_tabs_are_all_live(
    browser: Browser,
    tmp_path: Path,
    written: RunBuilder,
) -> None:
    """Browsers allow six connections to a server: streams of eight would hang."""
    with dashboard(tmp_path / "runs") as served:
        context = browser.new_context(locale="en-US")
        tabs = []
        for _ in range(8):
            opened = new_page(context, served.address)
            tabs.append((opened, opened.__enter__()))
        try:
            for step in (1, 2):
                write(written, step)
                for _, tab in tabs:
                    expect(tab.page.locator(".pulse b")).to_have_text(str(step))
            # Whoever has the stream goes; another tab takes it.
            first, _ = tabs.pop(0)
            first.__exit__(None, None, None)
            write(written, 3)
            for _, tab in tabs:
                expect(tab.page.locator(".pulse b")).to_have_text("3")
        finally:
            for opened, _ in tabs:
                opened.__exit__(None, None, None)
            context.close()


def test_whoever_may_only_look_sees_no_buttons(
    browser: Browser, written: RunBuilder
) -> None:
    with dashboard(written.directory.parents[1]) as served:
        head = served.address.partition("#")[0]
        view = f"{head}#t={served.access.view}"
        with new_page(browser, view) as watched:
            expect(watched.page.locator(".pulse b")).to_have_text("0")
            expect(watched.page.locator(".state")).to_have_text("running")
            expect(watched.page.get_by_role("button", name="Stop")).to_have_count(0)


# --- Behind a proxy that puts a path before everything ------------------------


@contextmanager
def proxy(served: Dashboard, prefix: str) -> Iterator[int]:
    """A proxy as JupyterHub has: everything below *prefix*, passed on without it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            upstream = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            path = "/" + self.path.removeprefix(prefix)
            upstream.request("GET", path, headers=dict(self.headers.items()))
            found = upstream.getresponse()
            self.send_response(found.status)
            for name, value in found.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            try:
                while part := found.read1(65536):
                    self.wfile.write(part)
                    self.wfile.flush()
            except (OSError, http.client.HTTPException):
                pass  # The page has gone, or the server.
            upstream.close()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_behind_a_proxy_with_a_path_the_page_is_the_same_and_live(
    browser: Browser,
    tmp_path: Path,
    written: RunBuilder,
) -> None:
    prefix = "/user/ann/proxy/8321/"
    with dashboard(tmp_path / "runs") as served, proxy(served, prefix) as port:
        address = f"http://127.0.0.1:{port}{prefix}#t={served.access.control}"
        with new_page(browser, address) as watched:
            page = watched.page
            expect(page.locator(".pulse b")).to_have_text("0")
            assert prefix in page.url
            write(written, 1)
            expect(page.locator(".pulse b")).to_have_text("1")
            page.keyboard.press("g")
            page.keyboard.press("f")
            expect(page.locator("h1")).to_contain_text("Findings")
            page.reload()
            expect(page.locator("h1")).to_contain_text("Findings")
        # Streams end, so that the proxy's threads do.
        served.process.kill()


def test_behind_a_proxy_with_a_path_runs_are_compared(
    browser: Browser, tmp_path: Path
) -> None:
    """Its code and its questions have relative addresses, too."""
    prefix = "/hub/user/ann/vscode/proxy/1/"
    for name in ("one", "two"):
        simple_run(tmp_path / "runs" / name)
    with dashboard(tmp_path / "runs") as served, proxy(served, prefix) as port:
        address = f"http://127.0.0.1:{port}{prefix}#t={served.access.control}"
        with new_page(browser, address) as watched:
            page = watched.page
            for name in ("one", "two"):
                page.get_by_label(f"Choose {name}").check()
            page.get_by_role("button", name="Compare 2").click()
            expect(page.locator("canvas.ratio")).to_be_visible()
            expect(page.locator(".divergence")).to_contain_text("Nowhere")
            assert f"{prefix}?screen=compare" in page.url
            page.reload()
            expect(page.locator("canvas.ratio")).to_be_visible()
        served.process.kill()


def test_steps_that_a_resumed_training_replaces_are_replaced_on_an_open_page(
    browser: Browser, tmp_path: Path
) -> None:
    run, again = tmp_path / "runs" / "run", tmp_path / "again"
    name = "gradient/fc.weight"

    def record(path: Path, attempt: int, steps: range, value: float) -> None:
        uuid = bytes([attempt]) * 16
        with RunBuilder(path, attempt=uuid, ordinal=attempt) as builder:
            for step in steps:
                builder.step(step, {name: np.full(4, value, np.float32)})

    record(run, 0, range(100), 1)
    shutil.copytree(run, again)
    record(again, 1, range(40, 120), 5)
    (writer,) = {each.name for each in (again / "w").iterdir()} - {
        each.name for each in (run / "w").iterdir()
    }
    with dashboard(run.parent) as served:
        state = {"screen": "tensor", "tensor": name, "at": 60}
        with new_page(browser, page_address(served, "run", **state)) as watched:
            page = watched.page
            values = page.locator("canvas.elements")
            expect(values).to_have_attribute("aria-label", re.compile("zero 1;"))
            page.evaluate(GO_TO_THE_RUN)
            canvas = page.locator("canvas.map-canvas")
            expect(canvas).to_have_attribute("data-drawn", "0 100")
            canvas.focus()
            page.keyboard.press("ArrowLeft")
            read = page.locator(".map .reading")
            expect(read).to_have_text(f"{name} step 591")
            # All of it at once, so that nobody sees the run with fewer steps.
            (again / "w" / writer).rename(run / "w" / writer)
            expect(canvas).to_have_attribute("data-drawn", "0 120")
            expect(read).to_have_text(f"{name} step 595")
            for _ in range(20):
                page.keyboard.press("ArrowLeft")
            expect(read).to_have_text(f"{name} step 391")
            page.go_back()
            expect(values).to_have_attribute("aria-label", re.compile("zero 5;"))
