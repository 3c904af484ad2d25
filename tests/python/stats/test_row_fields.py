"""The fields of a row: the same in Python as in the core, and listed nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import tdbg
from tdbg import _core
from tdbg.stats.row_fields import COUNTS, EXTREMES, FIELDS, MOMENTS


def test_the_fields_are_those_of_the_core_in_its_order_and_types() -> None:
    dtype = _core.ROW_DTYPE
    assert dtype.names is not None
    assert dtype.names[-len(FIELDS) :] == FIELDS
    found = {name: dtype[name].str for name in FIELDS}
    words = dict.fromkeys((*COUNTS, *EXTREMES), "<u8")
    assert found == words | dict.fromkeys(MOMENTS, "<f8")


def test_no_other_module_lists_the_fields() -> None:
    """Seven fields in their order, as literals, are a second home of the list."""
    runs = [FIELDS[i : i + 7] for i in range(len(FIELDS) - 6)]
    ordered = "|".join(r",\s*".join(f'"{name}"' for name in run) for run in runs)
    root = Path(tdbg.__file__).parent
    found = [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.py"))
        if re.search(ordered, path.read_text("utf-8"))
    ]
    assert found == []
