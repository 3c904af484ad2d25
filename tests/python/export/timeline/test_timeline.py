"""Timelines, parsed back with Perfetto's own messages and as JSON."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from run_builder import RunBuilder
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError
from tdbg.export import export_chrome, export_perfetto
from tdbg.export.timeline import (
    Counter,
    SliceTrack,
    Timeline,
    chrome_trace,
    perfetto_trace,
)
from tdbg.export.timeline.model import nested_lanes
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import COLLECTIVE, LOADER, STEP, SYSTEM
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial

S = 1_000_000_000


class Parsed:
    """A trace as Perfetto's messages say it, with names and times put back."""

    def __init__(self, data: bytes) -> None:
        trace = pb.Trace()
        trace.ParseFromString(data)
        self.tracks: dict[int, Any] = {}
        self.names: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        self.clocks: dict[int, int] = {}
        # By track: (begin, end, name, notes), as they ended; and counters' values.
        self.slices: dict[int, list[tuple[int, int, str, dict[str, Any]]]]
        self.slices = defaultdict(list)
        self.values: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self._open: dict[int, list[tuple[int, str, dict[str, Any]]]]
        self._open = defaultdict(list)
        self._now = 0
        for packet in trace.packet:
            self._take(packet)
        assert not any(self._open.values()), "a slice did not end"

    def _take(self, packet: Any) -> None:
        assert packet.trusted_packet_sequence_id == 1
        for clock in packet.clock_snapshot.clocks:
            self.clocks[clock.clock_id] = clock.timestamp
            if clock.is_incremental:
                self._now = clock.timestamp
        for entry in packet.interned_data.event_names:
            self.names[entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_names:
            self.notes[entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            self._now += packet.timestamp
            self._take_event(packet.track_event)

    def _take_event(self, event: Any) -> None:
        track = event.track_uuid
        assert track in self.tracks
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            self.values[track].append((self._now, event.double_counter_value))
        elif event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            notes = {
                self.notes[each.name_iid]: getattr(each, each.WhichOneof("value"))
                for each in event.debug_annotations
            }
            self._open[track].append((self._now, self.names[event.name_iid], notes))
        else:
            assert event.type == pb.TrackEvent.TYPE_SLICE_END
            begin, name, notes = self._open[track].pop()
            self.slices[track].append((begin, self._now, name, notes))

    def row(self, process: str, name: str) -> int:
        """The number of a row of a process."""
        parents = {
            t.uuid for t in self.tracks.values() if t.process.process_name == process
        }
        (found,) = (
            t.uuid
            for t in self.tracks.values()
            if t.name == name and t.parent_uuid in parents
        )
        return int(found)


def table(rows: np.dtype[Any], times: Any, **columns: Any) -> NDArray[Any]:
    found = np.zeros(len(times), rows)
    found["time"] = times
    for name, values in columns.items():
        found[name] = values
    return found


BEGIN = time.monotonic_ns()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks, five steps of a second, with everything that a timeline draws."""
    path = tmp_path / "run"
    times = BEGIN + S * np.arange(1, 6)
    for rank in range(2):
        with RunBuilder(path, rank=rank, world_size=2) as run:
            steps = table(STEP, times, global_step=np.arange(5), duration_ns=S)
            steps["mode"] = ModeKeys.TRAIN.value
            steps["data_wait_ns"], steps["forward_ns"] = S // 4, S // 2
            steps["other_ns"] = S - S // 4 - S // 2
            run.samples("step", steps)
            batches = table(LOADER, times, wait_ns=S // 4, fetch_ns=S // 2, depth=1)
            run.samples("loader", batches)
            collective = table(COLLECTIVE, times, global_step=np.arange(5))
            collective["duration_ns"], collective["sequence"] = S // 10, np.arange(5)
            run.samples("collective", collective)
            run.spans(1, [("outer", BEGIN + S, 500, 7), ("inner", BEGIN + S, 100, 7)])
            window = {"what": "profile_window", "id": "w", "kinds": ["operators"]}
            ends = {"start_ns": BEGIN, "end_ns": BEGIN + S}
            run.event(EventKind.CHANGE, {**window, **ends})
            for step in range(5):
                weight = np.full(4, step + 1, np.float32)
                run.save(step, "fc.weight", weight, what="statistics")
                run.scalar(step, "lr", 0.5)
                run.end_step(step)
            if rank == 0:
                samples = table(SYSTEM, times, allowed_busy=0.25, memory_total=4)
                run.samples("system", samples)
    return path


def test_a_trace_is_parsed_back(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pftrace"
    report = export_perfetto(run, out, statistics=["l2"], regex="^fc")
    trace = Parsed(out.read_bytes())
    assert report.n_bytes == out.stat().st_size
    assert report.slices == sum(map(len, trace.slices.values()))
    assert report.values == sum(map(len, trace.values.values()))
    names = [t.process.process_name for t in trace.tracks.values() if t.process.pid]
    assert names == ["run", "host 0", "worker_0", "worker_1"]
    for worker in ("worker_0", "worker_1"):
        steps = trace.slices[trace.row(worker, "steps")]
        assert [(b - BEGIN, e - BEGIN) for b, e, _, _ in steps] == [
            (i * S, (i + 1) * S) for i in range(5)
        ]
        assert [(name, notes["step"]) for _, _, name, notes in steps] == [
            ("TRAIN", i) for i in range(5)
        ]
        phases = trace.slices[trace.row(worker, "phases, summed in each step")]
        assert [name for _, _, name, _ in phases[:3]] == [
            "data wait",
            "forward",
            "other",
        ]
        assert [e - b for b, e, _, _ in phases[:3]] == [S // 4, S // 2, S // 4]
        spans = trace.slices[trace.row(worker, "thread 7")]
        assert [(name, e - b) for b, e, name, _ in spans] == [
            ("inner", 100),
            ("outer", 500),
        ]
        assert len(trace.slices[trace.row(worker, "communication")]) == 5
        assert len(trace.slices[trace.row(worker, "loader 0: waiting")]) == 5
        (window,) = trace.slices[trace.row(worker, "profile windows")]
        assert window[2] == "operators"
    busy = trace.values[trace.row("host 0", "processors busy")]
    assert [(t - BEGIN) // S for t, _ in busy] == [1, 2, 3, 4, 5]
    assert {value for _, value in busy} == {25.0}
    norms = trace.values[trace.row("run", "fc.weight l2")]
    assert [value for _, value in norms] == [2.0 * (i + 1) for i in range(5)]
    assert len(trace.values[trace.row("run", "lr")]) == 5


def test_the_clock_of_a_trace_is_told_as_wall_time(run: Path, tmp_path: Path) -> None:
    export_perfetto(run, tmp_path / "t")
    trace = Parsed((tmp_path / "t").read_bytes())
    offset = (
        trace.clocks[pb.BUILTIN_CLOCK_REALTIME]
        - trace.clocks[pb.BUILTIN_CLOCK_MONOTONIC]
    )
    assert abs(offset - (time.time_ns() - time.monotonic_ns())) < 5 * S


def test_steps_choose_what_is_drawn(run: Path, tmp_path: Path) -> None:
    export_perfetto(run, tmp_path / "t", steps=(1, 2))
    trace = Parsed((tmp_path / "t").read_bytes())
    steps = trace.slices[trace.row("worker_0", "steps")]
    assert [notes["step"] for _, _, _, notes in steps] == [1, 2]
    assert len(trace.values[trace.row("run", "lr")]) == 2
    with pytest.raises(ConfigurationError, match=r"\(5, 2\)"):
        export_perfetto(run, tmp_path / "t", steps=(5, 2))


def test_a_run_without_a_profile_has_a_timeline_of_its_steps(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(3):
            run.scalar(step, "lr", 0.5)
            run.end_step(step, duration_ns=1000)
    export_perfetto(tmp_path / "run", tmp_path / "t")
    trace = Parsed((tmp_path / "t").read_bytes())
    steps = trace.slices[trace.row("worker_0", "steps")]
    assert [notes["step"] for _, _, _, notes in steps] == [0, 1, 2]
    assert [e - b for b, e, _, _ in steps] == [1000] * 3


def test_a_chrome_trace_says_the_same(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    report = export_chrome(create_trial(run), out)
    trace = json.loads(out.read_bytes())
    events = trace["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    assert len(slices) == report.slices
    rows = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in events
        if each["name"] == "thread_name"
    }
    steps = [each for each in slices if rows[each["pid"], each["tid"]] == "steps"]
    assert [each["args"]["step"] for each in steps] == [*range(5), *range(5)]
    assert {each["dur"] for each in steps} == {1e6}
    assert steps[1]["ts"] - steps[0]["ts"] == pytest.approx(1e6)
    counters = {each["name"] for each in events if each["ph"] == "C"}
    assert {"lr", "processors busy (%)"} <= counters


def test_a_chrome_trace_that_is_too_large_is_refused() -> None:
    n = 200_001
    zeros = np.zeros(n, np.int64)
    track = SliceTrack(1, "many", np.arange(n), zeros, ["x"] * n)
    timeline = Timeline({1: "run"}, [track])
    with pytest.raises(ConfigurationError, match="200,001"):
        next(chrome_trace(timeline))


def test_an_export_that_fails_leaves_the_earlier_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    out.write_text("earlier")
    monkeypatch.setattr("tdbg.export.timeline.chrome.MOST_EVENTS", 3)
    with pytest.raises(ConfigurationError, match="holds 3 events"):
        export_chrome(run, out)
    assert out.read_text() == "earlier"
    assert list(tmp_path.glob(".tdbg*")) == []


@pytest.mark.parametrize("verb", ["perfetto", "chrome"])
def test_the_verbs_write_a_file(run: Path, tmp_path: Path, verb: str) -> None:
    out = tmp_path / "file"
    arguments = ["export", verb, str(run), "--out", str(out), "--steps", "1:", "--json"]
    result = CliRunner().invoke(_tdbg, arguments)
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert said["n_bytes"] == out.stat().st_size
    assert said["complete"] is True
    assert said["lost_records"]["text"] == ""
    wrong = CliRunner().invoke(_tdbg, [*arguments[:-2], "a:b"])
    assert wrong.exit_code == 2
    assert "'a:b' is no range of steps" in wrong.output


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=25)
)
def test_slices_nest_whatever_they_overlap(pairs: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in pairs], np.int64)
    duration = np.array([length for _, length in pairs], np.int64)
    names = [str(i) for i in range(len(pairs))]
    track = SliceTrack(1, "row", start, duration, names)
    lanes = nested_lanes(track)
    assert sorted(e.slice for lane in lanes for e in lane if e.begins) == list(
        range(len(pairs))
    )
    counter = Counter(1, "c", "B/s", np.array([3]), np.array([1.5]))
    data = b"".join(perfetto_trace(Timeline({1: "run"}, [track], [counter])))
    trace = Parsed(data)
    found = {
        (begin, end, name)
        for row in trace.slices.values()
        for begin, end, name, _ in row
    }
    assert found == {
        (begin, begin + length, str(i)) for i, (begin, length) in enumerate(pairs)
    }
