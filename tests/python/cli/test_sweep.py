"""``tdbg check RUN...`` and ``tdbg watch 'runs/*'`` on sweeps of small runs."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder
from tdbg.actions import parse
from tdbg.cli import _tdbg, sweep_workers
from tdbg.cli.sweep import RunFinder
from tdbg.cli.sweep_workers import Pool, Task
from tdbg.run.directory import is_run, open_run
from tdbg.run.requests import RequestListener

RULE = ("--rule", "ExplodingTensor")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(argument) for argument in arguments])


def write(path: Path, *, sick: bool = False, n_steps: int = 5) -> Path:
    with RunBuilder(path) as builder:
        for step in range(n_steps):
            value = np.full(3, np.nan if sick and step == 3 else 1.0, np.float32)
            builder.step(step, {"fc.weight": value})
    return path


def torn(path: Path) -> Path:
    write(path)
    description = path / "RUN.json"
    description.write_bytes(description.read_bytes()[:20])
    return path


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a and c are well, b is sick, d is torn; notes.txt and none are no runs."""
    folder = tmp_path_factory.mktemp("many") / "runs"
    write(folder / "a")
    write(folder / "b", sick=True)
    write(folder / "c", n_steps=8)
    torn(folder / "d")
    (folder / "notes.txt").write_text("not a run")
    (folder / "none").mkdir()
    return folder


def test_a_sweep_is_judged_and_one_sick_run_makes_the_exit_code(sweep: Path) -> None:
    result = call("check", sweep / "*", *RULE, "--jobs", 2, "--json")
    assert result.exit_code == 1, result.output
    runs = {Path(run["run"]).name: run for run in json.loads(result.stdout)["runs"]}
    assert list(runs) == ["a", "b", "c", "d"]
    assert [len(runs[name]["findings"]) for name in "abc"] == [0, 1, 0]
    assert [runs[name]["n_steps"] for name in "abc"] == [5, 5, 8]
    assert {runs[name]["state"] for name in "abc"} == {"closed"}
    assert runs["b"]["findings"][0]["step"] == 3
    assert "is not the description of a run" in runs["d"]["error"]
    # A run by itself is told as it always was.
    alone = json.loads(call("check", sweep / "b", *RULE, "--json").stdout)
    assert alone["findings"] == runs["b"]["findings"]
    assert alone["statuses"] == runs["b"]["statuses"]


def test_a_table_tells_each_run_and_what_is_wrong_with_it(sweep: Path) -> None:
    runs = [sweep / name for name in "abd"]
    result = call("check", *runs, *RULE, "--no-record", "--jobs", 1)
    assert result.exit_code == 1
    lines = {line.split()[0]: line.split() for line in result.output.splitlines()}
    assert lines[str(runs[0])][1:] == ["closed", "5", "4", "0", "-"]
    (row,) = (
        line
        for line in result.output.splitlines()
        if "closed" in line and "erro" in line
    )
    assert row.split() == [str(runs[1]), "closed", "5", "4", "1", "error"]
    assert "ExplodingTensor at step 3" in result.output
    assert f"{runs[2]}: " in result.output
    assert "3 runs judged: 1 with problems, 1 unreadable" in result.output


def test_what_cannot_be_read_is_an_exit_code_of_its_own(sweep: Path) -> None:
    runs = [sweep / name for name in ("a", "d", "none", "notes.txt", "never")]
    result = call("check", *runs, *RULE, "--no-record", "--jobs", 1, "--json")
    assert result.exit_code == 3, result.output
    told = [run.get("error", "") for run in json.loads(result.stdout)["runs"]]
    assert told[0] == ""
    assert all(told[1:])
    assert "did you mean" in told[4] or "does not exist" in told[4]


def test_ls_tells_of_a_run_that_cannot_be_read_and_of_the_others(sweep: Path) -> None:
    runs = json.loads(call("ls", sweep, "--json").stdout)["runs"]
    states = {Path(run["run"]).name: run["state"] for run in runs}
    assert states == {"a": "closed", "b": "closed", "c": "closed", "d": "unreadable"}
    lines = call("ls", sweep).output.splitlines()
    (line,) = (each for each in lines if each.split()[1:3] == ["unreadable", "-"])
    assert "is not the descr" in line


def test_a_folder_that_we_may_not_look_into_is_told(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", "RUN.json")

    finder = RunFinder([str(sweep / "*")])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", refuse)
        patched.setattr(Path, "is_file", refuse)
        # It may be a run, so that whoever asked for it is told.
        assert len(finder.find_new()) == len(list(sweep.iterdir()))
        assert not is_run(sweep / "a")
    monkeypatch.setattr(os, "scandir", refuse)
    result = call("ls", sweep)
    assert result.exit_code == 3
    assert f"cannot read {sweep}: Permission denied" in result.stderr


def test_healthy_runs_exit_with_0_and_none_at_all_with_3(sweep: Path) -> None:
    arguments = [*RULE, "--no-record", "--json"]
    result = call("check", f"{sweep}/[ac]", "--jobs", 1, *arguments)
    assert result.exit_code == 0, result.output
    assert [Path(r["run"]).name for r in json.loads(result.stdout)["runs"]] == [
        "a",
        "c",
    ]
    for verb, more in (("check", ()), ("watch", ("--wait", 0.1))):
        result = call(verb, f"{sweep}/x*", *more)
        assert result.exit_code == 3
        assert "no run matches" in result.stderr


def test_a_bad_rule_or_action_is_refused_before_anything_begins(
    sweep: Path, tmp_path: Path
) -> None:
    result = call("check", sweep / "*", "--rule", "ExplodingTenser")
    assert result.exit_code == 2
    assert "ExplodingTensor" in result.stderr
    result = call("watch", sweep / "*", "--on-finding", "stopp")
    assert result.exit_code == 2
    assert "stop" in result.stderr
    file = tmp_path / "actions.yaml"
    file.write_text("actions:\n- command: {commnd: 'true'}\n")
    result = call("watch", sweep / "*", *RULE, "--actions", file, "--wait", 0)
    assert result.exit_code == 2, result.output
    assert "no parameter 'commnd'" in " ".join(result.stderr.split())


class Live:
    """A run that is written until it is asked to stop, or told to end."""

    def __init__(self, path: Path, *, sick: bool) -> None:
        self.path, self.sick = path, sick
        self.stopped = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join(60)

    def _write(self) -> None:
        with RunBuilder(self.path) as builder:
            listener = RequestListener(self.path, open_run(self.path).uuid, 1)
            step = 0
            while not self._end.is_set() and not self.stopped:
                value = np.full(
                    3, np.nan if self.sick and step > 3 else 1.0, np.float32
                )
                builder.step(step, {"fc.weight": value})
                builder.flush()
                self.stopped = any(each.type == "stop" for each in listener.poll())
                time.sleep(0.02)
                step += 1


class Watcher:
    """``tdbg watch`` in a process, and the documents that it prints."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tdbg", "watch", *map(str, arguments)]
        self.process = subprocess.Popen(
            [*command, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []

    def until(self, event: str, name: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            last = self.events[-1]
            if (last["event"], Path(last["run"]).name) == (event, name):
                return last
        pytest.fail(f"no {event} of {name}: {self.process.communicate()}")

    def finish(self) -> int:
        stdout, stderr = self.process.communicate(timeout=120)
        self.events += [json.loads(line) for line in stdout.splitlines()]
        assert stderr == ""
        return self.process.returncode

    def of(self, event: str) -> list[str]:
        return [Path(e["run"]).name for e in self.events if e["event"] == event]


@pytest.fixture
def watchers() -> Iterator[list[Watcher]]:
    made: list[Watcher] = []
    yield made
    for watcher in made:
        if watcher.process.poll() is None:
            watcher.process.kill()
        watcher.process.communicate()


def test_only_the_sick_runs_of_a_live_sweep_are_stopped_and_late_ones_are_seen(
    tmp_path: Path, watchers: list[Watcher]
) -> None:
    folder = tmp_path / "runs"
    torn(folder / "torn")
    well, sick = Live(folder / "well", sick=False), Live(folder / "sick", sick=True)
    late = None
    try:
        options = (*RULE, "--jobs", 2, "--wait", 2, "--on-finding", "stop")
        watcher = Watcher(f"{folder}/*", *options)
        watchers.append(watcher)
        ended = watcher.until("ended", "sick")
        assert ended["findings"]
        assert ended["state"] == "closed"
        assert sick.stopped
        late = Live(folder / "late", sick=True)
        watcher.until("ended", "late")
        assert late.stopped
        assert not well.stopped
    finally:
        for live in (well, sick, late):
            if live is not None:
                live.end()
    assert watcher.finish() == 1
    assert sorted(watcher.of("watching")) == ["late", "sick", "torn", "well"]
    assert sorted(watcher.of("ended")) == ["late", "sick", "well"]
    assert watcher.of("unreadable") == ["torn"]
    assert set(watcher.of("finding")) == {"late", "sick"}
    assert sorted(watcher.of("stopping")) == ["late", "sick"]
    assert not list((folder / "well" / "ctl").glob("*.json"))


def test_an_interrupted_watch_tells_how_all_runs_stand(
    tmp_path: Path, watchers: list[Watcher]
) -> None:
    runs = [tmp_path / name for name in "ab"]
    with RunBuilder(runs[0]) as first, RunBuilder(runs[1]) as second:
        for builder in (first, second):
            builder.step(0, {"fc.weight": np.ones(3, np.float32)})
            builder.flush()
        watcher = Watcher(*runs, *RULE)
        watchers.append(watcher)
        watcher.until("watching", "b")
        watcher.process.send_signal(signal.SIGINT)
        assert watcher.finish() == 0
    ended = [e for e in watcher.events if e["event"] == "ended"]
    assert sorted(watcher.of("ended")) == ["a", "b"]
    assert {s["status"] for e in ended for s in e["statuses"]} == {"Stopped"}
    # Of a run told as one is, by which a program knows that the training goes on.
    assert {e["state"] for e in ended} == {"running"}


def test_a_process_that_dies_harms_only_its_own_run(sweep: Path) -> None:
    with Pool(1, Task(rules=("ExplodingTensor",), record=False)) as pool:
        pool.add(str(sweep / "a"))
        process = pool._processes[0].process
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        pool.add(str(sweep / "c"))
        events = []
        deadline = time.monotonic() + 60
        while pool.n_open and time.monotonic() < deadline:
            events += pool.events(0.1)
    done = [e for e in events if e["event"] in {"ended", "unreadable"}]
    assert [(e["event"], Path(e["run"]).name) for e in done] == [
        ("unreadable", "a"),
        ("ended", "c"),
    ]
    assert done[0]["error"] == "the process that judged it ended with -9"


def test_runs_are_told_once_and_when_they_are_there(tmp_path: Path) -> None:
    write(tmp_path / "a")
    finder = RunFinder(
        [f"{tmp_path}/*", str(tmp_path / "b"), f"{tmp_path}/a/"], wait=60
    )
    assert finder.find_new() == [f"{tmp_path}/a/"]
    assert (finder.find_new(), finder.n_missing) == ([], 1)
    write(tmp_path / "b")
    assert finder.find_new() == [str(tmp_path / "b")]
    assert finder.n_missing == 0
    # What looks like a pattern and is there, is itself.
    odd = write(tmp_path / "lr=[1]")
    assert RunFinder([str(odd)]).find_new() == [str(odd)]
    assert RunFinder([str(tmp_path / "never")]).find_new() == [str(tmp_path / "never")]


def test_metrics_of_each_run_have_a_file_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        sweep_workers, "make", lambda spec, run: made.append((spec, run))
    )
    for run in ("runs/a=1", "/x/runs/b"):
        sweep_workers._made(parse("prometheus:/var/lib/all.prom"), run)
    sweep_workers._made(parse("stop"), "runs/a=1")
    assert [spec.parameters.get("path") for spec, _ in made] == [
        "/var/lib/all-runs-a-1.prom",
        "/var/lib/all-x-runs-b.prom",
        None,
    ]
    assert [run for _, run in made] == ["runs/a=1", "/x/runs/b", "runs/a=1"]


REMARKS = '''
from dataclasses import dataclass
import numpy as np
from tdbg.config import Needs
from tdbg.rules import Description, Evaluation, Rule, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks(Rule):
    """Has something to say of every step, and nothing against it."""

    severities = (Severity.INFO,)

    @property
    def needs(self):
        return (Needs(collections=frozenset({"weights"}), statistics=True),)

    def selects(self, tensor):
        return True

    def evaluate(self, window):
        for table in window.tables():
            found = np.where(table.known[0], int(Severity.INFO), -1).astype(np.int8)
            yield Evaluation.of_one(
                table.names[0], table.steps, table.mode, found,
                lambda _: Description(
                    message="so it is", value=1.0, threshold=0.0, advice="none"
                ),
            )
'''


@pytest.mark.parametrize("n_runs", [1, 2])
def test_what_is_only_worth_knowing_is_printed_and_is_no_sickness(
    tmp_path: Path, n_runs: int
) -> None:
    (tmp_path / "remarks.py").write_text(REMARKS)
    runs = [write(tmp_path / f"run{number}") for number in range(n_runs)]
    rule = ("--rule", f"{tmp_path}/remarks.py:Remarks", "--no-record")
    result = call("check", *runs, *rule)
    assert "so it is" in result.output
    assert result.exit_code == 0, result.output
    assert n_runs == 1 or "2 runs judged: none with problems" in result.output
