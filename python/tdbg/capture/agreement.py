"""How the ranks of a training obey a request at one and the same step.

One rank leads: it alone hears requests.  When it does, before or in training step
*s*, it chooses the first step of at least *s* + 2 that ``INTERVAL`` divides, and
posts request and step on a board that all ranks share.  The others look at the board
as a step begins whose number ``INTERVAL`` divides, and never wait.

In a training in lock step, where every step has a collective operation, a rank that
begins step *s* + 2 has ended *s* + 1 together with the leader, which had posted
before.  So all know in time, and nobody waits for anybody.  Where steps are not in
lock step a rank may come too late; it then obeys as soon as it knows.  Before the
first training step, and where there is none, forwards are counted instead.

Thread safety: none; the training's thread.

Errors: a board that fails ends the agreement: from then on the leader obeys at once,
alone, and the others never.  It is logged once and counted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tdbg.control import Request

__all__ = ["INTERVAL", "Agreement"]

INTERVAL = 8
# What is counted: training steps, or forwards before the first of them.
_STEPS = "steps"
_FORWARDS = "forwards"

_log = logging.getLogger("tdbg")


class _Board(Protocol):
    def post(self, key: str, value: bytes) -> None: ...

    def look(self, key: str) -> bytes | None: ...


class _Agreed(NamedTuple):
    """A request, and when it takes effect."""

    clock: str
    at: int
    request: Request


class Agreement:
    """Says when what was asked takes effect on this rank.

    Args:
        board: Shared by all ranks.
        leads: Whether this rank is the one that hears requests.
        interval: Steps from one look at the board to the next; the same on all
            ranks.

    Attributes:
        n_failures: How often the board failed; after the first it is not used.
        n_late: Requests that this rank learnt of after the step agreed on.
    """

    def __init__(self, board: _Board, *, leads: bool, interval: int = INTERVAL) -> None:
        self._board: _Board | None = board
        self._leads = leads
        self._interval = interval
        self._n_posted = 0
        self._clock = _FORWARDS
        self._now = -1
        self._agreed: list[_Agreed] = []  # Oldest first.
        self.n_failures = 0
        self.n_late = 0

    def poll(
        self, step: int, is_training: bool, hear: Callable[[], list[Request]]
    ) -> list[Request]:
        """The requests that take effect now, each once; it never raises.

        To be called as a forward begins.

        Args:
            step: Number of the training step that is under way, or else of the next
                one: the same on all ranks at the same point of the training.
            is_training: Whether it is that step's forward.
            hear: What was asked since the last call; only the leader's is called.
        """
        is_new = self._tick(step, is_training)
        if self._leads:
            for request in hear():
                self._announce(request)
        elif is_new and self._now % self._interval == 0:
            self._look()
        if not self._agreed:
            return []
        due = [each.request for each in self._agreed if self._is_due(each)]
        self._agreed = [each for each in self._agreed if not self._is_due(each)]
        return due

    def _tick(self, step: int, is_training: bool) -> bool:
        """Whether the count has gone on."""
        before = self._clock, self._now
        if is_training or step > 0:
            self._clock, self._now = _STEPS, step
        else:
            self._now += 1
        return before != (self._clock, self._now)

    def _is_due(self, agreed: _Agreed) -> bool:
        return agreed.at <= self._now or agreed.clock != self._clock

    def _announce(self, request: Request) -> None:
        # Two on, and then the first at which the others look.
        at = -(-(self._now + 2) // self._interval) * self._interval
        agreed = _Agreed(self._clock, at, request)
        if self._board is not None:
            try:
                self._board.post(self._key(), _encode(agreed))
            except (OSError, RuntimeError) as error:
                self._fail(error)
            else:
                self._n_posted += 1
        if self._board is None:
            agreed = agreed._replace(at=self._now)
        self._agreed.append(agreed)

    def _look(self) -> None:
        while self._board is not None:
            try:
                posted = self._board.look(self._key())
            except (OSError, RuntimeError) as error:
                self._fail(error)
                return
            if posted is None:
                return
            self._n_posted += 1
            agreed = _decode(posted)
            if agreed is not None:
                self.n_late += agreed.clock == self._clock and agreed.at < self._now
                self._agreed.append(agreed)

    def _key(self) -> str:
        return f"request/{self._n_posted}"

    def _fail(self, error: Exception) -> None:
        self._board = None
        self.n_failures += 1
        _log.warning(
            "the ranks cannot agree on a step any more (%s): %s",
            error,
            "this one obeys requests at once, alone"
            if self._leads
            else "this one hears no requests",
        )


def _encode(agreed: _Agreed) -> bytes:
    request = agreed.request
    return json.dumps(
        {
            "clock": agreed.clock,
            "at": agreed.at,
            "id": request.id,
            "type": request.type,
            "created": request.created,
            "body": request.body,
        }
    ).encode()


def _decode(text: bytes) -> _Agreed | None:
    """What a leader has posted; None for anything else."""
    try:
        content = json.loads(text)
        request = Request(
            id=str(content["id"]),
            type=str(content["type"]),
            generations={},
            created=str(content["created"]),
            body=dict(content["body"]),
        )
        return _Agreed(str(content["clock"]), int(content["at"]), request)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
