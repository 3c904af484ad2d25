"""Decides which findings reach an action, and calls slow actions in a thread.

Thread safety: none; owned by the engine.  ``Background`` has a thread of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable

from tdbg.actions.action import Action, close_all, trouble_of
from tdbg.config.quantities import plural
from tdbg.run.findings import Cause, Finding, Severity

__all__ = ["MAX_WAITING", "Background", "Gate"]

_log = logging.getLogger("tdbg")


_Episode = tuple[str, str, str]


class Gate:
    """Passes some findings on to an action.

    The action is called once for each fault: for its cause, or for the first finding
    that follows from it and is severe enough where the cause is not.  A finding that
    shows before its cause is known passes, and so does the cause: it says what to do.
    During the cool-down of a rule its further findings are only counted; the next
    finding that passes says how many there were.

    Args:
        action: The action.
        rules: Only findings of these rules pass; None: of all rules.
        severity: Only findings at least this severe pass.
        cool_down: Seconds after a finding in which no other of the same rule passes.
        all_changes: Whether every change of every episode passes, ends included, as
            metrics need it; *severity* and *cool_down* do not apply then.
        once: Whether the action acts only on its first finding (for dry runs).
        dry_run: Only collect the findings that would pass.
        clock: Returns the time in seconds.

    Attributes:
        dry_findings: The findings that passed in a dry run.
    """

    def __init__(
        self,
        action: Action,
        *,
        rules: frozenset[str] | None = None,
        severity: Severity = Severity.INFO,
        cool_down: float = 0.0,
        all_changes: bool = False,
        once: bool = False,
        dry_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.action = action
        self.dry_findings: list[Finding] = []
        self._rules = rules
        self._severity = severity
        self._cool_down = cool_down
        self._all_changes = all_changes
        self._once = once
        self._dry_run = dry_run
        self._clock = clock
        # Faults that the action was called for, and episodes of these.
        self._acted: dict[Cause, set[_Episode]] = {}
        self._last: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The name of the action."""
        return self.action.name

    def __call__(self, finding: Finding) -> None:
        """Call the action if the finding passes."""
        if self._rules is not None and finding.rule not in self._rules:
            return
        if self._all_changes:
            self._act(finding)
            return
        episode = finding.rule, finding.tensor, finding.mode.name
        itself = Cause(finding.rule, finding.tensor, finding.first_step)
        fault = finding.cause or itself
        if finding.is_over:
            self._forget(fault, episode)
            return
        if finding.severity < self._severity:
            return
        is_known = fault in self._acted
        if is_known and (finding.cause or episode in self._acted[fault]):
            return
        self._acted.setdefault(fault, set()).add(episode)
        now = self._clock()
        last = self._last.get(finding.rule)
        if last is not None and now - last < self._cool_down:
            self._suppressed[finding.rule] = self._suppressed.get(finding.rule, 0) + 1
            return
        self._last[finding.rule] = now
        if n := self._suppressed.get(finding.rule, 0):
            more = f"{finding.message} (and {n} more of this rule since the last)"
            finding = dataclasses.replace(finding, message=more)
        try:
            self._act(finding)
        except Exception:
            # The action failed: let the next finding of episode or rule try again.
            self._forget(fault, episode)
            del self._last[finding.rule]
            raise
        self._suppressed.pop(finding.rule, None)

    def _forget(self, fault: Cause, episode: _Episode) -> None:
        episodes = self._acted.get(fault, set())
        episodes.discard(episode)
        if not episodes:
            self._acted.pop(fault, None)

    def _act(self, finding: Finding) -> None:
        if self._dry_run:
            if not (self._once and self.dry_findings):
                self.dry_findings.append(finding)
        else:
            self.action(_encodable(finding))

    def close(self, seconds: float) -> list[str]:
        """Close the action; return errors and suppressed findings, one line each."""
        lines = self._dry_lines()
        if self._suppressed:
            counts = ", ".join(
                f"{n} of {r}" for r, n in sorted(self._suppressed.items())
            )
            lines.append(
                f"action {self.name}: not taken within its cool-down of "
                f"{self._cool_down:g} s: {counts}"
            )
        troubles = close_all([self.action], seconds)
        return lines if self._dry_run else lines + troubles

    def _dry_lines(self) -> list[str]:
        """Return the report of a dry run: a line for each rule and step."""
        if self._all_changes and self.dry_findings:
            n = plural(len(self.dry_findings), "change")
            return [f"action {self.name} would get {n}"]
        groups: dict[tuple[str, int], list[Finding]] = {}
        for finding in self.dry_findings:
            groups.setdefault((finding.rule, finding.step), []).append(finding)
        return [
            f"action {self.name} would be taken: {rule} at step {step}: "
            f"{group[0].tensor}" + (f" and {len(group) - 1} more" if group[1:] else "")
            for (rule, step), group in groups.items()
        ]


def _encodable(finding: Finding) -> Finding:
    """Replace halves of characters, which no variable, mail or body can have.

    Rules may put anything into a message, such as a name out of the data.
    """
    texts = {
        name: getattr(finding, name).encode(errors="replace").decode()
        for name in ("tensor", "message", "advice")
    }
    return dataclasses.replace(finding, **texts)


# Capacity of the queue; further findings are dropped, and counted.
MAX_WAITING = 1000


class Background:
    """Calls an action in a thread of its own, which starts with the first finding."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._queue: queue.Queue[Finding | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._troubles: Counter[str] = Counter()  # In the order of the first of each.
        self._n_dropped = 0

    @property
    def name(self) -> str:
        """The name of the action."""
        return self._action.name

    def __call__(self, finding: Finding) -> None:
        """Queue the finding; never waits."""
        if self._thread is None:
            # A daemon: a server that does not answer must not delay the exit.
            self._thread = threading.Thread(
                target=self._run, name=f"tdbg-action-{self.name}", daemon=True
            )
            self._thread.start()
        try:
            self._queue.put_nowait(finding)
        except queue.Full:
            self._n_dropped += 1

    def close(self, seconds: float) -> list[str]:
        """Wait for the queued findings, at most *seconds*; return errors."""
        deadline = time.monotonic() + seconds
        troubles: list[str] = []
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=seconds)
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                n = self._give_up()
                troubles.append(
                    f"action {self.name}: not done within {seconds:g} s, and given up; "
                    f"findings that waited for it: {n}"
                )
        if self._n_dropped:
            troubles.append(
                f"action {self.name} dropped {plural(self._n_dropped, 'finding')}, "
                f"because {MAX_WAITING} were waiting"
            )
        left = max(0.0, deadline - time.monotonic())
        told = [
            f"{text} ({n} times)" if n > 1 else text
            for text, n in self._troubles.items()
        ]
        return [*told, *troubles, *close_all([self._action], left)]

    def _give_up(self) -> int:
        """Drop the findings that wait; the thread ends when its action returns.

        Returns:
            How many were dropped.
        """
        n_dropped = 0
        with contextlib.suppress(queue.Empty):
            while True:
                n_dropped += self._queue.get_nowait() is not None
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        return n_dropped

    def _run(self) -> None:
        while (finding := self._queue.get()) is not None:
            try:
                self._action(finding)
            except Exception as error:  # User code: an action may raise anything.
                trouble = trouble_of(self, error)
                if trouble not in self._troubles:
                    _log.warning("%s; tdbg continues judging", trouble)
                self._troubles[trouble] += 1
