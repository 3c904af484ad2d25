"""Waits until a training has said what it made of a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tdbg.control import Request
from tdbg.trial import create_trial

__all__ = ["answer_of", "has_ended", "stopped"]

LOOK_SECONDS = 0.1
# An end so little before the request may be its doing: clocks differ.
NEAR_NS = int(5e9)


def answer_of(run: str, request: Request, seconds: float) -> dict[str, Any] | None:
    """The first event about a request to capture; None: none came, or will, in time."""

    def answers(kind: str, content: dict[str, Any], _: int) -> bool:
        is_about = content.get("what") == "capture"
        return kind == "change" and is_about and content.get("request") == request.id

    return _wait(run, answers, seconds)


def stopped(run: str, request: Request, seconds: float) -> bool:
    """Whether the training stops for this request, in time."""
    del request  # The first one of all is the one that is obeyed.
    began = time.time_ns()

    def answers(kind: str, content: dict[str, Any], wall_ns: int) -> bool:
        if kind != "status" or wall_ns < began - NEAR_NS:
            return False
        return content.get("training") in {"stopped", "ended"}

    return _wait(run, answers, seconds) is not None


def has_ended(run: str) -> bool:
    """Whether there is no training any longer that could answer."""
    return create_trial(run).loaded_all_steps


def _wait(
    run: str, answers: Callable[[str, dict[str, Any], int], bool], seconds: float
) -> dict[str, Any] | None:
    deadline = time.monotonic() + seconds
    trial = create_trial(run)
    while True:
        is_last = trial.loaded_all_steps
        for event in trial.events():
            if answers(event.kind, event.data, event.wall_ns):
                return dict(event.data)
        if is_last or time.monotonic() >= deadline:
            return None
        time.sleep(LOOK_SECONDS)
        trial.refresh()
