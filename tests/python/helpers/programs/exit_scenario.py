"""A process that records steps and then ends in a given way.

Usage: exit_scenario.py HOW RUN|off MARKS [torch]

With ``off`` it does the same without tdbg, with ``torch`` it trains.  MARKS is a
file to which it writes a line for each step that was flushed, and ``end`` when it
is about to end.
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
        from tdbg.run.directory import create_run

        run = create_run(RUN)
        self.capture = _core.Capture(
            str(run.path),
            run_uuid=run.uuid,
            attempt_uuid=bytes(16),
            min_free_bytes=0,
            codec="none",
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

    def close(self) -> None:
        if self.capture is not None:
            self.capture.close()


class TorchRecorder:
    """Trains a model that is hooked, and leaves the end to tdbg."""

    def __init__(self) -> None:
        import torch

        import tdbg
        import tdbg.pytorch as td

        self.model = torch.nn.Linear(100, 100)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = torch.ones(8, 100)
        self.hook = td.Hook(
            RUN,
            save_config=tdbg.SaveConfig(save_interval=1, statistics_interval=1),
            include_collections=["all"],
            min_free_bytes=0,
        )
        self.hook.register_module(self.model)

    def step(self, number: int) -> None:
        del number
        self.optimizer.zero_grad()
        self.model(self.inputs).sum().backward()
        self.optimizer.step()

    def flush(self) -> None:
        self.hook.flush()

    def close(self) -> None:
        self.hook.close()


def mark(text: str) -> None:
    with Path(MARKS).open("a") as file:
        file.write(text + "\n")


def end(recorder: Recorder | TorchRecorder) -> None:  # noqa: PLR0912 - one branch a way to end
    match HOW:
        case "return" | "never-closed" | "hung":
            pass
        case "closed":
            recorder.close()
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


def hammer(recorder: Recorder | TorchRecorder) -> None:
    number = STEPS
    while True:
        recorder.step(number)
        number += 1


def main() -> None:
    recorder = TorchRecorder() if "torch" in sys.argv[4:] else Recorder()
    for number in range(STEPS):
        recorder.step(number)
        if number + 1 == FLUSHED:
            recorder.flush()
            mark(f"flushed {FLUSHED}")
    mark(f"end {time.time()}")
    end(recorder)


if __name__ == "__main__":
    main()
