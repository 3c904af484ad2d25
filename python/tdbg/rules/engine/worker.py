"""Main program of the process in which one sandboxed rule judges a run.

The parent writes one line of JSON, the task (which rule, which run), and then lines
with commands: ``poll``, ``idle`` or ``finish``.  The worker answers in lines of JSON:

- ``beat`` before every window, so that the parent sees progress;
- ``finding`` for what began, got worse or ended;
- ``episode`` for every episode that changed;
- ``status`` if the rule failed;
- ``done`` when the command is done.

Errors: reported as ``status``; what cannot be reported ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tdbg.rules.engine.engine import Engine
from tdbg.rules.runner import Status
from tdbg.rules.sandbox.transport import build
from tdbg.run.findings import Finding

__all__ = ["main"]

MAX_TEXT = 10_000


class _Answers:
    """Writes lines of JSON to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **content: Any) -> None:
        data = json.dumps(content).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def main() -> None:
    """Serve the parent; the last two arguments are the pipe's file descriptors."""
    commands, answers = int(sys.argv[-2]), _Answers(int(sys.argv[-1]))
    with os.fdopen(commands, "r", encoding="utf-8") as lines:
        try:
            serve(json.loads(lines.readline()), lines, answers)
        except Exception as error:  # Importing a rule may raise anything.
            text = f"{type(error).__name__}: {error}"
            answers.send(status="Error", message=text[:MAX_TEXT])


def serve(task: dict[str, Any], lines: Any, answers: _Answers) -> None:
    """Judge the run of the task, one command after the other."""
    sys.path[:] = task["path"]
    rule = build(task["rule"])
    engine = Engine(
        task["run"], rule, record=False, isolate=False, max_window=task["max_window"]
    )
    engine.on_window = lambda: answers.send(beat=True)
    sent: list[Finding] = []
    for line in lines:
        command = line.strip()
        found = [] if command == "finish" else engine.poll()
        if command == "idle":
            found += engine.poll_idle()
        for finding in found:
            answers.send(finding=_short(finding))
        report = engine.finish() if command == "finish" else engine.report()
        sent = _send_episodes(engine.episodes(), sent, answers)
        (status,) = report.statuses
        if status.status is Status.ERROR:
            answers.send(status="Error", message=status.message[:MAX_TEXT])
        (judged,) = engine.judged().values()
        answers.send(
            done=report.last_global_step,
            judged=judged,
            missing=status.message[:MAX_TEXT],
            applies=status.applies,
        )


def _send_episodes(
    every: list[Finding], sent: list[Finding], answers: _Answers
) -> list[Finding]:
    """Send the episodes that changed since *sent*."""
    for i, finding in enumerate(every):
        if i >= len(sent) or sent[i] is not finding:
            answers.send(episode=_short(finding))
    return every


def _short(finding: Finding) -> dict[str, Any]:
    document = finding.in_global_steps().to_json()
    return {
        key: value[:MAX_TEXT] if isinstance(value, str) else value
        for key, value in document.items()
    }
