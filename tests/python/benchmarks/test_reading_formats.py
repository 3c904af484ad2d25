"""Every way of keeping tensors answers what the benchmark of reading asks."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks._harness import WrongAnswer
from benchmarks.environments.create import FOLDER
from benchmarks.reader import reading
from benchmarks.reader.contenders import CONTENDERS, make
from benchmarks.reader.contenders._wandb_log import records

#: These live in environments of their own, and TensorBoard loads TensorFlow here.
ELSEWHERE = {"TensorBoard", "smdebug", "tdbg, smdebug's files", "wandb"}
BLOCK = 1 << 15


@pytest.mark.parametrize("name", sorted(set(CONTENDERS) - ELSEWHERE))
@pytest.mark.parametrize("size", [(3, 70, 16), (2, 3, 1 << 18)], ids=["many", "large"])
def test_a_format_gives_back_what_it_was_given(
    name: str, size: tuple[int, int, int], tmp_path: Path
) -> None:
    steps = reading.steps_of(size)
    written = make(name, tmp_path)
    written.write(iter(steps))
    for ask in reading.questions(written, steps).values():
        assert ask() > 0


def test_other_values_of_a_format_end_the_benchmark(tmp_path: Path) -> None:
    steps = reading.steps_of((3, 4, 16))
    written = make("Parquet", tmp_path)
    written.write({n: a + 1 for n, a in arrays.items()} for arrays in steps)
    for question in ("open, one tensor", "one tensor, all steps", "everything"):
        with pytest.raises(WrongAnswer):
            reading.questions(written, steps)[question]()


def test_what_the_benchmark_reads_with_is_pinned_in_its_environment() -> None:
    pins = (FOLDER / f"{reading.ENVIRONMENT}.txt").read_text()
    for name in {*CONTENDERS} - {"smdebug", "tdbg, smdebug's files"}:
        for package in set(CONTENDERS[name][1]) - {"tdbg"}:
            assert f"\n{package}==" in pins


def log(*bodies: bytes) -> bytes:
    """A file of wandb with these records."""
    file = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for body in bodies:
        for kind, part in parts_of(body, len(file)):
            room = BLOCK - len(file) % BLOCK
            file += bytes(room) if room < 7 else b""
            crc = zlib.crc32(part, zlib.crc32(bytes([kind])))
            file += struct.pack("<IHB", crc, len(part), kind) + part
    return bytes(file)


def parts_of(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a record that begins there, and which each is."""
    is_first = True
    while True:
        room = BLOCK - at % BLOCK
        room = BLOCK if room < 7 else room
        part, body = body[: room - 7], body[room - 7 :]
        yield (1 if not body else 2) if is_first else (4 if not body else 3), part
        if not body:
            return
        at, is_first = 0, False


@pytest.mark.parametrize("length", [0, 5, BLOCK - 14, BLOCK - 16, BLOCK, 3 * BLOCK])
def test_records_of_a_log_of_wandb_are_read_across_its_blocks(length: int) -> None:
    dice = np.random.default_rng(length)
    bodies = [dice.bytes(length), b"between", dice.bytes(length), b"last"]
    assert list(records(log(*bodies))) == bodies


def test_a_flipped_bit_in_a_log_of_wandb_ends_the_benchmark() -> None:
    file = bytearray(log(b"one", b"two"))
    file[-1] ^= 1
    with pytest.raises(WrongAnswer, match="checksum"):
        list(records(bytes(file)))
    with pytest.raises(WrongAnswer, match="no file of a run"):
        list(records(b"PAR1" + bytes(file)))
