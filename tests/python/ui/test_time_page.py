"""The screen TIME in a real browser, and what happens where a screen fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from browser import axe_violations, new_page
from dashboard import Dashboard, dashboard, page_address
from planted import add_findings, finding
from profiles import LOADER_BOUND, Plan, profiled_run, tables_of
from run_builder import RunBuilder, simple_run
from tdbg.run.findings import Finding, Severity, Stage

STEPS, SPIKE = 1500, 777
ADVICE = "Set num_workers=4: 4 workers instead of 2 should give 33% shorter steps."


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("runs")
    bound = Plan(LOADER_BOUND, STEPS, fetch_ms=160.0, slow={SPIKE: 900.0}, leak=3e6)
    profiled_run(folder / "bound", [bound])
    profiled_run(folder / "healthy", [Plan(n_gpus=2)])
    profiled_run(folder / "ranks", [Plan(rank=i, lateness_ms=20.0 * i) for i in (0, 1)])
    simple_run(folder / "none")
    with dashboard(folder) as found:
        yield found


def shown(browser: Browser, served: Dashboard, run: str, **options: object) -> Page:
    address = page_address(served, run, screen="time")
    return new_page(browser, address, **options)  # type: ignore[return-value, arg-type]


def test_a_loader_bound_run_says_so_in_its_first_line(
    browser: Browser, served: Dashboard
) -> None:
    with shown(browser, served, "bound") as watched:
        page = watched.page
        sentence = re.compile("^6[67] % data wait, ")
        expect(page.locator(".verdict h1")).to_have_text(sentence)
        expect(page.locator("canvas.bands")).to_have_attribute(
            "data-drawn", f"0 {STEPS}"
        )
        said = page.locator("canvas.bands").get_attribute("aria-label") or ""
        assert "data wait 60" in said
        expect(page.locator(".what-if")).to_contain_text("instead of 2")
        expect(page.locator("canvas.usage")).to_have_attribute("data-rows", "4")
        expect(page.locator("main")).to_contain_text("memory grows by 3.0 MB a second")
        expect(page.get_by_role("button", name=str(SPIKE))).to_be_visible()
        expect(page.locator("main")).to_contain_text("Capture and profiling took")


def test_ranks_are_beside_each_other_and_the_late_one_is_named(
    browser: Browser, served: Dashboard
) -> None:
    with shown(browser, served, "ranks") as watched:
        page = watched.page
        expect(page.locator("canvas.lateness")).to_have_attribute("data-rows", "2")
        text = "worker_1 usually comes 20 ms late, and is the last in 100 %"
        expect(page.locator("main")).to_contain_text(text)


def test_a_range_of_steps_is_the_range_of_all_charts_of_the_screen(
    browser: Browser, served: Dashboard
) -> None:
    address = page_address(served, "bound", screen="time", **{"from": 700, "to": 900})
    with new_page(browser, address) as watched:
        for name in ("bands", "usage"):
            canvas = watched.page.locator(f"canvas.{name}")
            expect(canvas).to_have_attribute("data-drawn", "700 900")


def test_a_run_without_a_profile_says_so_in_one_line(
    browser: Browser, served: Dashboard
) -> None:
    with shown(browser, served, "none") as watched:
        expect(watched.page.locator(".notice h2")).to_contain_text("no profile")
        expect(watched.page.locator("canvas")).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_screen_keeps_nobody_out_and_fits_the_window(
    browser: Browser, served: Dashboard, theme: str, width: int
) -> None:
    options = {
        "bypass_csp": True,
        "color_scheme": theme,
        "viewport": {"width": width, "height": 900},
    }
    with shown(browser, served, "ranks", **options) as watched:
        page = watched.page
        expect(page.locator("canvas.lateness")).to_be_visible()
        assert axe_violations(page) == []
        wider = "document.documentElement.scrollWidth - innerWidth"
        assert page.evaluate(wider) <= 0


def test_g_t_goes_to_the_screen(browser: Browser, served: Dashboard) -> None:
    with new_page(browser, page_address(served, "healthy")) as watched:
        page = watched.page
        expect(page.locator(".axis")).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.locator("canvas.bands")).to_be_visible()


def test_the_maps_hold_every_step_whatever_the_number_of_columns(
    served: Dashboard,
) -> None:
    run = served.run_id("bound")
    for columns in (1, 10, 4096):
        answer = served.ask(f"/api/time_maps?run={run}&columns={columns}")
        arrays = answer.arrays
        assert int(arrays["duration_rows"].sum()) == STEPS
        assert float(np.nanmax(arrays["duration_high"])) > 900
        assert arrays["phases"].shape[1] == len(arrays["edges"]) - 1 <= columns


def test_a_run_without_steps_in_its_profile_has_no_maps(served: Dashboard) -> None:
    answer = served.ask(f"/api/time_maps?run={served.run_id('none')}")
    assert answer.status == 404
    assert "no step of training" in answer.json["error"]


def test_a_live_run_grows_on_the_screen(browser: Browser, tmp_path: Path) -> None:
    rows = tables_of(Plan(n_steps=400))["step"]

    def train(run: RunBuilder, first: int) -> None:
        for step in range(first, first + 40):
            run.end_step(step)
        run.samples("step", rows[first : first + 40])
        run.flush()

    with RunBuilder(tmp_path / "run") as run:
        train(run, 0)
        with dashboard(tmp_path) as served, shown(browser, served, "run") as watched:
            canvas = watched.page.locator("canvas.bands")
            expect(canvas).to_have_attribute("data-drawn", "0 40")
            train(run, 40)
            expect(canvas).to_have_attribute("data-drawn", "0 80")
            said = re.compile("steps 0.79: data wait 0.4")
            expect(canvas).to_have_attribute("aria-label", said)


# --- A screen that fails ------------------------------------------------------


def plant_a_fault(page: Page) -> None:
    """Let the screen of a run throw whenever it is rendered, and count how often."""

    def changed(route: Route) -> None:
        response = route.fetch()
        broken = (
            'class:(()=>{window.__renders=(window.__renders||0)+1;throw Error("plan'
            'ted")})()'
        )
        body = response.text().replace('class:"run"', broken)
        route.fulfill(response=response, body=body)

    page.route("**/*.js", changed)


def test_a_screen_that_fails_says_so_once_and_others_still_work(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, "about:blank", forgiven=("planted",)) as watched:
        page = watched.page
        watched.home = served.address.partition("/#")[0]
        plant_a_fault(page)
        page.goto(page_address(served, "healthy"))
        expect(page.locator(".failed")).to_contain_text("planted")
        page.get_by_role("link", name="Time").click()
        expect(page.locator("canvas.bands")).to_be_visible()
        page.get_by_role("link", name="Findings").click()
        expect(page.locator("main.findings")).to_be_visible()


def test_a_screen_that_fails_is_not_tried_again_at_each_step(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        RunBuilder(tmp_path / "run") as run,
        dashboard(tmp_path) as served,
        new_page(browser, "about:blank", forgiven=("planted",)) as watched,
    ):
        run.end_step(0)
        run.flush()
        page = watched.page
        watched.home = served.address.partition("/#")[0]
        plant_a_fault(page)
        page.goto(page_address(served, "run"))
        expect(page.locator(".failed")).to_be_visible()
        renders = page.evaluate("window.__renders")
        for step in range(1, 60):
            run.end_step(step)
            run.flush()
        expect(page.locator(".pulse b")).to_have_text("59")
        assert page.evaluate("window.__renders") == renders


def test_findings_about_time_are_flags_on_the_axis_of_the_screen(
    browser: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    profiled_run(run, [Plan(LOADER_BOUND, fetch_ms=160.0)])
    begun = finding("DataLoaderBound", "training", 40, Severity.WARNING)
    document = {**begun.to_json(), "advice": ADVICE, "stage": Stage.LOADING.label}
    other = finding("LossSpike", "loss", 10, Severity.WARNING)
    add_findings(run, Finding.from_json(document), other)
    with dashboard(run) as served, shown(browser, served, "run") as watched:
        page = watched.page
        expect(page.locator(".verdict")).to_contain_text(ADVICE)
        axis = page.locator(".axis .flag")
        expect(axis).to_have_count(1)
        expect(axis).to_contain_text("DataLoaderBound")
        map_ = page.locator("section", has_text="Cores and GPUs")
        expect(map_.locator(".flag")).to_have_text(["DataLoaderBound"])
        page.get_by_role("link", name="Findings").click()
        card = page.locator(".found", has_text="DataLoaderBound")
        card.get_by_role("link", name="Show me").click()
        expect(page.locator("canvas.bands")).to_be_visible()
