"""The second process of the demonstration: ``tdbg watch`` on a run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Watcher"]

START_SECONDS = 60.0
END_SECONDS = 30.0


class Watcher:
    """Judges a run live, in a process of its own, and stops it on a finding.

    It is a context manager, entered when the process watches, and left when the process
    has seen the end of the run.

    Args:
        run: The run.
        stop_on: The least severity at which it is stopped.

    Attributes:
        findings: The findings as JSON documents, in the order in which they came.
        exit_code: 0: no finding; 1: findings; None: the process runs.
    """

    def __init__(self, run: Path, stop_on: str = "error") -> None:
        self.findings: list[dict[str, Any]] = []
        self._watching = threading.Event()
        command = [sys.executable, "-m", "tdbg", "watch", str(run)]
        self._command = [*command, "--on-finding", "stop", "--json"]
        self._command += ["--stop-on", stop_on]
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Wait until the watcher is watching.

        Raises:
            RuntimeError: If the process has died (and printed why), or takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self._watching.wait(0.05):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                msg = f"{' '.join(self._command)} did not begin to watch"
                raise RuntimeError(msg)
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait until the watcher has seen the end of the run."""
        if exception is not None:
            self._process.kill()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join(END_SECONDS)
        if self._process.stdout is not None and not self._thread.is_alive():
            self._process.stdout.close()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of ``tdbg watch``; None while it runs."""
        return self._process.returncode

    def _listen(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        for line in stdout:
            document = json.loads(line)
            if document["event"] == "watching":
                self._watching.set()
            elif document["event"] == "finding":
                self.findings.append(document)
