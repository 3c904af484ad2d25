"""tdbg's dashboard beside TensorBoard, Aim and Trackio, in one browser.

    python -m benchmarks.ui --quick                       twelve tensors, 200 steps
    python -m benchmarks.ui --only tdbg,TensorBoard
    python -m benchmarks.ui --series planted --shots FOLDER
    python -m benchmarks.ui --series live
    python -m benchmarks.ui --folder FOLDER               keep, or use again, the runs

Each is started as its user starts it, on the same series: 1,000 tensors x 1,000 steps,
1,000 x 10,000, and 12 x 10,000 of which six have a spike (x1000, one step) and six a
NaN.  Contenders take turns.  What is measured: from starting the server to the first
contentful paint and to the first chart; processor time; memory of the server and of
the page; what a page of the planted series got, every value checked; and, while 1,000
tensors are written at two steps a second, the bytes that are sent, and how long it
takes from the writing of a step until the page has got it.

Needs a browser and playwright; the contenders live in the environment ``dashboards``:
``python -m benchmarks.environments.create dashboards``.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from playwright.sync_api import Browser, Error, Request

from benchmarks._harness import Report, Table, check, check_equal, options
from benchmarks._harness.machine import ROOT
from benchmarks.ui._pages import Visit, browser, opened, renderers
from benchmarks.ui._proxy import counted
from benchmarks.ui._series import SERIES, Series
from benchmarks.ui._server import Server, python_for, served
from benchmarks.ui.contenders import CONTENDERS, load

SIZES = ("1,000 x 1,000", "1,000 x 10,000")
WHAT = (*SIZES, "planted", "live")
CHART_SECONDS = 180.0
# What comes after the first chart: the rest of the screen.
SETTLE_MS = 5000
# All charts of the planted series are on a screen so high.
HIGH = 5000
LIVE_BEGIN, LIVE_RATE = 200, 2.0


def main() -> None:
    given = arguments()
    names = [name for name in given.only.split(",") if name]
    series = [name for name in given.series.split(";") if name]
    with place(given.folder) as folder, browser() as found:
        tables, data = [], {}
        for name in series:
            if name == "live":
                seconds = 5.0 if given.quick else given.seconds
                tables.append(live(found, names, folder, seconds, data))
            elif name in ("planted", "quick"):
                shots = given.shots
                tables.append(planted(found, names, folder, SERIES[name], shots, data))
            else:
                rounds = given.rounds or 3
                tables.append(first_screens(found, names, folder, name, rounds, data))
    packages = ["playwright", *(p for name in names for p in load(name).PACKAGES)]
    name = "quick" if given.quick else "-".join(map(slug, series))
    Report(f"ui/{name}", given, packages, tables, data=data).save()


def arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--only", default=",".join(CONTENDERS), help="contenders")
    parser.add_argument("--series", default=";".join(WHAT), help="with semicolons")
    parser.add_argument("--folder", type=Path, help="of runs, kept")
    parser.add_argument("--shots", type=Path, help="folder for pictures of the planted")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the live run")
    given = parser.parse_args()
    if given.quick and given.series == ";".join(WHAT):
        given.series = "quick;live"
    return given


def slug(name: str) -> str:
    """A name as a folder has it."""
    return name.replace(",", "").replace(" ", "")


@contextmanager
def place(given: Path | None) -> Iterator[Path]:
    """The folder of the runs; one of its own that goes away where none is given."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def command(contender: str, folder: Path, series: str, *more: str) -> list[str]:
    """What writes a series as users of a contender do."""
    python = str(python_for(load(contender)))
    module = "benchmarks.ui.contenders.writing"
    return [python, "-m", module, contender, str(folder), series, *more]


def written(contender: str, folder: Path, series: Series) -> Path:
    """The folder of a contender's run, which is written where it is not there yet."""
    home = folder / slug(series.name) / contender.lower()
    if not (home / "written").exists():
        shutil.rmtree(home, ignore_errors=True)
        print(f"{contender}: writing {series.name}", flush=True)
        done = subprocess.run(
            command(contender, home, series.name),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        check_equal(done.returncode, 0, f"{contender}: writing {series.name}")
        (home / "written").touch()
    return home


def address(contender: str, folder: Path, server: Server, port: int = 0) -> str:
    """What a user opens; at another port where a proxy stands before the server."""
    path = load(contender).path(folder, server.printed)
    return f"http://127.0.0.1:{port or server.port}{path}"


# --- The first screen ------------------------------------------------------------


def first_screens(
    found: Browser,
    names: list[str],
    folder: Path,
    series: str,
    rounds: int,
    data: dict[str, Any],
) -> Table:
    """From the start of each server to its first chart, in turns."""
    homes = {name: written(name, folder, SERIES[series]) for name in names}
    measured: dict[str, list[dict[str, float] | None]] = {name: [] for name in names}
    dice = random.Random(1)
    for _ in range(rounds):
        for name in dice.sample(names, len(names)):
            # Who drew nothing in time once is not waited for again.
            if None not in measured[name]:
                one = first_screen(found, name, homes[name])
                measured[name].append(one)
                print(series, name, one, flush=True)
    data[series] = measured
    table = Table(
        f"First screen of {series}",
        (
            "dashboard",
            "server answers, s",
            "first paint, s",
            "first chart, s",
            "server's processor, s",
            "page's processor, s",
            "server, MB",
            "page, MB",
            "of it JavaScript, MB",
        ),
        note=f"Medians of {rounds}; seconds from the start of the server; MB: PSS.",
    )
    for name, rows in measured.items():
        table.add(name, *cells([row for row in rows if row]))
    return table


KEYS = ("reached", "paint", "chart", "cpu", "page_cpu", "pss", "page_pss", "heap")


def cells(rows: list[dict[str, float]]) -> list[str]:
    """The medians as text; nothing where no chart came."""
    if not rows:
        return ["", "", f"none in {CHART_SECONDS:.0f}", *[""] * (len(KEYS) - 3)]
    return [f"{np.median([row[key] for row in rows]):.3g}" for key in KEYS]


def first_screen(found: Browser, name: str, home: Path) -> dict[str, float] | None:
    """One start of a server and one page of it; None: no chart in time."""
    contender = load(name)
    before, _ = renderers(found)
    with (
        served(contender, home) as server,
        opened(found, address(name, home, server), contender.DRAWN) as visit,
    ):
        paints = visit.await_chart(CHART_SECONDS, contender.RELOAD_SECONDS)
        if paints is None:
            return None
        cpu, (page_cpu, _) = server.cpu_seconds(), renderers(found)
        visit.page.wait_for_timeout(SETTLE_MS)
        heap = visit.heap()
        _, page = renderers(found)
        memory = server.memory()
        return {
            "reached": server.reached - server.started,
            "paint": paints.contentful - server.started,
            "chart": paints.chart - server.started,
            "paint_after_opening": paints.contentful - visit.opened,
            "chart_after_opening": paints.chart - visit.opened,
            "cpu": cpu,
            "page_cpu": page_cpu - before,
            "pss": memory.pss,
            "rss": memory.rss,
            "page_pss": page.pss,
            "heap": heap,
            "foreign": len(visit.foreign),
        }


# --- What is planted -------------------------------------------------------------


def planted(
    found: Browser,
    names: list[str],
    folder: Path,
    series: Series,
    shots: Path | None,
    data: dict[str, Any],
) -> Table:
    """What a page that shows all charts of a series got of it."""
    table = Table(
        f"What comes to the page of {series.n_tensors} tensors x "
        f"{series.n_steps:,} steps",
        ("dashboard", "series", "steps of each", "spikes", "NaN", "foreign requests"),
        note=(
            f"Each of {series.n_planted} tensors has a spike (x1000, one step), each of"
            f" {series.n_planted} others a NaN.  Every value that came was checked."
        ),
    )
    for name in names:
        contender, home = load(name), written(name, folder, series)
        with (
            served(contender, home) as server,
            opened(
                found, address(name, home, server), contender.DRAWN, height=HIGH
            ) as visit,
        ):
            drawn = visit.await_chart(CHART_SECONDS, contender.RELOAD_SECONDS)
            check(drawn, f"{name}: no chart")
            visit.page.wait_for_timeout(SETTLE_MS)
            if shots is not None:
                take(visit, shots / f"{slug(series.name)}-{name.lower()}.png")
            answers = visit.answers(contender.ANSWER)
            seen = contender.shown(series, answers)
            data[f"{series.name} {name}"] = vars(seen) | {"foreign": visit.foreign}
            check_equal(seen.n_series, series.n_tensors, f"{name}: number of series")
            table.add(
                name,
                seen.n_series,
                f"{seen.n_rows:,}",
                f"{seen.n_spikes} of {series.n_planted}",
                f"{seen.n_holes} of {series.n_planted}",
                len(visit.foreign),
            )
            print(table.rows[-1], flush=True)
            if name == "tdbg":
                everything = (series.n_steps, series.n_planted, series.n_planted)
                got = (seen.n_rows, seen.n_spikes, seen.n_holes)
                check_equal(got, everything, "tdbg: rows, spikes and NaN")
    return table


def take(visit: Visit, path: Path) -> None:
    """A picture of the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    visit.page.screenshot(path=path)


# --- While it is written ---------------------------------------------------------


def live(
    found: Browser,
    names: list[str],
    folder: Path,
    seconds: float,
    data: dict[str, Any],
) -> Table:
    """Bytes that a page is sent of a run that is written, and how late they come."""
    series = SERIES["live"]
    table = Table(
        f"While {series.n_tensors:,} tensors are written, {LIVE_RATE:g} steps a second",
        (
            "dashboard",
            "MB a minute",
            "step to page, s",
            "at most, s",
            "server's processor, %",
            "page's processor, %",
            "page, MB",
        ),
        note=(
            f"{seconds:.0f} seconds each, after {LIVE_BEGIN} steps. Step to page: from"
            " the return of the call that wrote a step until the page has an answer"
            " that holds it (median); drawing comes on top."
        ),
    )
    for name in names:
        one = follow(found, name, folder / "live" / name.lower(), seconds)
        data[f"live {name}"] = one
        delays = one["delays"]
        never = f"none in {seconds:.0f}"
        table.add(
            name,
            f"{one['sent'] / one['seconds'] * 60 / 1e6:.3g}",
            f"{np.median(delays):.3g}" if delays else never,
            f"{max(delays):.3g}" if delays else "",
            f"{100 * one['cpu'] / one['seconds']:.0f}",
            f"{100 * one['page_cpu'] / one['seconds']:.0f}",
            f"{one['page_pss']:.0f}",
        )
        print(table.rows[-1], flush=True)
    return table


def follow(found: Browser, name: str, home: Path, seconds: float) -> dict[str, Any]:
    """Watch a page while a process writes the run."""
    contender = load(name)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    pace = ("--begin", str(LIVE_BEGIN), "--rate", str(LIVE_RATE))
    arrived: dict[int, float] = {}
    with (
        writing(command(name, home, "live", *pace), home / "written") as begin,
        served(contender, home) as server,
        counted(server.port) as proxy,
        opened(
            found, address(name, home, server, proxy.port), contender.DRAWN
        ) as visit,
    ):
        drawn = visit.await_chart(CHART_SECONDS, contender.RELOAD_SECONDS)
        check(drawn, f"{name}: no chart")
        visit.page.wait_for_timeout(SETTLE_MS)
        watch(visit, contender.ANSWER, contender.newest, arrived)
        sent, cpu, (before, _) = proxy.sent, server.cpu_seconds(), renderers(found)
        begin()
        visit.page.wait_for_timeout(1000 * seconds)
        sent, cpu = proxy.sent - sent, server.cpu_seconds() - cpu
        after, page = renderers(found)
    # Some contenders print lines of their own.
    text = (home / "written").read_text()
    steps = dict(re.findall(r"^(\d+) (\d+\.\d+)$", text, re.MULTILINE))
    delays = []
    for step, when in steps.items():
        holding = [at for newest, at in arrived.items() if newest >= int(step)]
        if holding:
            delays.append(min(holding) - float(when))
    return {
        "sent": sent,
        "seconds": seconds,
        "cpu": cpu,
        "page_cpu": after - before,
        "page_pss": page.pss,
        "delays": delays,
        "n_steps": len(steps),
    }


@contextmanager
def writing(order: list[str], output: Path) -> Iterator[Any]:
    """A process that has written the first steps; what is entered lets it go on."""
    with output.open("w") as lines:
        process = subprocess.Popen(
            order, cwd=ROOT, stdin=subprocess.PIPE, stdout=lines, text=True
        )
        stdin = cast("IO[str]", process.stdin)

        def begin() -> None:
            stdin.write("go\n")
            stdin.flush()

        try:
            while "ready" not in output.read_text():
                check(process.poll() is None, f"{order}: ended")
            yield begin
        finally:
            stdin.close()
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()


def watch(visit: Visit, part: str, newest: Any, arrived: dict[int, float]) -> None:
    """Note when answers came, by the newest step that they hold."""

    def done(request: Request) -> None:
        now = time.time()
        response = request.response()
        if part in request.url and response is not None:
            # The page may be closed while its last answers are read.
            with suppress(Error):
                step = newest(response.body())
                if step is not None:
                    arrived.setdefault(step, now)

    visit.page.on("requestfinished", done)


if __name__ == "__main__":
    main()
