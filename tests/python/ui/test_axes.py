"""Axes and colours of the charts of one screen, and what stands where nothing is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from planted import add_findings, finding
from run_builder import RunBuilder
from screens import Show, color_at
from tdbg.config import Role
from tdbg.run.findings import Severity
from tdbg.run.schema import EventKind

STEPS = 400
GRADIENT = "gradient/w"
LOSS = "loss_output_0"
# Right of what is drawn over the steps.
RIGHT = 12

Value = Callable[[int], float]


def run_of(
    path: Path,
    *,
    loss: Value = lambda step: 2.0 - step / STEPS,
    gradient: Value = lambda step: 0.5 + step / STEPS,
    interval: int | None = None,
    at: Callable[[int], bool] = lambda _: True,
) -> Path:
    """A run of a loss, and of a gradient that was recorded at some of its steps."""
    with RunBuilder(path) as run:
        if interval is not None:
            hook = {"save_config": {"statistics_interval": interval}}
            content = json.dumps({"hook": hook}).encode()
            run.capture.event(0, EventKind.CONFIGURATION, 0, content)
        for step in range(STEPS):
            value = np.array(loss(step), np.float32)
            run.save(step, LOSS, value, role=Role.LOSS, what="statistics")
            if at(step):
                values = np.full(3, gradient(step), np.float32)
                run.save(step, GRADIENT, values, what="statistics")
            run.end_step(step)
    return path


def edges_of(page: Page, selector: str, left: str = "0") -> tuple[float, float]:
    """Where places begin and end in a chart, in pixels of the window."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    begin = box["x"] + float(left)
    return begin, box["x"] + box["width"] - (RIGHT if float(left) else 0)


def map_of(page: Page, first: int = 0, end: int = STEPS) -> Any:
    canvas = page.locator("canvas.map-canvas").first
    expect(canvas).to_have_attribute("data-drawn", f"{first} {end}")
    return canvas


def test_axis_loss_and_map_of_a_screen_have_one_scale_and_one_crosshair(
    show: Show, tmp_path: Path
) -> None:
    page = show(run_of(tmp_path / "run"))
    canvas = map_of(page)
    expect(page.locator(".chart .u-over")).to_have_count(1)
    labels = canvas.get_attribute("data-labels")
    of_map = edges_of(page, "canvas.map-canvas", labels)
    assert edges_of(page, ".timeline .track") == pytest.approx(of_map, abs=1.5)
    assert edges_of(page, ".chart .u-over") == pytest.approx(of_map, abs=1.5)
    box = canvas.bounding_box()
    middle = sum(of_map) / 2
    page.mouse.move(middle, box["y"] + 5)
    lines = page.locator(".crosshair:visible")
    expect(lines).to_have_count(3)
    for i in range(3):
        line = lines.nth(i).bounding_box()
        assert line is not None
        assert line["x"] == pytest.approx(middle, abs=3)
        expect(lines.nth(i)).to_have_attribute("data-at", "200")
    read = page.locator(".chart-host .crosshair").get_attribute("data-read")
    assert read == "200 · 1.5"
    page.mouse.move(5, 5)
    expect(lines).to_have_count(0)


def test_a_cell_keeps_its_colour_when_the_range_changes(
    show: Show, tmp_path: Path
) -> None:
    # What is beyond the range is a thousand times as large.
    page = show(run_of(tmp_path / "run", gradient=lambda s: 1e-3 if s < 300 else 1.0))
    whole = color_at(map_of(page), 150, STEPS)
    page.goto(f"{page.url}&from=100&to=200")
    canvas = map_of(page, 100, 200)
    expect(page.locator(".legend").first).to_contain_text("0.0011 NaN or Inf")
    assert color_at(canvas, 150, 100, first=100) == whole


def test_one_spike_takes_neither_the_colours_of_the_map_nor_room_for_its_digits(
    show: Show, tmp_path: Path
) -> None:
    def huge(step: int) -> float:
        return 1e12 if step == 200 else 1.0 + step / STEPS

    page = show(run_of(tmp_path / "run", gradient=huge, loss=huge))
    canvas = map_of(page)
    legend = page.locator(".legend").last
    expect(legend).to_contain_text("beyond, up to 1e12")
    assert color_at(canvas, 10, STEPS) != color_at(canvas, 390, STEPS)
    expect(page.locator(".reading").first).to_contain_text(
        "the greatest value is 1e12 times the least"
    )


def test_what_was_not_recorded_for_longer_than_the_interval_is_hatched(
    show: Show, tmp_path: Path
) -> None:
    recorded = {*range(0, 100, 10), *range(100, STEPS, 100)}
    page = show(run_of(tmp_path / "run", interval=10, at=lambda s: s in recorded))
    canvas = map_of(page)
    colors = [color_at(canvas, s, STEPS) for s in (205, 230, 260, 299)]
    assert color_at(canvas, 203, STEPS) == colors[0]
    assert colors[0] not in colors[1:]
    expect(page.locator(".coverage")).to_contain_text("gradients at 13 of 400 steps")
    expect(page.locator(".coverage")).to_contain_text("lower statistics_interval")


def test_one_spike_does_not_crush_the_loss_and_the_axis_says_why(
    show: Show, tmp_path: Path
) -> None:
    page = show(run_of(tmp_path / "run", loss=lambda s: 9.0 if s == 200 else 0.5))
    axis = page.get_by_role("group", name="Axis").first
    expect(axis.get_by_role("button", name="log")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.locator(".reading").first).to_contain_text(
        "logarithmic axis: a few values are far from the others"
    )
    axis.get_by_role("button", name="linear").click()
    expect(page.locator(".reading").first).not_to_contain_text("logarithmic axis")


@pytest.mark.parametrize("question", ["curve", "envelope"])
def test_until_there_are_data_there_is_no_axis(
    show: Show, tmp_path: Path, question: str
) -> None:
    page = show(run_of(tmp_path / "run"))
    map_of(page)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile(rf"api/{question}"), hold)
    screen = "" if question == "curve" else f"&screen=tensor&tensor={GRADIENT}"
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{page.url}{screen}")
    expect(page.locator(".chart-empty").first).to_have_text("reading …")
    expect(page.locator(".chart .u-over")).to_have_count(0)
    # The chart comes before its histograms.
    assert [url for url in asked if "api/histograms" in url] == []
    for route in held:
        route.continue_()
    page.unroute_all()
    expect(page.locator(".chart .u-over").first).to_be_visible()
    expect(page.locator(".chart-empty")).to_have_count(0)


def test_a_range_without_a_record_says_so(show: Show, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", at=lambda step: step < 100)
    page = show(run, screen="tensor", tensor=GRADIENT, **{"from": 200, "to": 300})
    text = page.locator(".chart-empty")
    expect(text).to_have_text("Nothing was recorded in these steps.")


def test_the_number_of_findings_is_red_only_where_something_is_wrong(
    show: Show, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run")
    add_findings(run, finding("TrainingSetup", "model", 3, Severity.INFO))
    page = show(run)
    expect(page.locator(".badge")).to_have_class("badge ")
    add_findings(run, finding("ExplodingTensor", GRADIENT, 3, Severity.ERROR))
    expect(page.locator(".badge")).to_have_class("badge error")
