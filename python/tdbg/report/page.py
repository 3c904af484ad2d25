"""The page: one self-contained document without a script.

Its policy (CSP) lets the browser fetch nothing, run nothing, and use the one style
whose hash it names.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tdbg.drawing.markup import Child, Markup, join, link_to, tag
from tdbg.drawing.scales import number

__all__ = ["Section", "badge", "page", "setting_text", "table", "tiles"]

# From here on floats leave whole numbers out.
MOST_WHOLE = 2**53


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report, under a heading of its own.

    Attributes:
        anchor: Its name in links.
        title: Its heading.
        content: What is below it.
        short: What the list of contents calls it; empty: as the heading does.
    """

    anchor: str
    title: str
    content: Child
    short: str = ""


def page(title: str, subtitle: str, verdict: Child, sections: Iterable[Section]) -> str:
    """The document.

    Args:
        title: Its heading, and that of the window.
        subtitle: Above the heading: what kind of report it is.
        verdict: What stands above all else.
        sections: The rest, in order.
    """
    listed = list(sections)
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        # Written as markup: the quotes of a policy need no escape in an attribute.
        tag("meta", http_equiv="Content-Security-Policy", content=Markup(policy)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content="tdbg"),
        tag("title", f"{title} - tdbg report"),
        tag("style", Markup(style())),
    )
    contents = tag(
        "nav",
        tag("ul", (tag("li", link_to(s.anchor, s.short or s.title)) for s in listed)),
        aria_label="Contents",
    )
    body = tag(
        "body",
        tag(
            "header",
            tag("p", subtitle, class_="brand"),
            tag("h1", title),
            verdict,
            contents,
        ),
        tag("main", (_section(each) for each in listed)),
        tag(
            "footer",
            "Made by tdbg. This page has no script and makes no request: you can "
            "mail, keep and print it.",
        ),
    )
    return "<!doctype html>\n" + tag("html", head, Markup("\n"), body, lang="en") + "\n"


@cache
def style() -> str:
    """The style of the page: ``style.css`` without its comment."""
    text = Path(__file__).with_name("style.css").read_text("utf-8")
    return text.partition("*/")[2].strip()


def _section(section: Section) -> Markup:
    heading = tag("h2", section.title, id=f"{section.anchor}-heading")
    return tag(
        "section",
        heading,
        section.content,
        Markup("\n"),
        id=section.anchor,
        aria_labelledby=f"{section.anchor}-heading",
    )


def setting_text(value: str | float) -> str:
    """Write a setting: a whole number, such as a seed, with all of its digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (value.is_integer() and abs(value) < MOST_WHOLE):
        return f"{int(value):,}"
    return number(value)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    right: Iterable[str] = (),
    caption: str | None = None,
) -> Markup:
    """A table whose first column names the rows.

    Args:
        columns: Heading of each column.
        rows: Cells of each row.
        right: Columns of numbers.
        caption: What the table is.
    """
    numbers = set(right)
    classes = ["number" if column in numbers else None for column in columns]
    head = (
        tag("th", column, scope="col", class_=class_)
        for column, class_ in zip(columns, classes, strict=True)
    )
    body = (
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=classes[0]),
            (
                tag("td", cell, class_=c)
                for cell, c in zip(row[1:], classes[1:], strict=True)
            ),
        )
        for row in rows
    )
    found = tag(
        "table",
        None if caption is None else tag("caption", caption),
        tag("thead", tag("tr", head)),
        tag("tbody", body),
    )
    return tag("div", found, class_="scroll", tabindex=0)


def tiles(facts: Iterable[tuple[str, Child]]) -> Markup:
    """Facts in large letters, each under its name."""
    return tag(
        "dl",
        (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts),
        class_="tiles",
    )


def badge(tone: str, words: str) -> Markup:
    """A word in the colour of a tone: error, warning, info or ok."""
    return tag("span", words, class_=f"badge tone-{tone}")


def joined(children: Iterable[Child], between: str = ", ") -> Markup:
    """Children with a text between each two."""
    parts: list[Child] = []
    for each in children:
        parts += [between, each] if parts else [each]
    return join(parts)
