"""Run directories: makes them, finds them, and lists the writers in them.

Implements docs/format.md, "A run".  Nothing in a run is ever executed or
imported, and symbolic links inside one are not followed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import errno
import json
import os
import re
import shlex
import stat
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tdbg.errors import ConfigurationError, NotARun, StorageError, UnsupportedFeature
from tdbg.run.foreign import are_of_smdebug, is_smdebug_output, only_read
from tdbg.run.json_values import load_json

__all__ = [
    "RUN_FILE",
    "Run",
    "WriterDirectory",
    "create_run",
    "find_runs",
    "fingerprint",
    "is_run",
    "local_path",
    "open_run",
    "read_small_file",
    "run_of_process",
    "writer_directories",
]

FORMAT = "tdbg-run"
VERSION = 1
RUN_FILE = "RUN.json"
# No file of JSON in a run is larger; a reader refuses to look further.
MAX_JSON_BYTES = 64 * 1024
# What brings a run here from elsewhere, and only what is new of it.
_COPIES = {
    "s3": "`aws s3 sync {source} {target}`",
    "gs": "`gcloud storage rsync --recursive {source} {target}`",
}
# Errors of file systems that have no hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_WRITER_NAME = re.compile(r"(train|engine|profiler)-(0|[1-9]\d{0,9})-([1-9]\d{0,9})")
# The path of a shard; the first group is the directory of its run.
_SHARD = re.compile(r"(/.*)/w/train-\d+-\d+/\d+\.tds")


@dataclass(frozen=True, slots=True)
class Run:
    """An existing run.

    Attributes:
        path: Its directory, absolute.
        uuid: Its identity, which every shard of the run repeats.
        created: When it was made, as ISO 8601 text in UTC.
    """

    path: Path
    uuid: bytes
    created: str


@dataclass(frozen=True, slots=True, order=True)
class WriterDirectory:
    """The directory of one process that writes, or has written, to a run."""

    role: str
    rank: int
    generation: int
    path: Path

    @property
    def name(self) -> str:
        """The part of the name that all generations share: ``train-0``."""
        return f"{self.role}-{self.rank}"


def create_run(path: str | os.PathLike[str]) -> Run:
    """Make *path* a run, or join the run that it is already.

    Any number of processes may call this at once: one of them makes the run, and
    all of them return it.

    Raises:
        StorageError: If the directory or a file in it cannot be made.
        NotARun: If the directory has a RUN.json that does not describe a run.
    """
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - keep symbolic links
    try:
        new = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory, directory / "ctl", directory / "w"):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        if not (directory / RUN_FILE).exists():
            _publish(directory)
        # What is flushed durably is lost with the name of a folder above it.
        for each in new:
            with contextlib.suppress(PermissionError):  # To write in, not to read.
                _sync_folder(each.parent)
    except OSError as error:
        raise StorageError.of(error, "create the run", directory) from error
    return open_run(directory)


def local_path(path: str | os.PathLike[str]) -> Path:
    """Where a run, or a folder of runs, lies on this machine.

    Args:
        path: A path, or a ``file://`` URL; ``~`` is the home folder.

    Raises:
        ConfigurationError: If it is not text, or the URL of another place: tdbg maps
            and follows files, so copy such a run to this machine first.

    Example:
        >>> local_path("file:///runs/digits")
        PosixPath('/runs/digits')
    """
    text = os.fspath(path)
    given: object = text
    if not isinstance(given, str) or not text.strip():
        msg = f"the path of a run must be text, not {given!r}"
        raise ConfigurationError(msg)
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return Path(rest if separator else text).expanduser()
    name = rest.rstrip("/").rpartition("/")[2] or "copy"
    command = _COPIES.get(scheme, "a tool for {scheme}://").format(
        scheme=scheme, source=shlex.quote(text), target=shlex.quote(f"runs/{name}")
    )
    msg = (
        f"{text}: tdbg reads local runs only, not {scheme}://; copy the run first, "
        f"with {command}, repeat that while it trains, and give runs/{name}"
    )
    raise ConfigurationError(msg)


def run_of_process(process: int) -> Path:
    """The directory of the run that a process of this machine writes to.

    Raises:
        NotARun: If the process writes to no run or to several, does not exist, or
            belongs to another user.
    """
    folder = Path(f"/proc/{process}/fd")
    found = set()
    try:
        for descriptor in folder.iterdir():
            with contextlib.suppress(OSError):
                match = _SHARD.fullmatch(os.readlink(descriptor))  # noqa: PTH115
                if match and _is_for_writing(process, descriptor.name):
                    found.add(match[1])
    except OSError as error:
        msg = f"process {process}: {error.strerror}; give the directory of its run"
        raise NotARun(msg, file=str(folder), kind="missing") from error
    if len(found) == 1:
        return Path(found.pop())
    several = f"several runs: {', '.join(sorted(found))}" if found else "no run"
    msg = f"process {process} writes to {several}; give the directory of one"
    raise NotARun(msg, file=str(folder), kind="missing")


def _is_for_writing(process: int, descriptor: str) -> bool:
    """Whether a process may write to a file; one that reads a run holds shards too."""
    text = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text()
    flags = int(text.partition("flags:")[2].split()[0], 8)
    return flags & os.O_ACCMODE != os.O_RDONLY


def open_run(path: str | os.PathLike[str]) -> Run:
    """The run at *path*.

    Raises:
        NotARun: If there is no run; the message says what is there instead.
        UnsupportedFeature: If a later tdbg made the run.
        StorageError: If RUN.json cannot be read.
        ConfigurationError: If *path* is a URL.
    """
    if "://" in os.fspath(path):
        msg = f"{path}: this works on the directory of a run, where the training runs"
        raise ConfigurationError(msg)
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - keep symbolic links
    file = directory / RUN_FILE
    try:
        text = read_small_file(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{directory} is not a run: {_what_is_there(directory)}"
        raise NotARun(msg, file=str(file), kind="missing") from error
    except OSError as error:
        raise StorageError.of(error, "read", file) from error
    try:
        content = load_json(text)
        if content["format"] != FORMAT:
            raise ValueError(content["format"])
        version = int(content["version"])
        identity = uuid.UUID(hex=content["uuid"]).bytes
        created = str(content["created"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{file} is not the description of a run"
        raise NotARun(msg, file=str(file), kind="damage") from error
    if version != VERSION:
        msg = f"{directory} has run format {version}; this tdbg reads {VERSION}"
        raise UnsupportedFeature(msg, file=str(file), kind="unsupported")
    return Run(directory, identity, created)


def writer_directories(run: Run | str | os.PathLike[str]) -> list[WriterDirectory]:
    """The directories of all writers of the run, by role, rank and generation."""
    root = run.path if isinstance(run, Run) else Path(run)
    found = []
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(root / "w") as entries,
    ):
        for entry in entries:
            match = _WRITER_NAME.fullmatch(entry.name)
            if match and entry.is_dir(follow_symlinks=False):
                role, rank, generation = match.groups()
                found.append(
                    WriterDirectory(role, int(rank), int(generation), Path(entry.path))
                )
    return sorted(found)


def fingerprint(path: str | os.PathLike[str]) -> int:
    """A number that is another one when a file below *path* came, went or was written.

    By inodes, sizes and times: nothing is opened.  A mapped file that is written may
    keep its time for a while, so it says nothing of a training that goes on.
    """
    return hash(
        frozenset(
            (status.st_ino, status.st_size, status.st_mtime_ns)
            for status in _walk(Path(path))
        )
    )


def is_run(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory has a RUN.json; False where we may not look into it."""
    try:
        return (Path(directory) / RUN_FILE).is_file()
    except OSError:
        return False


def find_runs(folder: str | os.PathLike[str], depth: int = 3) -> list[Path]:
    """The runs at or below *folder*, in order of their names.

    What smdebug wrote counts: ``importers.local_run`` makes a run of it.  The search
    goes at most *depth* levels down, never into a run, and past folders
    below that cannot be read.

    Raises:
        StorageError: If *folder* itself cannot be read.
    """
    try:
        return _runs_below(Path(folder), depth)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError.of(error, "read", folder) from error


def _runs_below(root: Path, depth: int) -> list[Path]:
    if (root / RUN_FILE).is_file():
        return [root]
    if depth <= 0:
        return [root] if is_smdebug_output(root) else []
    with os.scandir(root) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    if are_of_smdebug(entry.name for entry in entries):
        return [root]
    found = []
    for entry in entries:
        with contextlib.suppress(OSError):
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                found += _runs_below(Path(entry.path), depth - 1)
    return found


def read_small_file(
    path: Path, owner: int | None = None, *, limit: int = MAX_JSON_BYTES
) -> bytes:
    """Read a regular file of a bounded size; follows no link.

    Args:
        path: The file.
        owner: If given, the uid that must own the file.
        limit: The most bytes that it may have.

    Raises:
        OSError: If the file cannot be read, is no regular file, is too large, or
            belongs to another user.
    """
    # A FIFO would block the open; O_NONBLOCK makes it return at once.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if owner is not None and status.st_uid != owner:
            raise OSError(errno.EPERM, "belongs to another user", str(path))
        if status.st_size > limit:
            raise _too_large(path, limit)
        content = b""
        while len(content) <= limit:
            piece = os.read(descriptor, limit + 1 - len(content))
            if not piece:
                return content
            content += piece
        raise _too_large(path, limit)
    finally:
        os.close(descriptor)


def _too_large(path: Path, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {limit // 1024} KiB", str(path))


def write_new_file(path: Path, content: bytes, *, owner: int | None = None) -> None:
    """Write a new file, which appears whole and survives a power failure.

    Raises:
        FileExistsError: If the file exists already.
        OSError: If the file cannot be made.
    """
    descriptor, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None and owner != os.geteuid():
                os.fchown(descriptor, owner, -1)
            os.fsync(descriptor)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, "exists", str(path)) from error
            temporary.rename(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder outlive a power failure."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _publish(directory: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "uuid": uuid.uuid4().hex,
        "created": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    with contextlib.suppress(FileExistsError):  # Another process was faster.
        write_new_file(directory / RUN_FILE, json.dumps(content).encode() + b"\n")


def _walk(directory: Path) -> Iterator[os.stat_result]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield entry.stat(follow_symlinks=False)


def _what_is_there(directory: Path) -> str:
    """Say why *directory* is no run, and propose the nearest run."""
    for parent in list(directory.parents)[:3]:
        if is_run(parent):
            return f"it lies inside one; did you mean {parent}?"
    if directory.is_file():
        return "it is a file"
    if is_smdebug_output(directory):
        return only_read(directory)
    if directory.is_dir():
        below: list[Path] = []
        with contextlib.suppress(StorageError):
            below = find_runs(directory)
        if below:
            shown = ", ".join(str(run) for run in below[:3])
            return f"it contains {len(below)} of them; did you mean {shown}?"
        return f"it has no {RUN_FILE}"
    try:
        names = sorted(entry.name for entry in os.scandir(directory.parent))
    except OSError:
        return f"neither it nor {directory.parent} exists"
    near = difflib.get_close_matches(directory.name, names, n=1)
    if near:
        return f"it does not exist; did you mean {directory.parent / near[0]}?"
    return "it does not exist"
