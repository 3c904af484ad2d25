"""``tdbg stacks``: real processes that sleep, hang, are stopped, or are gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tdbg._core import is_signal_free
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError, NotARun
from tdbg.profiler import stacks
from tdbg.run.directory import create_run
from tdbg.run.profile_tables import Phase
from tdbg.run.stack_groups import group_stacks, say_where
from tdbg.run.stacks import Frame, ProcessStack, ThreadStack, ask_for_stacks

PROGRAM = Path(__file__).parent.parent / "helpers" / "programs" / "where_it_is.py"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return create_run(tmp_path / "run").path


@pytest.fixture
def start(run: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def started(what: str, rank: int = 0, n_ready: int = 1) -> Any:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), str(run), str(rank), what],
                    stdout=subprocess.PIPE,
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
            stack.callback(_kill, process)
            assert process.stdout is not None
            for _ in range(n_ready):
                assert process.stdout.readline() == "ready\n"
            introduced = run / "ctl" / "stacks"
            while not list(introduced.glob(f"rank-{rank}-*-{process.pid}.json")):
                time.sleep(0.01)
            return process

        yield started


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(_tdbg, ["stacks", *map(str, arguments)])


# ---- processes that answer --------------------------------------------------------


def test_a_sleeping_process_says_its_line(run: Path, start: Start) -> None:
    process = start("sleep")
    (found,) = ask_for_stacks(run, 60)
    assert (found.state, found.pid, found.name) == ("answered", process.pid, "rank 0")
    assert [frame.function for frame in found.main_frames] == ["sleep", "<module>"]
    line = found.main_frames[0].line
    assert say_where([found]) == f"Rank 0 is at where_it_is.py:{line} (sleep)."
    # It goes on, and answers again.
    assert ask_for_stacks(run, 60)[0].main_frames == found.main_frames
    assert process.poll() is None


def test_a_process_that_holds_the_interpreters_lock_in_c_answers(
    run: Path, start: Start
) -> None:
    start("hold_the_lock")
    (found,) = ask_for_stacks(run, 60)
    assert found.main_frames[0].function == "hold_the_lock"


def test_a_process_whose_main_thread_waits_for_the_lock_answers(
    run: Path, start: Start
) -> None:
    start("wait_for_the_lock")
    (found,) = ask_for_stacks(run, 60)
    main, other = found.threads
    assert main.is_main
    # It waits where it was when the other thread began, inside start() perhaps.
    assert "wait_for_the_lock" in [frame.function for frame in main.frames]
    assert other.frames[0].function == "hold_the_lock"


def test_a_forked_child_answers_for_itself_or_not_at_all(
    run: Path, start: Start
) -> None:
    process = start("answer_in_a_child", n_ready=3)
    while len(list((run / "ctl" / "stacks").glob("*.json"))) < 2:
        time.sleep(0.01)
    rank, worker = ask_for_stacks(run, 60)
    assert (rank.pid, rank.state) == (process.pid, "answered")
    assert (worker.name, worker.state) == ("worker 1 of rank 0", "answered")
    assert worker.pid != rank.pid
    assert rank.main_frames[0].line == worker.main_frames[0].line
    assert rank.main_frames[1].line != worker.main_frames[1].line


# ---- processes that do not --------------------------------------------------------


def test_a_stopped_process_is_named_as_stopped(run: Path, start: Start) -> None:
    process = start("sleep")
    os.kill(process.pid, signal.SIGSTOP)
    result = call(run, "--wait", "30")
    assert result.exit_code == 1
    assert "Rank 0 is stopped by a signal and cannot answer." in result.output
    os.kill(process.pid, signal.SIGCONT)
    assert ask_for_stacks(run, 60)[0].state == "answered"


def test_a_killed_process_is_named_as_dead(run: Path, start: Start) -> None:
    process = start("sleep")
    start("sleep", rank=1)
    process.kill()
    process.wait()
    dead, lives = ask_for_stacks(run, 60)
    assert (dead.state, lives.state) == ("dead", "answered")
    assert say_where([dead, lives]).startswith("Rank 0 has died; rank 1 is at ")


def test_signals_that_the_program_takes_are_left_to_it(run: Path, start: Start) -> None:
    process = start("take_the_signals")
    (found,) = ask_for_stacks(run, 60)
    assert found.state == "taken"
    assert "handles tdbg's signal itself" in say_where([found])
    assert process.poll() is None


def test_nothing_is_written_to_a_file_that_the_program_opened_instead(
    run: Path, start: Start
) -> None:
    process = start("close_all_files")
    (found,) = ask_for_stacks(run, 3)
    assert found.state in {"closed", "silent"}
    assert process.poll() is None


def test_a_process_that_has_ended_leaves_nothing_to_ask(
    run: Path, start: Start
) -> None:
    process = start("end")
    process.communicate("")
    assert process.returncode == 0
    assert ask_for_stacks(run, 0.1) == ()
    result = call(run, "--wait", "0.1")
    assert result.exit_code == 1
    assert "No process of this run can be asked" in result.output


def test_a_number_that_another_process_has_now_is_named_as_dead(
    run: Path, start: Start
) -> None:
    process = start("sleep")
    (file,) = (run / "ctl" / "stacks").glob("*.json")
    process.kill()
    process.wait()
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "pid": os.getpid()}))
    assert ask_for_stacks(run, 60)[0].state == "dead"


def test_a_process_of_another_machine_that_is_silent_is_unseen(
    run: Path, start: Start
) -> None:
    process = start("sleep")
    (file,) = (run / "ctl" / "stacks").glob("*.json")
    process.kill()
    process.wait()
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "boot_id": "another", "host": "far"}))
    (found,) = ask_for_stacks(run, 0.3)
    assert (found.state, found.host) == ("unseen", "far")
    assert "on another machine" in say_where([found])


def test_a_restarted_rank_hides_the_one_that_was_killed(
    run: Path, start: Start
) -> None:
    first = start("sleep")
    first.kill()
    first.wait()
    second = start("sleep")
    (found,) = ask_for_stacks(run, 60)
    assert (found.pid, found.state) == (second.pid, "answered")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="is not a run"):
        ask_for_stacks(tmp_path)
    assert call(tmp_path).exit_code == 3


def test_only_the_owner_of_a_run_may_ask(
    run: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("sleep")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match="only its owner may ask"):
        ask_for_stacks(run)


def test_hostile_files_are_no_processes(run: Path) -> None:
    folder = run / "ctl" / "stacks"
    folder.mkdir()
    (folder / "a.json").write_text("[")
    (folder / "b.json").write_text("[1]")
    (folder / "c.json").write_text('{"format": "tdbg-stacks 2"}')
    (folder / "d.json").symlink_to("/etc/passwd")
    (folder / "e.json").write_text(
        json.dumps({"format": "tdbg-stacks 1", "pid": "1", "rank": [], "host": "\x1b"})
    )
    (found,) = ask_for_stacks(run, 0.2)
    assert (found.state, found.pid, found.rank) == ("unseen", 0, 0)
    assert "\x1b" not in found.host


# ---- the command ------------------------------------------------------------------


def test_the_command_prints_the_sentence_and_the_calls(run: Path, start: Start) -> None:
    start("sleep")
    result = call(run, "--threads")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("Rank 0 is at where_it_is.py:")
    assert "  main thread" in lines
    assert any(f"sleep  {PROGRAM}:" in line for line in lines)


def test_json_has_every_thread_and_the_same_sentence(run: Path, start: Start) -> None:
    process = start("wait_for_the_lock")
    document = json.loads(call(run, "--json").output)
    (found,) = document["processes"]
    assert (found["pid"], found["state"]) == (process.pid, "answered")
    assert len(found["threads"]) == 2
    assert document["says"].startswith("Rank 0 is ")
    assert document["groups"][0]["processes"] == ["rank 0"]


# ---- sentences --------------------------------------------------------------------

TORCH = "/usr/lib/python3/site-packages/torch"


def process(rank: int, *frames: tuple[str, int, str], **changed: Any) -> ProcessStack:
    values: dict[str, Any] = {
        "kind": "rank",
        "rank": rank,
        "worker": -1,
        "loader": -1,
        "pid": 100 + rank,
        "parent": 0,
        "host": "here",
        "state": "answered",
        "started_ns": 0,
        "threads": (ThreadStack(1, True, tuple(Frame(*each) for each in frames)),),
    }
    return ProcessStack(**values | changed)


REDUCE = (
    (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
    ("/me/train.py", 41, "train"),
)


def test_ranks_that_wait_are_named_with_the_one_that_does_not_come() -> None:
    ranks = [process(rank, *REDUCE) for rank in (0, 1, 2, 4)]
    late = process(3, ("/me/dataset.py", 88, "load"), ("/me/train.py", 40, "train"))
    assert say_where([*ranks, late]) == (
        "Ranks 0-2, 4 wait for other ranks in all_reduce at train.py:41 (train); "
        "rank 3 is at dataset.py:88 (load)."
    )
    waiting, other = group_stacks([late, *ranks])
    assert (waiting.waits_for, other.waits_for) == ("ranks", "")


def test_a_rank_that_waits_for_a_batch_is_named_with_its_workers() -> None:
    waits = process(
        0,
        ("/usr/lib/python3.11/multiprocessing/queues.py", 1, "get"),
        (f"{TORCH}/utils/data/dataloader.py", 1, "_try_get_data"),
        ("/opt/tdbg/profiler/loaders.py", 1, "__next__"),
        ("/me/train.py", 30, "train"),
        own_folder="/opt/tdbg/",
    )
    loop = (f"{TORCH}/utils/data/_utils/worker.py", 349, "_worker_loop")
    busy = process(0, ("/me/data.py", 9, "__getitem__"), loop, kind="worker", worker=1)
    idle = process(
        0,
        ("/usr/lib/python3.11/multiprocessing/queues.py", 113, "get"),
        loop,
        kind="worker",
        worker=0,
    )
    assert say_where([waits, busy, idle]) == (
        "Rank 0 waits for a batch of the data loader at train.py:30 (train); "
        "worker 1 of rank 0 is at data.py:9 (__getitem__)."
    )
    groups = group_stacks([waits, busy, idle])
    assert groups[-1].sentence == "worker 0 of rank 0 waits for work"
    # Of a forked worker, the calls of the process that forked it are left out.
    forked = process(
        0, *busy.main_frames, ("/me/train.py", 30, "train"), kind="worker", worker=2
    )
    assert group_stacks([forked])[0].frames == busy.main_frames


def test_the_phase_is_said_where_the_calls_do_not_tell() -> None:
    inside = process(0, ("/me/train.py", 7, "step"), phase=Phase.CHECKPOINT)
    assert say_where([inside]) == (
        "Rank 0 is at train.py:7 (step), in the phase checkpoint."
    )
    waits = process(0, ("/me/train.py", 7, "step"), phase=Phase.COMMUNICATION)
    assert say_where([waits]) == ("Rank 0 waits for other ranks at train.py:7 (step).")


def test_a_handler_that_the_program_put_back_is_set_again() -> None:
    dump = stacks._dump_of_process()
    assert not is_signal_free(dump.number)
    signal.signal(dump.number, signal.SIG_DFL)
    assert is_signal_free(dump.number)
    assert stacks._dump_of_process() is dump
    assert not is_signal_free(dump.number)
