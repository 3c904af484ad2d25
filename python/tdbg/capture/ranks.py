"""The ranks of a training: which one this is, and how all agree on a step.

All ranks obey a request at one and the same step.  One rank leads: it alone receives
requests.  When it does, it chooses a step, and publishes request and step in a store
that all ranks share.  The others read the store as certain steps begin, and never
wait for anybody.  The leader chooses the first of those steps by which all ranks must
have read what it published:

* A training in lock step has a collective operation in every step.  What the leader
  publishes as step *s* begins, all ranks have read that read as *s* + 1 or a later
  step begins: they have ended *s* together with it.  What it publishes later in step
  *s* (before a further micro-batch, say), they have read by *s* + 2.
* Where a device works behind its processor, a rank may have begun steps that the
  collective operations of its device are far from.  There each read begins with
  waiting for what this rank had asked of its own device before the read before; so
  the chosen step is one read later.

The store is read at steps that a period divides, a power of two.  The period follows
the length of a step as the leader measures it, so that reading costs a fixed share of
the time at most, and slow steps are all read at.  A new period is agreed on like a
request, and therefore the same on all ranks at the same step.

Where steps are not in lock step a rank may learn of a request after its step; it then
obeys at once.  Before the first training step, and where there is none, forwards are
counted instead, and the period does not change.

Thread safety: none; the training's thread.

Errors: a store that fails ends the agreement: from then on each rank that writes
receives requests by itself, and obeys at once, alone.  It is logged once and counted.
A store that does not answer a rank, since whoever keeps it was stopped or hangs, is
waited for a while; then that rank goes on.  If it can make some steps in which the
store does not answer, it is not in lock step with who keeps it, and receives requests
by itself until the store answers.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.config.options import KeyValueStore
from tdbg.errors import ConfigurationError
from tdbg.run.aside import Aside, Unanswered
from tdbg.run.directory import Run, writer_directories
from tdbg.run.json_values import load_json
from tdbg.run.requests import Request

__all__ = [
    "FORWARDS_PERIOD",
    "MAX_PERIOD",
    "READ_SECONDS",
    "AttemptId",
    "Consensus",
    "PollInterval",
    "WriterIdentity",
    "find_attempt",
    "launch_name",
    "launched_rank",
    "process_rank",
]


class AttemptId(NamedTuple):
    """The identity of one start of a training, in the headers of its writers.

    Attributes:
        uuid: The same on all ranks, where they could agree.
        ordinal: Greater than that of any start before.
    """

    uuid: bytes
    ordinal: int


class WriterIdentity(NamedTuple):
    """What a session writes as.

    Attributes:
        run: UUID of the run.
        rank: The rank of its process.
        attempt: The start of the training.
    """

    run: bytes
    rank: int
    attempt: AttemptId


def find_attempt(
    run: Run, rank: int, rank_store: KeyValueStore | None = None, launch: str = ""
) -> AttemptId:
    """Return the identity of this start of the training, the same on all ranks.

    The first rank to ask publishes it in the store.  Without a store it follows from
    the launcher's name for the start and from how often this rank has started; if
    ranks differ in that, readers distinguish their starts by the ordinals only.

    Args:
        run: The run that this rank writes.
        rank: The rank of this process.
        rank_store: Shared by the ranks; None where there is a single one.
        launch: The launcher's name for this start; may be empty.
    """
    earlier = {
        writer.rank: writer.generation
        for writer in writer_directories(run)  # Ascending: the last one stays.
        if writer.role == "train"
    }
    if rank_store is not None:
        # No rank of this start has a writer before this is settled.
        mine = AttemptId(uuid.uuid4().bytes, max(earlier.values(), default=0))
        offer = f"{run.uuid.hex()}/{mine.uuid.hex()}/{mine.ordinal}"
        try:
            whose, name, ordinal = rank_store.settle("attempt", offer).split("/")
            if whose == run.uuid.hex():
                return AttemptId(bytes.fromhex(name), int(ordinal))
        except (OSError, RuntimeError, ValueError):
            pass  # No store yet, or not of these ranks.
    ordinal_here = earlier.get(rank, 0)
    if not launch:
        return AttemptId(uuid.uuid4().bytes, ordinal_here)
    space = uuid.UUID(bytes=run.uuid)
    return AttemptId(uuid.uuid5(space, f"{launch}/{ordinal_here}").bytes, ordinal_here)


# From one read to the next, at most, where a step is shorter.
READ_SECONDS = 0.05
# Steps may suddenly become slow: at least one of so many is read at.
MAX_PERIOD = 32
# Steps whose median length counts; it is judged once in so many steps.
_SAMPLES = 8
# Lengths this near to a limit change nothing.
_SLACK = 1.25
# Decisions after a period was shortened in which none is lengthened.
_PATIENCE = 64


class PollInterval:
    """Steps from one read to the next: a power of two that suits their length.

    Args:
        now: A clock, in seconds.

    Attributes:
        steps: The period in force; the leader changes it on all ranks.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.steps = 1
        self._now = now
        self._began: deque[float] = deque(maxlen=_SAMPLES + 1)
        self._n_new = 0
        self._patience = 0

    def step_begins(self) -> None:
        """Note the time: a training step begins; to be called once for each."""
        self._began.append(self._now())
        self._n_new += 1

    def better(self) -> int | None:
        """Return a period that suits the steps better; None if this one suits them."""
        if self._n_new <= _SAMPLES:
            return None
        self._n_new = 1
        self._patience = max(0, self._patience - 1)
        began = list(self._began)
        pairs = zip(began[1:], began[:-1], strict=True)
        length = max(statistics.median(b - a for b, a in pairs), 1e-9)
        if length * self.steps > READ_SECONDS * _SLACK and self.steps > 1:
            self._patience = _PATIENCE
            return _fitting(length)
        requested = _fitting(length * _SLACK)
        return requested if requested > self.steps and not self._patience else None


def _fitting(length: float) -> int:
    """Return the largest period for steps of this length."""
    period = 1
    while 2 * period <= MAX_PERIOD and 2 * period * length <= READ_SECONDS:
        period *= 2
    return period


# Forwards from one read to the next before the first training step.
FORWARDS_PERIOD = 8
# What is counted: training steps, or forwards before the first of them.
_STEPS = "steps"
_FORWARDS = "forwards"
# What was published before the first training step takes effect so many steps later.
_FIRST_STEPS = 2
# How long the store is waited for, at most.  A training with a collective operation in
# every step would wait as long for the rank that keeps it, and one that goes on without
# an answer may not learn of a request in time.
STORE_SECONDS = 30.0
# Steps without an answer that no rank can make in lock step with one that is stopped.
_ALONE_STEPS = 4

_log = logging.getLogger("tdbg")


class _Agreed(NamedTuple):
    """A request, or else another period, and when it takes effect."""

    clock: str
    at: int
    request: Request | None
    period: int = 0


class Consensus:
    """Decides when requests take effect on this rank.

    Args:
        rank_store: Shared by all ranks.
        leads: Whether this rank is the one that receives requests.
        now: A clock, in seconds.

    Attributes:
        n_failures: How often the store failed; after the first time it is not used.
        n_overdue: Requests that this rank learnt of after the step agreed on.
        n_reads: How often this rank read the store.
    """

    def __init__(
        self,
        rank_store: KeyValueStore,
        *,
        leads: bool,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store: KeyValueStore | None = rank_store
        self._leads = leads
        self._period = PollInterval(now)
        self._n_published = 0
        self._clock = _FORWARDS
        self._now = -1
        self._first = 0  # The first training step that was seen.
        self._begun = -1  # The last training step of which a forward has begun.
        self._next_read = 0
        self._is_behind = False
        self._aside = Aside("tdbg-ranks")
        self._n_unanswered = 0  # Reads of the store in a row.
        self._heard: set[str] = set()  # Requests that were received.
        self._agreed: list[_Agreed] = []  # Oldest first.
        self.n_failures = 0
        self.n_overdue = 0
        self.n_reads = 0

    @property
    def period(self) -> int:
        """Steps, or forwards, from one read of the store to the next."""
        return self._period.steps if self._clock == _STEPS else FORWARDS_PERIOD

    def poll(
        self, step: int, is_training: bool, receive: Callable[[], list[Request]]
    ) -> list[Request]:
        """Return the requests that take effect now, each once; it never raises.

        To be called as a forward begins.

        Args:
            step: Number of the training step that is under way, or else of the next
                one: the same on all ranks at the same point of the training.
            is_training: Whether it is that step's forward.
            receive: Returns the requests since the last call; only the leader calls it,
                or who is alone.
        """
        is_new = self._tick(step, is_training)
        reads = is_new and (self._now >= self._next_read or self._n_unanswered)
        if reads:
            self._read()
        if self._leads:
            for request in receive():
                self._announce(request)
            if is_new:
                self._adapt()
        elif self._store is None or self._n_unanswered >= _ALONE_STEPS:
            for request in receive():
                self._agree(_Agreed(self._clock, self._now, request))
        if is_training:
            self._begun = max(self._begun, step)
        due = self._take_due() if self._agreed else []
        if reads:
            # By the period that is in force now.
            self._next_read = (self._now // self.period + 1) * self.period
        return due

    def _tick(self, step: int, is_training: bool) -> bool:
        """Count a step or a forward; return whether it is a new one."""
        before = self._clock, self._now
        if is_training or step > 0:
            if self._clock == _FORWARDS:
                self._clock, self._first, self._next_read = _STEPS, step, step
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
        # Published before the training began: all ranks have read it by then.
        return self._clock == _STEPS and self._now >= self._first + _FIRST_STEPS

    # ---- the leader ----------------------------------------------------------

    def propose(self, request: Request) -> bool:
        """Publish a request of the leader's own, which ``poll`` then returns.

        Nothing is published, logged or counted where the ranks have no store, perhaps
        because there is no process group yet.  It does not wait for other ranks.

        Returns:
            Whether all ranks will obey it.
        """
        store = self._store
        if store is None or not self._leads:
            return False
        try:
            self._aside.call(lambda: store.settle("proposes", "yes"), STORE_SECONDS)
        except (Unanswered, OSError, RuntimeError):
            return False
        self._announce(request)
        return self._store is not None

    def _announce(self, request: Request | None, period: int = 0) -> None:
        # What is published after the step has begun, others read a step later.
        has_begun = self._clock == _FORWARDS or self._now <= self._begun
        at = self._first_read_from(self._now + (2 if has_begun else 1))
        if self._is_behind:
            at = self._first_read_from(at + 1)
        agreed = _Agreed(self._clock, at, request, period)
        if not self._publish(agreed):
            agreed = agreed._replace(at=self._now)
        self._agree(agreed)

    def _adapt(self) -> None:
        """Read more often, or less, from a step on that all agree on."""
        period = self._period.better() if self._clock == _STEPS else None
        if period is not None and not any(each.period for each in self._agreed):
            self._announce(None, period)

    def _first_read_from(self, number: int) -> int:
        """Return the first step from *number* on at which all ranks read."""
        period = self.period
        for each in self._agreed:
            if each.period and number > each.at:
                period = each.period
        return -(-number // period) * period

    def _publish(self, agreed: _Agreed) -> bool:
        if self._store is None:
            return False
        store, key = self._store, self._key()
        try:
            self._aside.call(lambda: store.post(key, _encode(agreed)), STORE_SECONDS)
        except Unanswered:
            self._fail(f"their store has not answered for {STORE_SECONDS:g} s")
            return False
        except (OSError, RuntimeError) as error:
            self._fail(error)
            return False
        self._n_published += 1
        return True

    # ---- the other ranks -----------------------------------------------------

    def _read(self) -> None:
        if self._store is None:
            return
        self.n_reads += 1
        try:
            self._is_behind = self._store.keep_pace()
            while not self._leads:
                published, is_late = self._look(self._store)
                if published is None:
                    if is_late:  # Something may have been published since.
                        continue
                    return
                self._n_published += 1
                agreed = _decode(published)
                if agreed is not None:
                    self.n_overdue += (
                        agreed.clock == self._clock and agreed.at < self._now
                    )
                    self._agree(agreed)
        except Unanswered:
            if not self._n_unanswered:
                _log.warning(
                    "the store of the ranks has not answered for %g s, perhaps because "
                    "the rank that keeps it has stopped. This rank continues, and "
                    "obeys requests on its own until the store answers",
                    STORE_SECONDS,
                )
            self._n_unanswered += 1
        except (OSError, RuntimeError) as error:
            self._fail(error)

    def _look(self, store: KeyValueStore) -> tuple[bytes | None, bool]:
        """What was published next, if anything, and whether that was asked before.

        Raises:
            Unanswered: If the store has not answered yet.
            RuntimeError: If the store failed.
        """
        key = self._key()
        published = self._aside.call(lambda: store.look(key), STORE_SECONDS)
        is_late, self._n_unanswered = self._n_unanswered > 0, 0
        return published, is_late

    def _agree(self, agreed: _Agreed) -> None:
        """Take what was agreed on, unless it was received before in another way."""
        if agreed.request is not None:
            if agreed.request.id in self._heard:
                return
            self._heard.add(agreed.request.id)
        self._agreed.append(agreed)

    # ---- all ranks -----------------------------------------------------------------

    def close(self) -> None:
        """End the thread that asks the store."""
        self._aside.close()

    def _key(self) -> str:
        return f"request/{self._n_published}"

    def _fail(self, error: Exception | str) -> None:
        self._store = None
        self.n_failures += 1
        _log.warning(
            "the ranks can no longer agree on a step (%s): this rank obeys each "
            "request at once, without the others",
            str(error),  # Whoever keeps the record does not keep this rank.
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
    """Parse what a leader has published; None for anything else."""
    try:
        content = load_json(text)
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
    except (ValueError, KeyError, TypeError):
        return None


# Variables of rank and number of ranks; the first pair that is set counts. Those
# marked may stand alone: their launchers also set one of them around a training.
_PLACES = (
    ("RANK", "WORLD_SIZE", False),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", False),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", False),
    ("PMI_RANK", "PMI_SIZE", False),
    ("SLURM_PROCID", "SLURM_NTASKS", True),
)
# What launchers call one start of a training.
_LAUNCHES = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)


def process_rank(adapter: FrameworkAdapter) -> tuple[int, int]:
    """The rank of this process in its training, and the number of ranks.

    As the framework knows it, or else as the launcher's variables say.

    Raises:
        ConfigurationError: If the variables contradict each other, or one of a pair
            is missing.
    """
    return adapter.process_rank() or launched_rank(os.environ)


def launched_rank(environment: Mapping[str, str]) -> tuple[int, int]:
    """The rank of a process, and the number of ranks, by its launcher's variables.

    Those of torchrun, of MPI, or of Slurm; without any: 0 of 1.

    Raises:
        ConfigurationError: If the variables contradict each other, or one of a pair
            is missing.
    """
    for rank_name, size_name, may_be_alone in _PLACES:
        rank, size = environment.get(rank_name), environment.get(size_name)
        if rank is None and size is None:
            continue
        if rank is None or size is None:
            if may_be_alone:
                continue
            there, missing = rank_name, size_name
            if rank is None:
                there, missing = missing, there
            msg = (
                f"{there}={environment[there]!r} is set and {missing} is not: set "
                f"both, or neither, or create the hook after init_process_group"
            )
            raise ConfigurationError(msg)
        found = _rank_number(rank_name, rank), _rank_number(size_name, size)
        if not found[0] < found[1]:
            msg = (
                f"{rank_name}={rank} is not below {size_name}={size}: "
                f"ranks are counted from 0"
            )
            raise ConfigurationError(msg)
        return found
    return 0, 1


def launch_name(environment: Mapping[str, str]) -> str:
    """The launcher's name for this start of the training; empty without a launcher.

    The same on all ranks; not always another one at the next start.
    """
    for names in _LAUNCHES:
        if names[0] in environment:
            return "/".join(environment.get(name, "") for name in names)
    return ""


def _rank_number(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        msg = (
            f"{name}={text!r} is not a number of ranks; give a whole number, 0 or more"
        )
        raise ConfigurationError(msg)
    return number
