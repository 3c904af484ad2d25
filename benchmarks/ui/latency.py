"""How soon a step that was written is on the screen of the dashboard.

    python -m benchmarks.ui.latency [--tensors 1000] [--steps 400] [--a-second 20]

A process writes steps of so many gradients, as a training does; ``tdbg ui`` serves them
to a browser that shows the run.  From ``end_step`` returning in the training to the
frame after the map was drawn with that step: how long, and what does an update cost the
server's processor?  Nothing is flushed: the writer's own rhythm is part of the figure.
Every step must be drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
from playwright.sync_api import Page, sync_playwright

from benchmarks._harness import Report, Table, check, options
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ELEMENTS = 16
# A first screen is drawn before anything is measured.
FIRST_STEPS = 20
LONGEST_SECONDS = 60.0
TICKS = os.sysconf("SC_CLK_TCK")

# Notes the end of what the map shows, and when the frame with it was drawn, by the
# clock of the machine.
WATCH = """() => {
  window.drawn = [];
  const canvas = document.querySelector("canvas.map-canvas");
  const note = () => {
    const end = Number(canvas.dataset.drawn.split(" ")[1]);
    const channel = new MessageChannel();
    // After the frame: a task that follows it.
    channel.port1.onmessage = () =>
      window.drawn.push([end, performance.timeOrigin + performance.now()]);
    requestAnimationFrame(() => channel.port2.postMessage(0));
  };
  new MutationObserver(note).observe(canvas, { attributeFilter: ["data-drawn"] });
}"""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--a-second", type=float, default=20.0)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.steps = 60
    if given.write:
        write(given.write, given.tensors, given.steps, given.a_second)
        return
    with tempfile.TemporaryDirectory() as folder:
        report(given, Path(folder) / "run")


def write(path: Path, n_tensors: int, n_steps: int, a_second: float) -> None:
    """Write steps at that rate when told to; print when each had ended."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    random = np.random.default_rng(0)
    values = np.zeros((n_tensors, ELEMENTS), np.float32)
    ids = [
        capture.define(f"gradient/layer{i}.weight", Role.GRADIENT, "float32", (16,))
        for i in range(n_tensors)
    ]
    pointers = [row.ctypes.data for row in values]
    ended = []
    begun = time.monotonic()
    for step in range(FIRST_STEPS + n_steps):
        if step == FIRST_STEPS:
            capture.flush()
            print("ready", flush=True)
            sys.stdin.readline()
            begun = time.monotonic()
        values[:] = random.normal(size=values.shape)
        capture.statistics(step, ids, pointers)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        ended.append(time.time())
        due = begun + (step - FIRST_STEPS + 1) / a_second
        if step >= FIRST_STEPS:
            time.sleep(max(0.0, due - time.monotonic()))
    print(json.dumps(ended), flush=True)
    sys.stdin.readline()
    capture.close()


def report(given: argparse.Namespace, path: Path) -> None:
    delays, updates, processor = measure(
        path, given.tensors, given.steps, given.a_second
    )
    title = f"From a step written to its pixels, {given.tensors:,} tensors"
    table = Table(title, ("what", "p50", "p90", "p99", "largest"))
    shares = np.percentile(1e3 * np.asarray(delays), (50, 90, 99, 100))
    what = f"ms, at {given.a_second:g} steps a second"
    table.add(what, *(f"{value:.0f}" for value in shares))
    cost = Table("What an update costs the server", ("what", "ms of a processor"))
    cost.add(f"{updates} updates", f"{1e3 * processor / updates:.1f}")
    data = {"delays": delays, "updates": updates, "processor_seconds": processor}
    Report("ui/latency", given, tables=[table, cost], data=data).save()


def measure(
    path: Path, n_tensors: int, n_steps: int, a_second: float
) -> tuple[list[float], int, float]:
    """Seconds from each step to its pixels; updates; the server's processor time."""
    sizes = [f"--tensors={n_tensors}", f"--steps={n_steps}", f"--a-second={a_second}"]
    module = [sys.executable, "-m", "benchmarks.ui.latency"]
    writer = subprocess.Popen(
        [*module, "--write", str(path), *sizes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    told, tell = cast("IO[str]", writer.stdout), cast("IO[str]", writer.stdin)
    try:
        check(told.readline() == "ready\n", "the writer did not begin")
        with _served(path) as (address, server), _page(address) as page:
            page.wait_for_function(
                f"() => document.querySelector('canvas.map-canvas')?.dataset.drawn"
                f" === '0 {FIRST_STEPS}'"
            )
            page.evaluate(WATCH)
            before = _processor_seconds(server)
            tell.write("\n")
            tell.flush()
            ended = json.loads(told.readline())
            page.wait_for_function(
                f"() => window.drawn.at(-1)?.[0] === {FIRST_STEPS + n_steps}"
            )
            drawn = page.evaluate("() => window.drawn")
            processor = _processor_seconds(server) - before
        tell.write("\n")
        tell.close()
        check(writer.wait(LONGEST_SECONDS) == 0, "the writer failed")
    finally:
        writer.kill()
        writer.wait()
    return delays_of(ended, drawn), len(drawn), processor


def delays_of(
    ended: Sequence[float], drawn: Sequence[tuple[int, float]]
) -> list[float]:
    """From the end of each measured step to the first picture that has it, in seconds.

    Args:
        ended: When each step ended, in seconds of the clock.
        drawn: Pictures by time: the step after their last, and when, in milliseconds.

    Raises:
        WrongAnswer: If a step is in no picture, or in one before it was written.
    """
    ends = np.array([end for end, _ in drawn])
    check((np.diff(ends) >= 0).all(), "the map went back")
    found = []
    for step in range(FIRST_STEPS, len(ended)):
        at = int(np.searchsorted(ends, step, side="right"))
        check(at < len(drawn), f"step {step} was never drawn")
        found.append(drawn[at][1] / 1e3 - ended[step])
    # The clock of a browser has a resolution of 0.1 ms.
    check(min(found) > -1e-3, "a step was drawn before it was written")
    return found


@contextmanager
def _served(path: Path) -> Iterator[tuple[str, int]]:
    """The dashboard as a user starts it: its address and its process."""
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "tdbg", "ui", "--no-browser", "--no-judge"),
            "--port=0",
            str(path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = cast("IO[str]", server.stdout).readline()
        addresses = re.findall(r"http://\S+", line)
        check(addresses, f"no address in {line!r}")
        yield addresses[0], server.pid
    finally:
        server.kill()
        server.communicate()


@contextmanager
def _page(address: str) -> Iterator[Page]:
    program = os.environ.get("TDBG_TEST_BROWSER") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    check(program, "no browser: install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"]
        )
        # Playwright's waiting needs what the page's own policy forbids.
        page = browser.new_context(locale="en-US", bypass_csp=True).new_page()
        page.set_default_timeout(1e3 * LONGEST_SECONDS)
        page.goto(address)
        yield page
        browser.close()


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
