"""The live view in JupyterLab, driven by a browser: ``make test-jupyterlab``."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from run_builder import RunBuilder

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TOKEN = secrets.token_hex(16)
UPDATES = 10
SECONDS = 90


def notebook(path: str) -> str:
    source = f"import tdbg\ntdbg.notebook.live(tdbg.create_trial({path!r}))"
    cell = {
        "cell_type": "code",
        "id": "live",
        "metadata": {},
        "source": source,
        "execution_count": None,
        "outputs": [],
    }
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps(
        {
            "cells": [cell],
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab whose folder and settings are of this test."""
    kernel = tmp_path / "data" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    (tmp_path / "work").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = ("data", "config", "runtime", "ipython")
    own = {f"JUPYTER_{name.upper()}_DIR": str(tmp_path / name) for name in names}
    log = (tmp_path / "log").open("wb")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
            *(f"--port={port}", "--ServerApp.port_retries=0"),
            *(f"--IdentityProvider.token={TOKEN}", "--expose-app-in-browser"),
            f"--ServerApp.root_dir={tmp_path / 'work'}",
        ],
        env={
            **os.environ,
            **own,
            "IPYTHONDIR": str(tmp_path / "ipython"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + SECONDS
        while not answers(address):
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until, (tmp_path / "log").read_text()
        yield address
    finally:
        # Kernels see that their server is gone, and follow.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(SECONDS)
        log.close()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=5):  # noqa: S310
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def test_a_cell_follows_a_training_update_by_update_until_it_has_ended(
    browser: Browser, laboratory: str, tmp_path: Path
) -> None:
    run = RunBuilder(tmp_path / "work" / "run")

    def step(i: int) -> None:
        array = np.full(4, i + 1, np.float32)
        run.save(i, "gradient/fc.weight", array, what="statistics")
        run.end_step(i)
        run.capture.flush()

    step(0)
    path = tmp_path / "work" / "live.ipynb"
    path.write_text(notebook(str(tmp_path / "work" / "run")))
    context = browser.new_context(
        locale="en-US", viewport={"width": 1280, "height": 900}
    )
    page = context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    page.goto(f"{laboratory}/lab/tree/live.ipynb?token={TOKEN}")
    page.locator(".jp-Cell .cm-content").first.click()
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute(
        "data-status", "idle", timeout=SECONDS * 1000
    )
    page.keyboard.press("Control+Enter")
    live = page.locator(".live")
    expect(live).to_have_attribute("data-steps", "1", timeout=SECONDS * 1000)
    for i in range(1, UPDATES + 1):
        step(i)
        expect(live).to_have_attribute("data-steps", str(i + 1), timeout=30_000)
    expect(page.locator(".map-canvas")).to_be_visible()
    expect(page.locator(".tdbg-live-host")).to_have_attribute("data-theme", "light")
    run.close()
    expect(live).to_have_attribute("data-status", "closed", timeout=30_000)
    picture = os.environ.get("TDBG_PICTURE_OF_NOTEBOOK")
    if picture:
        page.screenshot(path=picture)
    context.close()
