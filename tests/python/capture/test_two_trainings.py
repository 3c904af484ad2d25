"""Two trainings and one run directory: none hides the other without a word."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from run_builder import RunBuilder, new_attempt
from tdbg import _core
from tdbg.cli import _tdbg
from tdbg.errors import RunInUse
from tdbg.launch.family import DirectoryFamily, existing
from tdbg.modes import ModeKeys
from tdbg.run.directory import open_run, writer_directories
from tdbg.run.in_use import living_writer, refuse_if_in_use
from tdbg.trial import create_trial
from tdbg.view import view_of

ONES = np.ones(3, np.float32)
PAGE = Path(__file__).parents[3] / "docs" / "adding-a-framework.md"
# A training that says when its hook is there, and trains when it is told to.
PROGRAM = """
import re, sys
from tdbg.config import SaveConfig
from tdbg.errors import RunInUse
page = open(sys.argv[1]).read()
(code,) = re.findall(r"^```python\\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
names = {"__name__": "numpy_hooks"}
exec(code, names)
def make():
    try:
        return names["Hook"](sys.argv[2], include_collections=["weights"],
            save_config=SaveConfig(save_interval=1), include_workers="all",
            min_free_bytes=0)
    except RunInUse as error:
        print("refused", error, flush=True)
        sys.exit(7)
hook = make()
"""
WAITS = """
print("up", flush=True)
for line in sys.stdin:
    names["train"](hook, int(line))
    print("trained", flush=True)
hook.close()
"""


Start = Callable[..., Any]


@pytest.fixture
def start(run_dir: Path) -> Iterator[Start]:
    """Starts a process of the program; all end with the test."""
    started: list[Any] = []

    def begin(program: str = WAITS, **variables: str) -> Any:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM + program, str(PAGE), str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def training(start: Start) -> Any:
    process = start()
    assert process.stdout.readline() == "up\n"
    return process


def hook(run_dir: Path) -> Any:
    (code,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    names: dict[str, Any] = {"__name__": "numpy_hooks"}
    exec(code, names)  # noqa: S102 - ours, from the page
    made = names["Hook"](run_dir, include_collections=["weights"], min_free_bytes=0)
    made.train = names["train"]
    return made


def test_a_run_that_a_living_process_writes_is_refused(
    training: Any, run_dir: Path
) -> None:
    with pytest.raises(RunInUse, match=rf"in use: process {training.pid} .*train-0-1"):
        hook(run_dir)
    os.kill(training.pid, signal.SIGSTOP)  # It lives still.
    with pytest.raises(RunInUse, match="directory of its own"):
        hook(run_dir)
    os.kill(training.pid, signal.SIGCONT)
    assert [each.path.name for each in writer_directories(run_dir)] == ["train-0-1"]
    assert DirectoryFamily(run_dir, existing(run_dir)).claim(may_join=True) == (
        run_dir.with_name(f"{run_dir.name}-2")
    )
    launched = CliRunner().invoke(_tdbg, ["run", "--out", str(run_dir), "--", "true"])
    assert launched.exit_code
    assert "in use" in launched.output


def test_a_run_whose_process_was_killed_is_resumed(
    training: Any, run_dir: Path
) -> None:
    training.stdin.write("3\n")
    training.stdin.flush()
    assert training.stdout.readline() == "trained\n"
    training.kill()
    # It has ended, and nobody has waited for it yet: its entry stays.
    os.waitid(os.P_PID, training.pid, os.WEXITED | os.WNOWAIT)
    resumed = hook(run_dir)
    resumed.train(resumed, 2)
    assert resumed.close()
    trial = create_trial(run_dir)
    assert len(trial.attempts()) == 2
    assert trial.lost_records().hidden == ()


def test_of_processes_that_begin_at_once_one_gets_the_run(
    start: Start, run_dir: Path
) -> None:
    processes = [start() for _ in range(3)]
    said = [process.stdout.readline() for process in processes]
    for process in processes:
        process.communicate()
    assert sorted(each.split()[0] for each in said) == ["refused", "refused", "up"]
    assert sorted(process.returncode for process in processes) == [0, 7, 7]
    assert len(writer_directories(run_dir)) == 1
    assert create_trial(run_dir).status == "closed"


def test_ranks_of_one_training_share_the_run(start: Start) -> None:
    ranks = [start(RANK=str(i), WORLD_SIZE="2") for i in range(2)]
    assert [each.stdout.readline() for each in ranks] == ["up\n", "up\n"]
    again = start(RANK="1", WORLD_SIZE="2")
    assert again.stdout.readline().startswith("refused")


def test_a_forked_child_that_trains_into_the_run_of_its_parent_is_refused(
    start: Start,
) -> None:
    forks = """
import os
child = os.fork()
if not child:
    make()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    said, _ = start(forks).communicate()
    assert said.startswith("refused")
    assert said.endswith("7\n")


def forge(run_dir: Path, **changes: Any) -> Path:
    """Change who wrote the commit page, as if it had been somebody elsewhere."""
    page = run_dir / "w" / "train-0-1" / "COMMIT"

    data = bytearray(page.read_bytes())
    for offset, value in changes.values():
        data[offset : offset + len(value)] = value
    data[60:64] = _core.masked_crc32c(bytes(data[:60])).to_bytes(4, "little")
    page.write_bytes(data)
    return page


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{"boot": (16, b"x" * 16)}, {"process": (12, b"\xff\xff\xff\x7f")}],
    ids=["another machine", "another namespace of processes"],
)
def test_a_writer_that_is_not_seen_lives_while_its_page_changes(
    run_dir: Path, changes: dict[str, Any], moves: bool
) -> None:
    builder = RunBuilder(run_dir)
    builder.step(0, {"w": ONES})
    builder.flush()
    if not moves:
        # What a killed process leaves.
        left = (run_dir / "w" / "train-0-1" / "COMMIT").read_bytes()
        builder.close()
        (run_dir / "w" / "train-0-1" / "COMMIT").write_bytes(left)
    forge(run_dir, **changes)
    found = living_writer(writer_directories(run_dir))
    assert (found is not None) == moves
    if moves:
        with pytest.raises(RunInUse, match="is in use"):
            refuse_if_in_use(open_run(run_dir), 0)
        builder.close()


def test_two_hooks_of_a_program_are_both_recorded_and_it_is_said(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = hook(run_dir)
    first.train(first, 3)
    with caplog.at_level(logging.WARNING, "tdbg"):
        second = hook(run_dir)
        assert "two hooks" not in caplog.text  # Perhaps nobody uses the first again.
        first.train(first, 3)
    assert "two hooks of this process write" in caplog.text
    second.train(second, 2)
    assert second.close()
    assert create_trial(run_dir).status == "running"
    assert first.close()
    earlier = create_trial(run_dir, attempt=0)
    assert earlier.tensor("loss").steps() == list(range(6))
    assert earlier.steps_made() == {ModeKeys.TRAIN: (0, 6)}


def test_at_a_prompt_a_new_hook_replaces_the_one_before_and_says_so(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    first = hook(run_dir)
    first.train(first, 3)
    with caplog.at_level(logging.WARNING, "tdbg"):
        second = hook(run_dir)
    assert first.is_closed
    assert "a new hook takes the run over" in caplog.text
    assert second.close()
    assert create_trial(run_dir).lost_records().hidden == ()


def test_every_surface_names_the_steps_that_a_second_training_hides(
    run_dir: Path,
) -> None:
    """As where an earlier tdbg, or a file system, did not show the other one."""
    first = RunBuilder(run_dir)
    for step in range(4):
        first.step(step, {"w": ONES})
    second = RunBuilder(run_dir, attempt=new_attempt(), ordinal=1)
    for step in range(2, 5):
        second.step(step, {"w": ONES})
    second.close()
    first.step(4, {"w": ONES})
    first.flush()
    said = "3 steps of train-0-1 are hidden behind those of train-0-2"

    trial = create_trial(run_dir)
    assert trial.status == "running"
    assert not trial.loaded_all_steps
    first.close()
    assert [problem.kind for problem in trial.problems()] == ["concurrent"]
    assert said in str(trial.lost_records())
    view = view_of(trial)
    assert "3 steps hidden behind another training" in view.verdict.sentence
    assert view.verdict.tone != "ok"
    assert create_trial(run_dir, attempt=0).problems() == []

    def told(*arguments: str) -> tuple[str, int]:
        result = CliRunner().invoke(_tdbg, [*arguments])
        return " ".join(result.output.split()), result.exit_code

    text, code = told("fsck", str(run_dir))
    assert said in text
    assert "is INCOMPLETE" in text
    assert code == 1
    assert said in told("ls", str(run_dir))[0]
    listed = json.loads(told("ls", "--json", str(run_dir))[0])
    assert listed["lost_records"]["hidden"] == [
        {"writer": "train-0-1", "behind": "train-0-2", "steps": 3}
    ]
    assert said in told("check", str(run_dir))[0]
    page = run_dir / "report.html"
    told("report", str(run_dir), "-o", str(page))
    assert said in page.read_text()


def test_a_training_that_is_resumed_hides_nothing_of_a_living_one(
    run_dir: Path,
) -> None:
    first = RunBuilder(run_dir)
    for step in range(4):
        first.step(step, {"w": ONES})
    first.close()
    second = RunBuilder(run_dir, attempt=new_attempt(), ordinal=1)
    second.step(2, {"w": ONES})
    second.close()
    trial = create_trial(run_dir)
    assert trial.lost_records().in_order
    assert trial.problems() == []
