"""What a notebook shows of a value: a table and charts, without a script.

Viewers of notebooks differ in what they leave of HTML.  GitHub's takes away styles,
classes and scripts; JupyterLab's has dark themes.  So the charts of this layer, which
have classes for a page with a style sheet, get attributes of SVG in their place, and
text has the colour of the text around it.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tdbg.drawing.colors import NOT_FINITE, PHASES, SERIES, TONES
from tdbg.drawing.markup import Child, Markup, join, tag

__all__ = ["MOST_BYTES", "facts", "listing", "snippet", "toned", "unstyled"]

#: A snippet is below this size, whatever it shows: a notebook holds one for each cell.
MOST_BYTES = 50_000
_TAG = re.compile(r"<(\w+)([^<>]*)>")
_CLASS = re.compile(r' class="([^"]*)"')
_SWATCH = re.compile(r'<span class="swatch (\w+)"></span>')

_CELL = "text-align:left;vertical-align:top"
_INK = {"fill": "currentColor"}
_FAINT = {"stroke": "currentColor", "stroke-opacity": ".18"}
_SHAPES = {"error": "■", "warning": "▲", "info": "●", "ok": "✓"}

# Attributes by class, or by element and class where that differs.
_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "svg": {
        "font-family": "system-ui,sans-serif",
        "font-size": "11",
        "fill": "currentColor",
    },
    "svg.wide": {"width": "760", "style": "max-width:100%;height:auto"},
    "figure": {"style": "margin:6px 0;overflow-x:auto"},
    "figcaption": {"style": "font-size:smaller;opacity:.75"},
    "ul.legend": {"style": "list-style:none;padding:0;margin:0"},
    "li": {"style": "display:inline-block;margin-right:14px"},
    "name": _INK,
    "value": _INK,
    "label": {"fill-opacity": ".8"},
    "grid": _FAINT,
    "axis": {"stroke": "currentColor", "stroke-opacity": ".6"},
    "border": {"fill": "none", **_FAINT},
    "gap": {"fill": "none", **_FAINT},
    "rug": {"fill": "none", "stroke": "currentColor", "stroke-opacity": ".6"},
    "line": {"fill": "none", "stroke-width": "1.6", "stroke-linejoin": "round"},
    "range": {"fill-opacity": ".22", "stroke-opacity": ".5", "stroke-width": ".9"},
    "ridge": {"fill": SERIES[0], "fill-opacity": ".3", "stroke": SERIES[0]},
    "strip": {"fill": "currentColor", "fill-opacity": ".07"},
    "bad": {"fill": NOT_FINITE},
    "beyond": {"fill": SERIES[6]},
    "text.beyond": {},
    "stretch": {"fill-opacity": ".12"},
    "line.flag": {"stroke-width": "1.2", "stroke-dasharray": "4 3"},
    "text.flag": {"font-weight": "600"},
    "flagged": {"fill": "currentColor"},
    "peak": {"fill": "none", "stroke": "currentColor", "stroke-opacity": ".75"},
    "onband": {
        "fill": "#fff",
        "stroke": "#000",
        "stroke-opacity": ".45",
        "stroke-width": "2",
        "paint-order": "stroke",
    },
    **{f"ph{i}": {"fill": color} for i, color in enumerate(PHASES)},
    **{f"s{i}": {"stroke": color} for i, color in enumerate(SERIES)},
    **{f"f{i}": {"fill": color} for i, color in enumerate(SERIES)},
    **{name: {"fill": color} for name, color in TONES.items()},
    **{f"line.{name}": {"stroke": color} for name, color in TONES.items()},
}
_SWATCHES = {
    **{f"b{i}": color for i, color in enumerate(SERIES)},
    **{f"ph{i}": color for i, color in enumerate(PHASES)},
    "bad": NOT_FINITE,
    "none": "none",
    "peak": "currentColor",
    "mark": "currentColor",
}


def snippet(title: Child, *parts: Child) -> str:
    """HTML of a value for a notebook, below 50 KB, all text escaped.

    Args:
        title: What the value is.
        *parts: Tables and charts of this layer, the most telling first: what would
            make the snippet too large is left out, and the snippet says so.

    Example:
        >>> snippet("a < b")
        '<div><p><b>a &lt; b</b></p></div>'
    """
    kept = [tag("p", tag("b", title))]
    size, left_out = len(kept[0].encode()) + 200, 0
    for part in parts:
        markup = unstyled(join(part))
        n_bytes = len(markup.encode("utf-8", "backslashreplace"))
        if size + n_bytes > MOST_BYTES:
            left_out += 1
            continue
        size += n_bytes
        kept.append(markup)
    if left_out:
        kept.append(tag("p", f"{left_out} more: too large to be shown here."))
    return str(tag("div", kept))


def facts(rows: Iterable[tuple[str, Child]]) -> Markup:
    """A table of names and what stands behind each."""
    body = (
        tag(
            "tr",
            tag("th", name, scope="row", style=_CELL),
            tag("td", value, style=_CELL),
        )
        for name, value in rows
    )
    return tag("table", tag("tbody", body))


def listing(columns: Sequence[str], rows: Iterable[Sequence[Child]]) -> Markup:
    """A table with a heading for each column; the first one names the rows."""
    head = (tag("th", column, scope="col", style=_CELL) for column in columns)
    body = (
        tag(
            "tr",
            tag("th", row[0], scope="row", style=_CELL),
            (tag("td", cell, style=_CELL) for cell in row[1:]),
        )
        for row in rows
    )
    return tag("table", tag("thead", tag("tr", head)), tag("tbody", body))


def toned(tone: str, words: str) -> Markup:
    """Words in the colour of a tone (error, warning, info, ok), behind its shape."""
    color = TONES.get(tone)
    style = None if color is None else f"color:{color}"
    return tag("span", f"{_SHAPES.get(tone, '')} {words}".strip(), style=style)


def unstyled(markup: Markup) -> Markup:
    """Markup of this layer with attributes in place of classes.

    Tags are told from text by their brackets, which no text and no value of an
    attribute has: the markup escapes them.
    """
    return Markup(_TAG.sub(_styled, _SWATCH.sub(_swatch, markup)))


def _swatch(found: re.Match[str]) -> str:
    color = _SWATCHES.get(found[1], "none")
    square = tag(
        "rect", x=1, y=1, width=12, height=8, fill=color, stroke="currentColor"
    )
    return tag("svg", square, width=14, height=10, stroke_opacity=0.3) + " "


def _styled(found: re.Match[str]) -> str:
    name, rest = found[1], found[2]
    classes = _CLASS.search(rest)
    tokens = classes[1].split() if classes else []
    chosen: dict[str, str] = dict(_ATTRIBUTES.get(name, {}))
    for token in tokens:
        own = _ATTRIBUTES.get(f"{name}.{token}")
        chosen |= _ATTRIBUTES.get(token, {}) if own is None else own
    rest = _CLASS.sub("", rest)
    added = "".join(
        f' {key}="{value}"' for key, value in chosen.items() if f" {key}=" not in rest
    )
    return f"<{name}{rest}{added}>"
