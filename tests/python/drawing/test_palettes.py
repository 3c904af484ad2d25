"""Colours of series, of findings and of NaN: nobody takes one for another."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from tdbg.drawing.colors import NOT_FINITE, SERIES, TONES

# Distances in OKLab: 0.02 is just seen where colours touch, 0.1 in thin lines apart.
LEAST = 0.09
SRC = "python/tdbg/ui/frontend/src"
_FROM_RGB = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def oklab(color: str) -> np.ndarray:
    rgb = np.frombuffer(bytes.fromhex(color[1:]), np.uint8) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return _TO_LAB @ np.cbrt(_FROM_RGB @ linear)


def properties(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", text))


def page(root: Path, theme: str) -> tuple[list[str], list[str]]:
    source = (root / SRC / "colors.ts").read_text()
    found = re.search(rf"SERIES_{theme.upper()} = \[(.*?)\]", source, re.DOTALL)
    assert found is not None
    bad = re.findall(r'BAD = "(#\w+)"', source)
    tones = properties((root / SRC / f"{theme}.css").read_text())
    said = [tones[name] for name in ("error", "warning", "info")]
    # Six runs are compared.
    return re.findall(r"#\w+", found[1])[:6], said + bad


def report(root: Path, theme: str) -> tuple[list[str], list[str]]:
    style = (root / "python/tdbg/report/style.css").read_text()
    light, _, dark = style.partition("@media")
    found = properties(light if theme == "light" else dark.partition("}}")[0])
    said = [found[name] for name in ("error", "warning", "info", "bad")]
    return [found[f"c{i}"] for i in range(4)], said


def notebook(*_: object) -> tuple[list[str], list[str]]:
    tones = [TONES[name] for name in ("error", "warning", "info")]
    return list(SERIES[:5]), [*tones, NOT_FINITE]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("face", [page, report, notebook])
def test_no_series_looks_like_another_like_a_finding_or_like_nan(
    repository: Path, face: object, theme: str
) -> None:
    assert callable(face)
    series, others = face(repository, theme)
    pairs = [*itertools.combinations(series, 2), *itertools.product(series, others)]
    distances = {(a, b): float(np.linalg.norm(oklab(a) - oklab(b))) for a, b in pairs}
    assert {pair: d for pair, d in distances.items() if d < LEAST} == {}
