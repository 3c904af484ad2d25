"""Requests to a running training: stop now, reconfigure later.

Implements docs/format.md, "Requests".  Only the owner of the run may write requests.
A request names the run and the generation of each process that is to obey, so that a
request left over from an earlier start, or copied from another run, is never obeyed.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import getpass
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from tdbg.config.messages import (
    check_choice,
    check_flag,
    check_known,
    printable,
    short,
    whole_number,
)
from tdbg.config.needs import Needs
from tdbg.config.patterns import NamePattern
from tdbg.errors import ConfigurationError, StorageError
from tdbg.modes import ModeKeys
from tdbg.run.aside import Aside, Unanswered
from tdbg.run.directory import (
    MAX_JSON_BYTES,
    open_run,
    read_small_file,
    write_new_file,
    writer_directories,
)
from tdbg.run.foreign import is_imported
from tdbg.run.json_values import load_json

__all__ = [
    "Addressee",
    "Asked",
    "CaptureRequest",
    "Request",
    "RequestListener",
    "StopRequest",
    "asker",
    "request_capture",
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
# Coarse file systems set the time of a directory once in two seconds: after a change
# this recent, a further one may leave the same time.
_STAMP_NS = 2_500_000_000
# Look at the folder this often even where its time never changes.
_RESCAN_NS = 5_000_000_000
# A training waits so long for a file system that does not answer, and then no more
# until it has answered; of its time waiting takes at most one part in so many, while
# the pause between two looks is below so many intervals.
PATIENCE_SECONDS = 1.0
_SHARE = 20
_MOST_INTERVALS = 200


@dataclass(frozen=True, slots=True)
class Request:
    """What the owner of a run asks of its training.

    Attributes:
        id: Identity of the request; a copy of its file is the same request.
        type: ``stop``, ``capture`` or ``profile``; listeners ignore types that they do
            not know.
        generations: For each rank that is to obey, the generation of its writer.
        created: When the request was made, as ISO 8601 text in UTC.
        body: The contents, which depend on the type.
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
        rule: Name of the rule that led to the request, or None.
        step: Step at which that rule found something, or None.
        request: The request as it was written.
    """

    reason: str
    rule: str | None
    step: int | None
    request: Request


class Addressee(Protocol):
    """A run whose training takes requests, and which is no directory of this machine.

    Attributes:
        uuid: Its identity.
    """

    uuid: bytes

    def generations(self) -> dict[int, int]:
        """For each rank, the generation of its newest writer."""

    def write(self, name: str, content: bytes) -> None:
        """Store a new object below the run; raises StorageError."""


# A path, or what takes requests in its place.
Asked = str | os.PathLike[str] | Addressee


class _Directory:
    """A run of this machine: see ``Addressee``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._run = open_run(path)
        if is_imported(self._run.path):
            msg = f"{path} was imported: no training reads what is asked there"
            raise ConfigurationError(msg)
        self.uuid = self._run.uuid
        self._owner = self._run.path.stat().st_uid

    def generations(self) -> dict[int, int]:
        """See ``Addressee``."""
        # The directories ascend, so that the newest generation of a rank stays.
        found = {
            writer.rank: writer.generation
            for writer in writer_directories(self._run)
            if writer.role == "train"
        }
        if found and os.geteuid() not in {self._owner, 0}:
            path = self._run.path
            msg = f"{path} belongs to uid {self._owner}, and only its owner may ask"
            raise ConfigurationError(msg)
        return found

    def write(self, name: str, content: bytes) -> None:
        """See ``Addressee``."""
        file = self._run.path / name
        try:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_new_file(file, content, owner=self._owner)
        except OSError as error:
            raise StorageError.of(error, "write a request to", file.parent) from error


def request_stop(
    run_directory: Asked,
    *,
    reason: str,
    rule: str | None = None,
    step: int | None = None,
) -> Request:
    """Ask the training that writes to this run to stop.

    The training stops at its next root forward, unless it was started with
    ``TDBG_NO_STOP=1``; if it has several ranks, at a step that all of them agree on
    (docs/distributed.md).

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If no training has written to the run yet, or another user
            owns it.
        StorageError: If the request cannot be written.
    """
    body = {"reason": reason[:MAX_REASON], "rule": rule, "step": step}
    return write_request(run_directory, "stop", body)


def write_request(run_directory: Asked, type_: str, body: Mapping[str, Any]) -> Request:
    """Write a request of any type to the newest generation of every rank.

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If no training has written to the run yet, another user
            owns it, or the body is too large.
        StorageError: If the request cannot be written.
    """
    run: Addressee
    if isinstance(run_directory, str | os.PathLike):
        run = _Directory(run_directory)
    else:
        run = run_directory
    generations = run.generations()
    if not generations:
        msg = f"no training to ask: none has written to {run_directory} yet"
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
    run.write(f"ctl/{request.id}.json", content)
    return request


class RequestListener:
    """Receives the requests that this process is to obey.

    ``poll`` costs a clock read, and at most ten times a second a ``stat``, in a thread
    of its own: a file system that hangs costs the training a second, once, and a slow
    one a twentieth of its time.  What it answers late the next ``poll`` returns.  It
    never raises, and returns each request once.  The listener ignores requests to
    another run, rank or generation; files that are torn, too large, links, or not
    owned by the owner of the run; and copies of requests that it has returned.

    Args:
        run_directory: The run.
        run_uuid: Identity of the run.
        generation: Generation of this process's writer.
        rank: Rank of this process.
        interval: Seconds between two reads of the folder.

    Attributes:
        next_ns: When the folder is read next (``time.perf_counter_ns``).
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
        self._aside = Aside("tdbg-requests")

    def poll(self) -> list[Request]:
        """The requests that were written since the last call, oldest first."""
        now = time.perf_counter_ns()
        if now < self.next_ns:
            return []
        try:
            look = partial(self._look, now)
            requests = self._aside.call(look, PATIENCE_SECONDS)
        except (Unanswered, OSError, ValueError):
            requests = []
        pause = _SHARE * (time.perf_counter_ns() - now)
        most = _MOST_INTERVALS * self._interval_ns
        self.next_ns = now + max(self._interval_ns, min(pause, most))
        return requests

    def close(self) -> None:
        """End the thread."""
        self._aside.close()

    # ---- in the thread -------------------------------------------------------

    def _look(self, now: int) -> list[Request]:
        stamp = self._folder.stat().st_mtime_ns
        settled = time.time_ns() - stamp > _STAMP_NS
        if stamp == self._stamp and settled and now < self._next_scan_ns:
            return []
        self._next_scan_ns = now + _RESCAN_NS
        requests = self._scan()
        # Set after the scan: a change during it leads to another scan.
        self._stamp = stamp
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
                continue  # Perhaps for lack of descriptors: try again later.
            # A file appears whole, so it is parsed once.
            self._seen_names.add(name)
            request = self._parse(content)
            if request is not None and request.id not in self._seen_ids:
                self._seen_ids.add(request.id)
                found.append(request)
        return sorted(found, key=lambda request: (request.created, request.id))

    def _parse(self, text: bytes) -> Request | None:
        """The request in a file; None unless this process is to obey it."""
        try:
            content = load_json(text)
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
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None
        if run != self._run:
            return None
        if request.generations.get(self._rank) != self._generation:
            return None
        return request


def stop_request(request: Request) -> StopRequest:
    """Parse a request of type ``stop``; never raises.

    The training prints the reason, as it is, where it ends: nothing in it may be
    something that a terminal obeys.
    """
    reason = request.body.get("reason")
    rule = request.body.get("rule")
    step = request.body.get("step")
    return StopRequest(
        reason=_sentence(reason) if isinstance(reason, str) else "no reason given",
        rule=_sentence(rule) if isinstance(rule, str) else None,
        step=step if isinstance(step, int) else None,
        request=request,
    )


def _sentence(text: str) -> str:
    return printable(text[:MAX_REASON].replace("\n", " "))


def stopping_is_off() -> bool:
    """Whether ``TDBG_NO_STOP`` is set to anything but ``0``."""
    return os.environ.get(NO_STOP_VARIABLE, "0") not in {"", "0"}


MAX_NAMES = 64
MAX_LENGTH = 256
MAX_NUMBER = 1 << 40
MAX_NEEDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What the training shall capture, beside what it captures or instead of it.

    Args:
        collections: Names of collections of the training's hook.
        regex: Expressions that find the names of further tensors.
        interval: Steps from one capture to the next.
        steps: Number of training steps after which the request ends; None: it lasts
            until the training ends or another request ends it.
        raw: Whether values are captured as well, not only statistics.
        mode: The only mode in which to capture; None: every mode.
        instead: Whether, until the request ends, the hook captures nothing else but
            losses and scalars.
        end: End all earlier requests, and begin nothing.
        needs: Needs of rules, each as ``dataclasses.asdict`` makes it but with lists
            of names. They are captured as for ``Hook(rules=)``; *interval*, *mode* and
            *raw* do not apply to them.
        who: The user who asks, as ``user@host``.

    Raises:
        ConfigurationError: If the request can never work, or could cost the training
            much time.
    """

    collections: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()
    interval: int = 1
    steps: int | None = None
    raw: bool = False
    mode: str | None = None
    instead: bool = False
    end: bool = False
    needs: tuple[Mapping[str, Any], ...] = ()
    who: str = ""

    def __post_init__(self) -> None:
        for name in ("collections", "regex"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        for pattern in self.regex:
            NamePattern.of_setting("regex", pattern)
        _check_number("interval", self.interval)
        if self.steps is not None:
            _check_number("steps", self.steps)
        for name in ("raw", "instead", "end"):
            check_flag(name, getattr(self, name))
        if self.mode is not None:
            check_choice("mode", self.mode, ModeKeys.__members__)
        object.__setattr__(self, "who", str(self.who)[:MAX_LENGTH])
        object.__setattr__(self, "needs", _needs(self.needs))
        if self.needs and not (self.collections or self.regex):
            if self.raw or self.mode is not None:
                msg = (
                    "raw and mode apply to collections and names only: "
                    "rules determine what they need"
                )
                raise ConfigurationError(msg)
        elif not (self.end or self.collections or self.regex):
            msg = "the request is empty: name a collection, a regex or rules"
            raise ConfigurationError(msg)

    def every_need(self) -> tuple[Needs, ...]:
        """The needs of rules."""
        return tuple(_need(each) for each in self.needs)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Parse the body of a request.

        Raises:
            ConfigurationError: If the body is not that of a request to capture.
        """
        check_known(body, [item.name for item in dataclasses.fields(cls)])
        return cls(**body)


def request_capture(
    run_directory: Asked,
    *,
    collections: Iterable[str] = (),
    regex: Iterable[str] = (),
    interval: int = 1,
    steps: int | None = None,
    raw: bool = False,
    mode: ModeKeys | str | None = None,
    instead: bool = False,
    end: bool = False,
    needs: Iterable[Needs] = (),
) -> Request:
    """Ask the training that writes to this run to capture more, or something else.

    Args:
        run_directory: The run.
        collections: See ``CaptureRequest``, as for all arguments below.
        regex: Expressions that find names of tensors.
        interval: Steps from one capture to the next.
        steps: Number of training steps after which the request ends.
        raw: Whether values are captured as well.
        mode: The only mode in which to capture.
        instead: Whether this replaces what the hook captures.
        end: End all earlier requests.
        needs: Needs of rules: ``tdbg.rules.needs_of("default")``.

    Returns:
        The request. The events about its outcome have its ``id``.

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If the request can never work, no training has written to
            the run yet, or another user owns it.
        StorageError: If the request cannot be written.
    """
    asked = CaptureRequest(
        collections=_names("collections", collections),
        regex=_names("regex", regex),
        interval=interval,
        steps=steps,
        raw=raw,
        mode=mode.name if isinstance(mode, ModeKeys) else mode,
        instead=instead,
        end=end,
        needs=tuple(need.to_json() for need in needs),
        who=asker(),
    )
    return write_request(run_directory, "capture", dataclasses.asdict(asked))


def asker() -> str:
    """Return the user of this process, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _names(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        msg = f"{name} must be a list of texts, not {short(given)}"
        raise ConfigurationError(msg)
    values = tuple(given)
    if len(values) > MAX_NAMES:
        msg = f"{name}: at most {MAX_NAMES}, not {len(values)}"
        raise ConfigurationError(msg)
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_LENGTH:
            msg = (
                f"{name}: {short(value)} is not text of at most {MAX_LENGTH} characters"
            )
            raise ConfigurationError(msg)
    return values


def _check_number(name: str, value: object, *, least: int = 1) -> None:
    if whole_number(value, least, MAX_NUMBER) is None:
        msg = f"{name} must be a number of steps, not {short(value)}"
        raise ConfigurationError(msg)


def _needs(given: object) -> tuple[Mapping[str, Any], ...]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        msg = f"needs must be a list of needs, not {short(given)}"
        raise ConfigurationError(msg)
    found = tuple(given)
    if len(found) > MAX_NEEDS:
        msg = f"needs: at most {MAX_NEEDS}, not {len(found)}"
        raise ConfigurationError(msg)
    for each in found:
        _need(each)
    return found


def _need(given: object) -> Needs:
    """Parse one need, which may come from anybody.

    Raises:
        ConfigurationError: If it is no need.
    """
    if not isinstance(given, Mapping):
        msg = f"needs: {short(given)} is not a rule's need"
        raise ConfigurationError(msg)
    known = {item.name: item.default for item in dataclasses.fields(Needs)}
    check_known(given, known, "needs: unknown setting")
    for name, value in given.items():
        if isinstance(known[name], frozenset):
            _names(name, value)
        elif isinstance(known[name], bool):
            check_flag(f"needs: {name}", value)
        elif value is not None or known[name] is not None:
            _check_number(name, value, least=0 if name == "raw_limit" else 1)
    return Needs(**given)
