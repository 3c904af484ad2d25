"""What tdbg's own dashboard should reach, measured: from the first paint to a report.

    python -m benchmarks.ui.targets [--quick] [--only screen,zoom,...] [--folder FOLDER]

Runs of 1,000 tensors x 10,000 steps (10^7 rows) and of 10,000 x 2,000, a thousand
short runs, and a training that is watched; with ``--quick`` a fiftieth of each.  Every
picture is one of a real browser; answers are checked.
Needs what ``python -m benchmarks.ui`` needs, but no contender.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from playwright.sync_api import Browser, Page

from benchmarks._harness import Ratio, Report, Table, check, check_equal, options
from benchmarks._harness.machine import ROOT
from benchmarks.ui.__main__ import address, first_screen, place
from benchmarks.ui._many_runs import many_runs
from benchmarks.ui._pages import Visit, browser, opened, renderers
from benchmarks.ui._series import Series
from benchmarks.ui._server import Server, served
from benchmarks.ui.contenders import tdbg_ui
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run

ENVIRONMENT = "ui"
WHAT = ("screen", "zoom", "hover", "scrub", "runs", "heap", "cost", "report")
# Steps of a training that is watched, and how long it is watched at a time.
PERIOD_SECONDS = 1.5
WATCHED, ALONE, SPUN = KINDS = ("watched", "alone", "beside a program that spins")
# Of a program that is to stand still, or to go on.
SIGNALS = (signal.SIGSTOP, signal.SIGCONT)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default=",".join(WHAT), help="what to measure")
    parser.add_argument("--folder", type=Path, help="of runs, kept")
    parser.add_argument("--train", type=Path, help="(inside) a training, there")
    parser.add_argument("--spin", type=float, help="(inside) keep a processor busy")
    given = parser.parse_args()
    if given.spin:
        spin(given.spin)
    if given.train:
        train(given.train)
        return
    less = 50 if given.quick else 1
    rounds = given.rounds or (3 if given.quick else 20)
    table = Table("Targets of the dashboard", ("what", "measured"))
    data: dict[str, Any] = {}
    only = given.only.split(",")
    with place(given.folder) as folder, browser() as found:
        long = Series("long", 1000, 10_000 // less)
        wide = Series("wide", 10_000 // less, 2000)
        measures: dict[str, Callable[[], list[tuple[str, str]]]] = {
            "screen": lambda: screen(found, written(folder, long), rounds, data),
            "zoom": lambda: zoom(found, written(folder, long), rounds, data),
            "hover": lambda: hover(found, written(folder, long), rounds, data),
            "scrub": lambda: scrub(found, written(folder, wide), 10 * rounds, data),
            "runs": lambda: many_runs(found, folder / "runs", 1000 // less, data),
            "heap": lambda: heap(found, folder / "heap", 6000 // less, data),
            "cost": lambda: cost(found, folder / "cost", rounds, data),
            "report": lambda: report(found, written(folder, long), data),
        }
        for what in only:
            for row in measures[what]():
                table.add(*row)
                print(*row, sep=": ", flush=True)
    name = "ui/targets-quick" if given.quick else "ui/targets"
    Report(name, given, ("tdbg", "playwright"), [table], data=data).save()


def written(folder: Path, series: Series) -> Path:
    """The folder of a run of a series, which is written where it is not there yet."""
    home = folder / series.name / f"{series.n_tensors}x{series.n_steps}"
    if not home.exists():
        unfinished = home.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with tdbg_ui.write(unfinished, series) as write:
            for step in range(series.n_steps):
                write(step)
        unfinished.rename(home)
    return home


def text(values: list[float], unit: str) -> str:
    """Median and 95th percentile."""
    low, high = np.percentile(values, [50, 95])
    return f"{low:.3g} {unit} (p95 {high:.3g}, {len(values)} times)"


@contextmanager
def dashboard(found: Browser, home: Path) -> Iterator[tuple[Server, Visit]]:
    """A server and a page of it, with the first chart drawn."""
    with (
        served(tdbg_ui, home) as server,
        opened(found, address("tdbg", home, server), tdbg_ui.DRAWN) as visit,
    ):
        check(visit.await_chart(60), "no chart")
        visit.page.wait_for_timeout(1000)
        yield server, visit


def screen(
    found: Browser, home: Path, rounds: int, data: dict[str, Any]
) -> list[tuple[str, str]]:
    """From the address to the first paint and the layer map; memory of the server."""
    warm, cold = [], []
    for _ in range(min(rounds, 5)):
        for kept, is_cold in ((warm, False), (cold, True)):
            if is_cold:
                forget(home)
            one = first_screen(found, "tdbg", home)
            kept.append(cast("dict[str, float]", one))
    with served(tdbg_ui, home) as server:
        time.sleep(1)
        idle = server.memory()
    data["screen"] = {"warm": warm, "cold": cold, "idle": vars(idle)}
    rows = []
    for what, kept in (("warm", warm), ("cold", cold)):
        for key, name in (
            ("paint_after_opening", "address to first contentful paint"),
            ("chart_after_opening", "address to the layer map"),
            ("chart", "start of `tdbg ui` to the layer map"),
        ):
            seconds = text([one[key] for one in kept], "s")
            rows.append((f"{name}, {what} cache", seconds))
    for key, name in (("cpu", "server"), ("page_cpu", "page")):
        seconds = text([one[key] for one in warm], "s")
        rows.append((f"processor time of the {name} until then", seconds))
    pss, rss = (statistics.median(one[key] for one in warm) for key in ("pss", "rss"))
    rows.append(("server after the first screen", f"{pss:.0f} MB (RSS {rss:.0f})"))
    rows.append(("server idle", f"{idle.pss:.0f} MB (RSS {idle.rss:.0f})"))
    return rows


def forget(home: Path) -> None:
    """Have the system drop what it keeps of the files of a run."""
    for path in home.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


# From letting the mouse go until two frames after the envelopes have come.
ZOOM = """() => new Promise((done) => {
  let released = 0;
  addEventListener('pointerup', () => { released = performance.now(); },
    { once: true, capture: true });
  const seen = new PerformanceObserver((list) => {
    for (const each of list.getEntriesByType('resource'))
      if (released && each.startTime >= released && each.name.includes('/envelope')) {
        seen.disconnect();
        requestAnimationFrame(() => requestAnimationFrame(
          () => { window.benchmarkZoom = performance.now() - released; }));
        return;
      }
  });
  seen.observe({ type: 'resource' });
  window.benchmarkZoom = null;
  done();
})"""


def zoom(
    found: Browser, home: Path, rounds: int, data: dict[str, Any]
) -> list[tuple[str, str]]:
    """Ranges that are dragged over the map."""
    dice = np.random.default_rng(3)
    taken = []
    with dashboard(found, home) as (_, visit):
        page = visit.page
        left, top, width = map_box(page)
        for _ in range(rounds):
            start, share = dice.uniform(0.05, 0.45), dice.uniform(0.1, 0.45)
            page.evaluate(ZOOM)
            page.mouse.move(left + start * width, top + 40)
            page.mouse.down()
            page.mouse.move(left + (start + share) * width, top + 40, steps=3)
            page.mouse.up()
            taken.append(awaited(page, "window.benchmarkZoom"))
            page.mouse.dblclick(left + width / 2, top + 40)
            page.wait_for_timeout(400)
    data["zoom"] = taken
    return [("zoom to refined picture", text(taken, "ms"))]


def map_box(page: Page) -> tuple[float, float, float]:
    """Left, top and width of the cells of the layer map, in the window."""
    canvas = page.locator("canvas.map-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    check(box, "no layer map")
    labels = float(canvas.get_attribute("data-labels") or 0)
    found = cast("dict[str, float]", box)
    return found["x"] + labels, found["y"], found["width"] - labels


def awaited(page: Page, expression: str) -> float:
    """The number that an expression is, as soon as it is one."""
    for _ in range(1000):
        found = page.evaluate(expression)
        if found is not None:
            return float(found)
        page.wait_for_timeout(10)
    check(False, f"never: {expression}")
    return 0.0


# From a movement of the mouse until the frame after the reading has changed.
HOVER = """() => {
  window.benchmarkHover = [];
  let moved = 0;
  addEventListener('pointermove', () => { moved = performance.now(); },
    { capture: true });
  new MutationObserver(() => {
    const since = moved;
    if (since) requestAnimationFrame(
      () => window.benchmarkHover.push(performance.now() - since));
    moved = 0;
  }).observe(document.querySelector('.map .reading'),
    { childList: true, characterData: true, subtree: true });
}"""


def hover(
    found: Browser, home: Path, rounds: int, data: dict[str, Any]
) -> list[tuple[str, str]]:
    """The reading below the map, and an exact row of the server."""
    with dashboard(found, home) as (_, visit):
        page = visit.page
        left, top, width = map_box(page)
        page.evaluate(HOVER)
        for i in range(5 * rounds):
            share = (0.5 + i * 0.618) % 1
            page.mouse.move(left + share * (width - 4) + 2, top + 20 + (7 * i) % 200)
            page.wait_for_timeout(30)
        taken = page.evaluate("window.benchmarkHover")
        rows = exact_rows(visit, rounds)
    data["hover"] = {"reading": taken, "rows": rows}
    return [
        ("hover to reading", text(taken, "ms")),
        ("exact row, request to answer", text(rows, "ms")),
    ]


def exact_rows(visit: Visit, rounds: int) -> list[float]:
    """Milliseconds of questions for one row each, as the page asks them."""
    (asked, *_) = (one for (url, *_), one in visit.asked.items() if "api/run?" in url)
    headers = {"x-tdbg-token": asked.headers["x-tdbg-token"]}
    begin = asked.url.replace("api/run?", "api/rows?")
    taken = []
    for i in range(rounds + 1):
        name = f"gradient/blocks.{i}.key.weight"
        step = 13 * i
        url = f"{begin}&name={name}&start={step}&stop={step + 1}"
        script = """async ([url, headers]) => {
          const before = performance.now();
          const answer = await (await fetch(url, { headers })).json();
          return [performance.now() - before, answer.rows.map((row) => row.step)];
        }"""
        milliseconds, steps = visit.page.evaluate(script, [url, headers])
        check_equal(steps, [step], "the step of a row")
        taken.append(milliseconds)
    return taken[1:]


FRAMES = """() => {
  window.benchmarkFrames = [];
  let last = performance.now();
  const note = (now) => {
    window.benchmarkFrames.push(now - last);
    last = now;
    if (window.benchmarkFrames) requestAnimationFrame(note);
  };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(note); });
}"""


def scrub(
    found: Browser, home: Path, moves: int, data: dict[str, Any]
) -> list[tuple[str, str]]:
    """Frames while the mouse moves over the map."""
    with dashboard(found, home) as (_, visit):
        page = visit.page
        left, top, width = map_box(page)
        before, _ = renderers(found)
        page.evaluate(FRAMES)
        for i in range(moves):
            share = (i / moves * 3) % 1
            page.mouse.move(left + share * (width - 4) + 2, top + 20 + (3 * i) % 300)
        frames = page.evaluate("window.benchmarkFrames")
        after, _ = renderers(found)
    data["scrub"] = frames
    work = 1e3 * (after - before) / len(frames)
    return [
        ("frames while scrubbing", text(frames, "ms")),
        ("processor time of the page, a frame", f"{work:.3g} ms"),
    ]


def heap(
    found: Browser, folder: Path, n: int, data: dict[str, Any]
) -> list[tuple[str, str]]:
    """What a page holds of a run that so many steps are added to while it looks."""
    shutil.rmtree(folder, ignore_errors=True)
    series = Series("heap", 1000, n)
    with tdbg_ui.write(folder, series) as write:
        for step in range(100):
            write(step)
        with dashboard(found, folder) as (server, visit):
            kept = [visit.heap()]
            for part in np.array_split(np.arange(100, n), 20):
                for step in part.tolist():
                    write(step)
                    if step % 20 == 0:
                        visit.page.wait_for_timeout(20)
                visit.page.wait_for_timeout(300)
                kept.append(visit.heap())
            _, page = renderers(found)
            memory = server.memory()
    data["heap"] = {"heap": kept, "page": page.pss, "server": memory.pss}
    return [
        (f"heap of the page after {n:,} live steps", f"{kept[-1]:.3g} MB"),
        (
            "heap of the page at first, and at most",
            f"{kept[0]:.3g}, {max(kept):.3g} MB",
        ),
        ("processes of the page", f"{page.pss:.0f} MB"),
        ("server after that", f"{memory.pss:.0f} MB (RSS {memory.rss:.0f})"),
    ]


def train(path: Path) -> None:
    """Compute and capture 400 tensors a step; say the processor time of each."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    values = np.random.default_rng(0).normal(size=(400, 4096)).astype(np.float32)
    ids = [
        capture.define(
            f"gradient/{i:03}.weight", int(Role.GRADIENT), "float32", (4096,)
        )
        for i in range(len(values))
    ]
    pointers = [row.ctypes.data for row in values]
    square = values[:400, :400]
    is_over = threading.Event()
    threading.Thread(
        target=lambda: (sys.stdin.readline(), is_over.set()), daemon=True
    ).start()
    step = 0
    while not is_over.is_set():
        before = time.thread_time()
        for _ in range(8):
            square @ square
        capture.statistics(step, ids, pointers)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        print(time.time(), time.thread_time() - before, flush=True)
        step += 1
        time.sleep(0.02)
    capture.flush()
    capture.close()


def spin(share: float) -> None:
    """Compute for this share of the time, without memory, until killed."""
    while True:
        until = time.perf_counter() + share * 0.05
        while time.perf_counter() < until:
            pass
        time.sleep((1 - share) * 0.05)


def cost(
    found: Browser, folder: Path, rounds: int, data: dict[str, Any]
) -> list[tuple[str, str]]:
    """Steps of a training while a page looks, beside steps while the server rests.

    What a busy processor costs the one beside it, whoever keeps it busy, is told by a
    program that spins for as long as the server and the page compute.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    order = [sys.executable, "-m", "benchmarks.ui.targets"]
    output = folder.with_suffix(".times")
    spans: list[tuple[float, float, str]] = []
    with output.open("w") as lines:
        process = subprocess.Popen(
            [*order, "--train", str(folder / "run")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=lines,
            text=True,
        )
        spinner: subprocess.Popen[bytes] | None = None
        try:
            while len(output.read_text().splitlines()) < 20:
                check(process.poll() is None, "the training ended")
                time.sleep(0.1)
            with dashboard(found, folder) as (server, visit):
                cpu, since = busy_seconds(found, server), time.time()
                visit.page.wait_for_timeout(2e3 * PERIOD_SECONDS)
                share = (busy_seconds(found, server) - cpu) / (time.time() - since)
                spinner = subprocess.Popen([*order, "--spin", str(share)], cwd=ROOT)
                for _ in range(rounds):
                    for kind in KINDS:
                        os.killpg(server.session, SIGNALS[kind == WATCHED])
                        spinner.send_signal(SIGNALS[kind == SPUN])
                        started = time.time()
                        visit.page.wait_for_timeout(1e3 * PERIOD_SECONDS)
                        spans.append((started, time.time(), kind))
                os.killpg(server.session, signal.SIGCONT)
            cast("IO[str]", process.stdin).close()
            process.wait(60)
        finally:
            for each in (process, spinner):
                if each is not None:
                    each.kill()
                    each.wait()
    steps = np.loadtxt(output, ndmin=2)
    medians: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for begin, end, kind in spans:
        inside = steps[(steps[:, 0] > begin + 0.2) & (steps[:, 0] < end), 1]
        check(len(inside) > 2, "the training made no steps")
        medians[kind].append(float(np.median(inside)))
    data["cost"] = {**medians, "share": share}
    watched, spun = (
        Ratio.of([a / b for a, b in zip(medians[kind], medians[ALONE], strict=True)])
        for kind in (WATCHED, SPUN)
    )
    return [
        ("step with a viewer / without, processor time", str(watched)),
        ("step beside a program that only spins / without", str(spun)),
        ("server's and page's share of a processor", f"{100 * share:.0f} %"),
    ]


def busy_seconds(found: Browser, server: Server) -> float:
    """Processor time that the server and the page have taken."""
    return server.cpu_seconds() + renderers(found)[0]


FIRST_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  const [first] = list.getEntriesByName('first-contentful-paint');
  if (first) done(first.startTime);
}).observe({ type: 'paint', buffered: true }))"""


def report(found: Browser, home: Path, data: dict[str, Any]) -> list[tuple[str, str]]:
    """The report of the run as one file."""
    path = home.parent / "report.html"
    before = os.times()
    order = [sys.executable, "-m", "tdbg", "report", str(home / "run"), "-o", str(path)]
    done = subprocess.run(order, stdout=subprocess.DEVNULL, check=False)
    check_equal(done.returncode, 0, "tdbg report")
    after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])
    context = found.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    ready = page.evaluate(FIRST_PAINT)
    context.close()
    size = path.stat().st_size / 1e6
    data["report"] = {"seconds": seconds, "megabytes": size, "ready_ms": ready}
    return [
        ("report, processor time", f"{seconds:.3g} s"),
        ("report, size", f"{size:.3g} MB"),
        ("report, first contentful paint", f"{ready:.0f} ms"),
    ]


if __name__ == "__main__":
    main()
