"""HTML and SVG by elements: whatever is text is escaped, by construction.

Only ``tag`` and ``join`` make ``Markup``.  Everything else that is put into an element
is text: names, messages and reasons of a run may have been chosen by anybody.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

__all__ = [
    "Child",
    "Markup",
    "Node",
    "elements_of",
    "join",
    "link_to",
    "shortened",
    "tag",
    "visible",
    "with_code",
]

# Longer texts are cut in the middle: what is drawn of a name of 10,000 characters.
LONGEST = 400
VOID = frozenset({"meta", "link", "br", "hr", "img"})
# No text and no value of an attribute has these brackets: they are escaped.
_PART = re.compile(r"<(/?)(\w+)([^<>]*)>|([^<]+)")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


class Markup(str):
    """Text that is HTML already; made by ``tag`` and ``join`` alone."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
#: A text, or the name of an element, its attributes, and what is in it.
Node: TypeAlias = "str | list[Any]"


def visible(text: str) -> str:
    r"""A text in which what would be invisible, or turn the others around, is shown.

    Control characters, marks of direction, and halves of characters are written as
    Python writes them; spaces at an end, too, would be overlooked, but harm nobody.

    Example:
        >>> visible("fc\x1b[2J\u202etxt.exe")
        'fc\\x1b[2J\\u202etxt.exe'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text without its middle, if it has more characters than *longest*.

    Example:
        >>> shortened("encoder.layers.0.weight", 11)
        'enco…weight'
    """
    if len(text) <= longest:
        return text
    head = max(1, (longest - 1) * 2 // 5)
    return (
        f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - longest + head + 1 :]}"
    )


def join(children: Child) -> Markup:
    """The markup of children, one after the other; texts among them are escaped."""
    parts: list[str] = []
    _collect(children, parts)
    return Markup("".join(parts))


def tag(
    name: str, /, *children: Child, **attributes: str | float | bool | None
) -> Markup:
    """An element.

    Args:
        name: Its name.
        *children: Elements, texts (escaped, and cut at 400 characters), numbers, or
            iterables of these; None is nothing.
        **attributes: By name: ``class_`` is class, ``stroke_width`` is stroke-width.
            None and False leave one out; a float is written with two decimals.

    Example:
        >>> tag("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    parts = ["<", name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        known = key.rstrip("_").replace("_", "-")
        parts += [" ", known, '="', "" if value is True else _attribute(value), '"']
    parts.append(">")
    if name in VOID:
        return Markup("".join(parts))
    _collect(children, parts)
    parts += ["</", name, ">"]
    return Markup("".join(parts))


def with_code(text: str) -> list[Child]:
    """Return a text in which what stands in backticks is code.

    Example:
        >>> join(with_code("Run `tdbg fsck` first."))
        'Run <code>tdbg fsck</code> first.'
    """
    parts = text.split("`")
    return [tag("code", each) if i % 2 else each for i, each in enumerate(parts)]


def link_to(anchor: str, *children: Child) -> Markup:
    """A link to another place of the same page."""
    return tag("a", *children, href=f"#{anchor}")


def _attribute(value: str | float) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return html.escape(visible(value))
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _collect(child: Child, parts: list[str]) -> None:
    if child is None:
        return
    if isinstance(child, Markup):
        parts.append(child)
    elif isinstance(child, str):
        parts.append(html.escape(visible(shortened(child)), quote=False))
    elif isinstance(child, int):
        parts.append(str(child))
    else:
        for each in child:
            _collect(each, parts)


def elements_of(markup: Markup) -> list[Node]:
    """Markup as nodes, for who makes elements of names, attributes and texts.

    Example:
        >>> elements_of(tag("p", "a < b ", tag("b", "c"), id="x"))
        [['p', {'id': 'x'}, ['a < b ', ['b', {}, ['c']]]]]
    """
    root: list[Node] = []
    open_: list[list[Node]] = [root]
    for closes, name, rest, text in _PART.findall(markup):
        if text:
            open_[-1].append(html.unescape(text))
        elif closes:
            open_.pop()
        else:
            found = _ATTRIBUTE.findall(rest)
            inside: list[Node] = []
            attributes = {key: html.unescape(value) for key, value in found}
            open_[-1].append([name, attributes, inside])
            if name not in VOID:
                open_.append(inside)
    return root
