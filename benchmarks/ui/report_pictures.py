"""The pictures of reports, and of a run in a cell, that the documentation shows.

    python -m benchmarks.ui.report_pictures [--runs FOLDER] [--out FOLDER] [NAME ...]

What they show is trained and judged first, where it is not there yet, on a machine that
should have nothing else to do.  Needs torch, scikit-learn, XGBoost and the browser that
``python -m benchmarks.ui`` needs.  Names are those of the files, without their ending.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import torch
from playwright.sync_api import Browser, FloatRect, Page, Route

import tdbg
from benchmarks._harness import check
from benchmarks._harness.machine import ROOT
from benchmarks.ui._pages import browser
from benchmarks.ui._trainings import Training, loader_bound
from benchmarks.ui.pictures import record
from examples.notebook.training import train
from tdbg.notebook.picture import picture

WIDTH = 900
SCALE = 1.25


class Report(NamedTuple):
    """A picture of a report, or of a part of it.

    Attributes:
        runs: Whose report; of two runs, they are compared.
        height: Of the picture, in pixels of the page.
        section: The section that it begins with; empty: the head of the report.
        without: A section that is left out, so that what comes after it is seen.
        is_dark: Which theme.
        options: Of ``tdbg report``.
    """

    runs: tuple[str, ...]
    height: int
    section: str = ""
    without: str = ""
    is_dark: bool = False
    options: tuple[str, ...] = ()


REPORTS = {
    "report_sick": Report(("sick",), 1050, without="run"),
    "report_layers": Report(("healthy",), 1500, "layers", is_dark=True),
    "report_compare": Report(("healthy", "sick"), 1675),
    "report_time": Report(("slow",), 1500, options=("--profile",)),
    "report_xgboost": Report(("cancer",), 1130, "labels"),
}
#: Whether a picture of a run in a cell is dark.
CELLS = {"notebook-live-light": False, "notebook-live-dark": True}
CELL = """<!doctype html><meta charset="utf-8">
<body style="margin:0;color:{ink};background:{paper}"><main id="cell"></main>
<script type="module">
import widget from "./notebook.js";
const value = new DataView(await (await fetch("picture.bin")).arrayBuffer());
const model = {{ get: () => value, on() {{}}, off() {{}}, send() {{}} }};
widget.render({{ model, el: document.getElementById("cell") }});
</script>"""
HOME = "http://notebook.test/"


def demo(name: str) -> Training:
    """Return what leaves one of the demonstration's two runs."""

    def run(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tdbg", "demo", "--out", folder]
            subprocess.run(command, check=True, capture_output=True)
            Path(folder, name).rename(path)

    return run


def cancer(path: Path) -> None:
    """Boosted trees on breast cancer, as docs/report.md trains them."""
    import xgboost
    from sklearn.datasets import load_breast_cancer

    import tdbg.xgboost as tx

    x, y = load_breast_cancer(return_X_y=True)
    known = xgboost.DMatrix(x[:400], y[:400])
    valid = xgboost.DMatrix(x[400:], y[400:])
    names = ["labels", "predictions", "feature_importance", "trees", "hyperparameters"]
    with tx.Hook(path, include_collections=names) as hook:
        xgboost.train(
            {"objective": "binary:logistic", "max_depth": 3},
            known,
            30,
            evals=[(known, "train"), (valid, "valid")],
            verbose_eval=False,
            callbacks=[hook],
        )


TRAININGS: dict[str, Training] = {
    "healthy": demo("healthy"),
    "sick": demo("sick"),
    "slow": loader_bound,
    "cancer": cancer,
    "digits": train,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "build/pictures/reports")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    parser.add_argument("names", nargs="*", help=", ".join([*REPORTS, *CELLS]))
    given = parser.parse_args()
    torch.set_num_threads(1)
    with browser() as found:
        for name in given.names or [*REPORTS, *CELLS]:
            path = given.out / f"{name}.png"
            if name in REPORTS:
                for run in REPORTS[name].runs:
                    record(given.runs / run, TRAININGS[run])
                take_report(found, given.runs, REPORTS[name], path)
            else:
                record(given.runs / "digits", TRAININGS["digits"])
                take_cell(found, given.runs / "digits", CELLS[name], path)
            print(path)


def take_report(found: Browser, runs: Path, report: Report, path: Path) -> None:
    """Write a report, and keep what a part of it looks like."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "report.html")
        of = [str(runs / run) for run in report.runs]
        command = [sys.executable, "-m", "tdbg", "report", *of, "-o", str(written)]
        subprocess.run([*command, *report.options], check=True, capture_output=True)

        def show(page: Page) -> float:
            page.goto(written.as_uri())
            if report.without:
                page.locator(f"#{report.without}").evaluate("each => each.remove()")
            if not report.section:
                return 0.0
            box = page.locator(f"#{report.section}").bounding_box()
            check(box is not None, f"{path.name}: no section {report.section}")
            return box["y"] if box else 0.0

        take(found, show, report.height, path, is_dark=report.is_dark)


def take_cell(found: Browser, run: Path, is_dark: bool, path: Path) -> None:
    """Keep what the widget shows of a run."""
    static = resources.files("tdbg.ui").joinpath("static")
    ink, paper = ("#eee", "#111") if is_dark else ("#111", "#fff")
    answers = {
        "": (CELL.format(ink=ink, paper=paper).encode(), "text/html"),
        "notebook.js": (static.joinpath("notebook.js").read_bytes(), "text/javascript"),
        "picture.bin": (picture(tdbg.create_trial(run)), "application/octet-stream"),
    }

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(HOME)
        body, kind = answers.get(name, (b"", "text/plain"))
        route.fulfill(body=body, content_type=kind)

    def show(page: Page) -> float:
        page.route("**/*", answer)
        page.goto(HOME)
        page.locator(".live").wait_for()
        page.wait_for_timeout(500)
        return 0.0

    take(found, show, None, path, is_dark=is_dark)


def take(
    found: Browser,
    show: Callable[[Page], float],
    height: int | None,
    path: Path,
    *,
    is_dark: bool,
) -> None:
    """Show a page, and keep a part of it.

    Args:
        found: The browser.
        show: Shows something; returns where the picture begins.
        height: Of the picture; None: all of the page.
        path: Where it is kept.
        is_dark: Which theme.
    """
    context = found.new_context(
        locale="en-US",
        viewport={"width": WIDTH, "height": 600},
        color_scheme="dark" if is_dark else "light",
        device_scale_factor=SCALE,
    )
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    top = show(page)
    part: FloatRect | None = None
    if height is not None:
        part = {"x": 0, "y": top, "width": WIDTH, "height": height}
    page.screenshot(path=path, full_page=True, clip=part)
    check(not faults, f"{path.name}: {faults}")
    context.close()


if __name__ == "__main__":
    main()
