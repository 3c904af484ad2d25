"""Requests to a running training: stop now, reconfigure later.

Implements docs/format.md, "Requests".  Whoever owns the run may ask; a request
names the run and the generation of each process it is meant for, so that one
left over from an earlier start, or copied from another run, is never obeyed.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.errors import ConfigurationError, StorageError
from tdbg.run_directory import (
    MAX_JSON_BYTES,
    open_run,
    read_small_file,
    write_new_file,
    writer_directories,
)

__all__ = [
    "Request",
    "RequestListener",
    "StopRequest",
    "request_stop",
    "stop_request",
    "stopping_is_off",
    "write_request",
]

FORMAT = "tdbg-request"
VERSION = 1
NO_STOP_VARIABLE = "TDBG_NO_STOP"
# The longest reason that is kept; the rest of a request is small.
MAX_REASON = 4096
# Names of files in ctl/ that a listener looks at, at most.
MAX_FILES = 10_000
# Coarse file systems stamp a directory once in two seconds: a change this
# recent may hide another one behind the same time.
_STAMP_NS = 2_500_000_000
# Look at the folder this often even where its time never changes.
_RESCAN_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asked of the training.

    Attributes:
        id: Names this request; a copy of the file is the same request.
        type: ``stop``; listeners ignore the types that they do not know.
        generations: Generation of each rank that it is meant for.
        created: When, as ISO 8601 text in UTC.
        body: What the type needs beyond that.
    """

    id: str
    type: str
    generations: Mapping[int, int]
    created: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop the training.

    Attributes:
        reason: Who asked and why, in one sentence.
        rule: Name of the rule that led to it, or None.
        step: Step at which that rule found something, or None.
        request: The request as it was written.
    """

    reason: str
    rule: str | None
    step: int | None
    request: Request


def request_stop(
    run_directory: str | os.PathLike[str],
    *,
    reason: str,
    rule: str | None = None,
    step: int | None = None,
) -> Request:
    """Ask the training that writes to this run to stop.

    It stops at its next root forward, unless it was started with
    ``TDBG_NO_STOP=1``; if it has several ranks, at a step that all of them agree on
    (docs/distributed.md).

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If no training has written in it yet, or another user
            owns it.
        StorageError: If the request cannot be written.
    """
    body = {"reason": reason[:MAX_REASON], "rule": rule, "step": step}
    return write_request(run_directory, "stop", body)


def write_request(
    run_directory: str | os.PathLike[str], type_: str, body: Mapping[str, Any]
) -> Request:
    """Put a request of any type to the newest generation of every rank.

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If no training has written in it yet, another user owns
            it, or the body is too large.
        StorageError: If the request cannot be written.
    """
    run = open_run(run_directory)
    # Ascending, so that the newest generation of a rank stays.
    generations = {
        writer.rank: writer.generation
        for writer in writer_directories(run)
        if writer.role == "train"
    }
    if not generations:
        msg = f"nothing to ask: no training has written in {run.path} yet"
        raise ConfigurationError(msg)
    owner = run.path.stat().st_uid
    if os.geteuid() not in {owner, 0}:
        msg = f"{run.path} belongs to uid {owner}, and only its owner may ask"
        raise ConfigurationError(msg)
    request = Request(
        id=uuid.uuid4().hex,
        type=type_,
        generations=generations,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
        body=dict(body),
    )
    content = json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "id": request.id,
            "type": request.type,
            "run": run.uuid.hex(),
            "generations": {str(rank): gen for rank, gen in generations.items()},
            "created": request.created,
            "body": request.body,
        }
    ).encode()
    if len(content) > MAX_JSON_BYTES:
        msg = f"a request holds at most 64 KiB, not {len(content)} bytes"
        raise ConfigurationError(msg)
    folder = run.path / "ctl"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        write_new_file(folder / f"{request.id}.json", content, owner=owner)
    except OSError as error:
        msg = f"cannot write a request to {folder}: {error.strerror or error}"
        raise StorageError(msg, file=str(folder), kind="io") from error
    return request


class RequestListener:
    """Hears the requests that are meant for this process.

    ``poll`` costs a clock read, and at most ten times a second a ``stat``.  It
    never raises.  Each request is returned once.  Ignored are requests to another
    run, rank or generation, files that are torn, too large, links, or owned by
    anybody but the owner of the run, and copies of requests heard before.

    Args:
        run_directory: The run.
        run_uuid: Its identity.
        generation: Generation of this process's writer.
        rank: Its rank.
        interval: Seconds between two looks at the folder.

    Attributes:
        next_ns: When the folder is looked at next (``time.perf_counter_ns``).
    """

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        run_uuid: bytes,
        generation: int,
        *,
        rank: int = 0,
        interval: float = 0.1,
    ) -> None:
        self._folder = Path(run_directory) / "ctl"
        self._run = run_uuid.hex()
        self._generation = generation
        self._rank = rank
        self._interval_ns = int(interval * 1e9)
        self._owner: int | None = None
        self.next_ns = 0
        self._next_scan_ns = 0
        self._stamp = -1
        self._seen_names: set[str] = set()
        self._seen_ids: set[str] = set()

    def poll(self) -> list[Request]:
        """Requests that have come since the last call, oldest first."""
        now = time.perf_counter_ns()
        if now < self.next_ns:
            return []
        self.next_ns = now + self._interval_ns
        try:
            stamp = self._folder.stat().st_mtime_ns
            settled = time.time_ns() - stamp > _STAMP_NS
            if stamp == self._stamp and settled and now < self._next_scan_ns:
                return []
            self._next_scan_ns = now + _RESCAN_NS
            requests = self._scan()
            # Only after the scan: a change during it is looked at again.
            self._stamp = stamp
        except (OSError, ValueError):
            return []
        return requests

    def _scan(self) -> list[Request]:
        if self._owner is None:
            self._owner = self._folder.parent.stat().st_uid
        found = []
        with os.scandir(self._folder) as entries:
            names = [
                entry.name
                for _, entry in zip(range(MAX_FILES), entries, strict=False)
                if entry.name.endswith(".json") and not entry.name.startswith(".")
            ]
        for name in names:
            if name in self._seen_names:
                continue
            try:
                content = read_small_file(self._folder / name, owner=self._owner)
            except OSError:
                continue  # Perhaps for lack of descriptors: look again later.
            # A file appears whole, so its content is judged once.
            self._seen_names.add(name)
            request = self._judge(content)
            if request is not None and request.id not in self._seen_ids:
                self._seen_ids.add(request.id)
                found.append(request)
        return sorted(found, key=lambda request: (request.created, request.id))

    def _judge(self, text: bytes) -> Request | None:
        try:
            content = json.loads(text)
            if content["format"] != FORMAT or content["version"] != VERSION:
                return None
            request = Request(
                id=str(content["id"]),
                type=str(content["type"]),
                generations={
                    int(rank): int(generation)
                    for rank, generation in content["generations"].items()
                },
                created=str(content["created"]),
                body=dict(content["body"]),
            )
            run = content["run"]
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            return None
        if run != self._run:
            return None
        if request.generations.get(self._rank) != self._generation:
            return None
        return request


def stop_request(request: Request) -> StopRequest:
    """What a request of type ``stop`` says; never raises."""
    reason = request.body.get("reason")
    rule = request.body.get("rule")
    step = request.body.get("step")
    return StopRequest(
        reason=reason[:MAX_REASON] if isinstance(reason, str) else "no reason given",
        rule=rule[:MAX_REASON] if isinstance(rule, str) else None,
        step=step if isinstance(step, int) else None,
        request=request,
    )


def stopping_is_off() -> bool:
    """Whether ``TDBG_NO_STOP`` is set to anything but ``0``."""
    return os.environ.get(NO_STOP_VARIABLE, "0") not in {"", "0"}
