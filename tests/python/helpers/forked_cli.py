"""The command line in processes that are forked from one that has a package loaded.

Libraries of trackers take seconds to import, and leave threads, processes and variables
behind: each call has a process of its own, and none imports them again.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["ForkedCommands"]


class ForkedCommands:
    """Calls ``tdbg`` in forked processes.

    Args:
        package: Is imported once, before any call.
    """

    def __init__(self, package: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        """End the process that the others are forked from."""
        self._process.communicate()

    def call(
        self, folder: Path, arguments: Sequence[str], env: Mapping[str, str]
    ) -> tuple[int, str, str]:
        """Return the exit code of a call in *folder*, and what it has printed."""
        files = folder / ".stdout", folder / ".stderr"
        asked = [str(folder), list(arguments), dict(env), list(map(str, files))]
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        code = int(stdout.readline())
        printed, told = (file.read_text("utf-8") for file in files)
        return code, printed, told


def _serve(package: str, answers: IO[str]) -> None:
    importlib.import_module(package)
    commands: Any = importlib.import_module("tdbg.cli")
    for line in sys.stdin:
        folder, arguments, env, files = json.loads(line)
        pid = os.fork()
        if not pid:
            os.chdir(folder)
            os.environ.update(env)
            for number, file in zip((1, 2), files, strict=True):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.argv = ["tdbg", *arguments]
            commands.main()
            return
        _, status = os.waitpid(pid, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


if __name__ == "__main__":
    # What packages print does not reach who reads the answers.
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(sys.argv[1], own)
