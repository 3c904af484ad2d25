"""Runs beside each other, in a real browser and as the server answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from browser import axe_violations, new_page
from dashboard import Dashboard, dashboard
from run_builder import RunBuilder
from tdbg.compare import ratios
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.trial import create_trial

STEPS, DIVERGES_AT, SPIKE_STEP, NAN_STEP = 300, 120, 200, 260
LAYERS = [f"gradient/blocks.{i}.weight" for i in range(6)]
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
# Colours of a ratio of 1 and of NaN, in the light theme.
SAME, MAGENTA = (247, 247, 247), (204, 121, 167)


def write(path: Path, *, diverges: bool = False, evaluates: bool = False) -> None:
    """Runs that are the same until one of them diverges, spikes and has a NaN."""
    step = 0
    with RunBuilder(path) as run:
        for i in range(STEPS):
            has_diverged = diverges and i >= DIVERGES_AT
            run.scalar(
                step, "scalar/optimizer/group_0/lr", 0.4 if has_diverged else 0.1
            )
            for k, name in enumerate(LAYERS):
                value = np.full(4, 0.1 + k + (i % 7) / 50, np.float32)
                if has_diverged:
                    value *= 4
                if diverges and (i, k) == (SPIKE_STEP, 2):
                    value *= 1000
                if diverges and (i, k) == (NAN_STEP, 4):
                    value[0] = np.nan
                run.save(step, name, value, what="statistics")
            run.save(step, HOSTILE, np.ones(2, np.float32), what="statistics")
            loss = np.array(2.0 / (1 + i), np.float32)
            run.save(step, "loss_output_0", loss, what="statistics", role=Role.LOSS)
            run.end_step(step)
            step += 1
            if evaluates and i % 10 == 9:
                run.end_step(step, ModeKeys.EVAL)
                step += 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "base")
    write(folder / "hot", diverges=True)
    write(folder / "evaluated", evaluates=True)
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Dashboard]:
    with dashboard(runs) as found:
        yield found


def at(served: Dashboard, *names: str, **state: object) -> str:
    head, _, token = served.address.partition("#")
    runs = ",".join(served.run_id(name) for name in names)
    query = "".join(f"&{name.strip('_')}={value}" for name, value in state.items())
    return f"{head}?screen=compare&runs={runs}{query}#{token}"


def drawn(page: Page, start: int, end: int) -> Any:
    """The map of the ratio, drawn of that range."""
    canvas = page.locator("canvas.ratio")
    expect(canvas).to_have_attribute("data-drawn", f"{start} {end}")
    return canvas


# How many pixels of each row of the map have the colour, give or take.
COUNT = """(canvas, [r, g, b]) => {
  const ratio = canvas.width / canvas.clientWidth;
  const left = Math.round(canvas.dataset.labels * ratio);
  const height = Math.round(canvas.dataset.rowHeight * ratio);
  const rows = Math.floor((canvas.height - 26 * ratio) / height);
  return Array.from({ length: rows }, (_, y) => {
    const data = canvas.getContext("2d")
      .getImageData(left, y * height, canvas.width - left, height).data;
    let n = 0;
    for (let i = 0; i < data.length; i += 4)
      if (Math.abs(data[i] - r) + Math.abs(data[i+1] - g) + Math.abs(data[i+2] - b) < 9)
        n++;
    return n;
  });
}"""


def test_the_screen_says_at_which_step_runs_part_and_in_what_first(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, "base", "hot")) as watched:
        page = watched.page
        divergence = page.locator(".divergence")
        expect(divergence).to_contain_text(f"At step {DIVERGES_AT}, first in")
        expect(divergence.locator("code").first).to_have_text(
            "scalar/optimizer/group_0/lr"
        )
        divergence.locator("code").nth(1).click()
        expect(page).to_have_url(re.compile(rf"at={DIVERGES_AT}"))
        # The gradient of the last layer is the first that the backward computes.
        expect(page.locator(".same-tensor input")).to_have_value(LAYERS[-1])
        page.get_by_role("button", name="by half").click()
        expect(divergence).to_contain_text(f"At step {DIVERGES_AT}")
        assert "differ=50" in page.url


def test_runs_that_are_the_same_part_nowhere(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, "base", "evaluated")) as watched:
        page = watched.page
        expect(page.locator(".divergence")).to_contain_text(
            "Nowhere: all 9 tensors and scalars are the same"
        )
        page.get_by_role("button", name="step with evaluation").click()
        # Evaluation shifts the count of steps: what is compared is not the same.
        expect(page.locator(".divergence")).to_contain_text(
            "At recorded step 11, first in"
        )
        page.get_by_role("button", name="step", exact=True).click()
        expect(page.locator(".divergence")).to_contain_text("Nowhere")


@pytest.mark.parametrize("width", [390, 1200, 2560])
def test_the_map_shows_where_a_run_is_larger_and_no_spike_or_nan_is_lost(
    browser: Browser, served: Dashboard, width: int
) -> None:
    size = {"width": width, "height": 900}
    advice = ("willReadFrequently",)
    address = at(served, "hot", "base")
    with new_page(browser, address, viewport=size, forgiven=advice) as watched:
        page = watched.page
        canvas = drawn(page, 0, STEPS)
        same = canvas.evaluate(COUNT, SAME)
        assert min(same) > 0
        assert canvas.evaluate(COUNT, MAGENTA)[4] > 0
        beyond = canvas.evaluate(COUNT, (104, 32, 0))
        assert beyond[2] > 0
        assert sum(beyond) == beyond[2]
        # Before they diverge all is the same, and is drawn so.
        page.goto(at(served, "hot", "base", **{"from": 0, "to": DIVERGES_AT}))
        canvas = drawn(page, 0, DIVERGES_AT)
        assert canvas.evaluate(COUNT, MAGENTA) == [0] * len(LAYERS)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width


def test_the_colours_of_the_map_keep_their_meaning_when_the_range_changes(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, "base", "hot")) as watched:
        drawn(watched.page, 0, STEPS)
        legend = watched.page.locator(".legend").first
        whole = legend.inner_text()
        watched.page.goto(f"{watched.page.url}&from=0&to={DIVERGES_AT}")
        drawn(watched.page, 0, DIVERGES_AT)
        expect(legend).to_have_text(
            re.compile(re.escape(whole.partition("\N{MULTIPLICATION SIGN}")[0]))
        )


def test_the_cell_under_the_cursor_is_read_and_opens_the_tensor_of_all_runs(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, "hot", "base")) as watched:
        page = watched.page
        canvas = drawn(page, 0, STEPS)
        canvas.focus()
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        expect(page.locator(".map .reading b")).to_have_text(LAYERS[3])
        expect(page.locator(".map .reading em")).to_have_text("1 \u00d7")
        page.keyboard.press("Enter")
        expect(page.locator(".same-tensor input")).to_have_value(LAYERS[3])
        chart = page.locator(".same-tensor .chart")
        expect(chart).to_have_attribute("aria-label", re.compile("hot: .*; base: "))


def test_aligned_by_time_all_charts_show_seconds_and_a_range_stays_in_the_address(
    browser: Browser, served: Dashboard
) -> None:
    ends = [
        served.ask(f"/api/run?run={served.run_id(name)}").json["ends"]["time"]
        for name in ("base", "hot")
    ]
    with new_page(browser, at(served, "base", "hot")) as watched:
        page = watched.page
        drawn(page, 0, STEPS)
        page.get_by_role("button", name="time", exact=True).click()
        drawn(page, 0, max(ends))
        assert "by=time" in page.url
        half = max(ends) // 2
        page.goto(at(served, "base", "hot", by="time", **{"from": 0, "to": half}))
        drawn(page, 0, half)
        chart = page.locator(".chart").first
        expect(chart).to_have_attribute("data-drawn", f"0 {half}")
        page.get_by_role("button", name="Show all of").click()
        drawn(page, 0, max(ends))


def test_what_was_set_differently_is_listed_and_what_is_the_same_is_not(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, at(served, "base", "hot", "evaluated")) as watched:
        rows = watched.page.locator(".differences tbody tr")
        expect(rows.first).to_contain_text("optimizer/group_0/lr")
        expect(rows.first.locator("td")).to_have_text(
            ["optimizer/group_0/lr", "0.1", "0.1 to 0.4", "0.1"]
        )
        facts = watched.page.locator(".differences")
        expect(facts).to_contain_text("TRAIN, EVAL")
        expect(facts).not_to_contain_text("Software")


def test_of_three_runs_any_two_are_divided(browser: Browser, served: Dashboard) -> None:
    with new_page(browser, at(served, "base", "hot", "evaluated")) as watched:
        page = watched.page
        title = page.locator(".card h2", has_text="every layer")
        expect(title).to_have_text("base / hot, every layer")
        page.get_by_label("By", exact=True).select_option(label="evaluated")
        expect(title).to_have_text("base / evaluated, every layer")
        page.reload()
        expect(title).to_have_text("base / evaluated, every layer")


def test_a_run_that_goes_on_is_compared_as_it_goes(
    browser: Browser, tmp_path: Path
) -> None:
    builders = [RunBuilder(tmp_path / "runs" / name) for name in ("one", "two")]

    def step(number: int, *values: float) -> None:
        for builder, value in zip(builders, values, strict=True):
            builder.step(number, {"w": np.full(2, value, np.float32)})
            builder.flush()

    step(0, 1, 1)
    with dashboard(tmp_path / "runs") as served:
        with new_page(browser, at(served, "one", "two")) as watched:
            page = watched.page
            expect(page.locator(".divergence")).to_contain_text(
                "Nowhere: the only tensor or scalar is the same at 1 step"
            )
            drawn(page, 0, 1)
            step(1, 1, 2)
            expect(page.locator(".divergence")).to_contain_text("At step 1, first in w")
            drawn(page, 0, 2)
        for builder in builders:
            builder.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_screen_shuts_nobody_out(
    browser: Browser, served: Dashboard, scheme: str
) -> None:
    options: dict[str, Any] = {"color_scheme": scheme, "bypass_csp": True}
    address = at(served, "base", "hot", "evaluated")
    with new_page(browser, address, **options) as watched:
        page = watched.page
        drawn(page, 0, STEPS + 1)
        expect(page.locator(".differences td").first).to_be_visible()
        expect(page.locator(".divergence b")).to_be_visible()
        assert axe_violations(page) == []


def test_a_tensor_that_one_run_lacks_is_said_so_and_asked_of_the_others(
    browser: Browser, tmp_path: Path
) -> None:
    with RunBuilder(tmp_path / "runs" / "one") as run:
        run.step(0, {name: np.ones(2, np.float32) for name in ("both", "mine")})
    with RunBuilder(tmp_path / "runs" / "two") as run:
        run.step(0, {"both": np.ones(2, np.float32)})
    with dashboard(tmp_path / "runs") as other:
        address = at(other, "one", "two", tensor="mine")
        with new_page(browser, address) as watched:
            shown = watched.page.locator(".same-tensor .reading")
            expect(shown).to_contain_text("not in two")
            expect(shown).to_contain_text("one 1")


def test_a_loss_that_runs_away_has_a_logarithmic_axis_by_itself(
    browser: Browser, tmp_path: Path
) -> None:
    for name, last in (("calm", 1.0), ("away", 1e20)):
        with RunBuilder(tmp_path / "runs" / name) as run:
            for step in range(4):
                loss = np.array(last if step == 3 else 1.0, np.float32)
                run.save(step, "loss_output_0", loss, role=Role.LOSS)
                run.save(step, "w", np.ones(2, np.float32))
                run.end_step(step)
    with (
        dashboard(tmp_path / "runs") as served,
        new_page(browser, at(served, "calm", "away")) as watched,
    ):
        chips = watched.page.get_by_role("group", name="Axis")
        log = chips.get_by_role("button", name="log")
        expect(log).to_have_attribute("aria-pressed", "true")
        chips.get_by_role("button", name="linear").click()
        expect(log).to_have_attribute("aria-pressed", "false")


# --- What the server answers ---------------------------------------------------


def test_a_ratio_is_that_of_the_runs(served: Dashboard, runs: Path) -> None:
    query = f"run={served.run_id('hot')}&other={served.run_id('base')}"
    query += "&role=gradient&field=rms&columns=7"
    answer = served.ask(f"/api/ratio?{query}")
    trials = [create_trial(runs / name) for name in ("hot", "base")]
    found = ratios(*trials, LAYERS, marks=answer.arrays["edges"].astype(np.int64))
    assert answer.header["names"] == LAYERS
    for name in ("low", "high", "mean", "rows", "bad"):
        np.testing.assert_array_equal(answer.arrays[name], getattr(found, name))
    assert (answer.arrays["edges"][0], answer.arrays["edges"][-1]) == (0, STEPS)


@pytest.mark.parametrize("by", ["step", "global", "time"])
def test_a_curve_on_an_axis_has_every_value_once(served: Dashboard, by: str) -> None:
    id_ = served.run_id("evaluated")
    end = served.ask(f"/api/run?run={id_}").json["ends"][by]
    for name in ("loss_output_0", "scalar/optimizer/group_0/lr"):
        query = f"run={id_}&name={name}&by={by}&columns=9&start=0&stop={end}"
        found = served.ask(f"/api/curve?{query}").arrays
        assert found["rows"].sum() == STEPS
        assert (found["edges"][0], found["edges"][-1]) == (0, end)
        assert (np.diff(found["edges"]) > 0).all()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/curve?run={a}&name=loss_output_0&by=night", 400),
        ("/api/ratio?run={a}&other={b}&role=gradient&field=mean", 400),
        ("/api/ratio?run={a}&role=gradient&field=rms", 400),
        ("/api/ratio?run={a}&other=none&role=gradient&field=rms", 404),
        ("/api/divergence?run={a}&other={b}&percent=-1", 400),
        ("/api/divergence?run={a}", 400),
        ("/api/differences", 400),
        ("/api/differences?run=none", 404),
    ],
)
def test_what_can_never_be_compared_is_refused(
    served: Dashboard, path: str, status: int
) -> None:
    ids = {"a": served.run_id("base"), "b": served.run_id("hot")}
    answer = served.ask(path.format(**ids))
    assert answer.status == status
    assert answer.json["error"]


def test_the_largest_range_and_columns_are_answered(served: Dashboard) -> None:
    query = f"run={served.run_id('base')}&other={served.run_id('hot')}&role=gradient"
    for by in ("step", "global", "time"):
        for more in (
            "columns=999999999",
            f"start={(1 << 63) - 1}",
            f"stop={19 * '9'}",
        ):
            answer = served.ask(f"/api/ratio?{query}&field=rms&by={by}&{more}")
            assert answer.status == 200
            assert answer.arrays["low"].shape[1] <= 4096
