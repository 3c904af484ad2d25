"""Values come back bit by bit, or are refused by a typed error and counted."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core_helpers import (
    NAMED,
    OTHER,
    PLAIN,
    address,
    define,
    dtype_name,
    layouts,
    open_capture,
    random_bits,
    raw_bytes,
    take,
)
from tdbg import _core
from tdbg.errors import ConfigurationError, CorruptionError, StorageError
from tdbg.run.directory import open_run, writer_directories

SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (1,),
    (3, 0, 5),
    (7,),
    (2, 3, 4),
    (2, 1, 3, 1, 2, 2, 1, 3),
    (1,) * 63 + (2,),
]


def reader_of(run_dir: Path, **options: Any) -> _core.RunReader:
    """A reader of the only writer directory."""
    run = open_run(run_dir)
    (writer,) = writer_directories(run)
    return _core.RunReader(str(writer.path), run.uuid, **options)


@pytest.mark.parametrize("dtype", NAMED + PLAIN, ids=dtype_name)
@pytest.mark.parametrize("codec", ["none", "auto", "max"])
def test_every_shape_and_layout_comes_back_bit_by_bit(
    run_dir: Path, dtype: np.dtype[Any], codec: str
) -> None:
    """Sabotage that it caught: CopyContiguous taking |stride| for stride."""
    rng = np.random.default_rng(7)
    capture = open_capture(run_dir, codec=codec)
    expected = []
    for shape in SHAPES:
        for layout, array in layouts(rng, shape, dtype):
            id_ = define(capture, f"{layout} {shape}", array)
            assert take(capture, len(expected), id_, array)
            expected.append((id_, array.shape, raw_bytes(array)))
    capture.flush()
    reader = reader_of(run_dir)
    definitions = {entry.id: entry for entry in reader.definitions()}
    table = reader.tensors()
    assert len(table) == len(expected) > 70
    for index, (id_, shape, content) in enumerate(expected):
        assert table[index]["definition"] == id_
        assert table[index]["step"] == index
        definition = definitions[id_]
        assert definition.shape == shape
        assert definition.item_size == dtype.itemsize
        assert definition.dtype == dtype_name(dtype)
        values = reader.read_tensor(index)
        assert values.tobytes() == content
        assert not values.flags.writeable
        assert raw_bytes(values.view(dtype).reshape(shape)) == content
    assert capture.close()
    counters = capture.counters()
    assert counters["offered"] == counters["written"]
    reader.poll()
    assert [problem.message for problem in reader.problems()] == []
    for index, (_, _, content) in enumerate(expected):
        assert reader.read_tensor(index).tobytes() == content


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(object),
        np.dtype([("a", "f4"), ("b", "i2")]),
        np.dtype("V8"),
        np.dtype(ml_dtypes.int4),
        np.dtype(ml_dtypes.float8_e3m4),
        np.dtype("S0"),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_by_name(
    run_dir: Path, dtype: np.dtype[Any]
) -> None:
    capture = open_capture(run_dir)
    with pytest.raises(ConfigurationError, match="cannot be stored"):
        capture.define("x", OTHER, dtype.str, (1,), item_size=dtype.itemsize)
    assert capture.close()


def test_a_dtype_or_shape_that_cannot_be_is_refused(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    for dtype, shape, message in [
        ("float31", (1,), "float31"),
        ("<M8[ns]", (1,), "cannot be stored"),
        ("float32", (-1,), "negative"),
        ("float32", (2**40, 2**40), "overflows"),
        ("float32", (1,) * 65, "at most 64"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            capture.define("x", OTHER, dtype, shape)
    with pytest.raises(ConfigurationError, match="global"):
        capture.define("x", OTHER, "float32", (2,), global_shape=(4, 4))
    with pytest.raises(ConfigurationError, match="placement"):
        capture.define("x", OTHER, "float32", (2,), placements=[(9, 0, 0, 1, 0)])
    assert capture.close()


def test_the_value_at_the_call_is_what_is_stored(run_dir: Path) -> None:
    """Sabotage that it caught: AddTensor copying 1 ms later, in another thread."""
    rng = np.random.default_rng(3)
    capture = open_capture(run_dir)
    array = random_bits(rng, (64, 1024), np.dtype("float32"))
    id_ = define(capture, "weight", array)
    expected = []
    for step in range(200):
        array.view(np.uint8)[:] = np.frombuffer(
            rng.bytes(array.nbytes), np.uint8
        ).reshape(64, -1)
        expected.append(raw_bytes(array))
        assert take(capture, step, id_, array)
        array.view(np.uint8)[:] = 0
    del array
    gc.collect()
    capture.flush()
    reader = reader_of(run_dir)
    assert [reader.read_tensor(i).tobytes() for i in range(200)] == expected
    assert capture.close()


@pytest.mark.parametrize("map_files", [False, True])
def test_a_value_outlives_its_reader_and_its_files(
    run_dir: Path, map_files: bool
) -> None:
    array = random_bits(np.random.default_rng(1), (100_000,), np.dtype("uint8"))
    capture = open_capture(run_dir, codec="none")
    take(capture, 0, define(capture, "x", array), array)
    assert capture.close()
    reader = reader_of(run_dir, map_files=map_files)
    value = reader.read_tensor(0)
    again = reader.read_tensor(0)
    # Stored as it lies in memory: both are views of the shard where it is mapped.
    assert (address(value) == address(again)) is map_files
    for file in (run_dir / "w").rglob("*"):
        if file.is_file():
            file.unlink()
    del reader, again
    gc.collect()
    np.testing.assert_array_equal(value, array)
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 1


def test_damage_names_file_offset_and_kind(run_dir: Path) -> None:
    array = random_bits(np.random.default_rng(1), (1_000_000,), np.dtype("uint8"))
    capture = open_capture(run_dir)
    id_ = define(capture, "x", array)
    take(capture, 0, id_, array)
    take(capture, 1, id_, array)
    assert capture.close()
    (shard,) = (run_dir / "w").rglob("*.tds")
    reader = reader_of(run_dir)
    offset = int(reader.tensors()[1]["offset"])
    content = bytearray(shard.read_bytes())
    content[offset + 600_000] ^= 1
    shard.chmod(0o600)
    shard.write_bytes(content)
    with pytest.raises(CorruptionError) as caught:
        reader_of(run_dir).read_tensor(1)
    assert caught.value.file == str(shard)
    assert caught.value.kind == "damage"
    assert caught.value.offset is not None
    assert offset <= caught.value.offset <= offset + 600_000
    assert reader_of(run_dir).read_tensor(0).tobytes() == array.tobytes()
    with pytest.raises(IndexError):
        reader.read_tensor(2)


def test_what_is_no_writer_directory_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        _core.RunReader(str(tmp_path / "train-0-1"))
    with pytest.raises(ConfigurationError, match="role"):
        _core.RunReader(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="16 bytes"):
        _core.RunReader(str(tmp_path), b"short")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a\0b",
        "line\nbreak",
        "../../etc/passwd",
        "a/b\\c",
        "CON",
        "\x1b[31mred",
        "<script>alert(1)</script>",
        "\u202egpj.exe",
        "caf\u00e9",
        "cafe\u0301",
        "x" * 4096,
    ],
)
def test_any_name_comes_back_as_it_was(run_dir: Path, name: str) -> None:
    before = sorted(path.name for path in run_dir.parent.iterdir())
    capture = open_capture(run_dir)
    array = np.arange(3.0)
    take(capture, 0, define(capture, name, array), array)
    assert capture.close()
    (definition,) = reader_of(run_dir).definitions()
    assert definition.name == name
    assert definition.flags == 0
    after = {path.name for path in run_dir.parent.iterdir()}
    assert after == {*before, run_dir.name}


def test_a_surrogate_in_a_name_is_escaped(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    array = np.arange(3.0)
    take(capture, 0, define(capture, "bad\ud800name", array), array)
    assert capture.close()
    (definition,) = reader_of(run_dir).definitions()
    assert definition.name == "bad\\ud800name"


def test_names_beyond_the_limit_stay_distinct(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    array = np.arange(3.0)
    for end in ("a", "b"):
        take(capture, 0, define(capture, "x" * 65536 + end, array), array)
    assert capture.close()
    first, second = reader_of(run_dir).definitions()
    assert first.name != second.name
    for definition in (first, second):
        assert definition.flags == 1
        assert definition.name.startswith("xxxx")
        assert len(definition.name) <= 4096
