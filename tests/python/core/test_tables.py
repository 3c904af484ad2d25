"""Everything but values: rows, steps, scalars, events, spans, histograms, gaps."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_helpers import (
    ATTEMPT,
    NAMED,
    WEIGHT,
    address,
    define,
    dtype_name,
    layouts,
    open_capture,
    random_bits,
    take,
)
from tdbg import _core
from tdbg.errors import ConfigurationError, StorageError
from tdbg.run.directory import create_run, open_run, writer_directories

REAL = [dtype for dtype in NAMED if dtype.kind != "c"]


def reader_of(run_dir: Path) -> _core.RunReader:
    run = open_run(run_dir)
    (writer,) = writer_directories(run)
    return _core.RunReader(str(writer.path), run.uuid)


def statistics(row: np.void) -> list[Any]:
    """The fields of a row that describe its tensor, bit by bit."""
    assert row.dtype.names is not None
    names = row.dtype.names[row.dtype.names.index("count") :]
    return [row[name].tobytes() for name in names]


@pytest.mark.parametrize("dtype", REAL, ids=dtype_name)
def test_captured_rows_are_those_of_reduce(run_dir: Path, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(11)
    capture = open_capture(run_dir)
    arrays = []
    for shape in [(), (0,), (5, 7), (3, 4, 5)]:
        arrays += [array for _, array in layouts(rng, shape, dtype)]
    if dtype.kind == "b":
        arrays = [array.view(np.uint8) % 2 == 1 for array in arrays]
    ids = [define(capture, str(i), array) for i, array in enumerate(arrays)]
    capture.statistics(
        0,
        ids,
        [address(array) for array in arrays],
        [array.strides for array in arrays],
    )
    assert capture.end_step(0, 1, 0)
    for id_, array in zip(ids, arrays, strict=True):
        capture.statistics(1, [id_], [address(array)], [array.strides])
    assert capture.end_step(1, 1, 1)
    capture.flush()
    reader = reader_of(run_dir)
    n = len(arrays)
    assert reader.n_rows == 2 * n
    rows = reader.rows()
    expected = [statistics(_core.reduce(array)[()]) for array in arrays]
    assert [statistics(row) for row in rows] == expected * 2
    assert rows["position"].tolist() == list(range(n)) * 2
    assert rows["definition"].tolist() == ids * 2
    assert rows["step"].tolist() == [0] * n + [1] * n
    column = reader.column([ids[3], 10_000])
    assert [statistics(row) for row in column] == [expected[3]] * 2
    assert len(reader.rows(n, n + 2)) == 2
    assert len(reader.rows(2 * n)) == len(reader.rows(7, 3)) == 0
    assert capture.close()


def test_contiguous_tensors_need_no_strides(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    array = np.arange(12.0).reshape(3, 4)
    id_ = define(capture, "x", array)
    capture.statistics(0, [id_], [address(array)])
    capture.statistics(0, [id_], [address(array)], [None])
    capture.statistics(0, (id_,), (address(array),), ((32, 8),), call=1)
    assert capture.values(0, id_, address(array))
    capture.end_step(0, 1, 0)
    capture.close()
    rows = reader_of(run_dir).rows()
    assert rows["l1"].tolist() == [66.0] * 3
    assert rows["call"].tolist() == [0, 0, 1]


def test_a_scaled_row_is_that_of_the_scaled_tensor(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    array = np.array([1.0, -3.0, np.inf], np.float32)
    id_ = define(capture, "x", array)
    capture.statistics(0, [id_], [address(array)], scale=0.5)
    capture.end_step(0, 1, 0)
    capture.close()
    (row,) = reader_of(run_dir).rows()
    assert row["l1"] == 2.0
    assert row["flags"] == 1
    assert statistics(row) == statistics(_core.reduce(array, scale=0.5)[()])


def test_reduce_takes_any_array_and_refuses_what_has_no_statistics() -> None:
    assert _core.reduce(np.arange(5, dtype=">i4"))["l1"] == 10
    assert _core.reduce(np.arange(5.0).astype(">f8")[::-2])["count"] == 3
    unaligned = np.frombuffer(bytearray(41), np.uint8)[1:].view(np.float64)
    assert _core.reduce(unaligned)["zero"] == 5
    assert _core.reduce([1.0, 2.0])["mean"] == 1.5
    assert _core.reduce(np.float32(3)).shape == ()
    assert _core.reduce(np.zeros((0, 3)))["count"] == 0
    for bad in (np.zeros(2, complex), np.array([object()]), np.array(["a"])):
        with pytest.raises(TypeError, match=str(bad.dtype.name)):
            _core.reduce(bad)
    with pytest.raises(TypeError, match=r"longdouble|float128"):
        _core.reduce(np.zeros(2, np.longdouble))
    with pytest.raises(ConfigurationError, match="scaled"):
        _core.reduce(np.arange(3), scale=2.0)


def test_units_are_counted_along_an_axis(run_dir: Path) -> None:
    array = np.array([[1.0, -1.0, 0.0], [2.0, np.nan, -5.0]])
    counts = _core.count_units(array, 1, -2.0, 1.5)
    assert counts.tolist() == [[2, 0, 0], [1, 1, 1], [2, 2, 2]]
    for axis in (-1, 2):
        with pytest.raises(ConfigurationError, match="axis"):
            _core.count_units(array, axis, 0, 0)
    capture = open_capture(run_dir)
    id_ = define(capture, "x", array)
    unit = capture.define("unit/x", 11, "uint64", (3, 3))
    assert capture.unit_summary(0, unit, id_, address(array), low=-2.0, high=1.5)
    capture.end_step(0, 1, 0)
    capture.close()
    stored = reader_of(run_dir).read_tensor(0).view(np.uint64).reshape(3, 3)
    assert stored.tolist() == counts.tolist()


def test_steps_scalars_events_spans_and_histograms_come_back(run_dir: Path) -> None:
    capture = open_capture(run_dir, rank=3, world_size=4, attempt_ordinal=2)
    loss = capture.define("loss", 7)
    span = capture.define("forward", 12)
    weight = capture.define(
        "w",
        WEIGHT,
        "bfloat16",
        (2, 3),
        aliases=("tied", "t\u00efed"),
        global_shape=(8, 3),
        global_offset=(4, 0),
        placements=[(1, 0, 0, 4, 2), (3, 2, 1, 2, 1)],
    )
    before = time.time_ns()
    assert capture.scalar(5, loss, 0.25, 123)
    assert capture.event(-1, 6, 2, json.dumps({"text": "hi"}).encode())
    assert capture.span(5, span, 1000, 50, thread=2**63, depth=3, value=-7)
    keys = np.array([1, 500], np.uint16)
    counts = np.array([7, 2**40], np.uint64)
    assert capture.histogram(5, weight, keys, counts, call=2, micro_batch=1)
    assert capture.end_step(
        5, 2, 3, flags=1, micro_batches=4, capture_ns=11, duration_ns=99
    )
    capture.flush(durable=True)
    reader = reader_of(run_dir)
    assert reader.liveness() == "running"
    scalar = reader.scalars()[0]
    assert scalar.tolist() == (5, loss, 0, 123, 0.25)
    (event,) = reader.events()
    assert (event.step, event.kind, event.severity) == (-1, 6, 2)
    assert json.loads(event.json) == {"text": "hi"}
    assert before <= event.wall_ns <= time.time_ns()
    assert reader.spans()[0].tolist() == (5, span, 0, 1000, 50, 2**63, 3, -7)
    (place,) = reader.histograms()
    found = [int(place[n]) for n in ("step", "definition", "call", "micro_batch")]
    assert found == [5, weight, 2, 1]
    found_keys, found_counts = reader.read_histogram(0)
    with pytest.raises(IndexError, match="no histogram 1"):
        reader.read_histogram(1)
    assert found_keys.tolist() == keys.tolist()
    assert found_counts.tolist() == counts.tolist()
    record = reader.steps()[0]
    assert (record["step"], record["mode"], record["mode_step"]) == (5, 2, 3)
    assert (record["flags"], record["micro_batches"]) == (1, 4)
    assert (record["capture_ns"], record["duration_ns"]) == (11, 99)
    assert (record["offered"], record["written"]) == (3, 3)
    definition = {d.name: d for d in reader.definitions()}["w"]
    assert definition.aliases == ("tied", "t\u00efed")
    assert definition.role == WEIGHT
    assert definition.global_shape == (8, 3)
    assert definition.global_offset == (4, 0)
    assert definition.placements == ((1, 0, 0, 4, 2), (3, 2, 1, 2, 1))
    identity = reader.identity()
    assert identity["role"] == "train"
    assert (identity["rank"], identity["world_size"]) == (3, 4)
    assert identity["attempt"] == ATTEMPT
    assert identity["attempt_ordinal"] == 2
    assert identity["run"] == open_run(run_dir).uuid
    assert identity["generation"] == capture.generation == 1
    assert Path(capture.directory).name == "train-3-1"
    assert reader.steps(1).size == reader.scalars(7).size == 0
    assert reader.events(1) == []
    assert capture.close()
    assert reader.poll() or reader.liveness() == "closed"
    commit = reader.commit()
    assert commit is not None
    assert commit["state"] == 2
    assert reader.n_bytes > 0


def test_what_is_refused_is_counted_and_reported(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    array = np.zeros(4, np.complex64)
    id_ = define(capture, "z", array)
    for bad in (0, -1, 99, 2**40):
        assert not capture.values(0, bad, address(array))
    capture.statistics(0, [id_, 77], [address(array)] * 2)
    assert not capture.values(0, id_, address(array), (4, 4, 4))
    capture.statistics(0, [id_], [address(array)], [(1, 2)])
    capture.refuse(0, 3, 1000)
    capture.end_step(0, 1, 0)
    capture.flush()
    counters = capture.counters()
    assert counters["dropped"] == 4 + 2 + 1 + 1 + 3
    assert counters["failed"] == 0
    assert counters["offered"] == counters["written"] + counters["dropped"]
    reader = reader_of(run_dir)
    gaps = reader.gaps()
    assert gaps["records"].sum() == counters["dropped"]
    assert set(gaps["reason"].tolist()) == {5}
    assert reader.steps()[0]["dropped"] == counters["dropped"]
    capture.close()


def test_wrong_arguments_raise_and_write_nothing(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    array = np.zeros(4)
    id_ = define(capture, "x", array)
    with pytest.raises(TypeError, match="expected an int"):
        capture.statistics(0, ["x"], [address(array)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="differ in length"):
        capture.statistics(0, [id_], [])
    with pytest.raises(ValueError, match="differ in length"):
        capture.statistics(0, [id_], [address(array)], [])
    with pytest.raises(TypeError):
        capture.statistics(0, [id_], 7)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        capture.statistics(0, [id_], [-1])
    with pytest.raises(TypeError):
        capture.values(0, id_, address(array), 8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="differ in length"):
        capture.histogram(0, id_, np.zeros(2, np.uint16), np.zeros(3, np.uint64))
    with pytest.raises(ConfigurationError, match="timeout"):
        capture.flush(timeout=-1.0)
    with pytest.raises(ConfigurationError, match="timeout"):
        capture.flush(timeout=float("nan"))
    capture.close()
    assert capture.counters()["offered"] == 0


def test_a_capture_that_cannot_work_raises_at_construction(run_dir: Path) -> None:
    run = create_run(run_dir)

    def make(**changes: Any) -> _core.Capture:
        options = {"run_uuid": run.uuid, "attempt_uuid": ATTEMPT, **changes}
        return _core.Capture(str(run.path), **options)

    for changes, message in [
        ({"role": "spy"}, "role"),
        ({"overflow": "explode"}, "overflow"),
        ({"run_uuid": b"short"}, "16 bytes"),
        ({"flush_interval": -1.0}, "timeout|interval"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            make(**changes)
    with pytest.raises(StorageError) as caught:
        _core.Capture(
            str(run.path / "nowhere"), run_uuid=run.uuid, attempt_uuid=ATTEMPT
        )
    assert caught.value.errno == 2
    assert writer_directories(run) == []


def test_after_close_everything_is_a_counted_no_op(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    array = np.zeros(4)
    id_ = define(capture, "x", array)
    assert take(capture, 0, id_, array)
    assert capture.close()
    assert capture.close()
    assert not take(capture, 1, id_, array)
    capture.statistics(1, [id_], [address(array)])
    assert not capture.scalar(1, id_, 1.0, 0)
    assert not capture.end_step(1, 1, 1)
    with pytest.raises(StorageError) as caught:
        capture.flush()
    assert caught.value.kind == "closed"
    assert capture.directory.endswith("train-0-1")


def test_each_capture_is_a_generation_of_its_own(run_dir: Path) -> None:
    first = open_capture(run_dir)
    second = open_capture(run_dir)
    assert (first.generation, second.generation) == (1, 2)
    assert first.close()
    assert second.close()
    assert open_capture(run_dir).generation == 3


def test_threads_share_a_capture_and_a_reader(run_dir: Path) -> None:
    """What 4 threads write is all there, and 4 more read it meanwhile."""
    capture = open_capture(run_dir)
    array = random_bits(np.random.default_rng(0), (1000,), np.dtype("uint8"))
    id_ = define(capture, "x", array)
    capture.end_step(0, 1, 0)
    capture.flush()
    reader = reader_of(run_dir)
    stop = threading.Event()
    polls = []
    errors: list[BaseException] = []

    def write(thread: int) -> None:
        for i in range(500):
            take(capture, thread * 1000 + i, id_, array)
            capture.scalar(i, id_, 1.0, i)

    def read() -> None:
        try:
            while not stop.is_set():
                polls.append(reader.poll())
                n = len(reader.tensors())
                if n:
                    assert reader.read_tensor(n - 1).tobytes() == array.tobytes()
                reader.rows()
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    readers = [threading.Thread(target=read) for _ in range(4)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    capture.flush()
    stop.set()
    for thread in readers:
        thread.join()
    assert errors == []
    assert any(polls), "no poll saw growth: the test proves nothing"
    reader.poll()
    assert len(reader.tensors()) == 2000
    assert len(reader.scalars()) == 2000
    assert capture.close()
