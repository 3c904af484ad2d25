"""Command: run a command of the user's."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time

from tdbg.actions.checks import seconds_of, text_of
from tdbg.errors import TdbgError
from tdbg.findings import Finding

__all__ = ["Command"]

# Of what it prints, if it fails.
MAX_TAIL = 500


class Command:
    """Runs a shell command for each finding it is given.

    The finding is on its standard input as JSON, and its main fields are in variables:
    ``TDBG_RUN``, ``TDBG_RULE``, ``TDBG_SEVERITY``, ``TDBG_STEP``, ``TDBG_TENSOR``,
    ``TDBG_MESSAGE``, ``TDBG_ADVICE``.

    Args:
        run_directory: The run.
        command: For ``/bin/sh -c``.
        timeout: Seconds after which it and its children are killed.

    Raises:
        ConfigurationError: If the command is empty or the timeout not positive.
    """

    name = "command"

    def __init__(self, run_directory: str, command: str, timeout: float = 60.0) -> None:
        self._run_directory = run_directory
        self._command = text_of(self.name, "command", command, "a shell command")
        self._timeout = seconds_of(self.name, "timeout", timeout)

    def __call__(self, finding: Finding) -> None:
        """Run it, and wait for its end.

        Raises:
            TdbgError: If it fails or takes too long.
            OSError: If it cannot be started.
        """
        document = {"run": self._run_directory, **finding.to_json()}
        # In memory: a full disk may be what is to be told.
        with open(os.memfd_create("tdbg-finding"), "w+b") as stdin:  # noqa: PTH123
            stdin.write(json.dumps(document).encode())
            stdin.seek(0)
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._variables(finding)},
                start_new_session=True,
            )
        with process:
            try:
                tail = _last_words(process, self._timeout)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                msg = f"the command took more than {self._timeout:g} s and was killed"
                raise TdbgError(msg) from None
        if process.returncode:
            said = tail.decode(errors="replace").strip()
            msg = f"the command ended with {process.returncode}"
            raise TdbgError(f"{msg}: {said}" if said else msg)

    def _variables(self, finding: Finding) -> dict[str, str]:
        values = {
            "RUN": self._run_directory,
            "RULE": finding.rule,
            "SEVERITY": finding.severity.label,
            "STEP": str(finding.step),
            "TENSOR": finding.tensor,
            "MESSAGE": finding.message,
            "ADVICE": finding.advice,
        }
        # A variable cannot hold a NUL.
        return {f"TDBG_{key}": text.replace("\0", "") for key, text in values.items()}


def _last_words(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """The end of what a command prints, when it and all that print for it have ended.

    Of what it prints no more is held than that.

    Raises:
        TimeoutExpired: If they have not ended in time.
    """
    deadline = time.monotonic() + seconds
    output = process.stdout.fileno() if process.stdout else -1
    waiting = select.poll()
    waiting.register(output, select.POLLIN)
    tail = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not waiting.poll(1000 * left):
            raise subprocess.TimeoutExpired(process.args, seconds)
        data = os.read(output, 65536)
        if not data:
            process.wait(left)
            return tail
        tail = (tail + data)[-MAX_TAIL:]
