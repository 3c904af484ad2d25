"""One warning when losing starts and one when it ends, and the right words in both."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tdbg import _core
from tdbg.capture.lost_records import QUIET_SECONDS, LostRecordsLog
from tdbg.capture.policy import Policy
from tdbg.capture.session import Session
from tdbg.config import CollectionRegistry, Role
from tdbg.config.options import SessionOptions
from tdbg.errors import StorageError
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.trial import create_trial

GAP_TENSORS = 2


@dataclass
class Source:
    """A writer that loses what it is told to, and a clock."""

    time: float = 1000.0
    lost: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)
    n_questions: int = 0

    @property
    def n_lost(self) -> int:
        return sum(entry[0] for name, entry in self.lost.items() if name != "refused")

    def losses(self) -> dict[str, tuple[int, int, int]]:
        self.n_questions += 1
        return dict(self.lost)

    def lost_tensors(self) -> dict[str, tuple[list[tuple[str, int, int]], int]]:
        return {name: ([("weight", 1, 7)], 2) for name in self.lost}

    def counters(self) -> dict[str, int]:
        return self.more

    def lose(self, reason: str, what: int = GAP_TENSORS, n: int = 1) -> None:
        records, n_bytes, known = self.lost.get(reason, (0, 0, 0))
        self.lost[reason] = (records + n, n_bytes + 1_000_000 * n, known | what)

    def now(self) -> float:
        return self.time


class Warnings:
    """What was logged since the last look."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog
        caplog.set_level(logging.INFO, "tdbg")

    def take(self) -> list[str]:
        records = self.caplog.records
        assert all(record.levelno == logging.WARNING for record in records)
        texts = [record.getMessage() for record in records]
        self.caplog.clear()
        return texts


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Warnings:
    return Warnings(caplog)


def test_one_warning_when_it_starts_and_one_when_it_ends(warnings: Warnings) -> None:
    # Sabotage seen to fail here: warning at every loss; ending at the first step
    # without one.
    source = Source()
    watch = LostRecordsLog(source, source.now)
    for step in range(5):
        watch.step_ended(step)
    assert warnings.take() == []
    for step in range(5, 500):
        if step % 7 == 0:
            source.lose("queue_full")
        watch.step_ended(step)
        source.time += 0.5
    (start,) = warnings.take()
    assert "losing raw values of weight and 2 more at step 7: " in start
    assert "the queue is full" in start
    assert "save_interval" in start
    assert "overflow='block'" in start
    source.time += QUIET_SECONDS
    for step in range(500, 510):
        watch.step_ended(step)
    (end,) = warnings.take()
    assert end.startswith(
        "tdbg lost 71 records (71.0 MB) of weight and 2 more and has lost nothing"
    )
    assert end.endswith("queue_full 71")
    # Another episode tells of itself only.
    source.lose("io_error", what=1 | 2 | 8, n=3)
    source.more = {"last_errno": 28}
    watch.step_ended(510)
    (start,) = warnings.take()
    assert (
        "losing statistics, raw values and ends of steps of weight and 2 more at step"
        in start
    )
    assert "(No space left on device)" in start
    watch.close()
    assert warnings.take() == [
        "tdbg lost 3 records (3.0 MB) of weight and 2 more: io_error 3"
    ]
    watch.close()
    assert warnings.take() == []


@pytest.mark.parametrize(
    ("reason", "means", "advises"),
    [
        ("stalled", "no progress", "check the disk"),
        ("sampled", "only some steps", "save_interval"),
        ("disk_nearly_full", "nearly full", "min_free_bytes"),
        ("larger_than_queue", "larger than the whole queue", "queue_bytes"),
        ("device_error", "did not deliver", "device_state"),
        ("something new", "something new", "save_interval"),
    ],
)
def test_each_reason_has_its_words(
    warnings: Warnings, reason: str, means: str, advises: str
) -> None:
    source = Source(more={"silence_ms": 3200, "steps_kept": 1, "steps_left_out": 9})
    watch = LostRecordsLog(source, source.now)
    source.lose(reason)
    watch.step_ended(3)
    (start,) = warnings.take()
    assert means in start
    assert advises in start
    assert "(no answer for 3 s)" in start
    watch.close()
    (end,) = warnings.take()
    assert ("1 of 10 steps kept their values" in end) == (reason == "sampled")


def test_refusals_are_not_losses(warnings: Warnings) -> None:
    source = Source()
    watch = LostRecordsLog(source, source.now)
    source.lose("refused", n=100)
    watch.step_ended(0)
    assert source.n_questions == 0
    source.lose("queue_full")
    watch.step_ended(1)
    watch.close()
    assert (
        warnings.take()[1]
        == "tdbg lost 1 record (1.0 MB) of weight and 2 more: queue_full 1"
    )


def make_capture(path: Path, **options: object) -> _core.Capture:
    run = create_run(path)
    return _core.Capture(
        str(run.path),
        run_uuid=run.uuid,
        attempt_uuid=uuid.uuid4().bytes,
        min_free_bytes=0,
        **options,
    )


def test_a_session_tells_what_its_writer_lost(
    tmp_path: Path, warnings: Warnings
) -> None:
    capture = make_capture(tmp_path / "run", queue_bytes=1 << 20)
    session = Session(capture, Policy(CollectionRegistry()))
    large = np.zeros(1 << 20, np.float32)
    session.record_array(ModeKeys.TRAIN, "small", [], large[:4])
    context = session.given(ModeKeys.TRAIN)
    assert context is not None
    session.recorder.scalar(context, "loss", 1.0)
    identity = capture.define("large", int(Role.OTHER), "float32", large.shape)
    assert capture.n_lost == 0
    assert not capture.values(0, identity, large.ctypes.data)
    assert capture.n_lost == 1
    assert capture.losses() == {"larger_than_queue": (1, 4 << 20, GAP_TENSORS)}
    session.close()
    start, end = warnings.take()
    assert "a tensor is larger than the whole queue" in start
    assert end == "tdbg lost 1 record (4.2 MB) of large: larger_than_queue 1"


@pytest.mark.parametrize("gone", ["the run", "the shard", "replaced"])
def test_files_that_go_below_the_writer_are_one_warning_and_counted(
    tmp_path: Path, warnings: Warnings, gone: str
) -> None:
    # Sabotage seen to fail here: nobody asks whether the file still has a name.
    capture = make_capture(tmp_path / "run")
    watch = LostRecordsLog(capture)
    array = np.ones(100, np.float32)
    identity = capture.define("w", int(Role.WEIGHT), "float32", array.shape)
    shard = Path(capture.directory) / "000001.tds"
    for step in range(20):
        if step == 5:
            if gone == "the run":
                shutil.rmtree(tmp_path / "run")
            elif gone == "the shard":
                shard.unlink()
            else:
                (tmp_path / "other").write_bytes(b"another file")
                (tmp_path / "other").rename(shard)
        capture.statistics(step, [identity], [array.ctypes.data])
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        with contextlib.suppress(OSError, StorageError):
            capture.flush()
        watch.step_ended(step)
    (warning,) = warnings.take()
    assert "its files were deleted or replaced: No such file or directory" in warning
    capture.close()
    counters = capture.counters()
    assert counters["last_errno"] == errno.ENOENT
    assert counters["offered"] == 40
    assert counters["written"] + counters["failed"] == 40
    # What the file held is lost with it: two records of each of five steps. A writer
    # that is idle may find out by itself, before the next step is there.
    assert counters["failed"] == 40 if gone == "the run" else counters["failed"] >= 10


def test_sampling_keeps_whole_steps_and_their_rows(tmp_path: Path) -> None:
    # Sabotage seen to fail here: a step of which values were left out counts as
    # lossy, so that no rule would use its rows.
    capture = make_capture(tmp_path / "run", queue_bytes=1 << 20, overflow="sample")
    array = np.random.default_rng(0).standard_normal(75_000).astype(np.float32)
    ids = [
        capture.define(f"weight{i}", int(Role.WEIGHT), "float32", array.shape)
        for i in range(3)
    ]
    for step in range(10_000):
        capture.statistics(step, ids, [array.ctypes.data] * 3)
        for identity in ids:
            capture.values(step, identity, array.ctypes.data)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        counters = capture.counters()
        if counters["steps_left_out"] > 3 and step >= 20:
            break
    capture.close()
    counters = capture.counters()
    assert counters["steps_kept"] + counters["steps_left_out"] == step + 1
    assert counters["dropped"] == 3 * counters["steps_left_out"]
    trial = create_trial(tmp_path / "run")
    table = trial.step_table()
    assert len(table) == step + 1
    assert table["lossless"].all()
    values = [trial.tensor(f"weight{i}").steps(what="values") for i in range(3)]
    assert len(values[0]) == counters["steps_kept"]
    assert values[0] == values[1] == values[2]
    rows = trial.tensor("weight1").steps(what="statistics")
    assert len(rows) == step + 1
    assert sum(table["dropped"]) == counters["dropped"]


def test_the_option_is_known() -> None:
    assert SessionOptions(overflow="sample").overflow == "sample"
