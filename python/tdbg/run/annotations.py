"""What people say about runs: tags, a note, and whether a run is put away.

It lies in one file beside the runs, ``.tdbg-runs.json`` in the folder that holds them,
so that a run itself stays as its training wrote it.  An entry belongs to the run's
uuid: a run that is renamed keeps it, and a new run of an old name does not get it.

A change takes a lock, reads the file, writes another one and renames it into place:
readers see the old file or the new one, and servers that write at once lose nothing of
each other's.  The lock is that of the folder's file system; where that has none (some
network file systems), the last of two that write in the same millisecond wins.

Thread safety: functions; any number of processes may call them.

Errors: StorageError if a file cannot be read or written; ConfigurationError for what
can never be kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tdbg.config.messages import printable
from tdbg.errors import ConfigurationError, StorageError
from tdbg.run.directory import Run, open_run, read_small_file
from tdbg.run.json_values import load_json, mapping_of

__all__ = [
    "ANNOTATIONS_FILE",
    "NOTHING",
    "Annotation",
    "annotate",
    "annotations_in",
    "forget",
]

#: The file, in the folder that holds the runs.
ANNOTATIONS_FILE = ".tdbg-runs.json"
LOCK_FILE = ".tdbg-runs.lock"
FORMAT_VERSION = 1
# A note is a page of text, and a folder has thousands of runs.
MOST_NOTE = 4000
MOST_TAGS = 32
MOST_TAG = 64
MOST_BYTES = 16 << 20
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class Annotation:
    """What somebody said about a run.

    Attributes:
        tags: Words that group runs, without spaces, each once.
        note: Text.
        archived: Whether lists leave the run out unless they are asked for it.
    """

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {**asdict(self), "tags": list(self.tags)}


#: That of a run about which nobody said anything.
NOTHING = Annotation()


def annotations_in(folder: str | os.PathLike[str]) -> dict[str, Annotation]:
    """Return the annotations of a folder's runs, by uuid in hexadecimal.

    What is no annotation in the file is left out, as is a file that somebody else has
    made unreadable: it hides no run.

    Raises:
        StorageError: If the file is there and cannot be read.

    Example:
        for uuid, found in annotations_in("runs").items():
            print(uuid, found.tags)
    """
    return _annotations(_entries(Path(folder)))


def annotate(
    path: str | os.PathLike[str],
    *,
    add_tags: Sequence[str] = (),
    remove_tags: Sequence[str] = (),
    note: str | None = None,
    archived: bool | None = None,
) -> Annotation:
    """Change what is said about a run; return all that is said from now on.

    Args:
        path: Directory of the run.
        add_tags: Tags that it gets, if it does not have them.
        remove_tags: Tags that it loses.
        note: Its new note; None: the old one stays.
        archived: Whether it is put away; None: as before.

    Raises:
        NotARun: If there is no run.
        ConfigurationError: If a tag or the note can never be kept.
        StorageError: If the folder cannot be written to.

    Example:
        annotate("runs/digits", add_tags=["baseline"], note="the one in the paper")
    """
    run = open_run(path)

    def changed(before: Annotation) -> Annotation:
        tags = dict.fromkeys([*before.tags, *add_tags])
        return _checked(
            tags=[each for each in tags if each not in remove_tags],
            note=before.note if note is None else note,
            archived=before.archived if archived is None else archived,
        )

    return _change(run, changed)


def forget(run: Run) -> None:
    """Take back all that is said about a run, which may have been deleted by now.

    Raises:
        StorageError: If the folder cannot be written to.
    """
    if run.uuid.hex() in _entries(run.path.resolve().parent):
        _change(run, lambda _: NOTHING)


def _change(run: Run, changed: Callable[[Annotation], Annotation]) -> Annotation:
    folder, key = run.path.resolve().parent, run.uuid.hex()
    try:
        with _locked(folder):
            entries = _entries(folder)
            found = changed(_annotations(entries).get(key, NOTHING))
            entries[key] = {"name": run.path.name, **found.to_json()}
            if found == NOTHING:
                del entries[key]
            _replace(folder, entries)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError.of(error, "write", folder / ANNOTATIONS_FILE) from error
    return found


def _annotations(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Annotation]:
    found = {}
    for uuid, entry in entries.items():
        with contextlib.suppress(ConfigurationError):
            found[uuid] = _checked(
                tags=entry.get("tags", ()),
                note=entry.get("note", ""),
                archived=entry.get("archived", False),
            )
    return found


def _checked(*, tags: object, note: object, archived: object) -> Annotation:
    if not isinstance(tags, list | tuple) or len(tags) > MOST_TAGS:
        msg = f"a run has at most {MOST_TAGS} tags, each a word"
        raise ConfigurationError(msg)
    for tag in tags:
        _check_tag(tag)
    if not isinstance(note, str) or len(note) > MOST_NOTE:
        msg = f"a note is text of at most {MOST_NOTE} characters"
        raise ConfigurationError(msg)
    if not isinstance(archived, bool):
        msg = f"archived must be true or false, not {archived!r}"
        raise ConfigurationError(msg)
    return Annotation(tuple(dict.fromkeys(tags)), note, archived)


def _check_tag(tag: object) -> None:
    is_word = isinstance(tag, str) and 0 < len(tag) <= MOST_TAG
    if not is_word or printable(str(tag)) != tag or any(c.isspace() for c in str(tag)):
        msg = f"a tag is a word of at most {MOST_TAG} characters, not {tag!r}"
        raise ConfigurationError(msg)


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the file holds, entries of later versions included."""
    file = folder / ANNOTATIONS_FILE
    try:
        content = mapping_of(load_json(read_small_file(file, limit=MOST_BYTES)))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError.of(error, "read", file) from error
    except ValueError as error:
        msg = f"{file} is not JSON: repair it, or move it away"
        raise StorageError(msg, file=str(file), kind="damage") from error
    if content.get("version") != FORMAT_VERSION:
        msg = f"{file} has another version than {FORMAT_VERSION}: update tdbg"
        raise StorageError(msg, file=str(file), kind="unsupported")
    runs = mapping_of(content.get("runs"))
    return {uuid: dict(mapping_of(entry)) for uuid, entry in runs.items()}


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Have the folder's file alone; where there are no locks, go on without."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / LOCK_FILE, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def _replace(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    content = {"version": FORMAT_VERSION, "runs": entries}
    temporary = folder / f"{ANNOTATIONS_FILE}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder / ANNOTATIONS_FILE)
    finally:
        temporary.unlink(missing_ok=True)
