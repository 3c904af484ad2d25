"""The numbers on disk: the same in Python as in the core, and written nowhere else."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path

import pytest

import tdbg
from tdbg import _core
from tdbg.config import Role
from tdbg.run import schema

ENUMERATIONS = {
    name: each
    for name, each in vars(schema).items()
    if inspect.isclass(each) and issubclass(each, enum.IntEnum) and name[0] != "_"
    if each is not enum.IntEnum
}


@pytest.mark.parametrize("name", sorted(ENUMERATIONS))
def test_an_enumeration_is_the_one_of_the_core(name: str) -> None:
    assert {m.name: m.value for m in ENUMERATIONS[name]} == _core.schema()[name]


def test_roles_are_those_of_the_core() -> None:
    assert {role.name: role.value for role in Role} == _core.schema()["TensorRole"]


def test_sizes_are_those_of_the_core() -> None:
    size = _core.schema()["Size"]
    assert size["ALIGNMENT"] == schema.ALIGNMENT
    assert size["RECORD_HEADER"] == schema.RECORD_HEADER_BYTES
    assert size["CHUNK"] == schema.CHUNK_BYTES
    assert size["MAX_NAME"] == schema.MAX_NAME_BYTES


def test_no_other_module_defines_a_number_that_stands_in_the_schema() -> None:
    """``SHARD = 1`` somewhere is a second home of one number."""
    names = {member.name for each in ENUMERATIONS.values() for member in each}
    # Flags of what is captured have names of their own meaning: schedule.py.
    names -= {"ROWS", "TENSORS", "SCALARS", "STEPS", "EVENTS", "COLLECTIONS"}
    names -= {"SAMPLES"}  # Measurements of a clock: ranks.py.
    defined = re.compile(
        rf"^\s*_?({'|'.join(sorted(names))})\b[^=\n]*= *\d", re.MULTILINE
    )
    root = Path(tdbg.__file__).parent
    found = [
        f"{path.relative_to(root)}: {match[0].strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.name != "schema.py"
        for match in defined.finditer(path.read_text("utf-8"))
    ]
    assert found == []
