"""Requests to a run: how they are written, read, refused and obeyed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest

from tdbg.capture.requests import StopState
from tdbg.errors import ConfigurationError, NotARun, StorageError
from tdbg.run import requests
from tdbg.run.directory import Run, create_run
from tdbg.run.requests import (
    Request,
    RequestListener,
    StopRequest,
    request_stop,
    stop_request,
    write_request,
)


@pytest.fixture
def run(run_dir: Path) -> Run:
    """A run in which one training, generation 1, has begun to write."""
    run = create_run(run_dir)
    (run.path / "w" / "train-0-1").mkdir()
    return run


class StopEars:
    """Hears the requests to stop that a training would obey."""

    def __init__(self, listener: RequestListener) -> None:
        self._listener = listener

    def poll(self) -> StopRequest | None:
        for request in self._listener.poll():
            if request.type == "stop":
                return stop_request(request)
        return None


def listener(run: Run, generation: int = 1, **options: Any) -> StopEars:
    ears = RequestListener(run.path, run.uuid, generation, interval=0.0, **options)
    return StopEars(ears)


def written(run: Run, request: Request) -> Path:
    return run.path / "ctl" / f"{request.id}.json"


def forge(target: Run, name: str = "forged", **changes: object) -> Path:
    """A valid request of the run's owner, but for the *changes*."""
    content = {
        "format": "tdbg-request",
        "version": 1,
        "id": "00" * 16,
        "type": "stop",
        "run": target.uuid.hex(),
        "generations": {"0": 1},
        "created": "2026-01-01T00:00:00+00:00",
        "body": {"reason": "forged", "rule": None, "step": None},
        **changes,
    }
    path = target.path / "ctl" / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def test_a_request_reaches_the_training_with_all_it_says(run: Run) -> None:
    ears = listener(run)
    assert ears.poll() is None
    request = request_stop(run.path, reason="gradients vanish", rule="V", step=7)
    heard = ears.poll()
    assert heard is not None
    assert (heard.reason, heard.rule, heard.step) == ("gradients vanish", "V", 7)
    assert heard.request == request
    assert ears.poll() is None, "each request is heard once"


def test_a_listener_hears_what_was_asked_before_it_listened(run: Run) -> None:
    request_stop(run.path, reason="early")
    assert listener(run).poll() is not None


def test_the_valid_forgery_of_these_tests_would_be_obeyed(run: Run) -> None:
    """Otherwise the tests below would prove nothing."""
    forge(run)
    assert listener(run).poll() is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "00" * 16},
        {"run": None},
        {"generations": {"0": 2}},
        {"generations": {"1": 1}},
        {"generations": {}},
        {"generations": []},
        {"generations": {"x": 1}},
        {"generations": None},
        {"format": "other"},
        {"version": 2},
        {"type": "reconfigure"},
        {"type": None},
        {"body": None},
        {"body": "text"},
    ],
)
def test_a_request_that_is_not_meant_for_this_training_is_ignored(
    run: Run, changes: dict[str, object]
) -> None:
    """Sabotage that it caught: `_judge` without each of its comparisons."""
    forge(run, **changes)
    assert listener(run).poll() is None


def test_a_request_of_an_earlier_generation_does_not_stop_the_restarted_training(
    run: Run,
) -> None:
    request_stop(run.path, reason="stale")
    (run.path / "w" / "train-0-2").mkdir()
    assert listener(run, generation=2).poll() is None
    request_stop(run.path, reason="fresh")
    heard = listener(run, generation=2).poll()
    assert heard is not None
    assert heard.reason == "fresh"


def test_a_request_replayed_from_another_run_is_ignored(
    run: Run, tmp_path: Path
) -> None:
    other = create_run(tmp_path / "other")
    (other.path / "w" / "train-0-1").mkdir()
    copy = written(other, request_stop(other.path, reason="replayed"))
    (run.path / "ctl" / copy.name).write_bytes(copy.read_bytes())
    assert listener(run).poll() is None
    assert listener(other).poll() is not None


def test_every_torn_prefix_of_a_request_is_ignored(run: Run) -> None:
    whole = written(run, request_stop(run.path, reason="torn"))
    content = whole.read_bytes()
    whole.unlink()
    ears = listener(run)
    for length in range(len(content)):
        (run.path / "ctl" / f"{length}.json").write_bytes(content[:length])
    assert ears.poll() is None
    (run.path / "ctl" / "whole.json").write_bytes(content)
    assert ears.poll() is not None


def test_a_duplicate_is_heard_once(run: Run) -> None:
    ears = RequestListener(run.path, run.uuid, 1, interval=0.0)
    request = request_stop(run.path, reason="once")
    for number in range(3):
        copy = run.path / "ctl" / f"copy-{number}.json"
        copy.write_bytes(written(run, request).read_bytes())
    assert [heard.id for heard in ears.poll()] == [request.id]
    os.utime(run.path / "ctl")
    assert ears.poll() == []


def test_a_file_of_another_user_is_ignored(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage that it caught: no `owner` handed to `read_small_file`."""
    request_stop(run.path, reason="mine")
    fstat = os.fstat

    def stranger(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        fields = list(status)
        fields[4] = status.st_uid + 1
        return os.stat_result(fields)

    ears = listener(run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stranger)
        assert ears.poll() is None
    assert listener(run).poll() is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_a_file_that_belongs_to_another_user_is_ignored(run: Run) -> None:
    os.chown(forge(run), 12345, -1)
    assert listener(run).poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_a_request_by_root_is_one_of_the_owner(run: Run) -> None:
    os.chown(run.path, 12345, -1)
    request = request_stop(run.path, reason="by root")
    assert written(run, request).stat().st_uid == 12345
    assert listener(run).poll() is not None


def test_nobody_else_can_ask(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(ConfigurationError, match="only its owner may ask"):
        request_stop(run.path, reason="stranger")


def test_links_pipes_folders_and_huge_files_are_ignored(run: Run) -> None:
    ctl = run.path / "ctl"
    genuine = forge(run)
    hidden = run.path / "elsewhere.json"
    genuine.rename(hidden)
    (ctl / "link.json").symlink_to(hidden)
    os.mkfifo(ctl / "pipe.json")
    (ctl / "folder.json").mkdir()
    (ctl / "huge.json").write_bytes(hidden.read_bytes() + b" " * 70_000)
    (ctl / "deep.json").write_bytes(b"[" * 60_000)
    (ctl / ".tmp-hidden.json").write_bytes(hidden.read_bytes())
    (ctl / "not-json.txt").write_bytes(hidden.read_bytes())
    # Nothing of it is waited for: a pipe that nobody writes to would be for ever.
    assert listener(run).poll() is None


def test_the_environment_can_forbid_stopping(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = StopState(raises=True)
    stopping.take(request_stop(run.path, reason="no"))
    monkeypatch.setenv("TDBG_NO_STOP", "1")
    assert not stopping.is_due(is_training=True)
    assert stopping.reason is None
    monkeypatch.setenv("TDBG_NO_STOP", "0")
    assert stopping.is_due(is_training=True)
    assert stopping.reason == "no"


def test_a_poll_never_raises_whatever_becomes_of_the_folder(run: Run) -> None:
    ears = listener(run)
    ctl = run.path / "ctl"
    ctl.rmdir()
    assert ears.poll() is None
    ctl.write_text("a file")
    assert ears.poll() is None
    ctl.unlink()
    ctl.mkdir()
    request_stop(run.path, reason="after all")
    assert ears.poll() is not None


def test_requests_that_share_a_time_stamp_are_all_heard(run: Run) -> None:
    """Coarse file systems stamp a folder every two seconds.

    Sabotage that it caught: trusting an equal stamp at once.
    """
    ears = RequestListener(run.path, run.uuid, 1, interval=0.0)
    heard = 0
    now = time.time_ns()
    for number in range(5):
        forge(run, name=str(number), id=f"{number:032x}")
        os.utime(run.path / "ctl", ns=(now, now))
        heard += len(ears.poll())
    assert heard == 5


def test_an_idle_poll_reads_no_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = time.time_ns() - 60_000_000_000
    os.utime(run.path / "ctl", ns=(old, old))
    ears = RequestListener(run.path, run.uuid, 1, interval=0.0)
    scans = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or scandir(path))
    for _ in range(100):
        ears.poll()
    assert len(scans) == 1


def test_between_two_looks_nothing_is_touched(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = RequestListener(run.path, run.uuid, 1, interval=60.0)
    ears.poll()
    looks = []

    def look(path: Path) -> None:
        looks.append(path)

    monkeypatch.setattr(Path, "stat", look)
    for _ in range(100):
        ears.poll()
    assert looks == []


def test_each_rank_is_asked_at_its_newest_generation(run: Run) -> None:
    for name in ("train-0-2", "train-0-10", "train-1-3", "engine-0-99"):
        (run.path / "w" / name).mkdir()
    request = request_stop(run.path, reason="all")
    assert request.generations == {0: 10, 1: 3}
    assert listener(run, generation=10).poll() is not None
    assert listener(run, generation=3, rank=1).poll() is not None
    assert listener(run, generation=3, rank=0).poll() is None


def test_a_type_that_is_not_known_yet_passes_through(run: Run) -> None:
    ears = RequestListener(run.path, run.uuid, 1, interval=0.0)
    write_request(run.path, "reconfigure", {"save_interval": 5})
    assert [(r.type, r.body) for r in ears.poll()] == [
        ("reconfigure", {"save_interval": 5})
    ]


def test_a_request_that_can_reach_nobody_is_refused(run_dir: Path) -> None:
    with pytest.raises(NotARun):
        request_stop(run_dir, reason="no run")
    create_run(run_dir)
    with pytest.raises(ConfigurationError, match="none has written"):
        request_stop(run_dir, reason="no training")


def test_a_request_is_bounded(run: Run) -> None:
    request = request_stop(run.path, reason="x" * 1_000_000)
    assert written(run, request).stat().st_size < requests.MAX_JSON_BYTES
    with pytest.raises(ConfigurationError, match="64 KiB"):
        write_request(run.path, "reconfigure", {"x": "y" * 70_000})


def test_a_request_that_cannot_be_written_says_so(run: Run) -> None:
    (run.path / "ctl").rmdir()
    (run.path / "ctl").write_text("a file")
    with pytest.raises(StorageError, match="ctl"):
        request_stop(run.path, reason="nowhere")


def test_requests_from_other_processes_are_heard_at_once(run: Run) -> None:
    ears = StopEars(RequestListener(run.path, run.uuid, 1))
    assert ears.poll() is None
    script = (
        "import sys; from tdbg.run.requests import request_stop; "
        "request_stop(sys.argv[1], reason='from outside')"
    )
    subprocess.run([sys.executable, "-c", script, str(run.path)], check=True)
    deadline = time.monotonic() + 60.0
    while (heard := ears.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert heard.reason == "from outside"


# ---- each check, found by sabotaging them one by one -----------------------------


LONG = "x" * (requests.MAX_REASON + 100)


def all_ears(run: Run) -> RequestListener:
    return RequestListener(run.path, run.uuid, 1, interval=0.0)


def forge_named(run: Run, name: str, /, **changes: object) -> Path:
    """A valid request of the run's owner, but for the *changes*; ...: left out."""
    content: dict[str, Any] = {
        "format": "tdbg-request",
        "version": 1,
        "id": name,
        "type": "stop",
        "run": run.uuid.hex(),
        "generations": {"0": 1},
        "created": "2026-01-01T00:00:00+00:00",
        "body": {"reason": "forged"},
        **changes,
    }
    path = run.path / "ctl" / f"{name}.json"
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))
    return path


def request(**body: object) -> Request:
    return Request(id="a", type="stop", generations={0: 1}, created="", body=body)


# ---- asking ----------------------------------------------------------------------


def test_an_engine_is_no_training_that_could_be_asked(run_dir: Path) -> None:
    run = create_run(run_dir)
    (run.path / "w" / "engine-0-1").mkdir()
    with pytest.raises(ConfigurationError, match="none has written"):
        request_stop(run.path, reason="nobody is there")
    (run.path / "w" / "train-0-1").mkdir()
    (run.path / "w" / "engine-1-1").mkdir()
    assert dict(request_stop(run.path, reason="now").generations) == {0: 1}


def test_a_folder_of_requests_is_the_owners_alone(run: Run) -> None:
    folder = run.path / "ctl"
    folder.rmdir()
    before = os.umask(0)
    try:
        request_stop(run.path, reason="first")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700


# ---- hearing ---------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["format", "id", "run", "generations", "body"])
def test_a_request_that_lacks_something_is_ignored(run: Run, missing: str) -> None:
    forge_named(run, "a", **{missing: ...})
    forge_named(run, "b")
    assert [heard.id for heard in all_ears(run).poll()] == ["b"]


def test_a_generation_beyond_all_numbers_is_ignored(run: Run) -> None:
    forge_named(run, "a", generations={"0": float("inf")})
    forge_named(run, "b")
    assert [heard.id for heard in all_ears(run).poll()] == ["b"]


def test_an_id_is_a_text_whatever_stands_there(run: Run) -> None:
    """Sabotaged: a list cannot be remembered, which would be raised."""
    forge_named(run, "a", id=["x"])
    (heard,) = all_ears(run).poll()
    assert heard.id == "['x']"


def test_requests_are_heard_in_the_order_in_which_they_were_made(run: Run) -> None:
    ids = ["c", "a", "d", "b"]
    for name, second in zip(ids, (3, 1, 2, 1), strict=True):
        forge_named(run, name, created=f"2026-01-01T00:00:0{second}+00:00")
    assert [heard.id for heard in all_ears(run).poll()] == [
        "a",
        "b",
        "d",
        "c",
    ]


def test_a_file_is_read_once_and_only_new_ones_later(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_it = requests.read_small_file

    def reading(path: Path, owner: int | None = None) -> bytes:
        read.append(path.stem)
        return read_it(path, owner=owner)

    monkeypatch.setattr(requests, "read_small_file", reading)
    ears = all_ears(run)
    forge_named(run, "a")
    forge_named(run, "torn").write_text("{")
    ears.poll()
    forge_named(run, "b")
    ears.poll()
    assert sorted(read) == ["a", "b", "torn"]


def test_a_file_that_cannot_be_read_now_is_read_later_and_hides_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process is out of file descriptors for a moment."""
    read_it, fails = requests.read_small_file, [True]

    def reading(path: Path, owner: int | None = None) -> bytes:
        if fails[0] and path.stem in ("a", "c"):
            raise OSError(24, "Too many open files")
        return read_it(path, owner=owner)

    monkeypatch.setattr(requests, "read_small_file", reading)
    for name in "abc":
        forge_named(run, name)
    ears = all_ears(run)
    assert [heard.id for heard in ears.poll()] == ["b"]
    fails[0] = False
    assert [heard.id for heard in ears.poll()] == ["a", "c"]


def test_a_folder_of_very_many_files_is_not_read_to_its_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_FILES", 3)
    for number in range(5):
        forge_named(run, str(number))
    assert len(all_ears(run).poll()) == 3


def test_a_folder_whose_time_stands_still_is_looked_at_every_5_seconds(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems never stamp a folder anew."""
    clock = itertools.count(0, 500_000_000)  # It is read twice in a poll.
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))
    old = time.time_ns() - 60_000_000_000
    ears = all_ears(run)
    heard = []
    for poll in range(8):
        if poll == 1:
            forge_named(run, "a")
        os.utime(run.path / "ctl", ns=(old, old))
        heard.append(len(ears.poll()))
    assert heard == [0, 0, 0, 0, 0, 1, 0, 0]


def test_a_change_during_a_look_is_looked_at_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: the time after the look is remembered, not that before it."""
    ears = all_ears(run)
    folder = run.path / "ctl"
    old, later = (time.time_ns() - s * 1_000_000_000 for s in (120, 60))
    os.utime(folder, ns=(old, old))
    scandir = os.scandir

    def changing(path: Path) -> Any:
        found = list(scandir(path))
        forge_named(run, "a")
        os.utime(folder, ns=(later, later))
        return _Entries(found)

    monkeypatch.setattr(os, "scandir", changing)
    assert ears.poll() == []
    monkeypatch.setattr(os, "scandir", scandir)
    assert [heard.id for heard in ears.poll()] == ["a"]


class _Entries(list[Any]):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


# ---- what a stop says ------------------------------------------------------------


def test_what_a_stop_says_is_bounded_and_of_its_kind() -> None:
    stop = stop_request(request(reason=LONG, rule=LONG, step=7))
    assert stop.reason == stop.rule == LONG[: requests.MAX_REASON]
    assert stop.step == 7
    for odd in (5, ["x"], {"a": 1}, None):
        stop = stop_request(request(reason=odd, rule=odd, step=str(odd)))
        assert dataclasses.astuple(stop)[:3] == ("no reason given", None, None)


def test_no_terminal_obeys_what_a_stop_says() -> None:
    """A training that ends prints the reason, in a traceback even."""
    stop = stop_request(request(reason="\x1b[2Jseen\nenough \ud800", rule="\x07"))
    assert stop.reason == "\ufffd[2Jseen enough \ufffd"
    assert stop.rule == "\ufffd"


@pytest.mark.parametrize(
    ("value", "off"), [(None, False), ("", False), ("0", False), ("1", True)]
)
def test_stopping_is_off_where_the_variable_says_so(
    value: str | None, off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(requests.NO_STOP_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(requests.NO_STOP_VARIABLE, value)
    assert requests.stopping_is_off() is off
