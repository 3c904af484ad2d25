"""How many clicks and keys an answer takes in each dashboard, on the same thirty runs.

    python -m benchmarks.ui.clicks [--only tdbg,MLflow] [--folder FOLDER]

A script does what a user does who knows the way, from the page that lists the runs, and
reads the answer on the screen, which must be what was planted.  Clicks and keys are
what a user would count; *points* is how often the mouse is held over a line to read
whose it is.  Seconds are those of the page and its server: nobody thinks.

Needs what ``python -m benchmarks.ui`` needs, and the environment ``mlflow``.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser

from benchmarks._harness import Report, Table, WrongAnswer, check_equal, options
from benchmarks._harness.machine import ROOT
from benchmarks.ui.__main__ import place
from benchmarks.ui._pages import browser
from benchmarks.ui._server import python_for, served
from benchmarks.ui.answers import DASHBOARDS, QUESTIONS, Dashboard, load
from benchmarks.ui.answers._hand import Hand
from benchmarks.ui.answers._runs import truth

ENVIRONMENT = "ui"
LONGEST_SECONDS = 120.0
POLL_MS = 20


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default=",".join(DASHBOARDS), help="dashboards")
    parser.add_argument("--folder", type=Path, help="of runs, kept")
    given = parser.parse_args()
    names = given.only.split(",")
    rounds = given.rounds or (1 if given.quick else 5)
    with place(given.folder) as folder, browser() as found:
        data = {name: answered(found, name, folder, rounds) for name in names}
    packages = ["playwright", *(p for name in names for p in load(name).PACKAGES)]
    tables = [table_of(question, data) for question in QUESTIONS]
    Report("ui/clicks", given, packages, tables, data=data).save()


def table_of(question: str, data: dict[str, Any]) -> Table:
    """Of all dashboards, one question."""
    heads = ("dashboard", "clicks", "keys", "points", "page ready, s", "then, s")
    table = Table(QUESTIONS[question], heads)
    for name, answers in data.items():
        one = answers[question]
        if isinstance(one, str):
            table.add(name, f"no answer: {one}", "", "", "", "")
            continue
        seconds = (f"{np.median(one[key]):.1f}" for key in ("ready", "then"))
        table.add(name, one["clicks"], one["keys"], one["points"], *seconds)
    return table


def written(name: str, folder: Path) -> Path:
    """The folder of a dashboard's runs, written where they are not there."""
    home = folder / name.lower()
    if (home / "written").exists():
        return home
    shutil.rmtree(home, ignore_errors=True)
    print(f"{name}: writing", flush=True)
    module = [str(python_for(load(name))), "-m", "benchmarks.ui.answers.writing"]
    command = [*module, name, str(home)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    check_equal(done.returncode, 0, f"{name}: writing")
    (home / "written").touch()
    return home


def answered(
    found: Browser, name: str, folder: Path, rounds: int
) -> dict[str, dict[str, Any] | str]:
    """By question: what it took; or why there is no answer."""
    dashboard, home = load(name), written(name, folder)
    answers: dict[str, dict[str, Any] | str] = {}
    with served(dashboard, home) as server:
        path = dashboard.path(home, server.printed)
        address = f"http://127.0.0.1:{server.port}{path}"
        for question in QUESTIONS:
            if question in dashboard.WITHOUT:
                answers[question] = dashboard.WITHOUT[question]
                continue
            every = [one(found, dashboard, address, question) for _ in range(rounds)]
            answers[question] = every[0] | {
                key: [each[key] for each in every] for key in ("ready", "then")
            }
            print(name, question, answers[question], flush=True)
    return answers


def one(
    found: Browser, dashboard: Dashboard, address: str, question: str
) -> dict[str, Any]:
    """Answer a question in a browser that knows nothing yet."""
    context = found.new_context(locale="en-US", viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(1e3 * LONGEST_SECONDS)
    hand, opened = Hand(page), time.monotonic()
    try:
        page.goto(address, wait_until="commit")
        until(hand, lambda: dashboard.is_ready(page), True, "no list of runs")
        ready = time.monotonic()
        read = dashboard.ANSWERS[question](hand)
        until(hand, read, truth()[question], question)
        then = time.monotonic()
    finally:
        context.close()
    counts = {"clicks": hand.clicks, "keys": hand.keys, "points": hand.points}
    return counts | {"ready": ready - opened, "then": then - ready}


def until(hand: Hand, read: Callable[[], object], expected: object, what: str) -> None:
    """Look at the screen until it shows that.

    Raises:
        WrongAnswer: If it never does.
    """
    end = time.monotonic() + LONGEST_SECONDS
    while (seen := read()) != expected:
        if time.monotonic() > end:
            msg = f"{what}: {seen!r} on the screen, expected {expected!r}"
            raise WrongAnswer(msg)
        hand.page.wait_for_timeout(POLL_MS)


if __name__ == "__main__":
    main()
