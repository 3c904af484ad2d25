"""Which findings reach an action: bad enough, once an episode, not too often."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from tdbg.actions._base import Action, close_all
from tdbg.findings import Finding, Severity

__all__ = ["Gate"]


class Gate:
    """An action that is taken for some findings only.

    It is taken once for each episode: when it begins, or when it has become bad
    enough.  Within the cool-down of a rule its further findings are only counted; the
    next one that reaches the action says how many there were.

    Args:
        action: Taken.
        rules: Of these only; None: of all.
        severity: From this one on.
        cool_down: Seconds without another finding of the same rule.
        hears_ends: Whether it is told of ends, and of all changes, as metrics must be.
        once: Whether it acts a single time by itself, which a dry run must know.
        dry_run: Only say what would be done.
        clock: Seconds.

    Attributes:
        would: What a dry run would have done.
    """

    def __init__(
        self,
        action: Action,
        *,
        rules: frozenset[str] | None = None,
        severity: Severity = Severity.INFO,
        cool_down: float = 0.0,
        hears_ends: bool = False,
        once: bool = False,
        dry_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.action = action
        self.would: list[Finding] = []
        self._rules = rules
        self._severity = severity
        self._cool_down = cool_down
        self._hears_ends = hears_ends
        self._once = once
        self._dry_run = dry_run
        self._clock = clock
        # Episodes that it was taken for.
        self._taken: set[tuple[str, str, str]] = set()
        self._last: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    @property
    def name(self) -> str:
        """That of the action."""
        return self.action.name

    def __call__(self, finding: Finding) -> None:
        """Take the action, if this finding is one for it."""
        if self._rules is not None and finding.rule not in self._rules:
            return
        if self._hears_ends:
            self._take(finding)
            return
        episode = finding.rule, finding.tensor, finding.mode.name
        if finding.is_over:
            self._taken.discard(episode)
            return
        if finding.severity < self._severity or episode in self._taken:
            return
        self._taken.add(episode)
        now = self._clock()
        last = self._last.get(finding.rule)
        if last is not None and now - last < self._cool_down:
            self._held_back[finding.rule] = self._held_back.get(finding.rule, 0) + 1
            return
        self._last[finding.rule] = now
        if n := self._held_back.get(finding.rule, 0):
            more = f"{finding.message} (and {n} more of this rule since the last)"
            finding = dataclasses.replace(finding, message=more)
        try:
            self._take(finding)
        except Exception:
            # It is not done: the next finding of the episode, or of the rule, may do.
            self._taken.discard(episode)
            del self._last[finding.rule]
            raise
        self._held_back.pop(finding.rule, None)

    def _take(self, finding: Finding) -> None:
        if self._dry_run:
            if not (self._once and self.would):
                self.would.append(finding)
        else:
            self.action(finding)

    def close(self, seconds: float) -> list[str]:
        """Finish the action; what went wrong or was held back, a line each."""
        lines = self._what_it_would()
        if self._held_back:
            counts = ", ".join(
                f"{n} of {r}" for r, n in sorted(self._held_back.items())
            )
            lines.append(
                f"action {self.name}: not taken within its cool-down of "
                f"{self._cool_down:g} s: {counts}"
            )
        troubles = close_all([self.action], seconds)
        return lines if self._dry_run else lines + troubles

    def _what_it_would(self) -> list[str]:
        """What a dry run would have done; what one step brought is one line."""
        if self._hears_ends and self.would:
            return [f"action {self.name} would be told of {len(self.would)} changes"]
        groups: dict[tuple[str, int], list[Finding]] = {}
        for finding in self.would:
            groups.setdefault((finding.rule, finding.step), []).append(finding)
        return [
            f"action {self.name} would be taken: {rule} at step {step}: "
            f"{group[0].tensor}" + (f" and {len(group) - 1} more" if group[1:] else "")
            for (rule, step), group in groups.items()
        ]
