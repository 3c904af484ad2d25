"""What a trial asks of a run, wherever that lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tdbg._core import RunReader
from tdbg.run.directory import WriterDirectory

if TYPE_CHECKING:
    from tdbg.remote import Uploads

__all__ = ["RunPlace"]


class RunPlace(Protocol):
    """A run, wherever it lies.

    Attributes:
        path: The path of its directory, or its URL.
        name: What to call it.
        uuid: Its identity, which every shard repeats.
        created: When it was made, as ISO 8601 text in UTC.
    """

    path: str
    name: str
    uuid: bytes
    created: str

    @property
    def trouble(self) -> str:
        """Trouble: what could not be looked at last; empty: nothing."""

    def changed(self) -> bool:
        """Look for news; return whether writers may have come since the last call."""

    def writers(self) -> list[WriterDirectory]:
        """All writers, by role, rank and generation."""

    def open(self, writer: WriterDirectory, **options: Any) -> RunReader:
        """Return what reads the files of a writer."""

    def files(self, writer: WriterDirectory) -> Mapping[str, object]:
        """Another value whenever the files of a writer have changed."""

    def page(self, writer: WriterDirectory) -> dict[str, Any] | None:
        """Read the commit page of a writer, as ``look_at_writer`` does."""

    def uploads(self) -> Uploads | None:
        """How its upload to a store is; None: it is in a directory."""
