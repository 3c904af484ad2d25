"""The documentation speaks to its readers: a guard of its English, and not the aim."""

from __future__ import annotations

from pathlib import Path

from house_figures import prose_of

#: In 1,000 words of a page, of pages that have as many words as this.
MOST_OF, LEAST_YOU, FEWEST_WORDS = 22, 6, 150


def test_pages_speak_to_their_readers(repository: Path) -> None:
    pages = [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]
    heavy = {}
    for path in pages:
        name = path.relative_to(repository).as_posix()
        prose = prose_of(path.read_text("utf-8"))
        if prose.words < FEWEST_WORDS:
            continue
        if prose.of > MOST_OF or prose.you < LEAST_YOU:
            heavy[name] = f"{prose.of:.0f} times of, {prose.you:.0f} times you"
    assert heavy == {}
