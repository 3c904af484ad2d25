"""Each check of ``control``: found by sabotaging them one by one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any, Self

import pytest

from tdbg import control
from tdbg.control import Request, RequestListener, request_stop, stop_request
from tdbg.errors import ConfigurationError
from tdbg.run_directory import Run, create_run

LONG = "x" * (control.MAX_REASON + 100)


@pytest.fixture
def run(run_dir: Path) -> Run:
    """A run in which one training, generation 1, has begun to write."""
    run = create_run(run_dir)
    (run.path / "w" / "train-0-1").mkdir()
    return run


def listener(run: Run) -> RequestListener:
    return RequestListener(run.path, run.uuid, 1, interval=0.0)


def forge(run: Run, name: str, /, **changes: object) -> Path:
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
    with pytest.raises(ConfigurationError, match="no training has written"):
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
    forge(run, "a", **{missing: ...})
    forge(run, "b")
    assert [heard.id for heard in listener(run).poll()] == ["b"]


def test_a_generation_beyond_all_numbers_is_ignored(run: Run) -> None:
    forge(run, "a", generations={"0": float("inf")})
    forge(run, "b")
    assert [heard.id for heard in listener(run).poll()] == ["b"]


def test_an_id_is_a_text_whatever_stands_there(run: Run) -> None:
    """Sabotaged: a list cannot be remembered, which would be raised."""
    forge(run, "a", id=["x"])
    (heard,) = listener(run).poll()
    assert heard.id == "['x']"


def test_requests_are_heard_in_the_order_in_which_they_were_made(run: Run) -> None:
    ids = ["c", "a", "d", "b"]
    for name, second in zip(ids, (3, 1, 2, 1), strict=True):
        forge(run, name, created=f"2026-01-01T00:00:0{second}+00:00")
    assert [heard.id for heard in listener(run).poll()] == ["a", "b", "d", "c"]


def test_a_file_is_read_once_and_only_new_ones_later(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_it = control.read_small_file

    def reading(path: Path, owner: int | None = None) -> bytes:
        read.append(path.stem)
        return read_it(path, owner=owner)

    monkeypatch.setattr(control, "read_small_file", reading)
    ears = listener(run)
    forge(run, "a")
    forge(run, "torn").write_text("{")
    ears.poll()
    forge(run, "b")
    ears.poll()
    assert sorted(read) == ["a", "b", "torn"]


def test_a_file_that_cannot_be_read_now_is_read_later_and_hides_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process is out of file descriptors for a moment."""
    read_it, fails = control.read_small_file, [True]

    def reading(path: Path, owner: int | None = None) -> bytes:
        if fails[0] and path.stem in ("a", "c"):
            raise OSError(24, "Too many open files")
        return read_it(path, owner=owner)

    monkeypatch.setattr(control, "read_small_file", reading)
    for name in "abc":
        forge(run, name)
    ears = listener(run)
    assert [heard.id for heard in ears.poll()] == ["b"]
    fails[0] = False
    assert [heard.id for heard in ears.poll()] == ["a", "c"]


def test_a_folder_of_very_many_files_is_not_read_to_its_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_FILES", 3)
    for number in range(5):
        forge(run, str(number))
    assert len(listener(run).poll()) == 3


def test_a_folder_whose_time_stands_still_is_looked_at_every_5_seconds(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems never stamp a folder anew."""
    clock = itertools.count(0, 1_000_000_000)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))
    old = time.time_ns() - 60_000_000_000
    ears = listener(run)
    heard = []
    for poll in range(8):
        if poll == 1:
            forge(run, "a")
        os.utime(run.path / "ctl", ns=(old, old))
        heard.append(len(ears.poll()))
    assert heard == [0, 0, 0, 0, 0, 1, 0, 0]


def test_a_change_during_a_look_is_looked_at_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: the time after the look is remembered, not that before it."""
    ears = listener(run)
    folder = run.path / "ctl"
    old, later = (time.time_ns() - s * 1_000_000_000 for s in (120, 60))
    os.utime(folder, ns=(old, old))
    scandir = os.scandir

    def changing(path: Path) -> Any:
        found = list(scandir(path))
        forge(run, "a")
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
    assert stop.reason == stop.rule == LONG[: control.MAX_REASON]
    assert stop.step == 7
    for odd in (5, ["x"], {"a": 1}, None):
        stop = stop_request(request(reason=odd, rule=odd, step=str(odd)))
        assert dataclasses.astuple(stop)[:3] == ("no reason given", None, None)


@pytest.mark.parametrize(
    ("value", "off"), [(None, False), ("", False), ("0", False), ("1", True)]
)
def test_stopping_is_off_where_the_variable_says_so(
    value: str | None, off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(control.NO_STOP_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(control.NO_STOP_VARIABLE, value)
    assert control.stopping_is_off() is off
