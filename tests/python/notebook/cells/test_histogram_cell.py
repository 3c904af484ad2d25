"""What a notebook shows of a histogram."""

from __future__ import annotations

import numpy as np
import pytest

from report_runs import Page
from tdbg.stats.histogram import Histogram


def shown(values: object) -> Page:
    return Page(Histogram.of(np.asarray(values, np.float32))._repr_html_())


def test_bars_quantiles_and_losses_of_narrow_types() -> None:
    page = shown(np.random.default_rng(0).normal(size=5000) * 1e-4)
    assert "5,000" in page.root.text
    assert len(page.root.all("rect")) == 64
    headings = [e.text for e in page.root.all("th")]
    assert {"median", "99 %", "float8_e4m3fn"} <= set(headings)
    assert "100.00%" in page.root.text  # All of it is below what e4m3 has.


def test_what_is_not_finite_is_counted_and_has_no_quantiles() -> None:
    page = shown([1.0, 2.0, 0.0, np.nan, np.inf])
    cells = {row.children[0].text: row.children[1].text for row in page.root.all("tr")}
    assert cells["NaN"] == "1 (20.00%)"
    assert cells["infinite"] == "1 (20.00%)"
    assert cells["zero"] == "1 (20.00%)"
    assert "median" not in page.root.text


@pytest.mark.parametrize("values", [[], [np.nan, np.nan]])
def test_without_a_finite_element_there_is_no_chart(values: list[float]) -> None:
    assert shown(values).root.all("svg") == []


def test_elements_that_are_all_alike_are_drawn() -> None:
    assert len(shown([3.0] * 10).root.all("rect")) >= 1
