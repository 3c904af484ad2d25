"""Runs for reports, and how tests read a page: by its elements, as a browser would."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys

VOID = frozenset({"meta", "br", "img", "hr", "link"})
LAYERS = 12
SPIKE, NAN = 137, 411


@dataclass
class Element:
    """An element: its name, attributes, children and texts, in order."""

    name: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, name: str, class_: str | None = None) -> list[Element]:
        """The elements below of that name, and of that class if one is given."""
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, str):
                continue
            classes = child.attributes.get("class", "").split()
            if name in ("*", child.name) and (class_ is None or class_ in classes):
                found.append(child)
            found += child.all(name, class_)
        return found


class _Parser(HTMLParser):
    """Builds a tree, and fails on what is not closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        closed = self._open.pop()
        assert closed.name == tag, f"</{tag}> closes <{closed.name}>"

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def finish(self) -> Element:
        self.close()
        assert self._open == [self.root], [each.name for each in self._open]
        return self.root


class Page:
    """A report, read."""

    def __init__(self, text: str) -> None:
        self.source = text
        parser = _Parser()
        parser.feed(text)
        self.root = parser.finish()

    @classmethod
    def of(cls, path: Path) -> Page:
        return cls(path.read_text("utf-8"))

    def section(self, anchor: str) -> Element:
        (found,) = (
            each for each in self.root.all("section") if each.attributes["id"] == anchor
        )
        return found

    @property
    def titles(self) -> list[str]:
        return [each.text for each in self.root.all("h2")]

    @property
    def text(self) -> str:
        (body,) = self.root.all("body")
        return re.sub(r"\s+", " ", body.text)

    @property
    def verdict(self) -> str:
        # A section about time has one of its own, which follows.
        return self.root.all("p", "sentence")[0].text


def planted_run(path: Path, n_steps: int = 600) -> None:
    """Twelve layers; a spike of the loss and of one gradient, and one NaN.

    The spike is at step ``SPIKE``, in the gradient of layer 3; the NaN at step ``NAN``,
    in that of layer 7.
    """
    random = np.random.default_rng(0)
    with RunBuilder(path) as run:
        for step in range(n_steps):
            for i in range(LAYERS):
                gradient = random.normal(size=8).astype(np.float32) * 10.0 ** (-i / 4)
                if (step, i) == (SPIKE, 3):
                    gradient *= 1e4
                if (step, i) == (NAN, 7):
                    gradient[2] = np.nan
                weight = (random.normal(size=8) + step / 100).astype(np.float32)
                arrays = {
                    f"gradient/layers.{i}.weight": gradient.astype(np.float32),
                    f"layers.{i}.weight": weight,
                }
                for name, array in arrays.items():
                    run.save(step, name, array, what="statistics")
            loss = 1 / (1 + step / 50) * (1000 if step == SPIKE else 1)
            one = np.array(loss, np.float32)
            run.save(step, "loss_output_0", one, what="statistics", role=Role.LOSS)
            run.scalar(step, "scalar/optimizer/group_0/lr", 0.1 * 0.9999**step, step)
            run.end_step(step, ModeKeys.TRAIN)


# Names that a page must show, and never obey.
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</title><script>alert(1)</script>",
    '" onload="alert(1)',
    "javascript:alert(1)",
    "fc\x1b[2J\x07.weight",
    "evil\u202egnp.exe",
    "a" * 10_000,
    "new\nline\ttab",
    "&lt;already&gt;",
]


def hostile_run(path: Path) -> None:
    """Tensors and scalars by hostile names, as weights and gradients."""
    random = np.random.default_rng(0)
    with RunBuilder(path) as run:
        for step in range(6):
            for name in HOSTILE:
                array = random.normal(size=5).astype(np.float32)
                run.save(step, name, array)
                run.save(step, f"gradient/{name}", array, role=Role.GRADIENT)
                run.scalar(step, f"scalar/{name}", float(step), step)
            run.end_step(step)
