"""What a page may ask a training: to stop, and to capture something for a while.

The training that owns the run decides; see ``tdbg.run.requests``.

Thread safety: functions; files appear whole.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import Any

from tdbg.config.messages import check_flag, check_known, printable
from tdbg.errors import ConfigurationError
from tdbg.run.requests import request_capture, request_stop
from tdbg.trial import Trial

__all__ = ["answer_of", "ask_to_capture", "ask_to_stop"]

MAX_REASON = 500
ENDED = ("closed", "dead")


def ask_to_stop(trial: Trial, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the training to stop at its next forward.

    Args:
        trial: The run.
        body: ``reason``: why, in one sentence.

    Raises:
        ConfigurationError: If the body says anything else, or nobody may ask.
        StorageError: If the request cannot be written.
    """
    check_known(body, ["reason"])
    reason = body.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        msg = f"reason must be text of at most {MAX_REASON} characters"
        raise ConfigurationError(msg)
    if trial.loaded_all_steps:
        return {"state": "ended", "request": None}
    said = printable(reason.strip()) or "stopped from the dashboard"
    request = request_stop(trial.path, reason=f"{said} ({getpass.getuser()})")
    return {"state": "asked", "request": request.id}


def ask_to_capture(trial: Trial, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the training to capture what it does not capture by itself.

    Args:
        trial: The run.
        body: ``collections``, ``regex``, ``interval``, ``steps``, ``raw`` and ``end``
            as ``tdbg.run.requests.request_capture`` has them.

    Raises:
        ConfigurationError: If it can never work.
        StorageError: If the request cannot be written.
    """
    check_known(body, ["collections", "regex", "interval", "steps", "raw", "end"])
    for name in ("raw", "end"):
        check_flag(name, body.get(name, False))
    if trial.loaded_all_steps:
        return {"state": "ended", "request": None}
    request = request_capture(trial.path, **body)
    return {"state": "asked", "request": request.id}


def answer_of(trial: Trial, request: str) -> dict[str, Any]:
    """What became of a request so far.

    Returns:
        ``state``: asked, accepted, refused, stopped, or ended where the training ended
        without an answer; ``reason`` and ``step`` where it said so.
    """
    stop = None
    for event in trial.events():
        if event.kind == "change" and event.data.get("request") == request:
            return {
                "state": str(event.data.get("state", "")),
                "reason": str(event.data.get("reason") or ""),
                "step": event.step,
                "until": event.data.get("until"),
            }
        if event.kind == "status" and event.data.get("training") == "stopped":
            stop = event
    if stop is not None:
        reason = str(stop.data.get("reason") or "")
        return {"state": "stopped", "reason": reason, "step": stop.step}
    state = "ended" if trial.status in ENDED else "asked"
    return {"state": state, "reason": "", "step": None}
