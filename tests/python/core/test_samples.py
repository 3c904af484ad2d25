"""Rows of tables: how the core takes them, and what it gives back."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg import _core
from tdbg.run.profile_tables import DISK, STEP, core_type, written_columns


def steps(*times: int) -> np.ndarray:
    rows = np.zeros(len(times), STEP)
    rows["time"] = times
    return rows


def times_of(
    reader: _core.RunReader, *arguments: int | None, definition: int = 1
) -> list[int]:
    found, _ = reader.read_samples(definition, *arguments)
    times: list[int] = found.view(STEP)["time"].tolist()
    return times


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "run")


def reader_of(run: RunBuilder, **options: bool) -> _core.RunReader:
    return _core.RunReader(str(run.directory), **options)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("use_caches", [False, True])
def test_rows_come_back_by_table_and_time(
    run: RunBuilder, closed: bool, use_caches: bool
) -> None:
    run.samples("step", steps(10, 20, 30))
    run.samples("disk", np.ones(2, DISK), "sda")
    run.samples("step", steps(40, 50))
    run.close() if closed else run.flush()
    reader = reader_of(run, use_caches=use_caches)
    by_id = {d.id: d for d in reader.definitions()}
    assert {d.name for d in by_id.values()} == {"profile/step", "profile/disk/sda"}
    assert by_id[1].dtype == written_columns(STEP)
    assert by_id[1].item_size == STEP.itemsize
    assert times_of(reader) == [10, 20, 30, 40, 50]
    assert times_of(reader, 35) == [40, 50]
    assert times_of(reader, None, 31) == [10, 20, 30]
    assert times_of(reader, 100, 200) == []
    assert reader.read_samples(2)[0].tobytes() == np.ones(2, DISK).tobytes()
    assert len(reader.read_samples(7)[0]) == 0
    assert not reader.problems()
    assert reader.names() == []


def test_a_reader_goes_on_after_the_records_that_it_has_seen(run: RunBuilder) -> None:
    run.samples("step", steps(1))
    run.flush()
    reader = reader_of(run)
    _, seen = reader.read_samples(1)
    assert times_of(reader, None, None, seen) == []
    run.samples("step", steps(2, 3))
    run.flush()
    assert reader.poll()
    assert times_of(reader, None, None, seen) == [2, 3]


def test_tables_of_many_shards_are_found(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run", shard_bytes=1 << 20)
    for i in range(60):
        run.samples("step", steps(*range(1000 * i, 1000 * i + 300)))
        run.flush()
    run.close()
    reader = reader_of(run)
    assert len(list(run.directory.glob("*.tdi"))) > 2
    assert len(times_of(reader)) == 60 * 300
    assert times_of(reader, 30_000, 30_001) == list(range(30_000, 30_300))


def test_the_table_of_cores_is_as_wide_as_the_host(run: RunBuilder) -> None:
    rows = np.zeros(3, core_type(200))
    rows["busy"] = np.arange(200)
    run.samples("core", rows)
    run.close()
    found, _ = reader_of(run).read_samples(1)
    assert (found.view(core_type(200))["busy"] == np.arange(200)).all()


@pytest.mark.parametrize(
    "columns", ["", "step:<i8", "time:<f8", "time:<i8,x", "time:<i8,x:|O", "time:<i8,"]
)
def test_what_is_no_table_is_refused(run: RunBuilder, columns: str) -> None:
    with pytest.raises(ValueError, match=r"columns|time:<i8"):
        run.capture.samples("profile/step", columns, b"\0" * 8)


def test_rows_that_are_cut_are_refused(run: RunBuilder) -> None:
    with pytest.raises(ValueError, match="12 bytes are no whole rows of 8"):
        run.capture.samples("profile/x", "time:<i8", b"\0" * 12)


def test_a_lost_record_is_counted_and_spoils_no_step(run: RunBuilder) -> None:
    run.end_step(0)
    with pytest.raises(ValueError, match="rows"):
        run.capture.samples("profile/x", "time:<i8", bytes(9))
    assert not run.capture.samples("profile/x", "time:<i8", bytes((64 << 20) + 8))
    assert run.capture.losses()["refused"][2] == 128
    run.end_step(1)
    run.close()
    reader = reader_of(run)
    (gap,) = reader.gaps()
    assert (gap["what"], gap["records"], gap["first_step"]) == (128, 1, -1)
    assert reader.steps()["dropped"].tolist() == [0, 0]


def test_threads_write_at_once(run: RunBuilder) -> None:
    def write(first: int) -> None:
        for i in range(200):
            run.samples("step", steps(first + i))

    threads = [threading.Thread(target=write, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    expected = [1000 * i + j for i in range(4) for j in range(200)]
    assert sorted(times_of(reader_of(run))) == expected


def test_damage_costs_one_record_and_is_told_once(run: RunBuilder) -> None:
    for time in range(5):
        run.samples("step", steps(time))
    run.close()
    shard = run.directory / "000001.tds"
    data = bytearray(shard.read_bytes())
    data[data.index(steps(2).tobytes()) + 9] ^= 1
    shard.write_bytes(data)
    reader = reader_of(run)
    assert times_of(reader) == [0, 1, 3, 4]
    assert times_of(reader) == [0, 1, 3, 4]
    (problem,) = reader.problems()
    assert problem.kind == "damage"
    assert len(reader.holes()) == 1
    assert times_of(reader_of(run, use_caches=False)) == [0, 1, 3, 4]
    assert len(reader.verify()) == 1


def test_spans_are_written_in_one_record(run: RunBuilder) -> None:
    spans = [(f"op{i % 3}", 10 * i, 5, 2**63) for i in range(1000)]
    run.spans(7, spans)
    assert run.capture.counters()["offered"] == 1
    with pytest.raises(TypeError, match="SPAN_DTYPE"):
        run.capture.spans(7, np.zeros(3))
    run.close()
    found = reader_of(run).spans()
    assert found["start_ns"].tolist() == [start for _, start, _, _ in spans]
    assert set(found["step"].tolist()) == {7}
    assert set(found["thread"].tolist()) == {2**63}
