"""How the upload of a run is: what is in the store, what that took, what waits here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tdbg.remote.spool import spool_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tdbg.remote.layout import Manifest

__all__ = ["Uploads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """How the upload of a run to a store is.

    The counts are those of one uploader, where several machines send a run: of the one
    that has asked most.

    Attributes:
        files: How many files are in the store, named by manifests.
        bytes: Their sizes together.
        requests: How often the uploader has asked the store for anything.
        failures: How many of these requests failed.
        retries: How often one that failed was repeated.
        spool: The folder of this machine where files wait, or None.
        waiting_files: How many of them are there, with those that are written to.
        waiting_bytes: Their sizes together.
    """

    files: int
    bytes: int
    requests: int
    failures: int
    retries: int
    spool: str | None
    waiting_files: int
    waiting_bytes: int

    @classmethod
    def of(cls, url: str, manifests: Iterable[Manifest]) -> Uploads:
        """Return what the newest manifests of a run tell, and its spool here."""
        newest = list(manifests)
        counts = max(
            (each.uploads for each in newest),
            key=lambda counts: counts.get("requests", 0),
            default={},
        )
        spool = spool_of(url)
        left = [path.stat().st_size for path in spool.glob("w/*/*.td?")]
        return cls(
            files=sum(each.n_files for each in newest),
            bytes=sum(each.n_bytes for each in newest),
            requests=counts.get("requests", 0),
            failures=counts.get("failures", 0),
            retries=counts.get("retries", 0),
            spool=str(spool) if spool.exists() else None,
            waiting_files=len(left),
            waiting_bytes=sum(left),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)
