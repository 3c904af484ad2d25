"""Rules of somebody else, each in a process of its own.

Such a rule may raise, crash, hang, leak, fork or print without end: the engine, the
other rules and the training are not touched.  Its process reads the run by itself
and sends findings as lines of JSON.  It is killed with all that it has started when
it makes no progress, or takes more than its limits; it is restarted a few times, from
the first step on, and then its status is ``Error`` with the reason.  What was found
before counts once.

This keeps accidents apart; it is no sandbox: the rule has the rights of the user.

Thread safety: none; owned by the engine.

Errors: those of a process are in the status of its rule.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tdbg.findings import Finding
from tdbg.rules._base import Rule
from tdbg.rules.at_work import AtWork
from tdbg.rules.isolation.process import Limits, Process
from tdbg.rules.isolation.transport import describe
from tdbg.rules.status import RuleStatus, Status

__all__ = ["Isolated"]

# Of all that a rule has found.
MAX_EPISODES = 10_000


class Isolated(AtWork):
    """A rule in a process of its own; how long it takes is not known here.

    Args:
        rule: The rule.
        run: The run's directory.
        on_status: Called whenever the status has changed.
        limits: What it may take.
        max_window: Steps to judge at once, at most.

    Raises:
        ConfigurationError: If another process could not make the same rule.
    """

    def __init__(
        self,
        rule: Rule,
        run: str,
        on_status: Callable[[RuleStatus], None],
        limits: Limits,
        max_window: int | None = None,
    ) -> None:
        super().__init__(rule, on_status)
        self._wanting = ""
        self._limits = limits
        self._task = {
            "rule": describe(rule),
            "run": str(Path(run).absolute()),
            "path": sys.path,
            "max_window": max_window,
        }
        self._n_starts = 0
        self._process: Process | None = None
        self._seen: set[tuple[str, str, int, str]] = set()
        self._episodes: dict[tuple[str, str, int], Finding] = {}

    @property
    def findings(self) -> list[Finding]:
        """Every episode as one finding, as it stands."""
        return list(self._episodes.values())

    def poll(self, *, ask: str | None, wait: bool = False) -> list[Finding]:
        """What has come; begins, worsens and ends.

        Args:
            ask: "poll" or "silence", if it is to look what is new, or "finish", if
                it is to say what was wanting; None: neither.
            wait: Whether to return only when that is answered, or when it has failed.
        """
        found: list[Finding] = []
        while not self.has_failed:
            process = self._running()
            found += self._take_in(process)
            if self._process is not process:
                continue  # It was restarted, or has failed.
            if not process.is_busy:
                if ask is None:
                    return found
                process.ask(ask)
                ask = None
            if not wait:
                return found
            process.wait()
        return found

    def finish(self, message: str = "") -> None:
        """No more will come; where nothing was found, it says what was wanting."""
        if self._status is Status.IN_PROGRESS and self._process is not None:
            self.poll(ask="finish", wait=True)
        self.close()
        super().finish(message or self._wanting)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _running(self) -> Process:
        if self._process is None:
            self._n_starts += 1
            self._process = Process(self._task, self._limits)
            self._process.ask("poll")
        return self._process

    def _take_in(self, process: Process) -> list[Finding]:
        found: list[Finding] = []
        # Asked first: then everything that it has sent before its end is read.
        ended = process.has_ended()
        try:
            for message in process.messages():
                found += self._take(message)
            trouble = process.trouble(ended=ended)
        except (ValueError, KeyError, TypeError) as error:
            trouble = f"what it sent is no answer: {error}"
        if trouble and not self.has_failed:
            self.close()
            if self._n_starts > self._limits.restarts:
                again = f" ({self._n_starts} times)" if self._n_starts > 1 else ""
                tail = process.tail()
                said = f"; it printed: {tail}" if tail else ""
                self._set_status(Status.ERROR, f"{trouble}{again}{said}")
        return found

    def _take(self, message: Mapping[str, Any]) -> list[Finding]:
        if "episode" in message:
            finding = self._finding(message["episode"])
            key = (finding.tensor, finding.mode.name, finding.first_step)
            self._episodes[key] = finding
            if len(self._episodes) > MAX_EPISODES:
                self.close()
                msg = f"it found more than {MAX_EPISODES} episodes"
                self._set_status(Status.ERROR, msg)
        elif "status" in message:
            self.close()
            self._set_status(Status.ERROR, str(message.get("message", "")))
        elif "finding" in message:
            finding = self._finding(message["finding"])
            name, mode = finding.tensor, finding.mode.name
            once = (name, mode, finding.step, finding.phase)
            if once not in self._seen:
                self._seen.add(once)
                self._episodes[name, mode, finding.first_step] = finding
                self._count_begun(int(finding.phase == "begin"))
                return [finding]
        elif "done" in message:
            self.n_judged = int(message.get("judged", 0))
            self._wanting = str(message.get("wanting", ""))
        return []

    def _finding(self, document: Mapping[str, Any]) -> Finding:
        # Whatever it says, it speaks for itself.
        return replace(Finding.from_json(document), rule=self.rule.name)
