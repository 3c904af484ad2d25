"""The C++ layers: includes only point down (docs/architecture.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from house_figures import layers_drawn

# Higher rank may include lower rank; equal ranks are siblings and may not meet.
RANKS = {
    "base": 0,
    "sampler": 1,
    "tensor": 1,
    "format": 2,
    "reducers": 2,
    "writer": 3,
    "reader": 3,
    "capture": 4,
    "python_capture": 5,
    "bindings": 6,
}
# The only layers that may see Python.
PYTHON = {"python_capture", "bindings"}
# What comes from third_party, by the only file that may see it.
VENDORED = {"xla/": "bindings/bind_ffi.cc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def forbidden_includes(cpp: Path) -> Iterator[str]:
    """Yield every include under *cpp* that does not point down."""
    for source in sorted(cpp.rglob("*")):
        if source.suffix not in {".h", ".cc", ".cu", ".inc"}:
            continue
        name = source.relative_to(cpp).as_posix()
        layer = name.split("/")[0]
        for bracket, target in INCLUDE.findall(source.read_text()):
            if layer not in RANKS:
                yield f"{name}: layer {layer!r} is unknown"
            elif bracket == "<":
                python = target == "Python.h" or target.startswith("pybind11/")
                if python and layer not in PYTHON:
                    yield f"{name}: <{target}> outside {sorted(PYTHON)}"
                for folder, owner in VENDORED.items():
                    if target.startswith(folder) and name != owner:
                        yield f"{name}: <{target}> outside {owner}"
            elif (below := target.split("/")[0]) not in RANKS:
                yield f'{name}: "{target}" is not relative to cpp/'
            elif below != layer and RANKS[below] >= RANKS[layer]:
                yield f'{name}: "{target}" points up or sideways'


def test_the_architecture_draws_these_layers(repository: Path) -> None:
    page = (repository / "docs" / "architecture.md").read_text("utf-8")
    drawn = layers_drawn(page, "C\\+\\+")
    assert {name: rank for rank, names in enumerate(drawn) for name in names} == RANKS


def test_includes_only_point_down(repository: Path) -> None:
    assert list(forbidden_includes(repository / "cpp")) == []


@pytest.mark.parametrize(
    ("source", "line", "complaint"),
    [
        ("base/a.cc", '#include "tensor/dtype.h"', "points up or sideways"),
        ("format/a.h", '#include "reducers/reduce.h"', "points up or sideways"),
        ("reader/a.h", '# include "writer/writer.h"', "points up or sideways"),
        ("writer/a.cc", "#include <pybind11/pybind11.h>", "outside ['bindings"),
        ("capture/a.cc", "#include <Python.h>", "outside ['bindings"),
        ("capture/a.h", '#include "python_capture/gil.h"', "points up or sideways"),
        ("python_capture/a.h", '#include "bindings/names.h"', "points up or sideways"),
        ("tensor/a.h", '#include "dtype.h"', "is not relative to cpp/"),
        ("bindings/a.cc", "#include <xla/ffi/api/c_api.h>", "outside bindings/bind"),
        ("extra/a.h", "#include <vector>", "is unknown"),
    ],
)
def test_a_wrong_include_is_found(
    tmp_path: Path, source: str, line: str, complaint: str
) -> None:
    path = tmp_path / source
    path.parent.mkdir()
    path.write_text(f"#pragma once\n{line}\n")
    (found,) = forbidden_includes(tmp_path)
    assert complaint in found


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("writer/a.cc", '#include "writer/writer.h"'),
        ("capture/a.cc", '#include "reducers/reduce.h"'),
        ("python_capture/a.cc", '#include "capture/capture.h"'),
        ("python_capture/a.h", "#include <pybind11/pybind11.h>"),
        ("bindings/a.cc", '#include "python_capture/gil.h"'),
        ("bindings/a.cc", "#include <pybind11/pybind11.h>"),
    ],
)
def test_a_right_include_is_accepted(tmp_path: Path, source: str, line: str) -> None:
    path = tmp_path / source
    path.parent.mkdir()
    path.write_text(line)
    assert list(forbidden_includes(tmp_path)) == []
