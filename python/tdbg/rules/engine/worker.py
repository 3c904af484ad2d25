"""The process in which one rule of somebody else judges a run: its main program.

It reads a line of JSON that says which rule and run, and then commands; each is
answered.  Lines of JSON go back: ``beat`` before every window, so that the parent sees
progress, ``finding``, ``episode``, ``status`` if the rule has failed, and ``done``.

Errors: all are said in a ``status``; what cannot be said is an exit code.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tdbg.findings import Finding
from tdbg.rules.engine.engine import Engine
from tdbg.rules.isolation.transport import build
from tdbg.rules.status import Status

__all__ = ["main"]

MAX_TEXT = 10_000


class _Answers:
    """Writes to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **content: Any) -> None:
        data = json.dumps(content).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def main() -> None:
    """Serve the parent at the other ends of the two descriptors given."""
    commands, answers = int(sys.argv[-2]), _Answers(int(sys.argv[-1]))
    with os.fdopen(commands, "r", encoding="utf-8") as lines:
        try:
            serve(json.loads(lines.readline()), lines, answers)
        except Exception as error:  # Importing a rule may raise anything.
            answers.send(status="Error", message=_text(error))


def serve(task: dict[str, Any], lines: Any, answers: _Answers) -> None:
    """Judge the run that the task names, whenever it is asked for."""
    sys.path[:] = task["path"]
    rule = build(task["rule"])
    engine = Engine(
        task["run"], rule, record=False, isolate=False, max_window=task["max_window"]
    )
    engine.on_window = lambda: answers.send(beat=True)
    told: list[Finding] = []
    for line in lines:
        command = line.strip()
        found = [] if command == "finish" else engine.poll()
        if command == "silence":
            found += engine.ask_silence()
        for finding in found:
            answers.send(finding=_short(finding))
        report = engine.finish() if command == "finish" else engine.report()
        told = _tell_episodes(engine.episodes(), told, answers)
        (status,) = report.statuses
        if status.status is Status.ERROR:
            answers.send(status="Error", message=status.message[:MAX_TEXT])
        (judged,) = engine.judged().values()
        answers.send(
            done=report.last_step, judged=judged, wanting=status.message[:MAX_TEXT]
        )


def _tell_episodes(
    every: list[Finding], told: list[Finding], answers: _Answers
) -> list[Finding]:
    """Say how episodes stand that have changed since they were told."""
    for i, finding in enumerate(every):
        if i >= len(told) or told[i] is not finding:
            answers.send(episode=_short(finding))
    return every


def _short(finding: Finding) -> dict[str, Any]:
    document = finding.to_json()
    return {
        key: value[:MAX_TEXT] if isinstance(value, str) else value
        for key, value in document.items()
    }


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_TEXT]
