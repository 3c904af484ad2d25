"""A list of many short runs: at first sight, from the cache, and from far away."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page

from benchmarks._harness import check
from benchmarks.ui.__main__ import address
from benchmarks.ui._pages import Visit, opened
from benchmarks.ui._proxy import counted
from benchmarks.ui._server import Server, served
from benchmarks.ui.contenders import tdbg_ui
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run

__all__ = ["many_runs"]

ROWS = "document.querySelectorAll('.run-list .run-row').length"
# Whether what a reader sees first is complete.
IN_VIEW = """() => [...document.querySelectorAll('.run-row')]
  .filter((row) => row.getBoundingClientRect().top < innerHeight)
  .every((row) => !row.classList.contains('unread'))"""
# Requests of which each began when the one before had been answered.
IN_SEQUENCE = """() => {
  const asked = performance.getEntriesByType('resource')
    .filter((each) => each.responseEnd > 0)
    .sort((a, b) => a.responseEnd - b.responseEnd);
  let [n, end] = [0, 0];
  for (const each of asked)
    if (each.startTime >= end) [n, end] = [n + 1, each.responseEnd];
  return n;
}"""
POLL_MS = 20
# A way there and back takes twice as long.
FAR_SECONDS = 0.01


def many_runs(
    found: Browser, folder: Path, n: int, data: dict[str, Any]
) -> list[tuple[str, str]]:
    """What a page of so many runs costs; each has a loss."""
    if len(list(folder.glob("*"))) != n:
        shutil.rmtree(folder, ignore_errors=True)
        for i in range(n):
            short_run(folder / f"run{i:04}")
    measured: dict[str, dict[str, float]] = {}
    with _cache(folder.with_name("cache")):
        for what, seconds in (
            ("at first sight", 0.0),
            ("from the cache", 0.0),
            ("from the cache, 20 ms away", FAR_SECONDS),
        ):
            with served(tdbg_ui, folder) as server:
                measured[what] = visit(found, folder, server, n, seconds)
    data["runs"] = measured
    rows = [row for what, one in measured.items() for row in _told(n, what, one)]
    pss = measured["at first sight"]["pss"]
    return [*rows, ("server after the first sight", f"{pss:.0f} MB")]


def _told(n: int, what: str, one: dict[str, float]) -> list[tuple[str, str]]:
    listed, in_view, complete, cpu = (
        f"{one[each]:.3g} s" for each in ("listed", "in_view", "all", "cpu")
    )
    asked, depth = one["requests"], one["in_sequence"]
    return [
        (f"{n:,} runs listed, {what}", listed),
        (f"those in view complete, {what}", in_view),
        (f"all complete, {what}", complete),
        (f"requests, {what}", f"{asked:.0f}, at most {depth:.0f} in sequence"),
        (f"processor time of the server, {what}", cpu),
    ]


def visit(
    found: Browser, folder: Path, server: Server, n: int, delay: float
) -> dict[str, float]:
    """One visit, *delay* seconds from the server: seconds since it was opened."""
    before = server.cpu_seconds()
    with (
        counted(server.port, delay) as proxy,
        opened(
            found, address("tdbg", folder, server, proxy.port), f"{ROWS} > 0"
        ) as one,
    ):
        paints = one.await_chart(120)
        check(paints, "no list")
        head = one.page.locator(".runs-head h1")
        check(f"{n:,} run" in head.inner_text(), "not all runs are listed")
        in_view = _when(one, lambda: one.page.evaluate(IN_VIEW))
        complete = _when(one, lambda: "reading" not in head.inner_text())
        check_told(one.page)
        return {
            "listed": (paints.chart if paints else 0.0) - one.opened,
            "in_view": in_view,
            "all": complete,
            "requests": len(one.asked),
            "in_sequence": one.page.evaluate(IN_SEQUENCE),
            "bytes": proxy.sent,
            "cpu": server.cpu_seconds() - before,
            "pss": server.memory().pss,
        }


def _when(one: Visit, is_so: Any) -> float:
    while not is_so():
        one.page.wait_for_timeout(POLL_MS)
    return time.time() - one.opened


def check_told(page: Page) -> None:
    """See that a row says what is known of its run: its last loss is 1/50."""
    check("0.02" in page.locator(".run-row").first.inner_text(), "no loss in a row")


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """An empty cache, for the servers that are started meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def short_run(path: Path) -> None:
    """Three tensors and a loss, of fifty steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    roles = [Role.LOSS, Role.WEIGHT, Role.GRADIENT, Role.GRADIENT]
    names = ["loss_output_0", "fc.weight", "gradient/fc.weight", "gradient/fc.bias"]
    ids = [
        capture.define(name, int(role), "float32", (2,))
        for name, role in zip(names, roles, strict=True)
    ]
    values = np.ones((4, 2), np.float32)
    pointers = [row.ctypes.data for row in values]
    for step in range(50):
        values[0] = 1 / (1 + step)
        capture.statistics(step, ids, pointers)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
    capture.flush()
    check(capture.close(), "the run was not written")
