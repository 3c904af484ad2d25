"""A contender's server as its user starts it, with all processes that belong to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness import WrongAnswer
from benchmarks._harness.environments import python_of
from benchmarks.ui.contenders import Served

__all__ = ["Memory", "Server", "free_port", "memory_of", "python_for", "served"]

START_SECONDS = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Memory:
    """Of processes together, in MB: shared pages whole, and by their share."""

    rss: float
    pss: float


@dataclass(frozen=True)
class Server:
    """A server that can be reached.

    Attributes:
        port: Where it listens.
        printed: What it has printed, from its first line with an address on.
        started: When it was started, in seconds of ``time.time()``.
        reached: When it could be reached first.
        session: The session that all of its processes are in.
    """

    port: int
    printed: str
    started: float
    reached: float
    session: int

    def processes(self) -> list[int]:
        """The processes of the server that live."""
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.session:
                    found.append(int(folder.name))
        return found

    def memory(self) -> Memory:
        """What its processes hold now."""
        return memory_of(self.processes())

    def cpu_seconds(self) -> float:
        """Processor time of its processes and of the children that they awaited."""
        ticks = 0
        for process in self.processes():
            with suppress(OSError):
                text = Path(f"/proc/{process}/stat").read_text()
                ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
        return ticks / _TICKS


def memory_of(processes: list[int]) -> Memory:
    """What processes hold together."""
    rss = pss = 0
    for process in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in ("Rss", "Pss"):
                    kib = int(rest.split()[0])
                    rss, pss = rss + kib * (name == "Rss"), pss + kib * (name == "Pss")
    return Memory(rss * 1024 / 1e6, pss * 1024 / 1e6)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def python_for(contender: Served) -> Path:
    """The interpreter that has the contender's packages."""
    name = contender.ENVIRONMENT
    return python_of(name) if name else Path(sys.executable)


@contextmanager
def served(contender: Served, folder: Path) -> Iterator[Server]:
    """Start a contender's server on a run, and end it.

    Raises:
        WrongAnswer: If it cannot be reached, with what it printed.
    """
    port = free_port()
    python = python_for(contender)
    given = {"python": python, "bin": python.parent, "folder": folder, "port": port}
    own = {k: v.format(**given) for k, v in contender.VARIABLES.items()}
    variables = {
        **os.environ,
        **own,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "DO_NOT_TRACK": "1",
    }
    with tempfile.TemporaryFile("w+") as output:
        started = time.time()
        process = subprocess.Popen(
            [part.format(**given) for part in contender.COMMAND],
            env=variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _await(process, port)
            reached = time.time()
            yield Server(
                port, _printed(output.fileno(), port), started, reached, process.pid
            )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.01)
    msg = f"{process.args}: cannot be reached; exit status {process.poll()}"
    raise WrongAnswer(msg)


def _printed(output: int, port: int) -> str:
    """What stands from the address on; some print it after they listen, some never."""
    for _ in range(100):
        text = os.pread(output, 1 << 16, 0).decode()
        _, found, rest = text.partition(f"http://127.0.0.1:{port}")
        if found and rest.endswith("\n"):
            return found + rest
        if f":{port}/" in text:
            return text
        time.sleep(0.01)
    return text
