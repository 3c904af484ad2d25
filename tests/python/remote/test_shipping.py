"""The whole way, in processes: a training, its uploader, and a server of S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fault_proxy import FaultProxy, error
from object_stores import CANARIES
from shipped_runs import check_promises, named_by, newest_of, write_shards, writer_of
from tdbg.remote import Store, open_store

URL = "s3://bucket/runs/a"

TRAINING = """
import os, sys, time
import torch
import tdbg.pytorch as td

torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
hook = td.watch(model, optimizer=optimizer, out=sys.argv[1], budget="off")
loaded = {"fsspec", "s3fs", "aiobotocore"} & set(sys.modules)
assert not loaded, loaded
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print("trained", flush=True)
if sys.argv[2:] == ["hang"]:
    time.sleep(600)
if sys.argv[2:] == ["die"]:
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDBG_SPOOL", f"{tmp_path}/spool")


def train(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TRAINING, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def spool(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "spool").iterdir()
    return found


def wait_for_the_end(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while any((folder / "spool").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def files_there(store: Store) -> list[str]:
    return [
        file.name
        for manifest in newest_of(store).values()
        for file in named_by(store, manifest)
    ]


def test_a_training_at_a_url_is_there_when_its_process_has_ended(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    done = train(URL)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "spool").iterdir())
    store = open_store(URL)
    assert files_there(store) == ["000001.tds", "000001.tdi"]
    assert newest_of(store)["train-0-1"].state == "closed"
    assert newest_of(store)["train-0-1"].uploads["failures"] == proxy.n_faults == 0
    # A second start is the next generation, though this machine has forgotten all.
    assert train(URL).returncode == 0
    assert set(newest_of(store)) == {"train-0-1", "train-0-2"}


def test_what_a_killed_training_has_written_is_sent(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    done = train(URL, "die")
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_for_the_end(tmp_path)
    store = open_store(URL)
    assert files_there(store) == ["000001.tds"]
    assert newest_of(store)["train-0-1"].state == "dead"
    assert proxy.n_faults == 0


def test_a_store_that_fails_at_the_end_costs_a_bounded_wait_and_no_data(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    refuse = error(503, "SlowDown")
    with proxy.broken(lambda each: refuse(each) if "/w/" in each.key else None):
        done = train(URL, TDBG_SHIP_SECONDS="3")
        assert done.returncode == 0, done.stderr
        folder = spool(tmp_path)
        assert f"are not at {URL} yet" in done.stderr
        assert f"`tdbg ship {folder}` resumes" in done.stderr
    # The uploader goes on, and ends.
    wait_for_the_end(tmp_path)
    store = open_store(URL)
    assert files_there(store) == ["000001.tds", "000001.tdi"]
    uploads = newest_of(store)["train-0-1"].uploads
    assert uploads["failures"] == proxy.n_faults > 0
    assert uploads["retries"] <= uploads["failures"]


def test_an_uploader_that_is_killed_is_started_again(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, URL, "hang"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"trained\n"
        note = spool(tmp_path) / "UPLOADS.json"
        first = uploader_of(note)
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while uploader_of(note) == first:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.kill()
    wait_for_the_end(tmp_path)
    assert files_there(open_store(URL)) == ["000001.tds"]
    assert proxy.n_faults == 0


def uploader_of(note: Path) -> int:
    for _ in range(200):
        if note.exists():
            return int(json.loads(note.read_text())["pid"])
        time.sleep(0.1)
    raise AssertionError(note)


@pytest.mark.parametrize(
    ("url", "fault", "words"),
    [
        ("s3://nosuchbucket/run", None, "bucket does not exist"),
        (URL, (403, "ExpiredToken"), "cannot read"),
        (URL, (403, "InvalidAccessKeyId"), "cannot read"),
        ("s3://AKIACANARYCANARY0042:hunter2hunter2@bucket/run", None, "must not hold"),
    ],
)
def test_a_store_that_refuses_is_an_error_of_the_hook(
    proxy: FaultProxy, url: str, fault: tuple[int, str] | None, words: str
) -> None:
    if fault is not None:
        proxy.faults = error(*fault)
    done = train(url)
    assert done.returncode == 1
    assert words in done.stderr
    assert "trained" not in done.stdout
    assert not any(each in done.stderr for each in (*CANARIES, "hunter2"))


def test_secrets_are_nowhere(proxy: FaultProxy, tmp_path: Path) -> None:
    refuse = error(403, "ExpiredToken")
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, URL, "hang"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TDBG_SHIP_SECONDS": "1"},
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = uploader_of(spool(tmp_path) / "UPLOADS.json")
        proxy.faults = refuse
        for program in (pid, process.pid):
            told = Path(f"/proc/{program}/cmdline").read_bytes()
            assert not any(each.encode() in told for each in CANARIES)
        process.terminate()
        output = process.stdout.read()
        time.sleep(8)
        kept = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert any(path.name == "uploader.log" for path in kept)
        for path in kept:
            assert path.stat().st_mode & 0o077 == 0, path
            content = path.read_bytes()
            assert not any(each.encode() in content for each in CANARIES), path
        proxy.faults = lambda _: None
    wait_for_the_end(tmp_path)
    assert not any(each.encode() in output for each in CANARIES)
    store = open_store(URL)
    for listed in store.list():
        content = store.read(listed.name)
        assert not any(each.encode() in content for each in CANARIES), listed.name


def test_tdbg_ship_sends_a_run_and_what_was_left(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    writer = writer_of(tmp_path / "run")
    write_shards(writer, 2)
    shipped = ship(str(tmp_path / "run"), URL)
    assert shipped["complete"] is False
    assert shipped["writers"] == {"train-0-1": "open"}
    writer.close()
    shipped = ship(str(tmp_path / "run"), URL)
    assert shipped["complete"] is True
    assert shipped["files"] == len(files_there(open_store(URL)))
    assert shipped["uploads"]["failures"] == proxy.n_faults == 0
    original = {
        path.relative_to(tmp_path / "run").as_posix(): path.read_bytes()
        for path in (tmp_path / "run").glob("w/*/*.td?")
    }
    assert check_promises(open_store(URL), original) == shipped["files"]


def ship(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "ship", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found
