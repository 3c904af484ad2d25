"""The dashboard's screens in a real browser, on runs that are recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Route, expect

from browser import axe_violations, new_page
from dashboard import Dashboard, dashboard
from dashboard import page_address as at
from planted import (
    LAYERS,
    NAN,
    NAN_STEP,
    SPIKE,
    SPIKE_STEP,
    STEPS,
    add_findings,
    finding,
    planted_run,
)
from run_builder import RunBuilder, simple_run
from tdbg.run.findings import Severity

WIDTHS = (390, 1200, 2560)
# Half-widths of the range around what was planted; the first is all steps.
ZOOMS = (STEPS, 1200, 700, 400, 200, 100, 50, 20, 8, 3)
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "javascript:alert(1)//",
    "</script><script>alert(1)</script>",
    "\u202egnp.thgiew\u202d",
    "\x1b[2Jcleared\u0000\u200b",
    "x" * 4000,
    "${alert(1)}{{7*7}}\"'`--><svg/onload=alert(1)>",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    planted_run(folder / "planted")
    simple_run(folder / "plain", steps=range(30))
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Dashboard]:
    with dashboard(runs) as found:
        yield found


# --- Pixels -------------------------------------------------------------------

# In a band of rows of a canvas, how many pixels are of the colour, give or take.
COUNT_PIXELS = """(canvas, [r, g, b, top, height, left]) => {
  const ratio = canvas.width / canvas.clientWidth;
  const n = Math.max(1, Math.round(height * ratio));
  const x = Math.round(left * ratio);
  const data = canvas.getContext("2d")
    .getImageData(x, Math.round(top * ratio), canvas.width - x, n).data;
  let found = 0;
  for (let i = 0; i < data.length; i += 4)
    if (Math.abs(data[i] - r) + Math.abs(data[i+1] - g) + Math.abs(data[i+2] - b) < 40)
      found++;
  return found;
}"""
# Goes to a range as the links of the page do.
MOVE = """(range) => {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(range)) query.set(name, value);
  history.pushState(null, "", `?${query}`);
  dispatchEvent(new PopStateEvent("popstate"));
}"""
# The end of the scale, what is far beyond it, what is not a number.
YELLOW, ORANGE, MAGENTA = (253, 231, 37), (255, 90, 31), (204, 121, 167)


def pixels_of(page: Any, layer: int | None, color: tuple[int, int, int]) -> int:
    """How many pixels of the map have the colour, in the row of the layer."""
    canvas = page.locator("canvas.map-canvas")
    height = int(canvas.get_attribute("data-row-height"))
    labels = int(canvas.get_attribute("data-labels"))
    top, tall = (0, height * 24) if layer is None else (layer * height, height)
    found: int = canvas.evaluate(COUNT_PIXELS, [*color, top, tall, labels])
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_a_spike_and_a_nan_of_one_step_are_seen_at_every_zoom(
    browser: Browser,
    served: Dashboard,
    width: int,
) -> None:
    size = {"width": width, "height": 900}
    address, advice = at(served, "planted"), ("willReadFrequently",)
    with new_page(browser, address, viewport=size, forgiven=advice) as watched:
        page = watched.page
        expect(page.locator("canvas.map-canvas")).to_be_visible()
        for step, layer, colors in (
            (SPIKE_STEP, 5, (YELLOW, ORANGE)),
            (NAN_STEP, 15, (MAGENTA,)),
        ):
            for zoom in ZOOMS:
                start = max(0, step - zoom)
                end = min(STEPS, step + zoom)
                page.evaluate(MOVE, {"from": start, "to": end})
                canvas = page.locator("canvas.map-canvas")
                expect(canvas).to_have_attribute("data-drawn", f"{start} {end}")
                seen = sum(pixels_of(page, layer, color) for color in colors)
                assert seen >= 4, (width, zoom, colors)


def test_where_nothing_was_planted_nothing_is_seen(
    browser: Browser,
    served: Dashboard,
) -> None:
    with new_page(browser, at(served, "planted", **{"from": 0, "to": 900})) as watched:
        canvas = watched.page.locator("canvas.map-canvas")
        expect(canvas).to_have_attribute("data-drawn", "0 900")
        assert pixels_of(watched.page, None, MAGENTA) == 0


@pytest.mark.parametrize("zoom", [STEPS, 300, 5])
def test_a_spike_rises_and_a_nan_is_marked_in_the_chart_of_a_tensor(
    browser: Browser,
    served: Dashboard,
    zoom: int,
) -> None:
    high = """(host) => {
      const canvas = host.querySelector("canvas");
      const { width, height } = canvas;
      const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
      let blue = height, magenta = 0;
      for (let i = 0; i < data.length; i += 4) {
        const [r, g, b, a] = data.slice(i, i + 4);
        if (a > 100 && b > 120 && b - r > 90 && g < 170)
          blue = Math.min(blue, i / 4 / width);
        if (Math.abs(r - 204) + Math.abs(g - 121) + Math.abs(b - 167) < 20) magenta++;
      }
      return [blue / height, magenta];
    }"""
    with new_page(browser, at(served)) as watched:
        page = watched.page
        for name, step in ((SPIKE, SPIKE_STEP), (NAN, NAN_STEP)):
            start, end = max(0, step - zoom), min(STEPS, step + zoom)
            state = {"screen": "tensor", "tensor": name, "from": start, "to": end}
            page.goto(at(served, "planted", **state, axis="linear"))
            chart = page.locator(".chart").first
            expect(chart).to_have_attribute("data-drawn", f"{start} {end}")
            highest, magenta = chart.evaluate(high)
            assert highest < 0.25
            assert (magenta > 0) == (name == NAN)


# --- What is where ------------------------------------------------------------


def test_the_first_screen_says_what_is_wrong_and_a_click_leads_there(
    browser: Browser,
    served: Dashboard,
) -> None:
    with new_page(browser, at(served, "planted")) as watched:
        page = watched.page
        expect(page.locator(".verdict h1")).to_contain_text(
            f"2 things are wrong, the worst: ExplodingTensor in {NAN}"
        )
        expect(page.locator(".verdict .advice")).to_contain_text("look at step 2047")
        assert "t=" not in page.url
        page.locator(".flag", has_text="LossSpike").click()
        expect(page.locator("h1")).to_have_text(SPIKE)
        expect(page.locator(".note")).to_contain_text("What to do")
        expect(page.locator("tr.current")).to_contain_text("1,234")
        page.go_back()
        expect(page.locator(".verdict")).to_be_visible()


def test_a_range_that_is_dragged_holds_for_all_charts_and_is_in_the_address(
    browser: Browser,
    served: Dashboard,
) -> None:
    with new_page(browser, at(served, "planted")) as watched:
        page = watched.page
        canvas = page.locator("canvas.map-canvas")
        expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")
        box = page.locator(".timeline .track").bounding_box()
        assert box is not None
        y = box["y"] + 8
        page.mouse.move(box["x"] + box["width"] * 0.5, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=4)
        page.mouse.up()
        expect(canvas).to_have_attribute("data-drawn", re.compile(r"^1\d\d\d 22\d\d$"))
        start, end = str(canvas.get_attribute("data-drawn")).split()
        assert f"from={start}" in page.url
        assert f"to={end}" in page.url
        chart = page.locator(".chart").first
        expect(chart).to_have_attribute("data-drawn", f"{start} {end}")
        page.get_by_role("button", name="Show all steps").click()
        expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")


def test_everything_can_be_reached_by_keys_alone(
    browser: Browser,
    served: Dashboard,
) -> None:
    with new_page(browser, at(served)) as watched:
        page = watched.page
        expect(page.locator(".run-list .run-row")).to_have_count(2)
        page.keyboard.press("/")
        expect(page.locator(".search")).to_be_focused()
        page.keyboard.type("planted")
        expect(page.locator(".run-list .run-row")).to_have_count(1)
        page.keyboard.press("ArrowDown")
        expect(page.locator(".run-link")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".verdict")).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("f")
        expect(page.locator(".found")).to_have_count(2)
        page.keyboard.press("]")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(NAN)
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        canvas = page.locator("canvas.map-canvas")
        expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")
        canvas.focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
            page.keyboard.press(key)
        expect(page.locator(".map .reading b")).to_have_text(LAYERS[2])
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(LAYERS[2])
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()


def test_the_worst_layers_come_first_in_the_map_where_that_is_asked_for(
    browser: Browser,
    served: Dashboard,
) -> None:
    with new_page(browser, at(served, "planted")) as watched:
        page = watched.page
        canvas = page.locator("canvas.map-canvas")
        expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")
        reading = page.locator(".map .reading b")
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        expect(reading).to_have_text(LAYERS[0])
        page.get_by_role("button", name="worst first").click()
        assert "order=worst" in page.url
        # The error, the warning, and then the greatest of the others.
        for name in (NAN, SPIKE, LAYERS[23]):
            expect(reading).to_have_text(name)
            canvas.focus()
            page.keyboard.press("ArrowDown")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_screen_shuts_anybody_out(
    browser: Browser,
    served: Dashboard,
    scheme: str,
) -> None:
    options: dict[str, Any] = {"color_scheme": scheme, "bypass_csp": True}
    ids = f"{served.run_id('planted')},{served.run_id('plain')}"
    with new_page(browser, at(served), **options) as watched:
        page = watched.page
        for address, shown in (
            (at(served), ".run-list"),
            (at(served, "planted"), ".map"),
            (at(served, "plain"), ".map"),
            (at(served, "planted", screen="findings"), ".found"),
            (at(served, "planted", screen="tensor", tensor=NAN), ".rows"),
            (at(served, screen="compare", runs=ids), ".rows"),
        ):
            page.goto(address)
            expect(page.locator(shown).first).to_be_visible()
            assert axe_violations(page) == [], address


def test_of_a_great_run_a_picture_of_cells_comes_before_that_of_its_rows(
    browser: Browser, tmp_path: Path
) -> None:
    n_tensors, n_steps = 500, 2200
    with RunBuilder(tmp_path / "runs" / "great") as run:
        values = np.ones((n_tensors, 2), np.float32)
        names = [f"gradient/blocks.{i}.weight" for i in range(n_tensors)]
        ids = [run.define(name, row) for name, row in zip(names, values, strict=True)]
        pointers = [row.ctypes.data for row in values]
        for step in range(n_steps):
            run.capture.statistics(step, ids, pointers)
            run.end_step(step)
    with dashboard(tmp_path / "runs") as great, new_page(browser, "about:blank") as w:
        w.home = great.address.partition("/#")[0]
        asked: list[str] = []
        w.page.on("request", lambda request: asked.append(request.url))
        address = at(great, "great")
        with w.page.expect_response(re.compile("/api/envelope.*columns=550")):
            w.page.goto(address)
        canvas = w.page.locator("canvas.map-canvas")
        expect(canvas).to_have_attribute("data-drawn", f"0 {n_steps}")
        columns = [
            re.findall(r"columns=(\d+)", url) for url in asked if "envelope" in url
        ]
        # 35 of 64 steps, which are whole cells, and then of 4 steps.
        assert columns == [["35"], ["550"]]


def test_a_long_list_shows_names_at_once_and_what_is_said_of_them_as_it_is_read(
    browser: Browser, tmp_path: Path
) -> None:
    for i in range(120):
        simple_run(tmp_path / "runs" / f"run{i:03}", steps=range(2))
    lost = finding("DeadRelu", "fc.weight", 1, Severity.ERROR)
    add_findings(tmp_path / "runs" / "run007", lost)
    with dashboard(tmp_path / "runs") as many, new_page(browser, "about:blank") as w:
        page = w.page
        w.home = many.address.partition("/#")[0]

        def hold(_: Route) -> None:
            """Let nothing be read until this is taken away."""

        page.route("**/api/rows_of_runs?run=*", hold)
        page.goto(many.address)
        rows = page.locator(".run-list .run-row")
        expect(rows.first).to_contain_text("run119")
        head = page.locator(".runs-head h1")
        expect(head).to_contain_text("120 runs")
        expect(head).to_contain_text("reading 120 more")
        # No more of them than are near what is seen, until somebody goes there.
        expect(rows).to_have_count(100)
        page.unroute("**/api/rows_of_runs?run=*", hold)
        expect(head).to_contain_text("none in training \u00b7 1 with errors")
        expect(head).not_to_contain_text("more")
        page.mouse.wheel(0, 20_000)
        expect(rows).to_have_count(120)
        page.get_by_label("Filter runs").fill("finding:error")
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("run007")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_screen_is_wider_than_the_window(
    browser: Browser,
    served: Dashboard,
    width: int,
) -> None:
    size = {"width": width, "height": 900}
    with new_page(browser, at(served), viewport=size) as watched:
        for address, shown in (
            (at(served), ".run-list"),
            (at(served, "planted"), ".map"),
            (at(served, "planted", screen="findings"), ".found"),
            (at(served, "planted", screen="tensor", tensor=NAN), ".rows"),
        ):
            watched.page.goto(address)
            expect(watched.page.locator(shown).first).to_be_visible()
            wide = watched.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, address


# --- Hostile runs -------------------------------------------------------------


def test_hostile_names_and_messages_are_only_text(
    browser: Browser,
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "<img src=x onerror=alert(1)>"
    with RunBuilder(run) as builder:
        for step in range(5):
            arrays = {name: np.full(3, step + 1, np.float32) for name in HOSTILE}
            builder.step(step, arrays, what="statistics")
    long = "<script>alert(1)</script>" * 400
    findings = [
        finding(f"<b>{i}</b>", name, 2, Severity.ERROR, long)
        for i, name in enumerate(HOSTILE)
    ]
    add_findings(run, *findings)
    with dashboard(run.parent) as served, new_page(browser, at(served)) as watched:
        page = watched.page
        for state in ({}, {"screen": "findings"}):
            page.goto(at(served, served.run_name(), **state))
            expect(page.locator("h1")).to_be_visible()
            page.wait_for_timeout(300)
            assert page.locator("img, script:not([src])").count() == 0
            assert "\u202e" not in page.locator("body").inner_text()
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 1200
        expect(page.locator(".tensors").nth(3)).to_contain_text("\\u202egnp")
        page.locator(".tensors a").first.click()
        expect(page.locator(".rows")).to_be_visible()
        assert page.locator("img, script:not([src])").count() == 0


@pytest.mark.parametrize("greatest", [2.8e12, 3e38])
def test_a_tensor_that_explodes_is_drawn_on_a_logarithmic_axis(
    browser: Browser, tmp_path: Path, greatest: float
) -> None:
    """Sabotaged: uPlot's own ticks begin at an end that is no power, and never end."""
    with RunBuilder(tmp_path / "runs" / "explodes") as builder:
        for step, mean in enumerate(np.geomspace(0.012749274, greatest, 20)):
            values = np.full(3, mean, np.float32)
            builder.step(step, {"gradient/w": values}, what="statistics")
    state = {"screen": "tensor", "tensor": "gradient/w", "field": "mean"}
    with (
        dashboard(tmp_path / "runs") as served,
        new_page(browser, at(served)) as watched,
    ):
        for scale in ("log", "linear"):
            address = at(served, served.run_name(), **state, scale=scale)
            watched.page.goto(address)
            expect(watched.page.locator("[data-drawn='0 20']")).to_be_visible()
            watched.check()


def test_a_script_that_got_into_the_page_would_not_run(
    browser: Browser,
    served: Dashboard,
) -> None:
    forgiven = ("Content Security Policy",)
    with new_page(browser, at(served), forgiven=forgiven) as watched:
        page = watched.page
        expect(page.locator(".run-list")).to_be_visible()
        ran = page.evaluate("""() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          const image = document.createElement("img");
          image.setAttribute("onerror", "window.ran = true");
          image.src = "data:,";
          document.body.append(image);
          return new Promise(
            (done) => setTimeout(() => done(window.ran ?? false), 200));
        }""")
        assert ran is False
        assert any("Content Security Policy" in each for each in watched.faults)


def test_another_site_in_the_same_browser_gets_nothing(
    browser: Browser,
    served: Dashboard,
    tmp_path: Path,
) -> None:
    simple_run(tmp_path / "own")
    with dashboard(tmp_path) as other:
        forgiven = ("foreign request", "Failed to load", "console: Access", "violates")
        page_of_other = f"http://127.0.0.1:{other.port}/licences.txt"
        with new_page(
            browser, page_of_other, forgiven=forgiven, bypass_csp=True
        ) as watched:
            answer = watched.page.evaluate(
                """async ([url, token]) => {
                  const tried = [];
                  for (const options of [
                    { headers: { "X-Tdbg-Token": token } },
                    { method: "POST", mode: "no-cors", body: "{}" },
                    { method: "POST", body: "{}",
                      headers: { "content-type": "application/json" } },
                  ])
                    try {
                      const found = await fetch(url, options);
                      tried.push(found.type + found.status);
                    } catch (error) { tried.push("refused"); }
                  return tried;
                }""",
                [f"http://localhost:{served.port}/api/stop", served.access.control],
            )
            assert answer == ["refused", "refused", "refused"] or (
                answer[1] == "opaque0" and answer[0] == answer[2] == "refused"
            )


# --- States -------------------------------------------------------------------


def test_without_a_token_the_page_asks_for_the_address(
    browser: Browser,
    served: Dashboard,
) -> None:
    forgiven = ("401",)
    head = served.address.partition("#")[0]
    with new_page(browser, head, forgiven=forgiven) as watched:
        page = watched.page
        expect(page.locator("h2")).to_have_text("Open the address that tdbg ui printed")
        page.locator("input").fill(served.address)
        page.get_by_role("button", name="Open").click()
        expect(page.locator(".run-list .run-row")).to_have_count(2)


def test_a_run_appears_by_itself_waits_for_steps_and_shows_them(
    browser: Browser,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs"
    with dashboard(folder) as served, new_page(browser, served.address) as watched:
        page = watched.page
        expect(page.locator("h2")).to_have_text("No run yet")
        builder = RunBuilder(folder / "first")
        expect(page.locator(".verdict h1")).to_have_text("Waiting for the first step.")
        for step in range(3):
            builder.step(step, {"w": np.full(3, 1.0, np.float32)}, what="statistics")
        builder.flush()
        expect(page.locator(".verdict h1")).to_contain_text("Training, 3 steps so far")
        builder.close()
        expect(page.locator(".state")).to_have_text("finished")


def test_a_run_that_was_deleted_says_so_and_stays_on_the_screen(
    browser: Browser,
    tmp_path: Path,
) -> None:
    simple_run(tmp_path / "runs" / "one")
    simple_run(tmp_path / "runs" / "two")
    with (
        dashboard(tmp_path / "runs") as served,
        new_page(browser, at(served, "one"), forgiven=("404",)) as watched,
    ):
        expect(watched.page.locator(".map")).to_be_visible()
        (tmp_path / "runs" / "one").rename(tmp_path / "gone")
        notice = watched.page.locator(".notice h2").first
        expect(notice).to_contain_text("This run was deleted")
        expect(watched.page.locator(".map")).to_be_visible()


def test_a_damaged_run_says_what_is_wrong_and_shows_the_rest(
    browser: Browser,
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "damaged"
    with RunBuilder(run, shard_bytes=1 << 16) as builder:
        for step in range(400):
            builder.step(step, {"w": np.full(64, step, np.float32)})
    shards = sorted(run.rglob("*.tds"))
    content = bytearray(shards[-1].read_bytes())
    shards[-1].write_bytes(content[: len(content) // 2])
    with dashboard(run) as served, new_page(browser, at(served)) as watched:
        expect(watched.page.locator(".facts .notice").first).to_contain_text(
            "tdbg fsck"
        )
        expect(watched.page.locator(".map")).to_be_visible()


def test_an_answer_of_a_tensor_that_is_not_there_says_so(
    browser: Browser,
    served: Dashboard,
) -> None:
    address = at(served, "plain", screen="tensor", tensor="no-such")
    with new_page(browser, address) as watched:
        title = watched.page.locator(".notice h2")
        expect(title).to_have_text("This run has no such tensor")


def test_the_document_of_a_run_is_json_that_a_browser_reads(
    served: Dashboard,
) -> None:
    document = served.ask(f"/api/run?run={served.run_id('planted')}")
    json.loads(document.body, parse_constant=pytest.fail)
