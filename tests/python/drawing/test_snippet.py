"""Snippets for notebooks: no class, no script, bounded, and no text becomes markup."""

from __future__ import annotations

import numpy as np
import pytest

from report_runs import HOSTILE, Page
from tdbg.drawing.colors import viridis
from tdbg.drawing.heat_map import heat_map
from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import tag
from tdbg.drawing.snippet import MOST_BYTES, facts, listing, snippet, toned
from tdbg.trial import Series
from tdbg.view import Cells

VALUES = np.r_[np.linspace(1, 2, 50), np.nan, 1e4]


def chart(*labels: str) -> str:
    series = [Series.of_points(each, np.arange(52), VALUES) for each in labels]
    return line_chart(series, alt="A loss.", y_label="loss")


def test_a_chart_keeps_its_colours_without_a_style_sheet() -> None:
    page = Page(snippet("a run", chart("train", "eval")))
    lines = [e for e in page.root.all("path") if "stroke-width" in e.attributes]
    strokes = {e.attributes["stroke"] for e in lines}
    assert len(strokes) == 2
    assert all(stroke.startswith("#") for stroke in strokes)
    # The entries of the legend are told apart likewise.
    (legend,) = page.root.all("ul")
    assert len({e.attributes["fill"] for e in legend.all("rect")}) == 2


def test_nothing_in_it_has_a_class_or_a_script() -> None:
    page = Page(snippet("a run", facts([("a", "b")]), chart("train")))
    for element in page.root.all("*"):
        assert "class" not in element.attributes
        assert element.name not in ("script", "style", "iframe", "image", "link")
        assert not [name for name in element.attributes if name.startswith("on")]


def test_text_takes_the_colour_of_the_page_light_or_dark() -> None:
    page = Page(snippet("a run", chart("train")))
    (svg,) = page.root.all("svg")
    assert svg.attributes["fill"] == "currentColor"
    texts = page.root.all("text")
    assert {e.attributes.get("fill", "currentColor") for e in texts} <= {
        "currentColor",
        "#ff2654",
    }


@pytest.mark.parametrize("text", [*HOSTILE, 'a class="f0" b', '<rect class="bad">'])
def test_a_text_is_shown_and_never_obeyed(text: str) -> None:
    page = Page(snippet(text, facts([(text, text)]), listing(["a", text], [[text, 1]])))
    names = {each.name for each in page.root.all("*")}
    expected = {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert names <= expected
    for cell in page.root.all("td"):
        assert set(cell.attributes) <= {"style"}
    if text.isprintable() and len(text) < 400:
        assert text in page.root.text


def test_what_would_make_it_too_large_is_left_out_and_told() -> None:
    large = [tag("p", f"{i} " + "\u202e" * 390) for i in range(200)]
    found = snippet("many", facts([("kept", "yes")]), large, chart("loss"))
    assert len(found.encode()) < MOST_BYTES
    assert "1 more: too large to be shown here." in found
    assert "<svg" in found  # What is smaller, and behind it, is there.


def test_a_map_of_paths_has_the_colours_of_its_cells() -> None:
    values = np.array([[1.0, 1.0, 10.0], [100.0, np.nan, 0.0]])
    bad = np.array([[False, False, False], [False, True, False]])
    cells = Cells(["a", "b"], np.array([0, 10, 20, 30]), values, bad)
    page = Page(snippet("map", heat_map(cells, alt="", what="rms", is_vector=True)))
    assert page.root.all("image") == []
    (svg, *_) = page.root.all("svg")
    crisp = [e for e in svg.all("path") if "shape-rendering" in e.attributes]
    of_cells = [e for e in crisp if e not in svg.all("g")[0].all("path")]
    drawn = {e.attributes["fill"]: e.attributes["d"].count("M") for e in of_cells}
    darkest, *_, lightest = (f"#{bytes(color).hex()}" for color in viridis(16))
    # The two equal neighbours are one piece; zero is as dark as the least.
    assert drawn[darkest] == 2
    assert drawn[lightest] == 1
    assert drawn["#ff2654"] == 1
    assert sum(drawn.values()) == 5


def test_a_tone_has_a_shape_for_who_sees_no_colour() -> None:
    shapes = {
        toned(tone, "x").split(">")[1][0] for tone in ("error", "warning", "info")
    }
    assert len(shapes) == 3
