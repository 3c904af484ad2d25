"""Opening a run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tdbg.errors import ConfigurationError, NotARun
from tdbg.trial._run import RunState
from tdbg.trial._trial import Trial

__all__ = ["create_trial"]


def create_trial(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    range_steps: tuple[int, int | None] | None = None,
    attempt: int | None = None,
    wait: float = 0.0,
    map_files: bool = True,
    max_tensor_bytes: int | None = None,
) -> Trial:
    """Open the run at *path*, finished or not.

    Args:
        path: Directory of the run.
        name: What to call the trial; the directory's name by default.
        range_steps: Global steps to look at: first, and the one after the last
            (None: no end).
        attempt: Look at one attempt of a training that was resumed: 0 for the
            first, -1 for the last. By default a later attempt replaces the steps
            of earlier ones from its first step on.
        wait: Seconds to wait for the run to come into being.
        map_files: Map finished files; off, they are read, which is slower and does
            not fault where somebody truncates them.
        max_tensor_bytes: The most memory that a tensor may decode to which the bytes
            it has on the disk do not justify; 2 GiB by default.

    Raises:
        NotARun: If there is no run; the message says what is there instead.
        UnsupportedFeature: If a later tdbg made it.
        StorageError: If it cannot be read.
        QueryError: If it has no such attempt.
        ConfigurationError: If an argument can never work.
    """
    directory, steps = _local(path), _range(range_steps)
    options = _options(map_files, max_tensor_bytes)
    deadline = time.monotonic() + wait
    while True:
        try:
            run = RunState(directory, steps, attempt, options)
        except NotARun:
            if time.monotonic() >= deadline:
                raise
            time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))
        else:
            return Trial(run, run.run.path.name if name is None else name)


def _local(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    given: object = text
    if not isinstance(given, str) or not text.strip():
        msg = f"the path of a run must be text, not {given!r}"
        raise ConfigurationError(msg)
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        msg = f"{text}: only local runs can be read, not those of {scheme}://"
        raise ConfigurationError(msg)
    return Path(rest if separator else text).expanduser()


def _range(given: tuple[int, int | None] | None) -> tuple[int, int | None] | None:
    if given is None:
        return None
    try:
        start, stop = given
        start = int(start)
        stop = None if stop is None else int(stop)
    except (TypeError, ValueError) as error:
        msg = f"range_steps must be (first, end), not {given!r}"
        raise ConfigurationError(msg) from error
    if stop is not None and stop <= start:
        msg = f"range_steps must not be empty, got {given!r}"
        raise ConfigurationError(msg)
    return start, stop


def _options(map_files: bool, max_tensor_bytes: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"map_files": bool(map_files)}
    if max_tensor_bytes is not None:
        given: object = max_tensor_bytes
        if not isinstance(given, int) or not 0 <= given < 1 << 63:
            msg = f"max_tensor_bytes must be a number of bytes, not {given!r}"
            raise ConfigurationError(msg)
        options["max_tensor_bytes"] = given
    return options
