"""Fingerprints: a hash of each sample that the model and its losses are given.

The core hashes and keeps (cpp/python_capture/fingerprints.h); this gives it the steps
and writes its rows, of the table ``fingerprint`` of the profile.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.modes import TRAIN, ModeKeys
from tdbg.run.profile_tables import FINGERPRINT
from tdbg.run.schema import EventKind

__all__ = ["Fingerprints", "start"]

# Hashes that a process records at most: 12 MB of training, and 3 MB of other modes.
MOST_TRAINED = 1 << 20
MOST_OTHERS = 1 << 18


def start(session: Session, settings: ProfilerConfig) -> Fingerprints | None:
    """Record fingerprints, where the core reads the framework's tensors."""
    if not settings.fingerprints or session.recorder.direct is None:
        return None
    return Fingerprints(session)


class _Loss(Protocol):
    """A loss whose labels are hashed; a ``CapturedLoss`` is one."""

    name: str


class Fingerprints:
    """Records the fingerprints of the samples of a session.

    Args:
        session: The session.  Its ``fingerprints`` are these until they are closed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._core = import_module("tdbg._core").Fingerprints(
            session.recorder.direct, MOST_TRAINED, MOST_OTHERS, TRAIN.value
        )
        self._roots: set[object] = set()
        self._losses: dict[str, int] = {}
        self._spent_ns = 0
        self._full: set[str] = set()
        session.fingerprints = self
        session.listen(rows=self.write, counting=self._begin_counting)
        if session.step_counter is not None:
            session.step_counter.fingerprint_by(self._core)

    def take_inputs(
        self, event: object, name: str, step: int, mode: ModeKeys, given: Any
    ) -> None:
        """Hash what a root is called with.

        Args:
            event: The event that its call begins; names the root in counted steps.
            name: The beginning of the names of its inputs.
            step: The global step.
            mode: The mode of the step.
            given: Its arguments: a tuple, and a dictionary or None.
        """
        if event not in self._roots:
            self._roots.add(event)
            self._core.add_root(event, name)
        if self._core.take_inputs(event, step, mode.value, *given):
            self.write()

    def take_labels(self, loss: _Loss, args: Any, kwargs: Any) -> None:
        """Hash the labels that a loss is called with, those of the latest inputs."""
        with contextlib.suppress(Exception):
            number = self._losses.get(loss.name)
            if number is None:
                number = self._losses[loss.name] = self._core.add_loss(loss.name)
            if self._core.take_labels(number, args, kwargs):
                self.write()

    def write(self) -> None:
        """Write the rows that wait, and say so when no more will be hashed."""
        session, core = self._session, self._core
        for tensor, rows in core.take():
            session.write_samples(
                "fingerprint", np.frombuffer(rows, FINGERPRINT), tensor
            )
        spent_ns, self._spent_ns = core.spent_ns - self._spent_ns, core.spent_ns
        session.meter.total_ns += spent_ns
        for of_training, modes in ((True, "training"), (False, "other modes")):
            if core.is_full(of_training) and modes not in self._full:
                self._full.add(modes)
                self._tell({"full": modes})

    def close(self) -> None:
        """Write what is left, and hash no more."""
        self.write()
        core, session = self._core, self._session
        if core.n_beyond or core.n_on_devices:
            self._tell({})
        session.fingerprints = None
        if session.step_counter is not None:
            session.step_counter.fingerprint_by(None)

    def _begin_counting(self) -> None:
        step, _ = self._session.latest_step(TRAIN)
        self._core.begin_counting(step)

    def _tell(self, content: dict[str, Any]) -> None:
        core = self._core
        counts = {
            "what": "fingerprints",
            "trained": core.n_hashed(True),
            "others": core.n_hashed(False),
            "beyond": core.n_beyond,
            "on_devices": core.n_on_devices,
        }
        self._session.write_event(EventKind.CHANGE, counts | content)
