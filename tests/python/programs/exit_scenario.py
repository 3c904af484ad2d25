"""A process that records steps and then ends in a given way.

Usage: exit_scenario.py HOW RUN|off MARKS

With ``off`` it does the same without tdbg.  MARKS is a file to which it writes a
line for each step that was flushed, and ``end`` when it is about to end.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

HOW, RUN, MARKS = sys.argv[1:4]
STEPS = 40
FLUSHED = 20


class Recorder:
    """Records steps, or pretends to."""

    def __init__(self) -> None:
        self.values = np.zeros(50_000, np.float32)
        self.capture = None
        if RUN == "off":
            return
        from tdbg import _core
        from tdbg.run_directory import create_run

        run = create_run(RUN)
        self.capture = _core.Capture(
            str(run.path),
            run_uuid=run.uuid,
            attempt_uuid=bytes(16),
            min_free_bytes=0,
            compress=False,
            queue_bytes=16 << 20,  # What the daemon threads keep full.
        )
        self.id = self.capture.define("x", 1, "float32", self.values.shape)
        if HOW != "never-closed":
            atexit.register(self.capture.close)

    def step(self, number: int) -> None:
        self.values[:] = number
        if self.capture is None:
            return
        pointer = self.values.ctypes.data
        self.capture.statistics(number, [self.id], [pointer])
        self.capture.values(number, self.id, pointer)
        self.capture.end_step(number, 1, number)

    def flush(self) -> None:
        if self.capture is not None:
            self.capture.flush()


def mark(text: str) -> None:
    with Path(MARKS).open("a") as file:
        file.write(text + "\n")


def end(recorder: Recorder) -> None:  # noqa: PLR0912 - one branch a way to end
    match HOW:
        case "return" | "never-closed" | "hung":
            pass
        case "closed":
            if recorder.capture is not None:
                recorder.capture.close()
        case "exception":
            msg = "the user's bug"
            raise RuntimeError(msg)
        case "exit-0":
            sys.exit(0)
        case "exit-3":
            sys.exit(3)
        case "exit-text":
            sys.exit("a message")
        case "keyboard-interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        case "os-exit-7":
            os._exit(7)
        case "abort":
            os.abort()
        case "exit-in-thread":
            thread = threading.Thread(target=sys.exit, args=(5,))
            thread.start()
            thread.join()
        case "exit-in-atexit":
            atexit.register(sys.exit, 6)
        case "handled-sigterm":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        case "daemon-threads":
            for _ in range(4):
                threading.Thread(target=hammer, args=(recorder,), daemon=True).start()
            time.sleep(0.3)
        case "exec":
            program = [sys.executable, "-c", "raise SystemExit(11)"]
            os.execv(sys.executable, program)  # noqa: S606 - the case itself
        case _:
            os.kill(os.getpid(), getattr(signal, HOW))
            time.sleep(60)


def hammer(recorder: Recorder) -> None:
    number = STEPS
    while True:
        recorder.step(number)
        number += 1


def main() -> None:
    recorder = Recorder()
    for number in range(STEPS):
        recorder.step(number)
        if number + 1 == FLUSHED:
            recorder.flush()
            mark(f"flushed {FLUSHED}")
    mark(f"end {time.time()}")
    end(recorder)


if __name__ == "__main__":
    main()
