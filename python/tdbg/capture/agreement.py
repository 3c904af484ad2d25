"""How the ranks of a training obey a request at one and the same step.

One rank leads: it alone hears requests.  When it does, it chooses a step, and posts
request and step on a board that all ranks share.  The others look at the board as
certain steps begin, and never wait for anybody.  What is chosen is the first of
those steps by which all must have seen the note:

* A training in lock step has a collective operation in every step.  What the leader
  posts as step *s* begins, all have seen who look as *s* + 1 or a later step begins:
  they have ended *s* together with it.  What it posts later in step *s* (before a
  further micro-batch, say), they have seen by *s* + 2.
* Where a device works behind its processor, a rank may have begun steps that the
  collective operations of its device are far from.  There each look begins with
  waiting for what this rank had asked of its own device before the look before; so
  the chosen step is one look later.

Steps are looked at that a period divides, a power of two.  The period follows the
length of a step as the leader measures it, so that looking costs a fixed share of the
time at most, and each step is looked at where steps are slow.  A new period is
agreed on like a request, and therefore the same on all ranks at the same step.

Where steps are not in lock step a rank may come too late; it then obeys as soon as it
knows.  Before the first training step, and where there is none, forwards are counted
instead, and the period does not change.

Thread safety: none; the training's thread.

Errors: a board that fails ends the agreement: from then on the leader obeys at once,
alone, and the others never.  It is logged once and counted.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tdbg.capture.looks import Period
from tdbg.control import Request

__all__ = ["FORWARDS_PERIOD", "Agreement"]

# Forwards from one look to the next before the first training step.
FORWARDS_PERIOD = 8
# What is counted: training steps, or forwards before the first of them.
_STEPS = "steps"
_FORWARDS = "forwards"
# Training steps from the first on after which notes of before it take effect.
_FIRST_STEPS = 2

_log = logging.getLogger("tdbg")


class _Board(Protocol):
    def post(self, key: str, value: bytes) -> None: ...

    def look(self, key: str) -> bytes | None: ...

    def keep_pace(self) -> bool: ...


class _Agreed(NamedTuple):
    """A request, or else another period, and when it takes effect."""

    clock: str
    at: int
    request: Request | None
    period: int = 0


class Agreement:
    """Says when what was asked takes effect on this rank.

    Args:
        board: Shared by all ranks.
        leads: Whether this rank is the one that hears requests.
        now: A clock, in seconds.

    Attributes:
        n_failures: How often the board failed; after the first it is not used.
        n_late: Requests that this rank learnt of after the step agreed on.
        n_looks: How often this rank looked at the board.
    """

    def __init__(
        self,
        board: _Board,
        *,
        leads: bool,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._board: _Board | None = board
        self._leads = leads
        self._period = Period(now)
        self._n_posted = 0
        self._clock = _FORWARDS
        self._now = -1
        self._first = 0  # The first training step that was seen.
        self._begun = -1  # The last one of which a forward has begun.
        self._next_look = 0
        self._is_behind = False
        self._agreed: list[_Agreed] = []  # Oldest first.
        self.n_failures = 0
        self.n_late = 0
        self.n_looks = 0

    @property
    def period(self) -> int:
        """Steps, or forwards, from one look at the board to the next."""
        return self._period.steps if self._clock == _STEPS else FORWARDS_PERIOD

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
        looks = is_new and self._now >= self._next_look
        if looks:
            self._look()
        if self._leads:
            for request in hear():
                self._announce(request)
            if is_new:
                self._adapt()
        if is_training:
            self._begun = max(self._begun, step)
        due = self._take_due() if self._agreed else []
        if looks:
            # By the period that is in force now.
            self._next_look = (self._now // self.period + 1) * self.period
        return due

    def _tick(self, step: int, is_training: bool) -> bool:
        """Whether the count has gone on."""
        before = self._clock, self._now
        if is_training or step > 0:
            if self._clock == _FORWARDS:
                self._clock, self._first, self._next_look = _STEPS, step, step
            self._now = step
            if is_training and step > self._begun:
                self._period.step_begins()
        else:
            self._now += 1
        return before != (self._clock, self._now)

    def _take_due(self) -> list[Request]:
        due = [each for each in self._agreed if self._is_due(each)]
        self._agreed = [each for each in self._agreed if not self._is_due(each)]
        for each in due:
            if each.period:
                self._period.steps = each.period
        return [each.request for each in due if each.request is not None]

    def _is_due(self, agreed: _Agreed) -> bool:
        if agreed.clock == self._clock:
            return agreed.at <= self._now
        # What was posted before the training began: all have seen it by then.
        return self._clock == _STEPS and self._now >= self._first + _FIRST_STEPS

    # ---- the leader ----------------------------------------------------------

    def _announce(self, request: Request | None, period: int = 0) -> None:
        # What is posted after the step has begun, others see a step later.
        has_begun = self._clock == _FORWARDS or self._now <= self._begun
        at = self._look_from(self._now + (2 if has_begun else 1))
        if self._is_behind:
            at = self._look_from(at + 1)
        agreed = _Agreed(self._clock, at, request, period)
        if not self._post(agreed):
            agreed = agreed._replace(at=self._now)
        self._agreed.append(agreed)

    def _adapt(self) -> None:
        """Look more often, or less, from a step on that all agree on."""
        period = self._period.better() if self._clock == _STEPS else None
        if period is not None and not any(each.period for each in self._agreed):
            self._announce(None, period)

    def _look_from(self, number: int) -> int:
        """The first step from *number* on that all look at."""
        period = self.period
        for each in self._agreed:
            if each.period and number > each.at:
                period = each.period
        return -(-number // period) * period

    def _post(self, agreed: _Agreed) -> bool:
        if self._board is None:
            return False
        try:
            self._board.post(self._key(), _encode(agreed))
        except (OSError, RuntimeError) as error:
            self._fail(error)
            return False
        self._n_posted += 1
        return True

    # ---- the others ----------------------------------------------------------

    def _look(self) -> None:
        if self._board is None:
            return
        self.n_looks += 1
        try:
            self._is_behind = self._board.keep_pace()
            while not self._leads:
                posted = self._board.look(self._key())
                if posted is None:
                    return
                self._n_posted += 1
                agreed = _decode(posted)
                if agreed is not None:
                    self.n_late += agreed.clock == self._clock and agreed.at < self._now
                    self._agreed.append(agreed)
        except (OSError, RuntimeError) as error:
            self._fail(error)

    # ---- all -----------------------------------------------------------------

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
    content: dict[str, Any] = {"clock": agreed.clock, "at": agreed.at}
    if request is None:
        content["period"] = agreed.period
    else:
        content |= {
            "id": request.id,
            "type": request.type,
            "created": request.created,
            "body": request.body,
        }
    return json.dumps(content).encode()


def _decode(text: bytes) -> _Agreed | None:
    """What a leader has posted; None for anything else."""
    try:
        content = json.loads(text)
        clock, at = str(content["clock"]), int(content["at"])
        if "period" in content:
            period = int(content["period"])
            return _Agreed(clock, at, None, period) if period > 0 else None
        request = Request(
            id=str(content["id"]),
            type=str(content["type"]),
            generations={},
            created=str(content["created"]),
            body=dict(content["body"]),
        )
        return _Agreed(clock, at, request)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
