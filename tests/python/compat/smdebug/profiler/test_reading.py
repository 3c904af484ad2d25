"""Directories that smdebug's profiler wrote are read, whole, cut or hostile."""

from __future__ import annotations

import gzip
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from smdebug_profiles import (
    START,
    interval,
    metric,
    named,
    system_file,
    tensorflow_trace,
    timeline_file,
    timeline_text,
    training,
)
from tdbg.compat.smdebug.exceptions import SMDebugError
from tdbg.compat.smdebug.profiler import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    ProfilerFileError,
    ProfilerSystemEvents,
    S3AlgorithmMetricsReader,
    S3SystemMetricsReader,
    SMProfilerEvents,
)
from tdbg.compat.smdebug.profiler.utils import TimeUnits, is_valid_tracefilename
from tdbg.errors import ConfigurationError, StorageError

CPU = [metric("cpu", "cpu0", "CPUUtilization", at, at) for at in range(4)]
ALWAYS = (0, START + 10**12)


# --- What is whole -----------------------------------------------------------


def test_metrics_of_the_system_are_read_by_time_and_type(tmp_path: Path) -> None:
    reader = LocalSystemMetricsReader(training(tmp_path))
    assert reader.get_timestamp_of_first_available_file() == START
    second = START // 1_000_000
    events = reader.get_events(second + 3, second + 4, TimeUnits.SECONDS)
    assert len(events) == 14
    gpus = reader.get_events(START, START + 1_000_000, event_type="gpu")
    assert [(e.name, e.dimension, e.value) for e in gpus] == [
        ("gpu0", "GPUUtilization", 95),
        ("gpu1", "GPUUtilization", 100),
    ] * 2
    assert gpus[0].node_id == "algo-1"
    assert gpus[0].timestamp == START / 1e6


def test_files_of_metrics_that_come_later_are_read(tmp_path: Path) -> None:
    system_file(tmp_path, CPU)
    reader = LocalSystemMetricsReader(tmp_path, use_in_memory_cache=True)
    assert len(reader.get_events(*ALWAYS)) == 4
    system_file(tmp_path, [metric("cpu", "cpu0", "CPUUtilization", 1, 60)], seconds=60)
    reader.refresh_event_file_list()
    assert reader.get_timestamp_of_latest_available_file() == START + 60_000_000
    assert len(reader.get_events(*ALWAYS)) == 5
    assert len(reader.get_events(*ALWAYS)) == 5


def test_intervals_of_timelines_count_from_the_start_in_the_file(
    tmp_path: Path,
) -> None:
    events = [named(1, "Step:ModeKeys.TRAIN"), interval("Step", 10, 5, step_num="7")]
    timeline_file(tmp_path, events, 15)
    (event,) = LocalAlgorithmMetricsReader(tmp_path).get_events(*ALWAYS)
    assert (event.start_time, event.end_time) == (START + 10, START + 15)
    assert event.event_phase == "Step:ModeKeys.TRAIN"
    assert event.step == 7
    assert event.node_id == "algo-1-42"


def test_an_interval_may_begin_in_one_file_and_end_in_the_next(tmp_path: Path) -> None:
    begin: dict[str, Any] = {"name": "SUM", "ph": "B", "pid": 1, "ts": 5}
    end: dict[str, Any] = {"ph": "E", "pid": 1, "ts": 25}
    group, suffix = named(1, "Horovod"), "horovod_timeline.json"
    timeline_file(tmp_path, [group, begin], 10, suffix)
    timeline_file(tmp_path, [group, end, {**end, "ts": 26}], 30, suffix)
    (event,) = LocalAlgorithmMetricsReader(tmp_path).get_events(*ALWAYS)
    assert (event.event_name, event.duration) == ("SUM", 20)


def test_a_trace_of_tensorflow_counts_from_its_metadata(tmp_path: Path) -> None:
    thread = {"name": "thread_name", "ph": "M", "pid": 7, "tid": 3}
    called = {**thread, "args": {"name": "compute"}}
    matmul = {**interval("MatMul", 100, 50, 7), "tid": 3}
    tensorflow_trace(tmp_path, [named(7, "/host:CPU"), called, matmul])
    (event,) = LocalAlgorithmMetricsReader(tmp_path).get_events(*ALWAYS)
    assert event.start_time == START + 100
    assert event.process_info.get_thread_info(event.tid).thread_name == "host_compute"


def test_events_are_chosen_by_step_and_by_the_kind_of_file(tmp_path: Path) -> None:
    reader = LocalAlgorithmMetricsReader(training(tmp_path))
    found = reader.get_events_by_step(2, 4, file_suffix_filter=["pythontimeline.json"])
    assert [event.step for event in found] == [2, 3]
    assert {e.event_name for e in reader.get_events_by_step(2, 3)} == {
        "DataLoaderWorker",
        "Forward",
        "MultiProcessingDataLoaderIter::GetNext",
        "Step:ModeKeys.TRAIN",
    }
    last = reader.get_events_by_step(9, 10, file_suffix_filter=["pythontimeline.json"])
    assert [event.step for event in last] == [9]
    assert reader.get_events_by_step(50, 60) == []


def test_a_parser_reads_one_file_and_sorts_its_events(tmp_path: Path) -> None:
    events = [named(1, "Forward"), interval("late", 20, 5), interval("early", 10, 50)]
    parser = SMProfilerEvents()
    parser.read_events_from_file(str(timeline_file(tmp_path, events, 60)))
    by_start = [e.event_name for e in parser.get_events_start_time_sorted()]
    by_end = [e.event_name for e in parser.get_events_end_time_sorted()]
    assert (by_start, by_end) == (["early", "late"], ["late", "early"])
    assert parser.get_process_info(1).name == "Forward"
    begin = datetime.fromtimestamp(START / 1e6, UTC)
    end = datetime.fromtimestamp(START / 1e6 + 15e-6, UTC)
    assert [e.event_name for e in parser.get_events_within_range(begin, end)] == [
        "early"
    ]


# --- What is cut, of another version or hostile --------------------------------


def test_the_events_before_a_cut_are_returned_and_the_loss_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = [interval(f"e{at}", at, 1) for at in range(5)]
    path = timeline_file(tmp_path, events, 10)
    text = path.read_text()
    path.write_text(text[: text.index('"e3"') + 2])
    reader = LocalAlgorithmMetricsReader(tmp_path)
    with caplog.at_level(logging.WARNING, "tdbg"):
        found = reader.get_events(*ALWAYS)
        assert len(reader.get_events(*ALWAYS)) == 3
    assert [event.event_name for event in found] == ["e0", "e1", "e2"]
    (damage,) = reader.damage
    assert damage.path == path.as_posix()
    assert (damage.n_read, damage.n_flaws) == (4, 1)
    assert "line 6" in damage.reason
    assert caplog.text.count("1 place is damaged (line 6: ") == 1


def test_the_events_after_a_damaged_line_are_returned_too(tmp_path: Path) -> None:
    path = timeline_file(tmp_path, [interval(f"e{at}", at, 1) for at in range(4)], 10)
    path.write_text(path.read_text().replace('"e1", "ph"', '"e1" "ph"'))
    reader = LocalAlgorithmMetricsReader(tmp_path)
    assert [e.event_name for e in reader.get_events(*ALWAYS)] == ["e0", "e2", "e3"]
    lines = system_file(tmp_path, CPU).read_text().splitlines()
    system_file(tmp_path, []).write_text("\n".join([lines[0], "{,", *lines[1:]]))
    system = LocalSystemMetricsReader(tmp_path)
    assert [event.value for event in system.get_events(*ALWAYS)] == [0, 1, 2, 3]
    assert "line 2" in system.damage[0].reason


def test_a_last_line_that_is_being_written_is_no_error(tmp_path: Path) -> None:
    path = system_file(tmp_path, CPU, tail='{"Type": "cpu", "Na')
    parser = ProfilerSystemEvents()
    damage = parser.read_events_from_file(str(path))
    assert len(parser.get_all_events()) == 4
    assert damage is not None
    assert damage.n_flaws == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        '{"version": 2, "events": []}',
        "[" * 100_000,
        '[{"a":' * 50_000,
        "[1, null, {}]"[:-1] + ', "x"',
        "[" + "9" * 10_000,
        "\x00\xff",
    ],
)
def test_a_file_that_is_no_timeline_is_a_typed_error_that_names_it(
    tmp_path: Path, text: str
) -> None:
    path = timeline_file(tmp_path, [], 10)
    path.write_text(text or "[")
    with pytest.raises(ProfilerFileError) as caught:
        SMProfilerEvents().read_events_from_file(str(path))
    assert str(path) in str(caught.value)
    assert caught.value.file == str(path)
    assert isinstance(caught.value, SMDebugError | StorageError | ValueError)
    with pytest.raises(ProfilerFileError):
        LocalAlgorithmMetricsReader(tmp_path).get_events(*ALWAYS)


@pytest.mark.parametrize(
    "fields",
    [
        {"ts": "now"},
        {"ts": None},
        {"ts": 10**400},
        {"dur": float("nan")},
        {"dur": float("inf")},
        {"dur": True},
        {"dur": -1},
        {"dur": 10**18},
        {"ts": -(10**18)},
        {"name": 7},
        {"name": None},
    ],
)
def test_an_event_with_values_that_are_none_is_left_out_and_told(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    bad = {**interval("bad", 1, 1), **fields}
    timeline_file(tmp_path, [interval("good", 1, 1), bad], 10)
    reader = LocalAlgorithmMetricsReader(tmp_path)
    assert [event.event_name for event in reader.get_events(*ALWAYS)] == ["good"]
    assert "event 3" in reader.damage[0].reason


def test_a_damaged_file_takes_nothing_from_the_others(tmp_path: Path) -> None:
    timeline_file(tmp_path, [interval("good", 1, 1)], 10)
    bad = timeline_file(tmp_path, [], 20)
    bad.write_text('{"schema": 99}')
    reader = LocalAlgorithmMetricsReader(tmp_path)
    assert [event.event_name for event in reader.get_events(*ALWAYS)] == ["good"]
    assert "no array of events as smdebug 1.0 writes it" in reader.damage[0].reason


def test_a_compressed_trace_that_is_cut_gives_what_is_there(tmp_path: Path) -> None:
    events = [interval(f"op{at}", at, 1, 7) for at in range(2_000)]
    path = tensorflow_trace(tmp_path, events)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    reader = LocalAlgorithmMetricsReader(tmp_path)
    found = reader.get_events(*ALWAYS)
    assert 100 < len(found) < 2_000
    assert "compressed data is cut" in reader.damage[0].reason


def test_a_trace_that_unfolds_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdbg.compat.smdebug.profiler.damage.LARGEST", 1 << 20)
    path = tensorflow_trace(tmp_path, [])
    path.write_bytes(gzip.compress(b"[" + b" " * (3 << 20)))
    with pytest.raises(ProfilerFileError, match="unfolds to more than"):
        LocalAlgorithmMetricsReader(tmp_path).get_events(*ALWAYS)


def test_an_empty_or_missing_directory_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no profile: .*`system` or `framework`"):
        LocalSystemMetricsReader(tmp_path)
    with pytest.raises(StorageError, match=r"no such directory: .*nowhere"):
        LocalAlgorithmMetricsReader(tmp_path / "nowhere")


def test_a_profile_without_files_has_no_events(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    reader = LocalSystemMetricsReader(tmp_path)
    assert reader.get_timestamp_of_latest_available_file() == 0
    assert reader.get_events(*ALWAYS) == []
    assert LocalAlgorithmMetricsReader(tmp_path).get_events_by_step(0, 1) == []


def test_a_path_on_s3_is_refused_with_what_works() -> None:
    for reader in (LocalSystemMetricsReader, S3SystemMetricsReader):
        with pytest.raises(NotImplementedError, match="aws s3 sync s3://bucket/job"):
            reader("s3://bucket/job")
    with pytest.raises(ConfigurationError, match="LocalAlgorithmMetricsReader"):
        S3AlgorithmMetricsReader("/tmp/job")  # noqa: S108 - a path, not a file


def test_a_buffer_that_is_no_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIME_BUFFER_MICROSECONDS", "3 minutes")
    with pytest.raises(ConfigurationError, match="'3 minutes'"):
        LocalSystemMetricsReader(training(tmp_path)).get_events(*ALWAYS)


def test_text_of_a_timeline_is_what_smdebug_writes(tmp_path: Path) -> None:
    path = timeline_file(tmp_path, [interval("e", 1, 1)], 10)
    assert is_valid_tracefilename(str(path))
    assert json.loads(timeline_text([]))[0]["args"] == {
        "start_time_since_epoch_in_micros": START
    }
