"""The core reads arrays of NumPy by itself: many in one call, or numbers by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_helpers import NAMED, dtype_name, layouts, open_capture, raw_bytes
from tdbg import _core
from tdbg.config.collections import Role
from tdbg.run.directory import open_run, writer_directories

ROWS = _core.schema()["CaptureFlag"]["ROWS"]
VALUES = _core.schema()["CaptureFlag"]["VALUES"]
WITH_STATISTICS = [dtype for dtype in NAMED if dtype.kind != "c"]
UNITS = _core.schema()["CaptureFlag"]["UNITS"]


def reader_of(run_dir: Path) -> _core.RunReader:
    run = open_run(run_dir)
    (writer,) = writer_directories(run)
    return _core.RunReader(str(writer.path), run.uuid)


def entry(name: str, **settings: Any) -> _core.TensorEntry:
    return _core.TensorEntry(name, int(Role.OTHER), **settings)


def take(batch: _core.BatchCapture, arrays: list[Any], flags: int = VALUES) -> Any:
    entries = [entry(f"t{i}") for i in range(len(arrays))]
    return batch.take(0, entries, arrays, [flags] * len(arrays), 0, 0, 1.0, False)


@pytest.mark.parametrize("dtype", WITH_STATISTICS, ids=dtype_name)
def test_arrays_of_every_type_and_layout_are_read(
    run_dir: Path, dtype: np.dtype[Any]
) -> None:
    rng = np.random.default_rng(7)
    arrays = [array for _, array in layouts(rng, (2, 3, 4), dtype)]
    capture = open_capture(run_dir)
    batch = _core.BatchCapture(capture, ())
    assert not batch.can_read  # There are no types but arrays.
    assert take(batch, arrays, ROWS | VALUES) is None
    capture.flush()
    reader = reader_of(run_dir)
    assert len(reader.rows()) == len(arrays) == len(reader.tensors())
    for i, array in enumerate(arrays):
        assert raw_bytes(reader.read_tensor(i)) == raw_bytes(array)
    np.testing.assert_array_equal(
        reader.rows()["count"], [array.size for array in arrays]
    )


def test_what_is_no_plain_array_is_left_to_python(run_dir: Path) -> None:
    class Own(np.ndarray[Any, Any]):
        pass

    unaligned = np.frombuffer(bytes(9), np.uint8)[1:].view(np.float64)
    given = [
        np.zeros(3),
        np.zeros(3).view(Own),
        np.zeros(3, ">f4"),
        np.zeros(3, "U4"),
        np.zeros(3, complex),
        np.zeros(3, np.longdouble),
        np.ma.masked_array(np.zeros(3)),
        np.zeros((1,) * 9),
        unaligned,
        [1.0, 2.0],
        None,
    ]
    batch = _core.BatchCapture(open_capture(run_dir), ())
    assert take(batch, given) == list(range(1, len(given)))


def test_numbers_are_tensors_of_no_dimensions_each(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    batch = _core.BatchCapture(capture, ())
    numbers = np.arange(6.0)[::2]
    entries = [entry(f"n{i}") for i in range(3)]
    flags = [ROWS | VALUES, ROWS, VALUES]
    assert batch.take_numbers(4, entries, numbers, flags)
    capture.flush()
    reader = reader_of(run_dir)
    names = {each.id: (each.name, each.shape) for each in reader.definitions()}
    rows = {names[row["definition"]]: row["mean"] for row in reader.rows()}
    assert rows == {("n0", ()): 0.0, ("n1", ()): 2.0}
    tensors = [names[each["definition"]] for each in reader.tensors()]
    assert tensors == [("n0", ()), ("n2", ())]
    assert [reader.read_tensor(i).view(np.float64)[0] for i in range(2)] == [0.0, 4.0]


@pytest.mark.parametrize("numbers", [np.zeros((2, 1)), np.zeros(3), np.zeros(2, "U1")])
def test_numbers_are_an_array_with_one_for_each_name(
    run_dir: Path, numbers: np.ndarray[Any, Any]
) -> None:
    batch = _core.BatchCapture(open_capture(run_dir), ())
    entries = [entry("a"), entry("b")]
    assert not batch.take_numbers(0, entries, numbers, [ROWS, ROWS])
    with pytest.raises(ValueError, match="differ in length"):
        batch.take_numbers(0, entries, numbers, [ROWS])


@pytest.mark.parametrize(("units_last", "axis"), [(False, 1), (True, 3)])
def test_units_are_channels_wherever_these_stand(
    run_dir: Path, units_last: bool, axis: int
) -> None:
    array = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    capture = open_capture(run_dir)
    batch = _core.BatchCapture(capture, ())
    counted = entry("t", unit_summary="unit/t", low=-1.0, units_last=units_last)
    assert batch.take(0, [counted], [array], [UNITS], 0, 0, 1.0, False) is None
    capture.flush()
    found = reader_of(run_dir).read_tensor(0).view(np.uint64).reshape(3, -1)
    expected = _core.count_units(array, axis, -1.0, np.inf)
    np.testing.assert_array_equal(found, expected)
