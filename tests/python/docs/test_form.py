"""Every page has one form: title, purpose, example, lines that can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINE = 119
CELL = 100
# Pages about the inside of tdbg need no example to begin with.
INSIDE = {
    *("adding-a-framework", "architecture", "benchmarks", "extending", "format"),
    "glossary",
}
USER_PAGES = [
    page for page in sorted((ROOT / "docs").rglob("*.md")) if page.stem not in INSIDE
]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "README")),
    *(
        page
        for folder in ("docs", "cpp")
        for page in sorted((ROOT / folder).rglob("*.md"))
    ),
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings of a page, and anchors set by hand."""
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_a_title_and_says_what_it_is_for(page: Path) -> None:
    first, _, rest = page.read_text().partition("\n")
    assert re.fullmatch(r"# \S.*", first)
    opening = rest.lstrip("\n").partition("\n\n")[0]
    assert opening
    assert not opening.startswith(("#", "|", "```", "!", "<", "    ", "- "))


@pytest.mark.parametrize("page", USER_PAGES, ids=name)
def test_a_page_for_users_shows_an_example_first(page: Path) -> None:
    opening = re.split(r"^## ", page.read_text(), maxsplit=1, flags=re.MULTILINE)[0]
    assert re.search(r"^```(python|sh|yaml)\n", opening, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_and_cells_can_be_read(page: Path) -> None:
    text = page.read_text()
    lines = list(enumerate(text.splitlines(), 1))
    assert not [number for number, line in lines if len(line) > LINE]
    for number, line in lines:
        if line.startswith("| "):
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
            cells = re.split(r"(?<!\\)\|", shown)
            assert max(len(cell.strip()) for cell in cells) <= CELL, number


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        ROOT / "tests" / "corpus" / "README.md",
    ],
    ids=name,
)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    text = without_code(page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other.read_text()), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_fence_says_its_language(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert all(opening for opening in fences[::2])


def test_every_page_is_linked_from_the_readme_or_another_page() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:\s]+)", page.read_text())
    }
    assert {page for page in PAGES if page.name != "README.md"} <= linked


def test_the_glossary_is_in_order_and_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    entries = re.findall(r"^- \*\*(.+?)\*\*\s+\(`(\S+)`\): ", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^- ", text, re.MULTILINE))
    terms = [re.sub(r"\W", " ", term).lower() for term, _ in entries]
    assert terms == sorted(terms)
    for _, place in entries:
        path = ROOT / place
        if not place.startswith("cpp/"):
            path = ROOT / "python" / place.replace(".", "/")
            path = path if path.is_dir() else path.with_suffix(".py")
        assert path.exists(), place


def test_pages_and_sections_that_the_code_refers_to_exist() -> None:
    sources = [
        path
        for folder in ("python", "cpp", "tests", "benchmarks", "examples")
        for ending in ("py", "pyi", "h", "cc", "cu")
        for path in sorted((ROOT / folder).rglob(f"*.{ending}"))
    ]
    assert sources
    missing = []
    for source in sources:
        text = re.sub(r"\s+(?://|#)?\s*", " ", source.read_text())
        for page, section in re.findall(
            r'((?:docs|cpp)/[\w/-]+\.md)\b(?:, "([^"{}]+)")?', text
        ):
            path = ROOT / page
            known = path.read_text() if path.exists() else ""
            title = rf"^(#+ |- )?(\*\*)?`?{re.escape(section)}\b"
            if not known or (
                section and not re.search(title, known, re.MULTILINE | re.IGNORECASE)
            ):
                missing.append((name(source), page, section))
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    folders = "benchmarks|cpp|docs|examples|python|tests"
    for file in re.findall(rf"`((?:{folders})/[\w./-]+)[` ]", page.read_text()):
        assert (ROOT / file).exists(), file
