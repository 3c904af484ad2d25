"""The widget's view in a real browser: what a picture becomes, in light and dark.

The page is what a notebook's front end does: it imports ``notebook.js`` and gives it a
model and an element.  Nothing is served: the requests are answered here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

import tdbg
from report_runs import HOSTILE, NAN, SPIKE, hostile_run, planted_run
from tdbg.notebook.picture import picture
from tdbg.trial import Trial

# Of cells that leave the scale, and of those that are not finite: colors.ts.
BEYOND, BAD = (0xFF, 0x5A, 0x1F), (0xCC, 0x79, 0xA7)
HOME = "http://notebook.test/"
# What anywidget's model does: the value, and a call when it changes.
PAGE = """<!doctype html><meta charset="utf-8"><title>a notebook</title>
<body style="{style}"><main id="cell"></main><script type="module">
import widget from "./notebook.js";
const listeners = new Map(), sent = [];
const load = async () => new DataView(await (await fetch("picture.bin")).arrayBuffer());
let value = await load();
const model = {{
  get: () => value,
  on: (name, f) => listeners.set(name, f),
  off: (name) => listeners.delete(name),
  send: (content) => sent.push(content),
}};
const close = widget.render({{ model, el: document.getElementById("cell") }});
Object.assign(window, {{ sent, listeners, close, again: async () => {{
  value = await load();
  listeners.get("change:picture")();
}} }});
</script>"""


class Cell:
    """A cell that shows the view of a run."""

    def __init__(self, page: Page, trial: Trial, style: str) -> None:
        self.page, self.trial = page, trial
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._heard)
        self._style = style
        page.route("**/*", self._answer)
        page.goto(HOME)
        expect(page.locator(".live")).to_be_visible()

    def _heard(self, message: object) -> None:
        if getattr(message, "type", "") in ("error", "warning"):
            self.faults.append(str(getattr(message, "text", message)))

    def _answer(self, route: Route) -> None:
        name = route.request.url.removeprefix(HOME)
        if name == "":
            route.fulfill(body=PAGE.format(style=self._style), content_type="text/html")
        elif name == "notebook.js":
            static = resources.files("tdbg.ui").joinpath("static")
            code = static.joinpath(name).read_bytes()
            route.fulfill(body=code, content_type="text/javascript")
        elif name == "picture.bin":
            route.fulfill(body=picture(self.trial), content_type="application/x")
        elif name == "favicon.ico":
            route.fulfill(status=204)
        else:
            self.faults.append(f"asked for {route.request.url}")
            route.abort()


@contextmanager
def cell(
    browser: Browser, trial: Trial, style: str = "background:#fff;color:#111"
) -> Iterator[Cell]:
    context = browser.new_context(
        locale="en-US", viewport={"width": 900, "height": 900}
    )
    shown = Cell(context.new_page(), trial, style)
    yield shown
    context.close()
    assert shown.faults == []


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    path = tmp_path_factory.mktemp("runs") / "planted"
    planted_run(path)
    tdbg.rules.check(path)
    return tdbg.create_trial(path)


def colors_of(page: Page, at: float, row: int) -> set[tuple[int, ...]]:
    """Colours of the map around a share of its width, in a row."""
    return {
        tuple(each)
        for each in page.evaluate(
            """([at, row]) => {
              const root = document.querySelector(".tdbg-live-host").shadowRoot;
              const map = root.querySelector(".map-canvas");
              const ratio = devicePixelRatio, labels = Number(map.dataset.labels);
              const x = labels + at * (map.clientWidth - labels - 12);
              const y = (row + 0.5) * Number(map.dataset.rowHeight);
              const copy = document.createElement("canvas");
              [copy.width, copy.height] = [map.width, map.height];
              const context = copy.getContext("2d", { willReadFrequently: true });
              context.drawImage(map, 0, 0);
              const data = context.getImageData(
                (x - 4) * ratio, y * ratio, 8 * ratio, 1).data;
              return Array.from({ length: data.length / 4 },
                (_, i) => [...data.slice(4 * i, 4 * i + 3)]);
            }""",
            [at, row],
        )
    }


def test_verdict_losses_map_and_findings_are_drawn(
    browser: Browser, trial: Trial
) -> None:
    with cell(browser, trial) as shown:
        page = shown.page
        expect(page.locator(".live header")).to_contain_text(
            "3 problems occurred and recovered"
        )
        expect(page.locator(".live header .state")).to_have_text("finished")
        loss = page.get_by_role("img", name="Losses, steps 0")
        expect(loss).to_be_visible()
        assert "to 267" in (loss.get_attribute("aria-label") or "")
        problems = page.locator(".problem").all_inner_texts()
        assert any("LossSpike" in text for text in problems)
        # All of them are over, and what to do about them is worth knowing still.
        assert all("What to do: " in text for text in problems)
        # One step of 600, in its layer and in no other.
        assert BEYOND in colors_of(page, (SPIKE + 1) / 600, 3)
        assert BEYOND not in colors_of(page, (SPIKE + 1) / 600, 4)
        assert BAD in colors_of(page, (NAN + 1) / 600, 7)
        assert BAD not in colors_of(page, (NAN + 1) / 600, 8)


@pytest.mark.parametrize(
    ("style", "theme"),
    [
        ("background:#fff;color:#111", "light"),
        ("background:#111;color:#ddd", "dark"),
    ],
)
def test_the_theme_is_that_of_the_notebook_not_of_the_system(
    browser: Browser, trial: Trial, style: str, theme: str
) -> None:
    with cell(browser, trial, style) as shown:
        host = shown.page.locator(".tdbg-live-host")
        expect(host).to_have_attribute("data-theme", theme)
        paper = shown.page.locator(".live").evaluate(
            "e => getComputedStyle(e).backgroundColor"
        )
        assert (
            paper == {"light": "rgb(246, 247, 249)", "dark": "rgb(14, 17, 22)"}[theme]
        )
        # Another theme is taken over while it is shown.
        other = "background:#fff;color:#111" if theme == "dark" else "color:#eee"
        shown.page.evaluate("s => document.body.setAttribute('style', s)", other)
        expect(host).to_have_attribute(
            "data-theme", "light" if theme == "dark" else "dark"
        )


def test_a_new_picture_is_drawn_in_the_place_of_the_old_one(
    browser: Browser, tmp_path: Path
) -> None:
    planted_run(tmp_path / "a", 100)
    planted_run(tmp_path / "b", 300)
    with cell(browser, tdbg.create_trial(tmp_path / "a")) as shown:
        live = shown.page.locator(".live")
        expect(live).to_have_attribute("data-steps", "100")
        shown.trial = tdbg.create_trial(tmp_path / "b")
        shown.page.evaluate("again()")
        expect(live).to_have_attribute("data-steps", "300")
        expect(live).to_have_count(1)


def test_dragging_over_the_map_sets_the_range_of_both_charts(
    browser: Browser, trial: Trial
) -> None:
    with cell(browser, trial) as shown:
        page = shown.page
        box = page.locator(".map-canvas").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 20, steps=4)
        page.mouse.up()
        chart = page.get_by_role("img", name="Losses, steps")
        expect(chart).not_to_have_attribute("data-drawn", "0 600")
        assert page.url == HOME  # The address is the notebook's.


def test_a_view_says_when_it_is_shown_and_when_it_is_gone(
    browser: Browser, trial: Trial
) -> None:
    with cell(browser, trial) as shown:
        assert shown.page.evaluate("sent") == [{"viewers": 1}]
        shown.page.evaluate("close()")
        assert shown.page.evaluate("sent") == [{"viewers": 1}, {"viewers": -1}]
        assert shown.page.evaluate("listeners.size") == 0
        expect(shown.page.locator(".live")).to_have_count(0)


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    hostile_run(tmp_path / "run")
    with cell(browser, tdbg.create_trial(tmp_path / "run")) as shown:
        expect(shown.page.locator(".map-canvas")).to_be_visible()
        assert shown.page.locator("img, .live script").count() == 0
        assert HOSTILE
