"""The table of runs, their charts and the herd, in a real browser."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from browser import axe_violations, new_page
from dashboard import Dashboard, dashboard
from dashboard import page_address as at
from planted import add_findings, finding
from run_builder import RunBuilder, simple_run
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.findings import Severity
from tdbg.ui import Access

STEPS, LEAVES_AT, N_HEALTHY = 60, 37, 7
LAYERS = [f"gradient/blocks.{i}.weight" for i in range(4)]
HOSTILE = "<img src=x onerror=alert(1)>"
LOSS = "loss_output_0"
VIEWS = ("table", "charts", "parallel", "herd")


def write(folder: Path, number: int, *, sick: str = "", steps: int = STEPS) -> Path:
    """A run of a sweep: its loss falls by its rate; one layer of a sick one leaves."""
    path = folder / f"run{number}"
    rate = 0.01 * (1 + number)
    dice = np.random.default_rng(number)
    with RunBuilder(path) as run:
        for step in range(steps):
            run.scalar(step, "scalar/optimizer/group_0/lr", rate)
            run.scalar(step, "scalar/val/accuracy", min(0.9, rate * step / 3))
            for i, name in enumerate(LAYERS):
                size = (1 + i) * dice.lognormal(0, 0.1)
                if sick == "layer" and i == 2 and step >= LEAVES_AT:
                    size *= 40
                run.save(step, name, np.full(2, size, np.float32), what="statistics")
            loss = 2 / (1 + rate * step)
            if sick == "loss" and step >= 50:
                loss = np.nan
            array = np.array(loss, np.float32)
            run.save(step, LOSS, array, what="statistics", role=Role.LOSS)
            run.end_step(step, ModeKeys.TRAIN)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    for number in range(N_HEALTHY):
        write(folder, number)
    write(folder, 7, sick="layer")
    write(folder, 8, sick="loss")
    error = finding("LossNotFinite", LOSS, 50, Severity.ERROR)
    add_findings(folder / "run8", error)
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Dashboard]:
    with dashboard(runs) as found:
        yield found


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Dashboard]:
    """Three runs that a test may change."""
    for number in range(3):
        write(tmp_path / "few", number, steps=5)
    with dashboard(tmp_path / "few") as found:
        yield found


def names(page: Page) -> list[str]:
    return page.locator(".run-link").all_inner_texts()


def ready(page: Page, n: int) -> Page:
    """The table with all of its columns."""
    expect(page.locator(".run-row")).to_have_count(n)
    expect(page.locator(".runs-head h1")).not_to_contain_text("reading")
    return page


# --- The table ----------------------------------------------------------------


def test_columns_are_the_settings_that_differ_and_the_best_of_each_metric(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served)) as watched:
        page = ready(watched.page, 9)
        heads = page.locator("thead .sorter").all_inner_texts()
        assert {"run", "state", "verdict", "loss", "lr", "steps"} < set(heads)
        assert {"best loss", "best val/accuracy"} < set(heads)
        row = page.locator(".run-row", has_text="run3")
        expect(row).to_contain_text("0.04")
        expect(row).to_contain_text("finished")
        expect(page.locator(".run-row", has_text="run8")).to_contain_text("NaN")


def test_runs_that_come_into_view_do_not_wait_for_all_others(
    browser: Browser, tmp_path: Path
) -> None:
    number = 90
    for i in range(number):
        simple_run(tmp_path / f"run{i:02}", steps=range(1))
    with dashboard(tmp_path) as served, new_page(browser, served.icon) as watched:
        page = watched.page
        asked: list[list[str]] = []

        def answer(route: Route) -> None:
            asked.append(parse_qs(urlsplit(route.request.url).query)["run"])
            if len(asked) > 1:  # The first question stays without an answer.
                route.continue_()

        page.route("**/api/rows_of_runs*", answer)
        page.goto(at(served))
        expect(page.locator(".run-row")).to_have_count(number)
        last = page.locator(".run-row").last
        expect(last).to_contain_class("unread")
        last.scroll_into_view_if_needed()
        expect(last).not_to_contain_class("unread")
        # Those of the first question whose turn comes soon are not asked for again.
        everything, *more = asked
        assert len(everything) == number
        for some in more:
            assert set(some) <= set(everything[64:])
        assert everything[-1] in more[0]


def test_a_click_sorts_another_one_turns_it_around_and_the_address_has_it(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served)) as watched:
        page = ready(watched.page, 9)
        head = page.locator("th", has=page.get_by_role("button", name="lr", exact=True))
        head.locator("button").click()
        expect(head).to_have_attribute("aria-sort", "ascending")
        assert names(page) == [f"run{i}" for i in range(9)]
        head.locator("button").click()
        expect(head).to_have_attribute("aria-sort", "descending")
        assert names(page) == [f"run{i}" for i in reversed(range(9))]
        page.reload()
        ready(page, 9)
        assert names(page)[0] == "run8"


def test_a_run_without_a_number_comes_last_in_both_directions(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, sort="loss")) as watched:
        assert names(ready(watched.page, 9))[-1] == "run8"
        watched.page.goto(at(served, sort="-loss"))
        assert names(ready(watched.page, 9))[-1] == "run8"


def test_the_columns_of_a_sweep_fit_into_a_small_window(
    browser: Browser, served: Dashboard
) -> None:
    size = {"width": 1280, "height": 800}
    with new_page(browser, at(served), viewport=size) as watched:
        table = ready(watched.page, 9).locator(".run-table")
        assert table.evaluate("it => it.scrollWidth <= it.parentElement.clientWidth")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lr<0.03", {0, 1}),
        ("lr<=0.03", {0, 1, 2}),
        ("lr:0.03", {2}),
        ("lr>0.05 loss<0.5", {5, 6, 7}),
        ("loss:nan", {8}),
        ("finding:error", {8}),
        ("is:healthy lr>0.06", {6, 7}),
        ("run1 or run2", {1, 2}),
        ("(run1 or run2) -run1", {2}),
        ("not lr<0.08", {7, 8}),
        ("name~'[45]$'", set()),
        ("name~[45]$", {4, 5}),
        ('"run3"', {3}),
        ("state:finished best.val/accuracy>=0.9", {4, 5, 6, 7, 8}),
        ("state:running", set()),
    ],
)
def test_an_expression_finds_runs(
    browser: Browser, served: Dashboard, text: str, found: set[int]
) -> None:
    with new_page(browser, at(served)) as watched:
        page = ready(watched.page, 9)
        page.get_by_label("Filter runs").fill(text)
        expect(page.locator(".run-row")).to_have_count(len(found))
        assert {int(name[3:]) for name in names(page)} == found
        expect(page.locator("#filter-says")).to_have_text("")


@pytest.mark.parametrize(
    ("text", "wrong", "reason"),
    [
        ("run1 lrr<0.1", "lrr", "did you mean lr?"),
        ("lr<much", "much", "lr is a number"),
        ("(lr<1", "(", "not closed"),
        ("lr<1)", ")", "was not opened"),
        ("lr<", "<", "a value is missing"),
        ("<1", "<", "the name of a column is missing"),
        ("name<3", "<", "run is text"),
        ("name~[", "[", "no regular expression"),
        ('run1 "open', '"open', "not closed"),
        ("is:well", "well", "a run is one of"),
    ],
)
def test_what_cannot_be_read_is_marked_at_its_characters_and_hides_nothing(
    browser: Browser, served: Dashboard, text: str, wrong: str, reason: str
) -> None:
    with new_page(browser, at(served)) as watched:
        page = ready(watched.page, 9)
        page.get_by_label("Filter runs").fill(text)
        expect(page.locator("#filter-says mark")).to_have_text(wrong)
        expect(page.locator("#filter-says")).to_contain_text(reason)
        expect(page.get_by_label("Filter runs")).to_have_attribute(
            "aria-invalid", "true"
        )
        expect(page.locator(".run-row")).to_have_count(9)


def test_all_that_the_filter_finds_are_chosen_at_once_and_a_link_holds_it(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, find="lr<0.045")) as watched:
        page = ready(watched.page, 4)
        page.get_by_label("Choose all 4").check()
        expect(page.locator(".run-actions")).to_contain_text("4 chosen")
        expect(page).to_have_url(re.compile(r"sel=\*"))
        page.get_by_label("Choose run2").uncheck()
        expect(page.locator(".run-actions")).to_contain_text("3 chosen")
        page.reload()
        ready(page, 4)
        expect(page.locator(".run-row.chosen")).to_have_count(3)
        page.get_by_role("button", name="Compare 3").click()
        expect(page.locator("h1")).to_contain_text("3 runs")


def test_groups_say_how_many_and_what_they_span(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served)) as watched:
        page = ready(watched.page, 9)
        page.get_by_label("Group by").select_option("state")
        group = page.locator(".run-group")
        expect(group).to_have_count(1)
        expect(group).to_contain_text("state closed 9")
        expect(group).to_contain_text("0.01\u20130.09")
        group.get_by_role("checkbox").check()
        expect(page.locator(".run-actions")).to_contain_text("9 chosen")


def test_columns_are_chosen_and_stay_in_the_address(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served)) as watched:
        page = ready(watched.page, 9)
        page.locator(".menu summary").click()
        page.get_by_label("Find a column").fill("size")
        page.locator(".menu-body").get_by_role("checkbox").first.check()
        expect(page.get_by_role("button", name="size", exact=True)).to_be_visible()
        page.reload()
        ready(page, 9)
        expect(page.get_by_role("button", name="size", exact=True)).to_be_visible()


# --- What is kept beside the runs -----------------------------------------------


def test_tags_and_a_note_are_saved_found_and_shown_by_another_server(
    browser: Browser, few: Dashboard, tmp_path: Path
) -> None:
    with dashboard(tmp_path / "few") as other, new_page(browser, at(few)) as watched:
        page = ready(watched.page, 3)
        page.get_by_label("Choose run1").check()
        page.get_by_role("button", name="Tags, note").click()
        page.locator("dialog input[name=tags]").fill("paper best")
        page.locator("dialog textarea").fill(HOSTILE)
        page.get_by_role("button", name="Save").click()
        row = page.locator(".run-row", has_text="run1")
        expect(row.locator(".tag")).to_have_text(["paper", "best"])
        expect(row).to_contain_text(HOSTILE)
        page.get_by_label("Filter runs").fill("tag:paper")
        expect(page.locator(".run-row")).to_have_count(1)
        listed = other.ask("/api/runs").json["runs"]
        assert [each["tags"] for each in listed if each["name"] == "run1"] == [
            ["paper", "best"]
        ]
    assert sorted(x.name for x in (tmp_path / "few" / "run1").iterdir()) == [
        "RUN.json",
        "ctl",
        "w",
    ]


def test_what_another_server_saves_appears_by_itself_and_the_list_comes_once_a_change(
    browser: Browser, few: Dashboard, tmp_path: Path
) -> None:
    with dashboard(tmp_path / "few") as other, new_page(browser, few.icon) as watched:
        page, asked = watched.page, []
        page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        page.goto(at(few))
        ready(page, 3)
        body = {"runs": [other.run_id("run2")], "add_tags": ["news"]}
        assert other.ask("/api/annotate", method="POST", body=body).status == 200
        expect(page.locator(".tag")).to_have_text(["news"])
        # What rang before that has been heard.
        assert asked.count("/api/runs") == 2


def test_an_archived_run_is_out_of_the_list_until_it_is_asked_for(
    browser: Browser, few: Dashboard
) -> None:
    with new_page(browser, at(few)) as watched:
        page = ready(watched.page, 3)
        page.get_by_label("Choose run0").check()
        page.get_by_role("button", name="Archive").click()
        expect(page.locator(".run-row")).to_have_count(2)
        expect(page.locator("h1")).to_contain_text("1 put away")
        page.get_by_label("Filter runs").fill("is:archived")
        expect(page.locator(".run-row")).to_have_count(1)
        page.get_by_role("button", name="Take back").click()
        page.get_by_label("Filter runs").fill("")
        expect(page.locator(".run-row")).to_have_count(3)


def test_a_run_is_deleted_only_when_somebody_is_sure(
    browser: Browser, few: Dashboard, tmp_path: Path
) -> None:
    with new_page(browser, at(few)) as watched:
        page = ready(watched.page, 3)
        page.get_by_label("Choose run0").check()
        page.get_by_role("button", name="Delete", exact=True).click()
        sure = page.locator("dialog").get_by_role("button", name="Delete 1 run")
        expect(sure).to_be_disabled()
        page.keyboard.press("Escape")
        assert (tmp_path / "few" / "run0").exists()
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_label("I do not need").check()
        sure.click()
        expect(page.locator(".run-row")).to_have_count(2)
        assert not (tmp_path / "few" / "run0").exists()


def test_a_run_that_trains_is_not_deleted_and_the_page_says_why(
    browser: Browser, tmp_path: Path
) -> None:
    builder = RunBuilder(tmp_path / "runs" / "alive")
    builder.step(0, {"w": np.ones(2, np.float32)})
    builder.flush()
    write(tmp_path / "runs", 1, steps=3)
    with (
        dashboard(tmp_path / "runs") as served,
        new_page(browser, at(served)) as watched,
    ):
        page = ready(watched.page, 2)
        page.get_by_label("Choose alive").check()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator("dialog")).to_contain_text("1 run of these trains now")
        page.get_by_label("I do not need").check()
        page.get_by_role("button", name="Delete 1 run").click()
        expect(page.get_by_role("alert")).to_contain_text("is in use")
    builder.close()
    assert (tmp_path / "runs" / "alive" / "RUN.json").exists()


def test_who_may_only_look_is_offered_nothing_else(
    browser: Browser, runs: Path
) -> None:
    with dashboard(runs, access=Access(control=None)) as served:
        body = {"runs": [served.run_id("run1")], "add_tags": ["x"]}
        for path in ("/api/annotate", "/api/delete"):
            assert served.ask(path, method="POST", body=body).status == 401
        with new_page(browser, at(served)) as watched:
            page = ready(watched.page, 9)
            page.get_by_label("Choose run1").check()
            expect(page.locator(".run-actions")).to_contain_text("1 chosen")
            for name in ("Tags, note", "Archive", "Delete"):
                expect(page.get_by_role("button", name=name)).to_have_count(0)


# --- Charts -------------------------------------------------------------------


def drawn(page: Page, title: str) -> Any:
    chart = page.locator(f'.chart[data-chart="{title}"]')
    expect(chart).to_have_attribute("data-drawn", re.compile(r"^\d+ \d+$"))
    return chart


def test_there_is_a_chart_for_each_loss_and_metric_found_by_an_expression_and_pinned(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, view="charts")) as watched:
        page = watched.page
        drawn(page, LOSS)
        cards = page.locator(".run-charts .card")
        expect(cards).to_have_count(2)
        pin = page.get_by_label("Pin loss_output_0")
        pin.click()
        expect(cards.first).to_contain_text("loss")
        expect(pin).to_have_attribute("aria-pressed", "true")
        page.get_by_label("Charts whose names").fill("acc.*y$")
        expect(cards).to_have_count(1)
        page.get_by_label("Charts whose names").fill("(")
        expect(page.locator(".filter-says").last).not_to_be_empty()
        expect(cards).to_have_count(2)
        page.reload()
        expect(cards).to_have_count(2)
        assert "pins=loss_output_0" in page.url


def test_smoothing_leaves_the_raw_curve_and_the_nan_behind_it(
    browser: Browser, served: Dashboard
) -> None:
    count = """(host, [r, g, b]) => {
      const canvas = host.querySelector("canvas");
      const data = canvas.getContext("2d")
        .getImageData(0, 0, canvas.width, canvas.height).data;
      let n = 0;
      for (let i = 0; i < data.length; i += 4)
        if (Math.abs(data[i]-r) + Math.abs(data[i+1]-g) + Math.abs(data[i+2]-b) < 20)
          n++;
      return n;
    }"""
    magenta = [204, 121, 167]
    advice = ("willReadFrequently",)
    address = at(served, view="charts")
    with new_page(browser, address, forgiven=advice) as watched:
        page = watched.page
        raw = drawn(page, LOSS).evaluate(count, magenta)
        assert raw > 0
        page.get_by_label("Smoothing").select_option("10")
        expect(page.locator(".reading").first).to_contain_text("raw behind")
        assert drawn(page, LOSS).evaluate(count, magenta) == raw


@pytest.mark.parametrize("by", ["step", "step with evaluation", "time", "clock"])
def test_curves_are_drawn_on_each_axis(
    browser: Browser, served: Dashboard, by: str
) -> None:
    with new_page(browser, at(served, view="charts")) as watched:
        page = watched.page
        drawn(page, LOSS)
        page.get_by_role("button", name=by, exact=True).click()
        drawn(page, LOSS)
        expect(page.locator(".reading").first).to_contain_text("9 of 9 runs")


def saved_as(page: Page, name: str) -> dict[str, bytes]:
    """What the dialog that is open saves, by format."""
    saved = {}
    for kind in ("CSV", "PNG", "SVG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        saved[kind] = download.value.path().read_bytes()
        assert download.value.suggested_filename == f"{name}.{kind.lower()}"
    return saved


def test_a_chart_is_saved_as_numbers_pixels_and_lines(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, view="charts", find="run1")) as watched:
        page = watched.page
        drawn(page, LOSS)
        page.locator(f'.chart-host:has([data-chart="{LOSS}"])').hover()
        page.get_by_label(f"Save {LOSS} as").click()
        saved = saved_as(page, LOSS)
        rows = list(csv.DictReader(saved["CSV"].decode().splitlines()))
        assert len(rows) == STEPS
        assert rows[0]["line"] == "run1"
        assert float(rows[3]["mean"]) == pytest.approx(2 / (1 + 0.02 * 3))
        assert saved["PNG"].startswith(b"\x89PNG")
        assert saved["SVG"].startswith(b"<svg")
        assert b"<polyline" in saved["SVG"]
        assert b"<script" not in saved["SVG"]


def test_the_table_is_saved_as_its_rows_and_as_a_picture_of_their_losses(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, sort="name", cols="name,loss,lr")) as watched:
        page = ready(watched.page, 9)
        page.get_by_role("button", name="Export").click()
        saved = saved_as(page, "losses-of-the-runs")
        rows = list(csv.DictReader(saved["CSV"].decode().splitlines()))
        assert [row["run"] for row in rows] == [f"run{i}" for i in range(9)]
        assert float(rows[3]["lr"]) == pytest.approx(0.04)
        assert float(rows[3]["loss"]) == pytest.approx(2 / (1 + 0.04 * (STEPS - 1)))
        assert rows[8]["loss"] == "NaN"
        assert saved["PNG"].startswith(b"\x89PNG")
        assert saved["SVG"].count(b"<polyline") == 9
        assert b">run8</text>" in saved["SVG"]


# --- What differs, and the herd ---------------------------------------------------


def test_a_range_dragged_along_an_axis_is_a_filter(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, view="parallel")) as watched:
        page = watched.page
        paths = page.locator(".run-path")
        expect(paths).to_have_count(9)
        box = page.locator(".axis .brush").first.bounding_box()
        assert box is not None
        x, middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, middle)
        page.mouse.down()
        page.mouse.move(x, box["y"] + box["height"] - 1, steps=3)
        page.mouse.up()
        expect(page.get_by_label("Filter runs")).to_have_value(re.compile("lr>=.*<=.*"))
        expect(paths).to_have_count(5)


def test_the_layer_that_left_the_herd_is_named_though_no_rule_accused_its_run(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, view="herd")) as watched:
        page = watched.page
        verdict = page.locator(".herd-verdict")
        expect(verdict.locator("h2")).to_have_text(
            f"{LAYERS[2]} left the herd at step {LEAVES_AT}"
        )
        expect(verdict).to_contain_text("run7: 1 of 4 tensors left")
        expect(verdict).to_contain_text("8 healthy runs")
        canvas = page.locator(".herd-map")
        expect(canvas).to_have_attribute("data-drawn", re.compile(r"^\d+ \w+$"))
        expect(canvas).to_have_attribute(
            "aria-label", re.compile(rf"the first: {LAYERS[2]} at {LEAVES_AT}")
        )
        drawn(page, f"{LAYERS[2]} of run7 and the herd")
        canvas.focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        drawn(page, f"{LAYERS[1]} of run7 and the herd")
        page.get_by_label("Which run").select_option(served.run_id("run2"))
        expect(verdict.locator("h2")).to_have_text(
            "No tensor of this run left the herd"
        )


def test_too_few_healthy_runs_are_said(browser: Browser, few: Dashboard) -> None:
    with new_page(browser, at(few, view="herd"), forgiven=("404",)) as watched:
        expect(watched.page.locator(".notice")).to_contain_text(
            "a band needs 5 healthy runs, and there are 3"
        )


# --- For everybody --------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_shuts_anybody_out(
    browser: Browser, served: Dashboard, scheme: str
) -> None:
    options: dict[str, Any] = {"color_scheme": scheme, "bypass_csp": True}
    with new_page(browser, at(served), **options) as watched:
        page = ready(watched.page, 9)
        for view, shown in zip(
            VIEWS,
            (".run-table", ".run-charts .chart", ".parallel svg", ".herd-map"),
            strict=True,
        ):
            page.goto(at(served, view=view, sel="*"))
            expect(page.locator(shown).first).to_be_visible()
            assert axe_violations(page) == []
        page.get_by_role("button", name="Delete", exact=True).click()
        assert axe_violations(page) == []


@pytest.mark.parametrize("width", [390, 1200, 2560])
def test_no_view_is_wider_than_the_window(
    browser: Browser, served: Dashboard, width: int
) -> None:
    size = {"width": width, "height": 900}
    with new_page(browser, at(served), viewport=size) as watched:
        for view in VIEWS:
            watched.page.goto(at(served, view=view, sel="*"))
            expect(watched.page.locator(".run-actions")).to_be_visible()
            wide = watched.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, view
