"""Verbs say of a run in a store what they say of the same run in a directory."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from run_builder import RunBuilder, simple_run
from store_runs import copy_run
from tdbg.cli import _tdbg
from tdbg.remote import Store, asked, open_store, outbox, spool_of
from tdbg.rules import Engine
from tdbg.run.requests import RequestListener, request_stop
from tdbg.trial import create_trial


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(f"memory://bucket-{uuid.uuid4().hex}/runs/digits")
    simple_run(tmp_path / "digits")
    copy_run(tmp_path / "digits", made)
    return made


def sick_run(path: Path) -> None:
    """A finished run whose weights become NaN."""
    with RunBuilder(path) as run:
        for step in range(5):
            values = np.full((4, 3), np.nan if step > 2 else 0.5, np.float32)
            run.step(step, {"fc.weight": values})


def printed(*arguments: str) -> tuple[int, object]:
    found = CliRunner().invoke(_tdbg, [*arguments, "--json"], catch_exceptions=False)
    return found.exit_code, json.loads(found.stdout)


@pytest.mark.parametrize(
    "verb",
    [("ls",), ("show",), ("fsck",), ("check", "--no-record")],
    ids=lambda v: v[0],
)
def test_a_verb_answers_as_for_the_directory(
    tmp_path: Path, store: Store, verb: tuple[str, ...]
) -> None:
    here, there = (
        printed(*verb, each) for each in (str(tmp_path / "digits"), store.url)
    )
    text = json.dumps(there).replace(store.url, str(tmp_path / "digits"))
    assert without_sizes(json.loads(text)) == without_sizes(list(here))


def without_sizes(document: object) -> object:
    """A document without how large a run is: a store has no file COMMIT."""
    if isinstance(document, dict):
        return {
            key: without_sizes(value)
            for key, value in document.items()
            if key not in ("bytes", "uploads")
        }
    if isinstance(document, list):
        return [without_sizes(each) for each in document]
    return document


def test_show_tells_what_is_there_and_what_waits_here(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDBG_SPOOL", str(tmp_path / "spool"))
    _, found = printed("show", store.url)
    uploads = found["uploads"]  # type: ignore[index, call-overload]
    files = [each for each in store.list("w") if each.name[-4:-1] == ".td"]
    assert uploads["files"] == len(files)
    assert uploads["bytes"] == sum(each.size for each in files)
    assert (uploads["spool"], uploads["waiting_files"]) == (None, 0)
    waiting = spool_of(store.url) / "w/train-0-1/000002.tds"
    waiting.parent.mkdir(parents=True)
    waiting.write_bytes(bytes(1000))
    shown = CliRunner().invoke(_tdbg, ["show", store.url]).output
    assert f"in the store: {len(files)} files" in shown
    assert "on this machine: 1 file, 1.0 kB" in " ".join(shown.split())


def test_a_report_of_a_run_in_a_store_is_that_of_the_directory(
    tmp_path: Path, store: Store
) -> None:
    for run, name in ((store.url, "there"), (str(tmp_path / "digits"), "here")):
        out = str(tmp_path / f"{name}.html")
        made = CliRunner().invoke(_tdbg, ["report", run, "--out", out])
        assert made.exit_code == 0, made.output
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("there", "here")]
    assert "fc.weight" in pages[0]
    assert abs(len(pages[0]) - len(pages[1])) < 5_000


def test_runs_below_a_url_are_listed(store: Store) -> None:
    above = store.url.rpartition("/")[0]
    code, found = printed("ls", above)
    assert code == 0
    assert [each["run"] for each in found["runs"]] == [store.url]  # type: ignore[index,call-overload]


def test_findings_are_written_to_the_store_where_others_read_them(
    tmp_path: Path,
) -> None:
    store = open_store(f"memory://bucket-{uuid.uuid4().hex}/runs/sick")
    sick_run(tmp_path / "sick")
    copy_run(tmp_path / "sick", store)
    (code, found) = printed("check", store.url)
    assert code == 1
    (told,) = found["findings"]  # type: ignore[index, call-overload]
    assert found["notes"] == []  # type: ignore[index, call-overload]
    (read,) = create_trial(store.url).findings()
    assert read.message == told["message"]
    # The same verdict is not written twice, nor by another name.
    before = store.list()
    assert printed("check", store.url)[0] == 1
    assert store.list() == before
    names = {each.name.split("/")[1] for each in before if each.name[:2] == "w/"}
    assert names == {"train-0-1", "engine-0-1"}


def test_while_a_run_is_watched_others_see_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "SHARD_AGE_SECONDS", 0.1)
    store = open_store(f"memory://bucket-{uuid.uuid4().hex}/runs/sick")
    sick_run(tmp_path / "sick")
    copy_run(tmp_path / "sick", store, state="open")
    engine = Engine(store.url)
    (found,) = next(engine.follow())
    deadline = time.monotonic() + 30
    while not (seen := create_trial(store.url).findings()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert seen[0].message == found.message
    assert engine.finish().notes == ()


def test_a_store_that_may_not_be_written_is_judged_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"memory://bucket-{uuid.uuid4().hex}/runs/sick")
    sick_run(tmp_path / "sick")
    copy_run(tmp_path / "sick", store)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "read only")

    monkeypatch.setattr(type(store.fs), "pipe_file", refuse)
    before = time.monotonic()
    code, found = printed("check", store.url)
    assert code == 1
    (note,) = found["notes"]  # type: ignore[index, call-overload]
    assert "not all findings could be recorded" in note
    assert "read only" in note
    assert time.monotonic() - before < 20  # Not the minute that it may take.


def test_a_request_is_one_that_the_training_obeys(tmp_path: Path, store: Store) -> None:
    made = request_stop(asked(store.url), reason="too slow")
    name = f"ctl/{made.id}.json"
    (tmp_path / "digits" / name).write_bytes(store.read(name))
    trial = create_trial(store.url)
    listener = RequestListener(tmp_path / "digits", bytes.fromhex(trial.uuid), 1)
    found = listener.poll()
    listener.close()
    assert [request.body["reason"] for request in found] == ["too slow"]


def test_watch_judges_and_stop_sees_that_the_training_has_ended(store: Store) -> None:
    watched = CliRunner().invoke(_tdbg, ["watch", store.url])
    assert f"watching {store.url}" in watched.output
    stopped = CliRunner().invoke(_tdbg, ["stop", store.url])
    assert "had already ended" in stopped.output


def test_what_needs_the_directory_says_so(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for arguments in (["stacks", store.url], ["export", "tensorboard", store.url]):
        found = CliRunner().invoke(_tdbg, arguments)
        assert found.exit_code == 2, found.output
        assert store.url in found.output
    assert sorted(tmp_path.rglob("*")) == before
