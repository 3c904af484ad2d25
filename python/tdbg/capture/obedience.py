"""Obeys requests, as the forwards of a training begin.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tdbg.capture.events import write_event
from tdbg.capture.recorder import Recorder
from tdbg.capture.requests import CaptureOverrides, Requests, StopState
from tdbg.capture.steps import StepMachine
from tdbg.modes import TRAINING, ModeKeys
from tdbg.run.requests import Request
from tdbg.run.schema import EventKind

__all__ = ["Obedience"]


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
        """Who asked the training to stop and why, or None."""
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
