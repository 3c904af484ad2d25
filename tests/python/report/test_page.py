"""A report as a reader's browser gets it: whole, closed, quiet, and the same again."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from pathlib import Path

import pytest

import tdbg
from report_runs import HOSTILE, Page, hostile_run, planted_run
from run_builder import simple_run
from tdbg import report
from tdbg.drawing.markup import join, shortened, tag, visible
from tdbg.errors import ConfigurationError, StorageError

SECTIONS = [
    "The run",
    "Findings",
    "Losses and rates",
    "Layer map",
    "Gradient flow",
    "Histograms",
    "Workers and time",
    "Where the time went",
    "Rules that ran",
    "Settings",
    "How to reproduce",
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "planted"
    planted_run(path)
    return path


@pytest.fixture(scope="module")
def page(planted: Path) -> Page:
    return Page(report.render(tdbg.create_trial(planted)))


def test_the_sections_come_in_the_order_of_the_manual(page: Page) -> None:
    assert page.titles == SECTIONS


def test_every_entry_of_the_contents_leads_to_a_section(page: Page) -> None:
    (contents,) = page.root.all("nav")
    ids = {e.attributes["id"] for e in page.root.all("*") if "id" in e.attributes}
    targets = [each.attributes["href"] for each in page.root.all("a")]
    assert len(contents.all("a")) == len(SECTIONS)
    assert {each.removeprefix("#") for each in targets} <= ids


def test_ids_are_there_once(page: Page) -> None:
    ids = [e.attributes["id"] for e in page.root.all("*") if "id" in e.attributes]
    assert len(ids) == len(set(ids))


def test_the_page_has_no_script_and_asks_for_nothing(page: Page) -> None:
    names = {each.name for each in page.root.all("*")}
    assert names.isdisjoint({"script", "link", "iframe", "object", "embed", "form"})
    for each in page.root.all("*"):
        assert not [name for name in each.attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "action", "poster", "background"):
            value = each.attributes.get(name, "#")
            assert value.startswith(("#", "data:image/png;base64,")), (each.name, name)
    (style,) = page.root.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text


def test_the_policy_allows_the_one_style_and_nothing_else(page: Page) -> None:
    (policy,) = (
        each.attributes["content"]
        for each in page.root.all("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    (style,) = page.root.all("style")
    digest = base64.b64encode(hashlib.sha256(style.text.encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{digest}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    # A style in an attribute would be blocked by it.
    assert not [e for e in page.root.all("*") if "style" in e.attributes]


def test_the_same_run_gives_the_same_bytes(planted: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.html", "two.html")]
    for each in files:
        report.write(tdbg.create_trial(planted), each)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_report_of_a_small_run_is_far_below_five_megabytes(page: Page) -> None:
    assert len(page.source.encode()) < 300_000


def test_every_drawing_says_what_it_shows(page: Page) -> None:
    drawings = page.root.all("svg")
    assert len(drawings) >= 8
    for each in drawings:
        assert each.attributes["role"] == "img"
        assert len(each.attributes["aria-label"]) > 30


def test_tables_name_their_columns_and_rows(page: Page) -> None:
    tables = page.root.all("table")
    assert tables
    for each in tables:
        (head,), (body,) = each.all("thead"), each.all("tbody")
        assert {cell.attributes["scope"] for cell in head.all("th")} == {"col"}
        n = len(head.all("th"))
        for row in body.all("tr"):
            (first,) = row.all("th")
            assert first.attributes["scope"] == "row"
            assert len(row.all("td")) == n - 1


def test_headings_skip_no_level(page: Page) -> None:
    levels = [
        int(e.name[1]) for e in page.root.all("*") if re.fullmatch("h[1-6]", e.name)
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_what_scrolls_can_be_reached_by_the_keyboard(page: Page) -> None:
    for each in page.root.all("div", "scroll"):
        assert each.attributes["tabindex"] == "0"


def test_the_page_prints_in_light_colours_and_hides_its_contents(page: Page) -> None:
    (style,) = page.root.all("style")
    printed = style.text.partition("@media print")[2]
    assert "color-scheme:light" in printed
    assert "nav{display:none}" in printed
    assert "break-inside:avoid" in printed
    assert "@media(prefers-color-scheme:dark)" in style.text


# --- Hostile runs -----------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("report") / "<i>run"
    hostile_run(path)
    return Page(report.render(tdbg.create_trial(path)))


def test_markup_in_names_is_text(hostile: Page) -> None:
    names = {each.name for each in hostile.root.all("*")}
    assert names.isdisjoint({"script", "img", "i"})
    assert HOSTILE[0] in hostile.text
    assert HOSTILE[1] in hostile.text
    assert "&lt;already&gt;" in hostile.text
    assert not [
        e
        for e in hostile.root.all("*")
        for name in e.attributes
        if name.startswith("on")
    ]
    (head,) = hostile.root.all("head")
    (title,) = head.all("title")
    assert title.text == "<i>run - tdbg report"


def test_control_and_direction_characters_are_shown_escaped(hostile: Page) -> None:
    assert "\\x1b[2J\\x07" in hostile.text
    assert "evil\\u202egnp.exe" in hostile.text
    assert "new\\nline\\ttab" in hostile.text
    raw = set(hostile.source) - {"\n"}
    assert [c for c in raw if not c.isprintable()] == []


def test_a_name_of_ten_thousand_characters_is_cut(hostile: Page) -> None:
    texts = [c for e in hostile.root.all("*") for c in e.children if isinstance(c, str)]
    (style,) = hostile.root.all("style")
    assert max(len(text) for text in texts if text != style.text) <= 401
    assert len(hostile.source) < 400_000


@pytest.mark.parametrize("text", HOSTILE)
def test_an_element_escapes_what_it_is_given(text: str) -> None:
    given = tag("p", text, title=text)
    (found,) = Page(f"<body>{given}</body>").root.all("p")
    assert found.text == visible(shortened(text))
    assert found.attributes["title"] == visible(text)
    assert join([given]) == given


def test_half_a_character_does_not_stop_a_report() -> None:
    assert visible("\ud800") == "\\ud800"
    assert tag("p", "\ud800").encode() == b"<p>\\ud800</p>"


# --- Where it is written ----------------------------------------------------------


def test_a_report_replaces_what_was_there_as_a_whole(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    place = tmp_path / "report.html"
    place.write_text("older, and longer " * 100_000)
    written = report.write(tdbg.create_trial(tmp_path / "run"), place)
    assert place.stat().st_size == written.n_bytes
    assert place.read_text().endswith("</html>\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report.html", "run"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="is a directory: name a file"):
        report.write(tdbg.create_trial(tmp_path / "run"), tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    place = tmp_path / "nowhere" / "report.html"
    with pytest.raises(StorageError, match=r"could not be written to .*nowhere"):
        report.write(tdbg.create_trial(tmp_path / "run"), place)


def test_a_report_writes_nothing_into_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    simple_run(path)
    before = {each: each.stat().st_mtime_ns for each in path.rglob("*")}
    report.write(tdbg.create_trial(path), tmp_path / "report.html")
    assert {each: each.stat().st_mtime_ns for each in path.rglob("*")} == before


# --- Colours ----------------------------------------------------------------------

# What is written in which colour on what.
WRITTEN = [
    *((ink, "paper") for ink in ("ink", "soft", "link", "bad")),
    *((ink, "panel") for ink in ("ink", "soft")),
    *((tone, f"{tone}-soft") for tone in ("error", "warning", "info", "ok")),
    *(("ink", f"{tone}-soft") for tone in ("error", "warning", "info", "ok")),
    *(("soft", f"{tone}-soft") for tone in ("error", "warning", "info", "ok")),
    *((tone, "paper") for tone in ("error", "warning", "info")),
]


def themes(style: str) -> dict[str, dict[str, str]]:
    """The colours by name: those of light, of dark, and of paper."""
    found = {}
    blocks = re.findall(r":root\{([^}]*)\}", style)
    for name, block in zip(("light", "dark", "print"), blocks, strict=True):
        found[name] = dict(re.findall(r"--([\w-]+):(#\w+)", block))
    return found


def luminance(color: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    digits = color.removeprefix("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_whatever_is_written_can_be_read(page: Page, theme: str) -> None:
    """A contrast of 4.5 for letters, 3 for lines: WCAG 2.2, 1.4.3 and 1.4.11."""
    (style,) = page.root.all("style")
    colors = themes(style.text)[theme]
    lines = [(f"c{i}", "paper") for i in range(8)]
    for (ink, ground), least in [
        *((pair, 4.5) for pair in WRITTEN),
        *((pair, 3.0) for pair in lines),
    ]:
        high, low = sorted((luminance(colors[ink]), luminance(colors[ground])))[::-1]
        assert (high + 0.05) / (low + 0.05) >= least, (theme, ink, ground)
