"""Scales, series and charts: what is drawn where, also of odd numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from report_runs import Element, Page
from tdbg.drawing.bars import bar_chart, columns_chart
from tdbg.drawing.classification import matrix_chart
from tdbg.drawing.dots import Dots, dot_chart
from tdbg.drawing.heat_map import BAD, colors, heat_map
from tdbg.drawing.lines import line_chart
from tdbg.drawing.scales import Scale, number, scale_of, step_scale
from tdbg.trial import Series
from tdbg.view import Cells


def drawn(markup: str) -> Element:
    (found,) = Page(f"<body>{markup}</body>").root.all("body")
    return found


# --- Numbers and scales -----------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-3.0, "-3"),
        (1234.0, "1,234"),
        (0.01234, "0.0123"),
        (12345.6, "12,346"),
        (1e-6, "10⁻⁶"),
        (-1e-6, "-10⁻⁶"),
        (4.56e-9, "4.56·10⁻⁹"),
        (1e300, "10³⁰⁰"),
        (5e-324, "4.94·10⁻³²⁴"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
    ],
)
def test_numbers_are_written_in_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_scale_becomes_logarithmic_where_numbers_are_far_apart() -> None:
    assert scale_of([[1.0, 60.0]], 0, 1).is_log
    assert not scale_of([[1.0, 40.0]], 0, 1).is_log
    assert not scale_of([[1.0, 1e9]], 0, 1, may_be_log=False).is_log
    assert not scale_of([[-1.0, -5.0, 1e9]], 0, 1).is_log


@pytest.mark.parametrize(
    "values",
    [
        [],
        [math.nan, math.inf],
        [0.0],
        [7.0, 7.0],
        [-1e308, 1e308],
        [1e-320, 1e308],
        [5e-324],
        [3.4e38, -3.4e38, 0.0],
    ],
)
def test_every_finite_number_has_a_place_on_its_scale(values: list[float]) -> None:
    scale = scale_of([values], 300.0, 20.0)
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0 or not scale.is_log]
    places = scale(positive)
    assert np.all((places >= 19.9) & (places <= 300.1))
    for _, name in scale.ticks():
        assert "n" not in name.lower()


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(1e-30, 1e30), (0.9, 60.0), (1.0, 2.0)])
def test_ticks_are_few_and_on_the_scale(low: float, high: float, is_log: bool) -> None:
    ticks = [value for value, _ in Scale(low, high, 0, 1, is_log).ticks()]
    assert 2 <= len(ticks) <= 12
    assert ticks == sorted(ticks)
    places = Scale(low, high, 0, 1, is_log)(ticks if is_log else np.maximum(ticks, low))
    assert np.all((places >= -1e-9) & (places <= 1 + 1e-9))


def test_one_spike_does_not_crush_the_other_values() -> None:
    losses = np.concatenate([np.linspace(0.7, 0.5, 99), [6.0]])
    assert scale_of([losses], 100, 0).is_log
    # Half of the values up there are no spike; nor is what a linear axis shows as well.
    assert not scale_of([np.repeat([0.5, 6.0], 50)], 100, 0).is_log
    assert not scale_of([np.append(np.linspace(7.0, 5.0, 99), 12.0)], 100, 0).is_log
    assert not scale_of([np.append(np.linspace(-0.7, -0.5, 99), 6.0)], 100, 0).is_log


def test_a_run_of_one_step_has_a_scale() -> None:
    assert step_scale(5, 5, 0, 100).at(5) == 50


# --- Series -----------------------------------------------------------------------


def test_points_are_put_together_and_none_is_lost() -> None:
    values = np.zeros(10_000)
    values[4321], values[77], values[78] = 1000.0, math.nan, -5.0
    series = Series.of_points("x", np.arange(10_000), values, columns=100)
    assert len(series) == 100
    assert series.high.max() == 1000.0
    assert series.low.min() == -5.0
    assert series.bad.sum() == 1
    assert np.flatnonzero(series.bad).tolist() == [0]
    assert series.mean[43] == pytest.approx(10.0)
    assert (series.first[43], series.last[43]) == (4300, 4399)


def test_points_may_come_in_any_order_and_be_huge() -> None:
    series = Series.of_points("x", [3, 1, 2, 0], [1e308, 1e308, 1e308, 1e308], 1)
    assert series.mean.tolist() == [1e308]
    assert (series.first[0], series.last[0]) == (0, 3)


def test_a_column_without_a_finite_value_has_no_mean() -> None:
    series = Series.of_points("x", [0, 1], [math.nan, -math.inf])
    assert np.isnan(series.mean).all()
    assert series.bad.tolist() == [1, 1]


# --- Charts -----------------------------------------------------------------------


def line_of(values: np.ndarray) -> Element:
    """The chart of values at steps from 0 on."""
    series = Series.of_points("x", np.arange(len(values)), values)
    return drawn(line_chart([series], alt="a", y_label="y"))


def said(chart: Element) -> str:
    """What the drawing says to who cannot see it."""
    return chart.all("svg")[0].attributes["aria-label"]


def test_a_gap_of_nan_breaks_the_line() -> None:
    values = np.arange(20.0)
    values[10] = math.nan
    chart = line_of(values)
    assert len(chart.all("path", "line")) == 2
    assert len(chart.all("rect", "bad")) == 1
    assert "1 row with NaN or Inf, the first at step 10" in said(chart)


def test_the_band_comes_back_where_low_equals_high() -> None:
    """Its outline touches itself wherever a column has one value."""
    low = np.array([1.0, 2.0, 3.0, 1.0, 2.0])
    high = np.array([1.0, 4.0, 3.0, 5.0, 2.0])
    ends = np.arange(5)
    none = np.zeros(5, np.int64)
    series = Series("x", ends, ends, low, high, (low + high) / 2, none)
    (band,) = drawn(line_chart([series], alt="a", y_label="y")).all("path", "range")
    points = band.attributes["d"].strip("MZ").split("L")
    places = [float(each.split()[0]) for each in points]
    n = len(places) // 2 + 1
    assert places[: n - 1] == sorted(places[: n - 1])
    back = [x for x in places if x == places[2]]
    assert len(back) == 2, "the way back passes the column that has one value"


def test_neighbouring_marks_are_one_rectangle() -> None:
    values = np.full(1000, math.nan)
    values[500] = 1.0
    chart = line_of(values)
    assert len(chart.all("rect", "bad")) <= 2
    # A value alone has a dot: a line needs two.
    assert len(chart.all("circle")) == 1


def test_nothing_to_draw_says_so() -> None:
    empty = Series.of_points("x", [], [])
    assert (
        "Nothing was recorded" in drawn(line_chart([empty], alt="a", y_label="y")).text
    )


def test_colours_begin_anew_where_there_are_more_series() -> None:
    series = [Series.of_points(str(i), [0, 1], [i, i + 1]) for i in range(10)]
    chart = drawn(line_chart(series, alt="a", y_label="y"))
    classes = [each.attributes["class"] for each in chart.all("path", "line")]
    assert classes[0] == classes[8] == "line s0"
    assert len(chart.all("li")) == 10


def test_the_palette_is_even_from_dark_to_bright() -> None:
    found = colors().astype(float)[2:]
    luminance = found @ [0.2126, 0.7152, 0.0722]
    assert np.all(np.diff(luminance) > -1.0)
    assert luminance[-1] > 8 * luminance[0]
    assert not (found == colors()[BAD]).all(axis=1).any()


def test_a_map_of_nothing_but_nan_is_drawn() -> None:
    cells = Cells(
        ["a"], np.array([0, 1, 2]), np.full((1, 2), np.nan), np.ones((1, 2), bool)
    )
    chart = drawn(heat_map(cells, alt="a", what="b"))
    assert len(chart.all("rect", "bad")) == 2
    assert "NaN or infinity in 1 rows" in said(chart)


def test_bars_without_a_value_are_left_out() -> None:
    chart = drawn(
        bar_chart(["a", "b"], [[1.0, math.nan], [0.0, 2.0]], ["x", "y"], alt="a")
    )
    assert len(chart.all("rect")) == 3


def test_columns_have_a_title_that_says_what_they_hold() -> None:
    chart = drawn(
        columns_chart(
            np.array([0.0, 1.0, 2.0]),
            [np.array([3.0, 0.0])],
            ["n"],
            alt="a",
            x_label="x",
        )
    )
    titles = [each.all("title")[0].text for each in chart.all("rect")]
    assert titles == ["0 to 1, n: 3", "1 to 2, n: 0"]


def test_dots_of_nan_are_crosses_at_the_edge() -> None:
    dots = Dots("now", np.array([1.0, np.nan]), np.array([False, True]))
    chart = drawn(dot_chart(["a", "b"], [dots], alt="a", what="w"))
    assert len(chart.all("circle")) == 1
    assert len(chart.all("path", "cross")) == 1


def test_a_large_matrix_has_cells_without_numbers() -> None:
    counts = np.eye(20, dtype=np.int64) * 7
    chart = drawn(matrix_chart(counts, [str(i) for i in range(20)], alt="a", title="t"))
    assert len(chart.all("rect", "cell")) == 400
    assert not chart.all("text", "onfill")
    assert "140 of 140 samples are recognized" in said(chart)
