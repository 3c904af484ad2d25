"""Action ``command``: runs a shell command."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time

from tdbg.actions.action import seconds_of, text_of
from tdbg.errors import TdbgError
from tdbg.run.findings import Finding

__all__ = ["Command"]

# How much output of a failed command the error shows, in bytes.
MAX_TAIL = 500
# Bytes of a variable; Linux refuses to start a program with one of 128 KiB.
MAX_VARIABLE_BYTES = 100_000


class Command:
    """Runs a shell command for each finding.

    The command reads the finding from its standard input as JSON, and its main fields
    from the environment variables ``TDBG_RUN``, ``TDBG_RULE``, ``TDBG_SEVERITY``,
    ``TDBG_STEP``, ``TDBG_TENSOR``, ``TDBG_MESSAGE`` and ``TDBG_ADVICE``, each cut to
    100,000 bytes.

    Args:
        run_directory: The run.
        command: For ``/bin/sh -c``.
        timeout: Seconds after which the command and its children are killed.

    Raises:
        ConfigurationError: If the command is empty or the timeout not positive.
    """

    name = "command"

    def __init__(self, run_directory: str, command: str, timeout: float = 60.0) -> None:
        self._run_directory = run_directory
        self._command = text_of(self.name, "command", command, "a shell command")
        self._timeout = seconds_of(self.name, "timeout", timeout)

    def __call__(self, finding: Finding) -> None:
        """Run the command, and wait for its end.

        Raises:
            TdbgError: If the command fails or takes too long.
            OSError: If the command cannot be started.
        """
        document = {"run": self._run_directory, **finding.to_json()}
        # In memory: the finding may be about a full disk.
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
                tail = _wait(process, self._timeout)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                msg = f"the command took more than {self._timeout:g} s and was killed"
                raise TdbgError(msg) from None
        if process.returncode:
            printed = tail.decode(errors="replace").strip()
            msg = f"the command ended with {process.returncode}"
            raise TdbgError(f"{msg}: {printed}" if printed else msg)

    def _variables(self, finding: Finding) -> dict[str, str]:
        texts = {
            "RULE": finding.rule,
            "SEVERITY": finding.severity.label,
            "STEP": str(finding.step),
            "TENSOR": finding.tensor,
            "MESSAGE": finding.message,
            "ADVICE": finding.advice,
        }
        variables = {f"TDBG_{key}": _variable(text) for key, text in texts.items()}
        return {"TDBG_RUN": self._run_directory, **variables}


def _variable(text: str) -> str:
    """Return a text as an environment variable can hold it: shortened, without NUL."""
    data = text.replace("\0", "").encode(errors="replace")
    return data[:MAX_VARIABLE_BYTES].decode(errors="ignore")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Wait until a command and its children have ended; return the end of the output.

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
