"""Reads a run at every moment of its life: before each system call that changes a file.

``read_at_every_change.py FOLDER`` starts itself as a writer of ``FOLDER/run`` under
ptrace, which stops each of its threads before such a call, and meanwhile asks every
reader.  Prints as JSON at how many moments there was no run, one that nobody has
written in yet, and one that could be read, and the answers that are wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

TRACEME, CONTINUE_TO_CALL, GET_REGISTERS, SET_OPTIONS = 0, 24, 12, 0x4200
SYSGOOD, TRACE_CLONE, EXIT_KILL = 1, 8, 0x100000
CALL = signal.SIGTRAP | 0x80
# Of x86-64: write, pwrite, mkdir, rename, link, unlink, truncate, sync, their kin.
CHANGES = {1, 18, 74, 75, 77, 82, 83, 84, 86, 87, 258, 263, 264, 265, 285, 296, 316}
OPEN_AT, N_REGISTERS, RDX, ORIG_RAX = 257, 27, 12, 15

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request: int, thread: int, data: object = None) -> None:
    if libc.ptrace(request, thread, None, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def is_change(thread: int) -> bool:
    """Whether the call before which a thread was stopped may change a file."""
    registers = (ctypes.c_ulonglong * N_REGISTERS)()
    ptrace(GET_REGISTERS, thread, ctypes.byref(registers))
    call, flags = registers[ORIG_RAX], registers[RDX]
    return call in CHANGES or (call == OPEN_AT and bool(flags & os.O_CREAT))


def step(arguments: list[str], look: Callable[[], None]) -> int:
    """Run a program, and call *look* before each change; return its exit status."""
    program = os.fork()
    if program == 0:
        ptrace(TRACEME, 0)
        os.execv(arguments[0], arguments)  # noqa: S606
    os.waitpid(program, 0)
    ptrace(SET_OPTIONS, program, ctypes.c_void_p(SYSGOOD | TRACE_CLONE | EXIT_KILL))
    ptrace(CONTINUE_TO_CALL, program)
    within: set[int] = set()  # Threads that are between entry and return of a call.
    while True:
        thread, status = os.waitpid(-1, 0x40000000)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if thread == program:
                return os.waitstatus_to_exitcode(status)
            continue
        passed = os.WSTOPSIG(status)
        if passed == CALL:
            if thread not in within and is_change(thread):
                look()
            within ^= {thread}
        if passed in (CALL, signal.SIGTRAP, signal.SIGSTOP):
            passed = 0
        with contextlib.suppress(ProcessLookupError):
            ptrace(CONTINUE_TO_CALL, thread, ctypes.c_void_p(passed))


class Readers:
    """Asks all that reads a run, and notes what is wrong."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.moments: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self._last_step = -1

    def __call__(self) -> None:
        moment = "no run"
        try:
            moment = self._read()
        except Exception as error:
            self.wrong[f"{type(error).__name__}: {error}"] += 1
        self.moments[moment] += 1
        for verb in (["ls", self.run.parent], ["ls", self.run], ["show", self.run]):
            self._call(*verb, moment=moment)
        self._call("fsck", self.run, moment=moment)

    def _read(self) -> str:
        from tdbg.errors import ConfigurationError, NotARun
        from tdbg.run.directory import find_runs, is_run, open_run
        from tdbg.run.requests import request_stop
        from tdbg.trial import create_trial

        before = is_run(self.run)
        try:
            open_run(self.run)
        except NotARun as error:
            if before or error.kind != "missing":
                raise
            assert self.moments.keys() <= {"no run"}, "there was a run before"
            assert find_runs(self.run.parent) == []
            return "no run"
        assert find_runs(self.run.parent) == [self.run]
        trial = create_trial(self.run)
        assert trial.problems() == []
        last = max(trial.steps("global"), default=-1)
        assert last >= self._last_step, "a step is there no more"
        self._last_step = last
        for name in trial.tensor_names():
            tensor = trial.tensor(name)
            for number in tensor.steps():
                for worker in tensor.workers(number):
                    value = tensor.value(number, worker=worker)
                    assert (value == number).all()
        with contextlib.suppress(ConfigurationError):
            request_stop(self.run, reason="a test")
            return "written" if last < 0 else "steps"
        return "made"

    def _call(self, *words: object, moment: str) -> None:
        from click.testing import CliRunner

        from tdbg.cli import _tdbg

        done = CliRunner().invoke(_tdbg, [str(word) for word in words])
        is_there = moment != "no run" or words == ("ls", self.run.parent)
        # 3: there is no run; 0: all is well.
        if done.exit_code not in ({0} if is_there else {0, 3}):
            self.wrong[f"{words[0]} at {moment}: {done.exit_code}: {done.output}"] += 1


def write(run: Path) -> None:
    import numpy as np

    from run_builder import RunBuilder

    for attempt in range(2):
        shared = {"attempt": bytes([attempt] * 16), "ordinal": attempt, "world_size": 2}
        with ExitStack() as stack:
            ranks = [
                stack.enter_context(
                    RunBuilder(run, rank=rank, shard_bytes=1 << 16, **shared)
                )
                for rank in range(2)
            ]
            for number in range(6 * attempt, 6 * attempt + 6):
                for writer in ranks:
                    writer.save(number, "fc.weight", np.full(3000, number, np.float32))
                    writer.end_step(number)
                    writer.flush()


def main() -> None:
    run = Path(sys.argv[1]) / "run"
    if "--write" in sys.argv:
        write(run)
        return
    readers = Readers(run)
    status = step([sys.executable, *sys.argv, "--write"], readers)
    readers()
    document = {"status": status, "moments": readers.moments, "wrong": readers.wrong}
    print(json.dumps(document))


if __name__ == "__main__":
    main()
