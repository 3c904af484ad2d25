"""``tdbg run`` of unmodified scripts, whose runs go to a store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from fault_proxy import FaultProxy, error
from shipped_runs import newest_of
from tdbg.remote import open_store
from tdbg.trial import create_trial

URL = "s3://bucket/runs/a"
EACH = ("--budget", "off", "--statistics-interval", "1")
pytestmark = pytest.mark.usefixtures("proxy")

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch

def train(n_steps, rate=0.1):
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        yield
"""
PLAIN = "list(train(20)); print('trained'); sys.exit(7)"
TWICE = "list(train(20)); list(train(30))"
# Killed when the thread that writes has had the time for it.
KILLED = """
list(train(20))
print('trained', flush=True)
time.sleep(5)
os.kill(os.getpid(), 9)
"""
# Goes on when the test says so.
WAITING = """
for step, _ in enumerate(train(40)):
    if step == 20:
        print('half', flush=True)
        while not Path('go').exists():
            time.sleep(0.05)
print('trained')
sys.exit(7)
"""
# Ends when it is stopped, or else after two minutes.
SICK = """
for _ in train(2400, rate=1e30):
    time.sleep(0.05)
print('not stopped')
"""
# So that a test need not wait for half a minute until a file is sealed.
SHORT_AGE = "import tdbg.remote.shipping as it; it.SHARD_AGE_SECONDS = 1.0"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the script, where the launch notes what it needs, too."""
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv("TDBG_SPOOL", f"{tmp_path}/spool")
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/notes")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def command(folder: Path, script: str, *options: str) -> list[str]:
    (folder / "train.py").write_text(SCRIPT + script)
    program = ["--", sys.executable, "train.py"]
    return [sys.executable, "-m", "tdbg", "run", *options, *program]


def launch(
    folder: Path, script: str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, script, *options),
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def spools(folder: Path) -> list[Path]:
    found = folder / "spool"
    return sorted(found.iterdir()) if found.exists() else []


def has_left_nothing(folder: Path) -> bool:
    return not spools(folder) and not list((folder / "notes").glob("tdbg-launch-*"))


def test_a_script_is_captured_into_a_store(proxy: FaultProxy, folder: Path) -> None:
    done = launch(folder, PLAIN, "--out", URL, *EACH)
    assert (done.returncode, done.stdout) == (7, "trained\n")
    assert f"tdbg: writing the run to {URL}\n" in done.stderr
    assert f"the run is in {URL}; next: tdbg check {URL}" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"tdbg: {URL} has 2 files, ")
    assert last.endswith("(0 failed, 0 were repeated)")
    trial = create_trial(URL)
    assert (trial.status, len(trial.step_table())) == ("closed", 20)
    assert proxy.n_faults == 0
    assert has_left_nothing(folder)


def test_each_training_has_its_url_and_a_second_launch_joins_them(
    proxy: FaultProxy, folder: Path
) -> None:
    for n_attempts in (1, 2):
        done = launch(folder, TWICE, *EACH, TDBG_OUT=URL)
        assert done.returncode == 0, done.stderr
        found = [create_trial(URL), create_trial(f"{URL}-2")]
        assert [len(each.attempts()) for each in found] == [n_attempts] * 2
        assert [len(each.step_table()) for each in found] == [20, 30]
        # How much is in the store is said of both.
        assert done.stderr.count("requests (0 failed") == 2
    assert proxy.n_faults == 0
    assert has_left_nothing(folder)


def test_ranks_share_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    (folder / "tdbg.json").write_text('{"include_workers": "all", "budget": "off"}')
    options = ("--out", URL, "--config", "tdbg.json", *EACH)
    ranks = [
        subprocess.Popen(
            command(folder, PLAIN, *options),
            cwd=folder,
            env={**os.environ, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [each.communicate(timeout=300)[1] for each in ranks]
    assert [each.returncode for each in ranks] == [7, 7], told
    assert all(f"tdbg: {URL} has 4 files, " in each for each in told), told
    assert set(newest_of(open_store(URL))) == {"train-0-1", "train-1-1"}
    assert create_trial(URL).workers() == ["worker_0", "worker_1"]
    assert has_left_nothing(folder)


def test_what_a_killed_script_has_written_is_sent(folder: Path) -> None:
    done = launch(folder, KILLED, "--out", URL, *EACH)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "trained\n")
    assert done.stderr.splitlines()[-1].startswith(f"tdbg: {URL} has 1 file, ")
    assert newest_of(open_store(URL))["train-0-1"].state == "dead"
    assert has_left_nothing(folder)


def test_what_was_not_sent_is_said_last_and_tdbg_ship_sends_it(
    proxy: FaultProxy, folder: Path
) -> None:
    refuse = error(503, "SlowDown")
    options = ("--out", URL, *EACH)
    with proxy.broken(lambda each: refuse(each) if "/w/" in each.key else None):
        done = launch(folder, KILLED, *options, TDBG_SHIP_SECONDS="1")
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "trained\n")
        (spool,) = spools(folder)
        last = done.stderr.splitlines()[-1]
        assert f"not at {URL} yet (" in last
        assert last.endswith(f"`tdbg ship {spool}` resumes")
        end_uploader(spool)
    shipped = subprocess.run(
        [sys.executable, "-m", "tdbg", "ship", str(spool)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert shipped.returncode == 0, shipped.stderr
    assert len(create_trial(URL).step_table()) >= 19  # The last one never ended.
    assert has_left_nothing(folder)


def end_uploader(spool: Path) -> None:
    """End the process that sends, as the end of its container does."""
    (pid,) = (
        int(each.parent.name)
        for each in Path("/proc").glob("[0-9]*/cmdline")
        if b"tdbg.remote.process" in read(each)
        and str(spool.parent).encode() in read(each.with_name("environ"))
    )
    os.kill(pid, signal.SIGKILL)
    while read(Path(f"/proc/{pid}/cmdline")):
        time.sleep(0.05)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_store_that_fails_meanwhile_changes_nothing_for_the_script(
    proxy: FaultProxy, folder: Path
) -> None:
    process = subprocess.Popen(
        command(folder, WAITING, "--out", URL, *EACH),
        cwd=folder,
        env={**os.environ, "TDBG_SHIP_SECONDS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    with proxy.broken(error(503, "SlowDown")):
        (folder / "go").touch()
        printed, told = process.communicate(timeout=300)
        assert (process.returncode, printed) == (7, "trained\n")
        (spool,) = spools(folder)
        assert told.splitlines()[-1].endswith(f"`tdbg ship {spool}` resumes")
    # Its uploader goes on.
    deadline = time.monotonic() + 120
    while spool.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(create_trial(URL).step_table()) == 40


def test_rules_judge_the_run_in_the_store_and_stop_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text(SHORT_AGE)
    monkeypatch.setenv("PYTHONPATH", f"{folder}/own")
    options = ("--out", URL, *EACH, "--rules", "ExplodingTensor")
    done = launch(folder, SICK, *options, "--on-finding", "stop")
    assert done.returncode != 0
    assert "not stopped" not in done.stdout
    assert "ExplodingTensor at step " in done.stderr
    assert "tdbg: stopped at step " in done.stderr
    trial = create_trial(URL)
    assert trial.status == "closed"
    assert any(each.rule == "ExplodingTensor" for each in trial.findings())
    assert has_left_nothing(folder)


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        (["--out", URL], '{"retention": "last 10"}', "retention is for runs"),
        (["--out", URL], '{"export_tensorboard": true}', "are for runs in a"),
        (
            ["--out", "run"],
            '{"spool_bytes": 9999999}',
            "spool_bytes is for a run",
        ),
        (
            ["--out", "s3://bucket"],
            "{}",
            "s3://bucket is a whole bucket",
        ),
        (["--out", "s3://a:b@bucket/run"], "{}", "must not hold"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_before_the_script_starts(
    folder: Path, options: list[str], settings: str, words: str
) -> None:
    (folder / "tdbg.json").write_text(settings)
    done = launch(folder, PLAIN, *options, "--config", "tdbg.json")
    assert done.returncode not in (0, 7)
    assert words in done.stderr
    assert done.stdout == ""
    assert has_left_nothing(folder)


def test_a_store_that_refuses_is_told_before_the_script_starts(
    proxy: FaultProxy, folder: Path
) -> None:
    proxy.faults = error(403, "ExpiredToken")
    done = launch(folder, PLAIN, "--out", URL)
    assert done.returncode not in (0, 7)
    assert "ExpiredToken" in done.stderr
    assert done.stdout == ""


def test_a_run_in_use_is_refused(folder: Path) -> None:
    process: Any = subprocess.Popen(
        command(folder, WAITING, "--out", URL),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "half\n"
    refused = launch(folder, WAITING, "--out", URL)
    assert refused.returncode not in (0, 7)
    assert "is in use: process" in refused.stderr
    (folder / "go").touch()
    process.communicate(timeout=300)
    assert process.returncode == 7
