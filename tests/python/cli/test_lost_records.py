"""Every verb says what a run lost, also where no step is left to tell of it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from run_builder import RunBuilder, simple_run
from tdbg.cli import _tdbg
from tdbg.trial import create_trial

GAP = 9
N_STEPS = 60
# The disk takes six steps and never anything again, the commit page excepted.
TRAINING = f"""
import os, sys
from pathlib import Path
import numpy as np
from run_builder import RunBuilder
run = RunBuilder(Path(sys.argv[1]), codec="none")
for step in range({N_STEPS}):
    run.step(step, {{"w": np.full(100, step, np.float64)}})
    try:
        run.flush()
    except OSError:
        pass
run.capture.close()
counters = run.capture.counters()
print(counters["offered"], counters["written"], counters["dropped"], counters["failed"])
"""


@pytest.fixture(scope="module")
def lossy(
    io_fault: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, int]]:
    """A run whose disk never recovered, and the counters of its writer."""
    run = tmp_path_factory.mktemp("lossy") / "run"
    environment = {
        **os.environ,
        **io_fault,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "IO_FAULT_PREFIX": str(run / "w" / "train-0-1" / "0"),
        "IO_FAULT_AT": "10",
        "IO_FAULT_ERRNO": str(errno.ENOSPC),
        "IO_FAULT_FOREVER": "1",
    }
    command = [sys.executable, "-c", TRAINING, str(run)]
    done = subprocess.run(
        command,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    names = ("offered", "written", "dropped", "failed")
    return run, dict(zip(names, map(int, done.stdout.split()), strict=True))


def call(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(_tdbg, [str(each) for each in arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


def call_json(*arguments: object) -> Any:
    return json.loads(call(*arguments, "--json"))


def test_what_a_disk_that_never_recovers_loses_is_told_by_the_trial(
    lossy: tuple[Path, dict[str, int]],
) -> None:
    run, counters = lossy
    lost = counters["dropped"] + counters["failed"]
    assert lost > counters["offered"] / 2
    trial = create_trial(run)
    assert 0 < len(trial.steps()) < N_STEPS / 2
    losses = trial.lost_records()
    assert losses.records == lost
    assert losses.unreported == lost  # No gap could be written.
    assert losses.errors == [os.strerror(errno.ENOSPC)]
    assert trial.status == "closed"
    assert not losses.in_order
    assert f"{lost} records lost" in str(losses)


VERBS = {
    "ls": "ls {run}",
    "ls of a folder": "ls {folder}",
    "show": "show {run}",
    "check": "check {run} --no-record",
    "check of many": "check {run} {other} --no-record --jobs 1",
    "watch": "watch {run}",
    "fsck": "fsck {run}",
    "export": "export tensorboard {run} --out {out}",
    "export of a timeline": "export perfetto {run} --out {out}/t",
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_what_was_lost(
    lossy: tuple[Path, dict[str, int]], tmp_path: Path, verb: str
) -> None:
    original, counters = lossy
    lost = counters["dropped"] + counters["failed"]
    run = tmp_path / "runs" / "lossy"
    shutil.copytree(original, run)
    other = tmp_path / "runs" / "other"
    simple_run(other)
    line = VERBS[verb].format(run=run, folder=run.parent, other=other, out=tmp_path)
    text = call(*line.split())
    assert re.search(rf"\b{lost}\b", text), text
    if verb not in ("check", "watch") and not verb.startswith("export"):
        assert "closed, with lost records" in text
    document = json.dumps(
        [json.loads(each) for each in call(*line.split(), "--json").splitlines()]
        if verb == "watch"
        else call_json(*line.split())
    )
    assert f'"records": {lost}' in document
    assert '"in_order": false' in document


def test_a_run_that_lost_nothing_is_in_order_and_says_nothing(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    losses = create_trial(tmp_path / "run").lost_records()
    assert (bool(losses), losses.in_order, losses.records) == (False, True, 0)
    for verb in ("ls", "show", "check", "fsck"):
        text = call(verb, tmp_path / "run")
        assert "with lost records" not in text
        assert not re.search(r"[1-9]\d* records lost", text)


def test_a_value_that_is_left_out_on_purpose_is_lost_in_order(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.step(0, {"w": np.ones(3)})
        run.capture.refuse(0, 2, 100)
        run.step(1, {"w": np.ones(3)})
    losses = create_trial(tmp_path / "run").lost_records()
    assert (losses.records, losses.reasons) == (2, {"refused": 2})
    assert losses.in_order


def test_a_loss_of_which_only_the_step_tells_is_no_less_a_loss(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.step(0, {"w": np.ones(3)})
        run.capture.refuse(0, 2, 100)
        run.step(1, {"w": np.ones(3)})
    (shard,) = (tmp_path / "run").glob("w/*/*.tds")
    content = bytearray(shard.read_bytes())
    gaps = [
        at
        for at in range(128, len(content), 64)
        if content[at : at + 4] == b"TDR1" and content[at + 4] == GAP
    ]
    content[gaps[0] + 70] ^= 1
    shard.write_bytes(content)
    losses = create_trial(tmp_path / "run").lost_records()
    assert losses.records == 2
    assert losses.reasons == {}
    assert not losses.in_order


def test_a_file_that_is_gone_is_a_loss(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run", shard_bytes=1 << 16, codec="none") as run:
        for step in range(30):
            run.step(step, {"w": np.full(1000, step, np.float64)})
    (tmp_path / "run" / "w" / "train-0-1" / "000002.tds").unlink()
    losses = create_trial(tmp_path / "run").lost_records()
    assert losses.files == ["w/train-0-1/000002.tds"]
    assert losses.unreadable > 10
    assert not losses.in_order
    assert "w/train-0-1/000002.tds" in call("show", tmp_path / "run")
