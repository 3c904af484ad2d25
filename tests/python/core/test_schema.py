"""The numbers that the core shares with Python (``_core.schema``)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tdbg
from tdbg import _core

# Groups of which docs/format.md lists the members, by a text that stands before them.
LISTED = {
    "EventKind": "**`event`.** u16 kind (",
    "PlacementKind": "A placement is u8 kind (",
}


@pytest.mark.parametrize("group", sorted(LISTED))
def test_a_group_is_what_the_format_says(repository: Path, group: str) -> None:
    text = " ".join((repository / "docs" / "format.md").read_text().split())
    listed = text.partition(LISTED[group])[2].partition(")")[0]
    found = {name.upper(): int(n) for n, name in re.findall(r"(\d+) ([a-z_]+)", listed)}
    assert _core.schema()[group] == found


@pytest.mark.parametrize("group", ["StepFlag", "RowFlag", "GapContent", "CaptureFlag"])
def test_flags_are_single_bits(group: str) -> None:
    values = list(_core.schema()[group].values())
    assert values == [1 << i for i in range(len(values))]


def test_the_reasons_of_gaps_have_the_names_that_losses_have() -> None:
    stub = Path(tdbg.__file__).parent / "_core.pyi"
    (listed,) = re.findall(r"Reasons: ([a-z_,\s]+)\.", stub.read_text())
    names = [name.strip().upper() for name in listed.split(",")]
    assert list(_core.schema()["GapReason"]) == names


def test_every_call_returns_dicts_of_its_own() -> None:
    _core.schema()["StepFlag"]["SKIPPED"] = 7
    assert _core.schema()["StepFlag"]["SKIPPED"] == 1
