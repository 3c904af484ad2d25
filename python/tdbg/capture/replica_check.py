"""Compares the replicas of a training, rank by rank, at a few of its steps.

Each rank posts the print of its replica (``replica_prints``) in the store of all ranks
at the same steps: the first ones, powers of two, and then every ``EVERY`` steps.  The
first rank that writes reads and compares them.  No rank waits for another: a thread of
its own asks the store, and a print that does not come is no difference.

Thread safety: the training's thread.

Errors: a store that fails ends the check.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tdbg.capture.replica_differences import Difference, Differences
from tdbg.capture.replica_prints import Print
from tdbg.config.options import KeyValueStore
from tdbg.run.aside import Aside, Unanswered

__all__ = ["EVERY", "RankGroup", "ReplicaCheck", "is_look"]

EVERY = 2048
"""Steps between two looks, at last."""
# Looks of which the store keeps the prints.
_KEPT = 8
# How long the prints of a look are waited for; and how often they are asked for.
_PATIENCE_NS, _PAUSE_NS = 30_000_000_000, 20_000_000
# How long the end of a training waits for them, in seconds.
_LAST_SECONDS = 1.0
# Ranks whose prints are read where they differ.
_MOST_READ = 32


class RankGroup(NamedTuple):
    """The ranks of a training, as one of them sees them.

    Attributes:
        store: What they share.
        rank: This one's number.
        size: How many there are.
        leads: Whether this one compares.
    """

    store: KeyValueStore
    rank: int
    size: int
    leads: bool


def is_look(n: int) -> bool:
    """Return whether replicas are compared before step *n* of the optimizer.

    Example:
        >>> [n for n in range(20) if is_look(n)]
        [0, 1, 2, 4, 8, 16]
    """
    return n % EVERY == 0 if n > EVERY else n & (n - 1) == 0


@dataclass(slots=True)
class _Look:
    """A look whose prints are waited for; digests by rank."""

    n: int
    slot: int
    names: Sequence[str]
    since_ns: int
    digests: dict[int, str] = field(default_factory=dict)


class ReplicaCheck:
    """Posts the prints of this rank's replica, and compares those of all.

    Args:
        ranks: The ranks.
        found: Called with what is found, on the rank that leads.

    Attributes:
        is_over: Whether nothing more is compared.
    """

    def __init__(self, ranks: RankGroup, found: Callable[[Difference], None]) -> None:
        self._ranks = ranks
        self._found = found
        self._aside = Aside("tdbg-replicas")
        self._n_looks = 0
        self._waiting: deque[_Look] = deque()
        self._posts: deque[tuple[int, Callable[[], Print]]] = deque()
        self._differences = Differences()
        self._asks_at_ns = 0
        # Whether the other thread has not answered yet.
        self._is_asking = False
        self.is_over = False

    def add(self, n: int, names: Sequence[str], make: Callable[[], Print]) -> None:
        """Compare the replicas as they are now.

        Args:
            n: Steps of the optimizer so far.
            names: The tensors that are compared.
            make: Returns the print; called in another thread, where it may wait.
        """
        slot = self._n_looks % _KEPT
        self._n_looks += 1
        self._posts.append((slot, make))
        if self._ranks.leads:
            self._waiting.append(_Look(n, slot, names, time.monotonic_ns()))
        self._asks_at_ns = 0

    def poll(self) -> None:
        """Post and read what there is, elsewhere; report what was found by then."""
        if self._is_pending:
            now_ns = time.monotonic_ns()
            if now_ns >= self._asks_at_ns:
                self._asks_at_ns = now_ns + _PAUSE_NS
                self._exchange(0.0)

    def close(self) -> None:
        """Post and read what is left, for a second at most."""
        end = time.monotonic() + _LAST_SECONDS
        while not self.is_over and self._is_pending:
            left = end - time.monotonic()
            if left <= 0:
                break
            self._exchange(left)
            if self._waiting:
                time.sleep(0.01)
        self.is_over = True
        self._aside.close()

    @property
    def _is_pending(self) -> bool:
        return self._is_asking or bool(self._posts or self._waiting)

    def _exchange(self, patience: float) -> None:
        self._is_asking = False
        try:
            found = self._aside.call(self._post_and_read, patience)
        except Unanswered:
            self._is_asking = True
            return
        except Exception:  # The store is gone, or holds something else.
            self.is_over = True
            self._posts.clear()
            self._waiting.clear()
            return
        for each in found:
            self._found(each)

    # ---- in the other thread ---------------------------------------------------

    def _post_and_read(self) -> list[Difference]:
        while self._posts:
            slot, make = self._posts[0]
            self._post(slot, make())
            self._posts.popleft()
        found = list[Difference]()
        while self._waiting and self._read_digests(self._waiting[0]):
            look = self._waiting[0]
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found += self._compare(look)
            self._waiting.popleft()
        return found

    def _post(self, slot: int, made: Print) -> None:
        data = made.encode()
        key = self._key(slot, self._ranks.rank)
        self._ranks.store.post(f"{key}/print", data)
        digest = {"n": made.n, "digest": _digest_of(made)}
        self._ranks.store.post(f"{key}/digest", json.dumps(digest).encode())

    def _read_digests(self, look: _Look) -> bool:
        """Read digests of a look; return whether no more of them are waited for."""
        for rank in range(self._ranks.size):
            if rank in look.digests:
                continue
            data = self._ranks.store.look(f"{self._key(look.slot, rank)}/digest")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                content = json.loads(data or b"null")
                if content["n"] == look.n:
                    look.digests[rank] = str(content["digest"])
        is_late = time.monotonic_ns() - look.since_ns > _PATIENCE_NS
        return is_late or len(look.digests) == self._ranks.size

    def _compare(self, look: _Look) -> list[Difference]:
        prints = dict[int, Print]()
        read = dict[str, Print]()
        for rank, digest in look.digests.items():
            if digest not in read and len(read) < _MOST_READ:
                made = self._read(look, rank)
                if made is not None:
                    read[digest] = made
            if digest in read:
                prints[rank] = read[digest]
        return self._differences.find(look.names, prints)

    def _read(self, look: _Look, rank: int) -> Print | None:
        data = self._ranks.store.look(f"{self._key(look.slot, rank)}/print")
        made = None if data is None else Print.decode(data)
        return made if made is not None and made.n == look.n else None

    @staticmethod
    def _key(slot: int, rank: int) -> str:
        return f"replicas/{slot}/{rank}"


def _digest_of(made: Print) -> str:
    """Return a text that is equal for equal replicas that had the same steps."""
    digest = hashlib.blake2b(digest_size=16)
    facts = made.group, made.kind, made.standings, made.n_forwards
    digest.update(repr((*facts, made.spots, made.inputs, made.averages)).encode())
    digest.update(made.weights.tobytes())
    digest.update(made.gradients.tobytes())
    return digest.hexdigest()
