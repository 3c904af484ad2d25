"""The runs of one launch: ``run``, ``run-2``, ``run-3``, ...

A program may train several models, one after another or in processes of its own.  Each
training is a run, and the runs of one launch have the directory or the URL that the
user named, with a number.

Thread safety: immutable values; any number of processes may call ``claim`` at once.
"""

from __future__ import annotations

import contextlib
import glob
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from tdbg.remote import beside, is_url, leave_waiting_to_launcher, spool_of
from tdbg.run.directory import is_run, writer_directories
from tdbg.run.in_use import LivingWriter, living_writer

__all__ = [
    "DirectoryFamily",
    "Family",
    "Place",
    "StoreFamily",
    "existing",
    "family_of",
    "in_use",
]

#: Where a run is: its directory, or its URL.
Place: TypeAlias = Path | str


class Family(ABC):
    """The runs of one launch, as each of its processes sees them."""

    @abstractmethod
    def member(self, number: int) -> Place:
        """Return where the run of this number is, counted from 1."""

    @abstractmethod
    def claim(self, *, may_join: bool) -> Place:
        """Take a place that no other training of this launch has.

        Args:
            may_join: Whether a run of an earlier launch may be taken; the training is
                then a further attempt of that run.

        Raises:
            OSError: If the place cannot be made.
        """

    def share(self, number: int) -> Place:
        """Take the place of this number, which other ranks take as well."""
        return self.member(number)

    @abstractmethod
    def release(self, place: Place) -> None:
        """Give a claimed place back, in which there is no run yet."""

    @abstractmethod
    def appeared(self) -> list[Place]:
        """Return the runs that were made or joined since the launch, by number."""


class DirectoryFamily(Family):
    """Runs in directories.

    Args:
        out: The first directory.
        before: The result of ``existing`` at the launch.
    """

    def __init__(self, out: Path, before: Mapping[str, int]) -> None:
        self._out = out
        self._before = before

    def member(self, number: int) -> Path:  # noqa: D102
        return _numbered(self._out, number)

    def claim(self, *, may_join: bool) -> Path:  # noqa: D102
        self._out.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            path = self.member(number)
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                if not may_join or not self._is_as_before(path):
                    continue
                if in_use(path) is not None:
                    continue
            return path
        raise AssertionError

    def release(self, place: Place) -> None:  # noqa: D102
        with contextlib.suppress(OSError):  # It is not empty.
            Path(place).rmdir()

    def appeared(self) -> list[Place]:  # noqa: D102
        return [
            path
            for path in _directories(self._out)
            if is_run(path) and not self._is_as_before(path)
        ]

    def _is_as_before(self, path: Path) -> bool:
        return self._before.get(str(path)) == _last_writer(path)


class StoreFamily(Family):
    """Runs at URLs.

    The library of the store is left to the process that ships: who has which number
    is noted in a folder of this machine.

    Args:
        url: The first URL.
        before: The result of ``existing`` at the launch.
        claims: The folder, which the launch has made.
    """

    def __init__(self, url: str, before: Mapping[str, int], claims: Path) -> None:
        self._url = url
        self._before = before
        self._claims = claims

    def member(self, number: int) -> str:  # noqa: D102
        return self._url if number == 1 else f"{self._url}-{number}"

    def claim(self, *, may_join: bool) -> str:  # noqa: D102
        for number in count(1):
            url = self.member(number)
            if url in self._before and (not may_join or in_use(url) is not None):
                continue
            with contextlib.suppress(FileExistsError):
                (self._claims / str(number)).mkdir()
                leave_waiting_to_launcher(url)
                return url
        raise AssertionError

    def share(self, number: int) -> str:  # noqa: D102
        (self._claims / str(number)).mkdir(exist_ok=True)
        leave_waiting_to_launcher(self.member(number))
        return self.member(number)

    def release(self, place: Place) -> None:  # noqa: D102
        for claim in self._claims.iterdir():
            if self.member(int(claim.name)) == place:
                claim.rmdir()

    def appeared(self) -> list[Place]:  # noqa: D102
        numbers = sorted(int(claim.name) for claim in self._claims.iterdir())
        return [self.member(number) for number in numbers]


def family_of(settings: Mapping[str, Any]) -> Family:
    """Return the family of a launch.

    Args:
        settings: Of the launch: ``out_dir``, ``existing``, and ``claims`` for a URL.
    """
    out, before = settings["out_dir"], settings.get("existing", {})
    if is_url(out):
        return StoreFamily(out, before, Path(settings["claims"]))
    return DirectoryFamily(Path(out), before)


def existing(out: Place) -> dict[str, int]:
    """Return the places before a launch, and the time of each last writer.

    The result is what a family compares with, and can be JSON.  In a store, the time
    is not known, and 0.

    Raises:
        ConfigurationError: If *out* is a bad URL, or what reads it is missing.
        StorageError: If a store does not answer, or refuses.
    """
    if is_url(out):
        taken = re.compile(rf"{re.escape(str(out))}(-([2-9]|[1-9]\d+))?")
        return dict.fromkeys(filter(taken.fullmatch, beside(str(out))), 0)
    return {str(path): _last_writer(path) for path in _directories(Path(out))}


def in_use(place: Place) -> LivingWriter | None:
    """Return a writer of the run whose process lives, or None.

    Of a run at a URL, it knows the writers of this machine.
    """
    path = spool_of(str(place)) if is_url(place) else Path(place)
    return living_writer(
        each for each in writer_directories(path) if each.role == "train"
    )


def _numbered(out: Path, number: int) -> Path:
    return out if number == 1 else out.with_name(f"{out.name}-{number}")


def _directories(out: Path) -> list[Path]:
    numbered = {}
    for path in out.parent.glob(f"{glob.escape(out.name)}-*"):
        number = path.name[len(out.name) + 1 :]
        if number.isdecimal() and path == _numbered(out, int(number)):
            numbered[int(number)] = path
    paths = [out, *(numbered[number] for number in sorted(numbered))]
    return [path for path in paths if path.is_dir()]


def _last_writer(path: Path) -> int:
    """Return when the last writer came, by its directory; 0 if there was none."""
    try:
        return (path / "w").stat().st_mtime_ns
    except OSError:
        return 0
