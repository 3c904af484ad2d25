"""The stub and the module; `make stubs`, part of `make lint`, compares them whole."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import tdbg
from tdbg import _core


def test_the_stub_lists_the_fields_of_every_table(repository: Path) -> None:
    stub = (repository / "python" / "tdbg" / "_core.pyi").read_text()
    tables = re.findall(r'(\w+_DTYPE): [^\n]*\n"""(.*?)"""', stub, re.DOTALL)
    assert len(tables) == 8
    for name, text in tables:
        # Statistics stand in one table of Python, which other tests compare.
        own, elsewhere, _ = text.partition(", and the\nfields of tdbg.stats.row_fields")
        fields = _expand(re.sub(r"\([^)]*\)", "", own))
        dtype = np.dtype(getattr(_core, name))
        held = [(field, dtype[field].str[1:]) for field in dtype.names or ()]
        assert fields == (held[: len(fields)] if elsewhere else held)
        assert bool(elsewhere) == (name == "ROW_DTYPE")


def _expand(text: str) -> list[tuple[str, str]]:
    """``step i8, definition u4`` as pairs."""
    pairs = []
    for part in text.strip().rstrip(".").split(","):
        field, _, format_ = part.strip().partition(" ")
        pairs.append((field, format_))
    return pairs


def test_every_public_name_can_be_loaded() -> None:
    assert list(tdbg.__all__) == sorted(tdbg.__all__)
    assert dir(tdbg) == sorted(tdbg.__all__)
    for name in tdbg.__all__:
        assert getattr(tdbg, name) is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+", tdbg.__version__)


def test_the_module_has_the_version_of_the_project(repository: Path) -> None:
    project = (repository / "pyproject.toml").read_text()
    assert f'version = "{tdbg.__version__}"' in project
