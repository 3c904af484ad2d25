"""Whatever the bytes of a run's files: a question is answered, or fails typed.

The fuzz targets of tests/fuzz do the same to the core, a million times a minute; this
does it to all that Python makes of what the core reads. TDBG_FUZZ_EXAMPLES=10000 for
more.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planted import add_findings, finding
from questions import ask_everything
from run_builder import simple_run
from tdbg._core import masked_crc32c
from tdbg.errors import TdbgError
from tdbg.run.findings import Severity
from tdbg.trial import create_trial
from tdbg.view import view_of

EXAMPLES = int(os.environ.get("TDBG_FUZZ_EXAMPLES", "60"))
FILE_HEADER, RECORD_HEADER, ALIGNMENT = 128, 64, 64
NUMBERS = [0, 1, 2, 127, 128, 255, 65535, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]

#: Where in a file, by its share of the length, and what is written there.
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=9)
        | st.sampled_from(NUMBERS).map(lambda n: struct.pack("<Q", n)),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "healthy"
    simple_run(folder)
    add_findings(folder, finding("DeadRelu", "fc.weight", 3, Severity.ERROR))
    return folder


def files_of(run: Path) -> list[Path]:
    return sorted(each.relative_to(run) for each in run.rglob("*") if each.is_file())


def edited(content: bytes, edits: list[tuple[float, bytes]]) -> bytearray:
    changed = bytearray(content)
    for share, new in edits:
        at = int(share * len(content))
        changed[at : at + len(new)] = new[: len(content) - at]
    return changed


def records(shard: bytearray) -> Iterator[int]:
    for at in range(FILE_HEADER, len(shard) - RECORD_HEADER + 1, ALIGNMENT):
        if shard[at : at + 4] == b"TDR1":
            yield at


def repair(shard: bytearray) -> None:
    """Make the checksums of a shard fit, so that what they protect is decoded."""
    if len(shard) < FILE_HEADER:
        return
    struct.pack_into("<I", shard, 124, masked_crc32c(bytes(shard[:124])))
    for at in records(shard):
        (checked,) = struct.unpack_from("<Q", shard, at + 40)
        payload = bytes(shard[at + 64 : at + 64 + min(checked, len(shard))])
        if len(payload) == checked:
            struct.pack_into("<I", shard, at + 52, masked_crc32c(payload))
        header = bytes(shard[at : at + 60])
        struct.pack_into("<I", shard, at + 60, masked_crc32c(header))


def ask(run: Path) -> None:
    try:
        trial = create_trial(str(run))
        ask_everything(trial)
        for name in trial.tensor_names():
            tensor = trial.tensor(name)
            for step in tensor.steps():
                try:
                    tensor.value(step)
                except TdbgError:
                    continue
        view_of(trial)
    except TdbgError:
        return


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    number=st.integers(0, 1 << 16),
    edits=EDITS,
    cut=st.none() | st.floats(0, 1),
    is_repaired=st.booleans(),
)
def test_no_bytes_of_a_file_raise_anything_but_an_error_of_tdbg(
    healthy: Path,
    tmp_path: Path,
    number: int,
    edits: list[tuple[float, bytes]],
    cut: float | None,
    is_repaired: bool,
) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(healthy, run)
    names = files_of(run)
    file = run / names[number % len(names)]
    changed = edited(file.read_bytes(), edits)
    if cut is not None:
        del changed[int(cut * len(changed)) :]
    if is_repaired and file.suffix == ".tds":
        repair(changed)
    file.write_bytes(changed)
    ask(run)
