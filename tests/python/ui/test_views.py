"""What the screens of a run and of a tensor show of it, in a real browser."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from browser import axe_violations, new_page
from dashboard import Dashboard, dashboard, page_address
from planted import add_findings, finding
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.run.findings import Evidence, Finding, Severity

RANKS, OUTLIER = 9, 5
STEPS = 60
BLOCKS, LAYERS = 30, 4


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("runs")
    _run_of_ranks(folder / "ranks")
    _deep_run(folder / "deep")
    with dashboard(folder) as found:
        yield found


def _run_of_ranks(path: Path) -> None:
    """Nine ranks, of which one goes its own way; the values of a matrix are saved."""
    random = np.random.default_rng(1)
    matrix = np.zeros((300, 4), np.float32)
    matrix[7, 2], matrix[299, 3] = -8.0, np.nan
    builders = [
        RunBuilder(path, rank=rank, world_size=RANKS, ordinal=0)
        for rank in range(RANKS)
    ]
    for step in range(STEPS):
        for rank, run in enumerate(builders):
            value = 1.0 + 0.01 * random.normal() + (rank == OUTLIER and step > 40)
            loss = np.array(value, np.float32)
            run.save(step, "loss_output_0", loss, role=Role.LOSS, what="statistics")
            if rank == 0 and step % 20 == 0:
                run.save(step, "weight", matrix + step)
            # The outlier is waited for, and slows down.
            took = 10_000_000 * (1 + 4 * (rank == OUTLIER and step > 20))
            run.end_step(step, duration_ns=took)
    for run in builders:
        run.close()
    begun = finding("LossSpike", "loss_output_0", 41, Severity.WARNING)
    document = {
        **begun.to_json(),
        "value": 0.9,
        "threshold": 0.5,
        "evidence": {"statistic": "mean", "limit": 1.5},
    }
    add_findings(path, Finding.from_json(document))


def _deep_run(path: Path) -> None:
    """120 gradients in 30 blocks; one layer of block 7 has a NaN at one step."""
    with RunBuilder(path) as run:
        for step in range(20):
            tensors = {
                f"gradient/blocks.{block}.layer{layer}.weight": np.full(
                    4, 0.1, np.float32
                )
                for block in range(BLOCKS)
                for layer in range(LAYERS)
            }
            if step == 10:
                tensors["gradient/blocks.7.layer2.weight"][1] = np.nan
            run.step(step, tensors, what="statistics")


# --- Ranks --------------------------------------------------------------------


def test_the_rank_that_goes_its_own_way_comes_first(
    browser: Browser, served: Dashboard
) -> None:
    state = {"screen": "tensor", "tensor": "loss_output_0", "field": "mean", "at": 50}
    with new_page(browser, page_address(served, "ranks", **state)) as watched:
        card = watched.page.locator(".ranks")
        first = card.locator("tbody tr").first.locator("td")
        expect(first.nth(0)).to_have_text(f"worker_{OUTLIER}")
        expect(first.nth(1)).to_have_text(re.compile(r"^(1\.9|2)"))
        expect(first.nth(2)).to_have_text(re.compile(r"^(8|9|10)\d %$"))
        expect(card.locator("tbody tr")).to_have_count(RANKS)
        # As many lines as can be told apart, and the band of all.
        keys = card.locator(".key")
        expect(keys.nth(0)).to_have_text("all ranks")
        expect(keys.nth(1)).to_have_text(f"worker_{OUTLIER}")
        expect(keys).to_have_count(7)


def test_ranks_are_those_of_the_trial(served: Dashboard) -> None:
    query = f"run={served.run_id('ranks')}&name=loss_output_0&field=mean&columns=64"
    answer = served.ask(f"/api/ranks?{query}")
    assert answer.header["names"] == [f"worker_{rank}" for rank in range(RANKS)]
    mean = answer.arrays["mean"]
    assert mean.shape == (RANKS, STEPS)
    assert (answer.arrays["rows"] == 1).all()
    assert np.abs(mean[OUTLIER, 41:] - 2).max() < 0.1
    assert np.abs(np.delete(mean, OUTLIER, axis=0) - 1).max() < 0.1


def test_a_map_of_ranks_has_the_outlier_first_and_opens_a_rank_alone(
    browser: Browser, served: Dashboard
) -> None:
    state = {"screen": "tensor", "tensor": "loss_output_0", "field": "mean"}
    outlier = f"worker_{OUTLIER}"
    with new_page(browser, page_address(served, "ranks", **state)) as watched:
        page = watched.page
        canvas = page.locator(".ranks canvas.map-canvas")
        expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")
        expect(canvas).to_have_attribute("data-rows", str(RANKS))
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        reading = page.locator(".ranks .map .reading")
        expect(reading.locator("b")).to_have_text(outlier)
        expect(reading).to_contain_text(f"step {STEPS - 2}")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(rf"rank={outlier}"))
        title = page.locator(".card h2").first
        expect(title).to_have_text(f"mean over steps, {outlier}")
        # It alone is in the chart, in the rows, and in what is saved of them.
        current = page.locator("table.rows tr.current td")
        expect(current.nth(1)).to_have_text(re.compile(r"^(1\.9|2)"))
        page.reload()
        select = page.get_by_label("Rank", exact=True)
        expect(select).to_have_value(outlier)
        select.select_option(label="worker_0")
        expect(title).to_have_text("mean over steps, worker_0")
        expect(current.nth(1)).to_have_text(re.compile(r"^(0\.9|1)"))
        select.select_option(label="all ranks")
        expect(title).to_have_text("mean over steps")
        assert "rank=" not in page.url


def test_the_rank_that_the_others_wait_for_is_seen_in_the_map_of_step_times(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, page_address(served, "ranks")) as watched:
        page = watched.page
        card = page.locator(".step-times")
        canvas = card.locator("canvas.map-canvas")
        expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        reading = card.locator(".reading")
        expect(reading).to_contain_text(f"worker_{OUTLIER} step {STEPS - 2}")
        expect(reading.locator("em")).to_have_text("0.05 s")
        page.keyboard.press("ArrowDown")
        expect(reading.locator("em")).to_have_text("0.01 s")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("rank=worker_0"))
        # The map of layers is that of the rank, which alone has the values.
        layers = page.locator(".card h2", has_text="Every layer")
        expect(layers).to_have_text("Every layer, worker_0")
        layer_map = page.locator("canvas.map-canvas").first
        expect(layer_map).to_have_attribute("aria-label", re.compile("of 1 tensor, "))
        page.get_by_label("Rank", exact=True).select_option(label="worker_1")
        name = "aria-label"
        expect(layer_map).not_to_have_attribute(name, re.compile("highest"))


@pytest.mark.parametrize(
    ("state", "card"),
    [({}, ".step-times"), ({"screen": "tensor", "tensor": "loss_output_0"}, ".ranks")],
)
def test_maps_of_ranks_keep_their_colours_when_the_range_changes(
    browser: Browser, served: Dashboard, state: dict[str, str], card: str
) -> None:
    address = page_address(served, "ranks", **state)
    advice = ("willReadFrequently",)
    with new_page(browser, address, forgiven=advice) as watched:
        canvas = watched.page.locator(f"{card} canvas.map-canvas")
        legend = watched.page.locator(f"{card} .legend")
        expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")
        whole = legend.inner_text()
        # What the outlier has then is far from what is there before.
        watched.page.goto(f"{watched.page.url}&from=0&to=20")
        expect(canvas).to_have_attribute("data-drawn", "0 20")
        expect(legend).to_have_text(whole, use_inner_text=True)


def test_a_run_of_one_rank_has_no_choice_of_ranks(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, page_address(served, "deep", rank="worker_3")) as watched:
        page = watched.page
        expect(page.locator("canvas.map-canvas")).to_have_attribute(
            "data-drawn", "0 20"
        )
        assert page.get_by_label("Rank", exact=True).count() == 0
        expect(page.locator(".card h2", has_text="Every layer")).to_have_text(
            "Every layer, every step"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_maps_of_ranks_shut_nobody_out(
    browser: Browser, served: Dashboard, scheme: str
) -> None:
    options: dict[str, Any] = {"color_scheme": scheme, "bypass_csp": True}
    tensor = {"screen": "tensor", "tensor": "loss_output_0"}
    with new_page(browser, page_address(served, "ranks"), **options) as watched:
        for state, shown in (({}, ".step-times"), (tensor, ".ranks")):
            watched.page.goto(page_address(served, "ranks", **state))
            expect(watched.page.locator(f"{shown} canvas.map-canvas")).to_be_visible()
            assert axe_violations(watched.page) == []


def test_answers_are_those_of_the_rank_that_is_asked_for(served: Dashboard) -> None:
    ranks = f"/api/ranks?run={served.run_id('ranks')}&columns=64"
    found = served.ask(f"{ranks}&field=seconds").arrays
    assert found["rows"].shape == (RANKS, STEPS)
    assert found["mean"][OUTLIER, 21:].tolist() == [np.float32(0.05)] * (STEPS - 21)
    assert found["mean"][0].tolist() == [np.float32(0.01)] * STEPS
    query = f"run={served.run_id('ranks')}&name=loss_output_0&worker=worker_{OUTLIER}"
    for path in ("envelope?field=mean&columns=64", "curve?columns=64"):
        answer = served.ask(f"/api/{path}&{query}").arrays
        assert answer["rows"].sum() == STEPS
        assert np.abs(answer["mean"].ravel()[41:] - 2).max() < 0.1
    rows = served.ask(f"/api/rows?{query}&start=50&stop=51").json["rows"]
    assert rows[0]["count"] == 1
    assert rows[0]["mean"] == pytest.approx(2, abs=0.1)
    weight = f"run={served.run_id('ranks')}&name=weight&worker=worker_"
    assert served.ask(f"/api/values?{weight}0").header["n_steps"] == 3
    assert served.ask(f"/api/values?{weight}1").header["n_steps"] == 0
    assert len(served.ask(f"/api/histograms?{weight}0").arrays["steps"]) == 3
    assert len(served.ask(f"/api/histograms?{weight}1").arrays["steps"]) == 0
    for path in ("envelope?field=mean", "curve?", "rows?", "values?", "histograms?"):
        answer = served.ask(f"/api/{path}&{weight}9")
        assert (answer.status, "worker_9" in answer.json["error"]) == (404, True)


# --- Thresholds ---------------------------------------------------------------


def test_the_threshold_of_a_finding_is_drawn_where_it_lies(
    browser: Browser, served: Dashboard
) -> None:
    reddest = """(host) => {
      const canvas = host.querySelector("canvas");
      const { width, height } = canvas;
      const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
      const rows = new Array(height).fill(0);
      for (let i = 0; i < data.length; i += 4)
        if (Math.abs(data[i] - 196) + Math.abs(data[i + 1] - 43) +
            Math.abs(data[i + 2] - 56) < 40) rows[Math.floor(i / 4 / width)]++;
      return [Math.max(...rows) / width, rows.indexOf(Math.max(...rows)) / height];
    }"""
    with new_page(browser, page_address(served, "ranks", screen="findings")) as watched:
        page = watched.page
        chart = page.locator(".evidence .chart")
        expect(chart).to_have_attribute("data-limits", "threshold 1.5")
        share, middle = chart.evaluate(reddest)
        # A dashed line across the chart, half-way between the two levels.
        assert share > 0.3
        assert 0.25 < middle < 0.65
        expect(page.locator(".measure")).to_have_text("measured 0.9, threshold 0.5")
        page.get_by_role("link", name="Show me").click()
        expect(page.locator("h1")).to_have_text("loss_output_0")
        pressed = page.locator(".chips button[aria-pressed=true]").first
        expect(pressed).to_have_text("mean")
        chart = page.locator(".chart").first
        expect(chart).to_have_attribute("data-limits", "threshold 1.5")
        # On the axis of another statistic it has no place.
        page.get_by_role("button", name="l2", exact=True).click()
        expect(chart).to_have_attribute("data-limits", "")


def test_a_mean_of_magnitudes_is_drawn_beside_the_rms_and_says_so(
    browser: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    name = "gradient/w"
    with RunBuilder(run) as builder:
        for step in range(20):
            builder.step(step, {name: np.full(4, 1e-9, np.float32)}, what="statistics")
    begun = finding("VanishingGradient", name, 3, Severity.ERROR)
    evidence = Evidence("abs_mean", 1e-7)
    document = {**begun.to_json(), "evidence": {"statistic": "abs_mean", "limit": 1e-7}}
    assert Finding.from_json(document).evidence == evidence
    add_findings(run, Finding.from_json(document))
    with dashboard(run) as served:
        address = page_address(served, served.run_name(), screen="findings")
        with new_page(browser, address) as w:
            chart = w.page.locator(".evidence .chart")
            said = "threshold 1e\u22127 of mean |x|"
            expect(chart).to_have_attribute("data-limits", said)
            expect(chart).to_have_attribute("aria-label", re.compile(re.escape(said)))


def test_what_a_logarithmic_axis_has_no_place_for_stands_at_its_foot(
    browser: Browser, tmp_path: Path
) -> None:
    at_foot = """(host) => {
      const canvas = host.querySelector("canvas");
      const ratio = devicePixelRatio;
      const { width, height } = canvas;
      const axis = 26 * ratio;
      const data = canvas.getContext("2d")
        .getImageData(0, height - axis - 4 * ratio, width, 2).data;
      const xs = [];
      for (let x = 0; x < width; x++)
        if (data[4 * x + 3] > 200 && data[4 * x + 2] > 150 && data[4 * x] < 60)
          xs.push(x / width);
      return xs.length ? [Math.min(...xs), Math.max(...xs)] : [];
    }"""
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        for step in range(100):
            x = np.full(4, 0.0 if 40 <= step < 60 else 10.0 ** (step % 5), np.float32)
            builder.step(step, {"gradient/w": x}, what="statistics")
    with dashboard(run) as served:
        state = {"screen": "tensor", "tensor": "gradient/w"}
        address = page_address(served, served.run_name(), **state)
        with new_page(browser, address) as watched:
            chart = watched.page.locator(".chart").first
            expect(chart).to_have_attribute("data-drawn", "0 100")
            first, last = chart.evaluate(at_foot)
            assert 0.40 < first < 0.47
            assert 0.58 < last < 0.65
            reading = watched.page.locator(".card", has=chart).locator(".reading")
            expect(reading).to_contain_text("at the bottom: zero or below")
            watched.page.get_by_role("button", name="linear").click()
            expect(reading).not_to_contain_text("at the foot")


# --- Values -------------------------------------------------------------------


def test_saved_values_are_a_picture_that_is_read_exactly(
    browser: Browser, served: Dashboard
) -> None:
    state = {"screen": "tensor", "tensor": "weight", "at": 25}
    with new_page(browser, page_address(served, "ranks", **state)) as watched:
        page = watched.page
        expect(page.locator("h2", has_text="Values at step 20")).to_be_visible()
        picture = page.locator("canvas.elements")
        expect(picture).to_have_attribute(
            "aria-label", re.compile("1 cells not finite")
        )
        # 300 rows are more than there are cells: each has two.
        picture.focus()
        for key in ["ArrowRight"] * 4 + ["ArrowDown"] * 2:
            page.keyboard.press(key)
        reading = page.locator(".card:has(canvas.elements) .reading")
        said = "rows 6\u20137, column 2 furthest from zero: 20"
        expect(reading).to_contain_text(said)


def test_a_picture_of_values_is_saved_with_the_numbers_of_its_cells(
    browser: Browser, served: Dashboard
) -> None:
    state = {"screen": "tensor", "tensor": "weight", "at": 25}
    with new_page(browser, page_address(served, "ranks", **state)) as watched:
        page = watched.page
        page.locator(".picture-host").hover()
        page.get_by_label("Save weight at step 20 as").click()
        saved = {}
        for kind in ("CSV", "PNG", "SVG"):
            with page.expect_download() as download:
                page.get_by_role("button", name=kind, exact=True).click()
            saved[kind] = download.value.path().read_bytes()
        rows = list(csv.DictReader(saved["CSV"].decode().splitlines()))
        assert len(rows) == 600
        (cell,) = (each for each in rows if (each["row"], each["column"]) == ("6", "2"))
        assert (cell["rows"], cell["columns"]) == ("2", "1")
        assert float(cell["furthest_from_zero"]) == 20
        assert sum(int(each["not_finite"]) for each in rows) == 1
        assert saved["PNG"].startswith(b"\x89PNG")
        # Cells stay cells at every size.
        assert b'image-rendering="pixelated"' in saved["SVG"]


def test_a_picture_has_what_is_furthest_from_zero_and_what_is_not_finite(
    served: Dashboard,
) -> None:
    query = f"run={served.run_id('ranks')}&name=weight&at=19"
    answer = served.ask(f"/api/values?{query}")
    assert answer.header["step"] == 0
    assert (answer.header["shape"], answer.header["block"]) == ([300, 4], [2, 1])
    extreme, bad = answer.arrays["extreme"], answer.arrays["bad"]
    assert extreme.shape == (150, 4)
    assert extreme[3, 2] == -8.0
    assert np.flatnonzero(bad).tolist() == [149 * 4 + 3]
    none = served.ask(
        f"/api/values?run={served.run_id('ranks')}&name=loss_output_0"
    ).header
    assert none["n_steps"] == 0


def test_what_a_format_loses_is_said_of_the_step_that_is_looked_at(
    served: Dashboard,
) -> None:
    query = f"run={served.run_id('ranks')}&name=weight"
    at_end = served.ask(f"/api/histograms?{query}").header
    assert at_end["lost_step"] == 40
    earlier = served.ask(f"/api/histograms?{query}&at=39").header
    assert earlier["lost_step"] == 20
    assert [each["dtype"] for each in earlier["lost"]] == [
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
    assert served.ask(f"/api/histograms?{query}&start=1&at=0").header["lost"] == []


def test_all_rows_of_the_range_are_saved_as_csv(
    browser: Browser, served: Dashboard
) -> None:
    state = {"screen": "tensor", "tensor": "loss_output_0", "from": 10, "to": 58}
    with new_page(browser, page_address(served, "ranks", **state)) as watched:
        with watched.page.expect_download() as saved:
            watched.page.get_by_role("button", name="Save as CSV").click()
        lines = saved.value.path().read_text().splitlines()
    assert lines[0].startswith("step,mode,")
    assert [line.split(",")[0] for line in lines[1:]] == [str(s) for s in range(10, 58)]


# --- The tree of the map ------------------------------------------------------


def test_branches_of_the_map_are_folded_show_the_worst_and_unfold(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, page_address(served, "deep")) as watched:
        page = watched.page
        canvas = page.locator("canvas.map-canvas")
        # As many levels as leave names that can be read: one row a block.
        expect(canvas).to_have_attribute("data-rows", str(BLOCKS))
        reading = page.locator(".map .reading")
        canvas.focus()
        for _ in range(7):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
        expect(reading).to_contain_text("of 4")
        canvas.hover(position={"x": 40, "y": 7 * _height(canvas) + 4})
        expect(reading).to_contain_text("blocks.7 4 tensors in one row")
        canvas.click(position={"x": 40, "y": 7 * _height(canvas) + 4})
        expect(canvas).to_have_attribute("data-rows", str(BLOCKS + LAYERS - 1))
        assert "fold=blocks.7" in page.url
        canvas.hover(position={"x": 40, "y": 9 * _height(canvas) + 4})
        expect(reading).to_contain_text("blocks.7 click to fold it")
        canvas.click(position={"x": 4, "y": 9 * _height(canvas) + 4})
        expect(canvas).to_have_attribute("data-rows", str(BLOCKS))
        canvas.click(position={"x": 40, "y": 7 * _height(canvas) + 4})
        expect(canvas).to_have_attribute("data-rows", str(BLOCKS + LAYERS - 1))
        page.reload()
        expect(canvas).to_have_attribute("data-rows", str(BLOCKS + LAYERS - 1))
        canvas.focus()
        for _ in range(8):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("-")
        expect(canvas).to_have_attribute("data-rows", str(BLOCKS))
        assert "fold" not in page.url


def test_a_folded_row_leads_to_the_tensor_that_is_worst(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, page_address(served, "deep")) as watched:
        page = watched.page
        canvas = page.locator("canvas.map-canvas")
        expect(canvas).to_have_attribute("data-rows", str(BLOCKS))
        box = canvas.bounding_box()
        assert box is not None
        labels = int(str(canvas.get_attribute("data-labels")))
        x = labels + (box["width"] - labels) * 10.5 / 20
        canvas.click(position={"x": x, "y": 7 * _height(canvas) + 4})
        expect(page.locator("h1")).to_have_text("gradient/blocks.7.layer2.weight")


def _height(canvas: object) -> int:
    return int(str(canvas.get_attribute("data-row-height")))  # type: ignore[attr-defined]


# --- Judging ------------------------------------------------------------------


def test_a_run_that_nobody_judged_is_judged_from_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "run"
    with RunBuilder(run) as builder:
        for step in range(30):
            value = np.nan if step > 20 else 0.1
            tensors = {"gradient/w": np.full(4, value, np.float32)}
            builder.step(step, tensors, what="statistics")
    with dashboard(run.parent) as served:
        with new_page(browser, page_address(served, "run")) as watched:
            page = watched.page
            expect(page.locator(".verdict h1")).to_contain_text("No rule has judged")
            page.get_by_role("button", name="Judge now").click()
            verdict = page.locator(".verdict h1")
            expect(verdict).to_contain_text("ExplodingTensor in gradient/w")
            expect(page.get_by_role("button", name="Judge now")).to_have_count(0)
        # It stays in the run, as a judgement of tdbg check does.
        # What is found is shown as it is found, before all rules have been asked.
        path = f"/api/run?run={served.run_id()}"
        while (document := served.ask(path).json)["judging"]["state"] == "judging":
            pass
        assert document["judging"] == {"state": "judged", "reason": "", "steps": 30}
        assert len(document["rules"]) > 20


def test_whoever_may_only_look_judges_nothing(
    browser: Browser, served: Dashboard
) -> None:
    path = f"/api/judge?run={served.run_id('deep')}"
    refused = served.ask(path, method="POST", body={}, token=served.access.view)
    assert refused.status == 401
    assert served.ask(path, method="POST", body={"rules": "all"}).status == 400
    address = page_address(served, "deep").partition("#")[0]
    with new_page(browser, f"{address}#t={served.access.view}") as watched:
        expect(watched.page.locator(".verdict code").first).to_contain_text(
            "tdbg check"
        )
        expect(watched.page.get_by_role("button", name="Judge now")).to_have_count(0)
