"""Requests to a training: polled, and handed out when they take effect.

A single process obeys at once.  Several ranks obey at the beginning of the same step,
which they agree on (``tdbg.capture.ranks.Consensus``).

Thread safety: none; the thread of the training.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.capture.events import write_event
from tdbg.capture.ranks import Consensus
from tdbg.capture.recorder import Recorder
from tdbg.capture.steps import StepMachine
from tdbg.config.collections import Collection, CollectionRegistry, Role
from tdbg.config.needs import Needs
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError
from tdbg.modes import TRAINING, ModeKeys
from tdbg.run.requests import (
    CaptureRequest,
    Request,
    RequestListener,
    StopRequest,
    stop_request,
    stopping_is_off,
)
from tdbg.run.schema import EventKind

__all__ = [
    "ACCEPTED",
    "ENDED",
    "REFUSED",
    "CaptureOverrides",
    "Obedience",
    "Requests",
    "StopState",
]


class Requests:
    """The requests of this process, each handed out once.

    Args:
        listener: Receives them; None: other ranks do.
        agreement: With the other ranks; None: there are none.

    Attributes:
        agreement: As the argument.
        next_ns: The time (``time.perf_counter_ns``) before which ``poll`` returns
            nothing; 0: poll at every forward.
    """

    def __init__(
        self, listener: RequestListener | None, *, agreement: Consensus | None = None
    ) -> None:
        self._listener = listener
        self.agreement = agreement
        self.next_ns = 0

    def poll(self, step: int, *, is_training: bool = True) -> list[Request]:
        """Return the requests that take effect now, oldest first; never raise.

        Args:
            step: Number of the open training step, or else of the next one, among
                steps of training, which all ranks count alike.
            is_training: Whether a forward of that step begins.
        """
        listener = self._listener
        receive = list if listener is None else listener.poll
        if self.agreement is not None:
            return self.agreement.poll(step, is_training, receive)
        requests = receive()
        self.next_ns = 0 if listener is None else listener.next_ns
        return requests

    def propose(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Ask all ranks, this one included, to obey a request at one and the same step.

        Args:
            kind: The type of the request.
            body: Its contents, as JSON has them.

        Returns:
            Whether they will; False too where this rank does not lead the others.
        """
        if self.agreement is None:
            return False
        made = dt.datetime.now(dt.UTC).isoformat()
        return self.agreement.propose(Request(uuid.uuid4().hex, kind, {}, made, body))

    def close(self) -> None:
        """End the threads that wait for requests."""
        if self._listener is not None:
            self._listener.close()
        if self.agreement is not None:
            self.agreement.close()


class StopState:
    """Holds the first request to stop, which cannot be withdrawn.

    Args:
        raises: Whether a stop raises, or only sets ``reason``.

    Attributes:
        request: The request, as soon as it was received.
        reason: Who asked and why, as soon as the request took effect.
    """

    def __init__(self, raises: bool) -> None:
        self.reason: str | None = None
        self._raises = raises
        self.request: StopRequest | None = None
        self._has_raised = False

    def take(self, request: Request) -> None:
        """Receive a request to stop."""
        if self.request is None:
            self.request = stop_request(request)

    def is_due(self, *, is_training: bool) -> bool:
        """Let the request take effect; whether to raise now.

        Nothing takes effect while ``TDBG_NO_STOP`` is set.
        """
        if self.request is None or stopping_is_off():
            return False
        self.reason = self.request.reason
        # After the first time, evaluation may go on; training may not.
        if not self._raises or (self._has_raised and not is_training):
            return False
        self._has_raised = True
        return True


ACCEPTED, REFUSED, ENDED = "accepted", "refused", "ended"
# How many may be in effect at once: each is compared with each tensor.
MAX_OVERRIDES = 8
# These collections are captured even if a request replaces the others.
_ALWAYS = frozenset({"losses", "scalars"})


@dataclass(frozen=True, slots=True)
class _Override:
    """One request that is in effect, until training step *until* begins."""

    request: str
    name: str
    until: int | None
    instead: bool
    needs: tuple[Needs, ...]


class CaptureOverrides:
    """Captures what requests ask for, beside or instead of what the hook captures.

    Args:
        registry: The collections of the hook.
        recorder: Writes the events.
    """

    def __init__(
        self,
        registry: CollectionRegistry,
        recorder: Recorder,
    ) -> None:
        self._registry = registry
        self._recorder = recorder
        self._overrides: list[_Override] = []
        self._n_taken = 0
        self._first = 0
        self._global_step = 0

    @property
    def is_active(self) -> bool:
        """Whether any request is in effect."""
        return bool(self._overrides)

    def step_begins(self, first: int, global_step: int) -> None:
        """Remove the overrides that have run out; a forward begins.

        Args:
            first: Number, among training steps, of the first one that a request of
                now concerns.
            global_step: Number of the same step among all steps.
        """
        self._first, self._global_step = first, global_step
        for each in self._overrides[:]:
            if each.until is not None and first >= each.until:
                self._remove(each, "the requested number of steps is over")

    def take(self, request: Request) -> None:
        """Do what a request asks, or write why not."""
        try:
            capture = CaptureRequest.parse(request.body)
            if capture.end:
                self._end_all(request)
            else:
                self._add(request, capture)
        except (ConfigurationError, TypeError, ValueError, RecursionError) as error:
            self._write(request.id, REFUSED, reason=str(error)[:1000])

    def _add(self, request: Request, capture: CaptureRequest) -> None:
        name = f"attached_{self._n_taken}"
        chooses = capture.collections or capture.regex
        collection = self._collection(name, capture) if chooses else None
        needs = capture.every_need()
        if len(self._overrides) >= MAX_OVERRIDES:
            msg = f"{MAX_OVERRIDES} requests are in effect already; end them first"
            raise ConfigurationError(msg)
        self._n_taken += 1
        if collection is not None:
            self._registry.add(collection)
        until = None if capture.steps is None else self._first + capture.steps
        self._overrides.append(
            _Override(request.id, name, until, capture.instead, needs)
        )
        self._apply()
        self._write(
            request.id,
            ACCEPTED,
            training_step=self._first,
            until=until,
            collection=name,
            who=capture.who,
            asked={**dataclasses.asdict(capture), "who": None},
        )

    def _collection(self, name: str, capture: CaptureRequest) -> Collection:
        roles: frozenset[Role] = frozenset()
        patterns = list(capture.regex)
        names: set[str] = set()
        for each in capture.collections:
            found = self._registry.get(each)
            roles |= found.roles
            patterns += found.include_regex
            names |= found.tensor_names
        collection = Collection(
            name,
            patterns,
            save_config=_schedule(capture),
            reduction_config=ReductionConfig(save_raw_tensor=capture.raw),
        )
        collection.roles = roles
        collection.tensor_names = names
        collection.check()
        return collection

    def _end_all(self, request: Request) -> None:
        n_ended = len(self._overrides)
        for each in self._overrides[:]:
            self._remove(each, "somebody asked for it")
        self._write(request.id, ACCEPTED, training_step=self._first, n_ended=n_ended)

    def _remove(self, each: _Override, reason: str) -> None:
        self._overrides.remove(each)
        if each.name in {item.name for item in self._registry}:
            self._registry.remove(each.name)
        self._apply()
        self._write(each.request, ENDED, training_step=self._first, reason=reason)

    def _apply(self) -> None:
        instead = any(each.instead for each in self._overrides)
        names = _ALWAYS | {each.name for each in self._overrides}
        self._registry.narrow(names if instead else None)
        needs = [need for each in self._overrides for need in each.needs]
        asked = [each.name for each in self._overrides]
        self._recorder.policy.ask(asked, needs, instead=instead)

    def _write(self, request: str, state: str, **more: Any) -> None:
        content = {"what": "capture", "request": request, "state": state, **more}
        write_event(self._recorder, EventKind.CHANGE, content, self._global_step)


def _schedule(capture: CaptureRequest) -> SaveConfig:
    config = SaveConfigMode(
        save_interval=capture.interval, statistics_interval=capture.interval
    )
    if capture.mode is None:
        return SaveConfig.parse(config)
    return SaveConfig({ModeKeys[capture.mode]: config}, end_step=0)


class Obedience:
    """What requests have asked of a training, and how it ends.

    Args:
        requests: Polled before forwards; None: there are none.
        raises_on_stop: Whether a stop raises, or only has a reason.
        recorder: Writes the events.

    Attributes:
        on_request: Handles the requests of each type.
        next_poll_ns: The time (``time.perf_counter_ns``) before which no request can
            come, and none is under way.
        is_alone: Whether no other ranks are to obey at the same step.
    """

    def __init__(
        self, requests: Requests | None, raises_on_stop: bool, recorder: Recorder
    ) -> None:
        self._requests = requests
        self._stop_state = StopState(raises_on_stop)
        self._overrides = CaptureOverrides(recorder.policy.registry, recorder)
        self._recorder = recorder
        self._has_stopped = False
        self.on_request: dict[str, Callable[[Request], None]] = {
            "stop": self._stop_state.take,
            "capture": self._overrides.take,
        }
        self.next_poll_ns = 0 if requests is not None else sys.maxsize
        self.is_alone = requests is None or requests.agreement is None

    @property
    def stop_reason(self) -> str | None:
        """Return who asked the training to stop, and why; None if nobody has."""
        return self._stop_state.reason

    def obey(self, machine: StepMachine, mode: ModeKeys) -> bool:
        """Do what requests ask; whether a stop is to be raised now."""
        self.next_poll_ns = 0  # Until nothing is left to do.
        if self._requests is None:
            return False
        is_training = mode in TRAINING
        number = machine.training_number
        self._overrides.step_begins(*machine.next_training())
        for request in self._requests.poll(number, is_training=is_training):
            take = self.on_request.get(request.type)
            if take is not None:
                take(request)
        if self._stop_state.is_due(is_training=is_training):
            return True
        if self._stop_state.request is None and not self._overrides.is_active:
            self.next_poll_ns = self._requests.next_ns
        return False

    def write_end(self, reason: str) -> None:
        """Write that the training has ended, for this reason or because of a stop."""
        if self.stop_reason is None:
            self._write({"training": "ended", "reason": reason})
        else:
            self.write_stopped()

    def write_stopped(self) -> None:
        """Write, once, that the training was stopped."""
        if not self._has_stopped:
            self._has_stopped = True
            self._write({"training": "stopped", "reason": self.stop_reason})

    def close(self) -> None:
        """End the threads that wait for requests."""
        if self._requests is not None:
            self._requests.close()

    def _write(self, content: dict[str, Any]) -> None:
        write_event(self._recorder, EventKind.STATUS, content)
