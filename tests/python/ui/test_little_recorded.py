"""What the page shows of trainings of which little is recorded, or nothing judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, expect

from browser import new_page
from dashboard import dashboard
from planted import add_findings, finding
from run_builder import RunBuilder
from screens import Show, color_at
from tdbg.config import Role
from tdbg.run.findings import Cause, Severity

STEPS = 400
GRADIENT = "gradient/w"
BLUE, LIGHT_BLUE = (0, 114, 178), (86, 168, 255)
# Whether the first chart has a line of this colour, now or within some seconds.
GETS_COLOR = """async ([r, g, b]) => {
  for (let frame = 0; frame < 300; frame++) {
    const canvas = document.querySelector(".chart canvas");
    const data = canvas?.width && canvas.getContext("2d")
      .getImageData(0, 0, canvas.width, canvas.height).data;
    for (let i = 0; data && i < data.length; i += 4)
      if (data[i] === r && data[i+1] === g && data[i+2] === b) return true;
    await new Promise(requestAnimationFrame);
  }
  return false;
}"""
# What is written into canvases, from the beginning of the page.
KEEP_TEXTS = """
  window.written = [];
  const fill = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.written.push(text);
    return fill.call(this, text, ...rest);
  };
"""


def run_of(path: Path, steps: Iterable[int]) -> Path:
    """A run of one gradient, always the same, that has these steps."""
    values = np.array([-2.0, -1.0, 1.0, 2.0], np.float32)
    with RunBuilder(path) as builder:
        for step in steps:
            builder.save(step, GRADIENT, values, role=Role.GRADIENT)
            builder.end_step(step)
    return path


def colors_at(page: Page, *steps: int) -> list[str]:
    canvas = page.locator("canvas.map-canvas")
    expect(canvas).to_have_attribute("data-drawn", f"0 {STEPS}")
    return [color_at(canvas, step, STEPS) for step in steps]


def test_cells_stand_until_the_next_where_a_training_records_less_from_then_on(
    show: Show, tmp_path: Path
) -> None:
    # Most recorded steps are neighbours; then comes one of 10, one of 80, and none.
    steps = [*range(160), *range(160, 200, 10), *range(200, 361, 80)]
    page = show(run_of(tmp_path / "run", [*steps, STEPS - 1]))
    recorded, *others = colors_at(page, 100, 165, 195, 250, 318, 382)
    assert others == [recorded] * 5


def test_a_time_in_which_nothing_was_recorded_stays_empty(
    show: Show, tmp_path: Path
) -> None:
    page = show(run_of(tmp_path / "run", [*range(100), *range(300, STEPS)]))
    recorded, empty, after = colors_at(page, 50, 200, 350)
    assert after == recorded
    assert empty != recorded


def test_rows_are_there_however_far_the_last_is_behind_the_cursor(
    show: Show, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_of(run, range(0, STEPS, 100))
    page = show(run, screen="tensor", tensor=GRADIENT, at=399)
    rows = page.locator(".rows tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.last).to_contain_text("300")


def test_the_row_of_the_cursor_is_in_sight(show: Show, tmp_path: Path) -> None:
    page = show(
        run_of(tmp_path / "run", range(STEPS)),
        screen="tensor",
        tensor=GRADIENT,
        at=200,
    )
    row = page.locator(".rows tr.current")
    expect(row).to_contain_text("200")
    row.scroll_into_view_if_needed()
    box = page.locator(".scroll", has=row)
    assert box.evaluate("(host) => host.scrollTop") == 0


def test_charts_take_the_colours_of_another_theme(show: Show, tmp_path: Path) -> None:
    page = show(run_of(tmp_path / "run", range(20)), screen="tensor", tensor=GRADIENT)
    assert page.evaluate(GETS_COLOR, BLUE)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(GETS_COLOR, LIGHT_BLUE)


def test_values_on_the_axis_of_a_distribution_are_round(
    show: Show, tmp_path: Path
) -> None:
    page = show(run_of(tmp_path / "run", range(3)))
    page.add_init_script(KEEP_TEXTS)
    page.goto(f"{page.url}&screen=tensor&tensor={GRADIENT}")
    expect(page.locator("canvas.heat")).to_be_visible()
    assert {"\N{MINUS SIGN}1", "0", "1"} <= set(page.evaluate("() => window.written"))


def test_the_verdict_has_the_room_beside_its_mark_in_a_narrow_window(
    show: Show, tmp_path: Path
) -> None:
    page = show(run_of(tmp_path / "run", range(3)))
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.get_by_role("button", name="Judge now")).to_be_visible()
    box = page.locator(".verdict h1").bounding_box()
    assert box is not None
    assert box["x"] < 90


def test_the_end_of_a_long_name_can_be_read_in_a_narrow_window(
    browser: Browser, tmp_path: Path
) -> None:
    for name in ("healthy", "sick"):
        run_of(tmp_path / "sweeps" / "learning-rates-of-the-third-week" / name, [0])
    run_of(tmp_path / "other", [0])
    size = {"width": 390, "height": 844}
    with (
        dashboard(tmp_path) as served,
        new_page(browser, served.address, viewport=size) as watched,
    ):
        names = watched.page.locator(".run-name b")
        expect(names).to_have_count(3)
        cut = "all => all.filter(b => b.scrollWidth > b.clientWidth).length"
        assert names.evaluate_all(cut) == 0


def test_how_many_findings_follow_from_others_is_told(
    show: Show, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", range(9))
    first = finding("WeightUpdateRatio", GRADIENT, 3, Severity.WARNING)
    cause = Cause(rule=first.rule, tensor=first.tensor, first_step=3)
    next_one = finding("ExplodingGradient", GRADIENT, 5, Severity.ERROR)
    add_findings(run, first, replace(next_one, cause=cause))
    page = show(run, screen="findings")
    expect(page.locator("h1")).to_have_text("Findings 2, including 1 consequence")
    page.goto(page.url.replace("screen=findings", "screen="))
    expect(page.locator(".verdict h1")).to_contain_text("One thing is wrong")
