"""The engine: runs rules over a run, offline or while it is written.

Implements docs/rules.md, "The engine".

Thread safety: an Engine belongs to one thread; ``stop`` may be called from any.

Errors: a rule or an action that raises is contained and reported in its status or in
``Report.notes``; only what makes the run unreadable raises.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg import actions as named_actions
from tdbg.actions import Action
from tdbg.findings import Finding, Severity
from tdbg.rules._base import Rule
from tdbg.rules.episodes import Episodes
from tdbg.rules.feed import Feed
from tdbg.rules.quiet import Quiet
from tdbg.rules.registry import resolve
from tdbg.rules.source import Source
from tdbg.rules.status import RuleStatus, Status
from tdbg.rules.verdicts import Judgement

if TYPE_CHECKING:
    from tdbg.rules.journal import Journal

__all__ = ["POLL_SECONDS", "Engine", "Report", "check", "watch"]

# How long the engine sleeps when a live run has nothing new.
POLL_SECONDS = 0.05
# How often rules are asked about a standstill.
QUIET_SECONDS = 1.0

RunPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of judging a run.

    Attributes:
        run: The run.
        findings: Every episode as one finding, as it stood at last, by first step,
            and of the same step the worst first.
        statuses: One a rule, in the order in which the rules were given.
        n_steps: How many recorded steps were judged.
        last_step: The last of them, or -1.
        notes: What did not work: recording, an action.
    """

    run: str
    findings: tuple[Finding, ...]
    statuses: tuple[RuleStatus, ...]
    n_steps: int
    last_step: int
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing was found, and every rule could judge."""
        failed = any(status.status is Status.ERROR for status in self.statuses)
        return not self.findings and not failed

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "run": self.run,
            "findings": [finding.to_json() for finding in self.findings],
            "statuses": [status.to_json() for status in self.statuses],
            "n_steps": self.n_steps,
            "last_step": self.last_step,
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class _Judge:
    """A rule at work on this run."""

    rule: Rule
    episodes: Episodes
    status: Status = Status.IN_PROGRESS
    message: str = ""
    n_findings: int = 0
    seconds: float = 0.0

    @property
    def report(self) -> RuleStatus:
        return RuleStatus(
            rule=self.rule.name,
            status=self.status,
            message=self.message,
            n_findings=self.n_findings,
        )


class Engine:
    """Judges one run with a set of rules.

    Args:
        run: Directory of the run, or anything that reads like a ``Trial``.
        rules: Rules or names of rules; None: all of tdbg's, with their defaults.
        actions: What is done about each finding.
        record: Whether to write findings and statuses into the run.
        max_window: Steps to judge at once, at most; None: as many as fit.

    Raises:
        UnknownRule: If a name is of none.
        NotARun: If the directory is no run.
    """

    def __init__(
        self,
        run: RunPath | Source,
        rules: Iterable[str | Rule] | str | Rule | None = None,
        actions: Sequence[Action] = (),
        *,
        record: bool = True,
        max_window: int | None = None,
    ) -> None:
        chosen = resolve(rules)
        self._judges = [_Judge(rule, Episodes(rule.name)) for rule in chosen]
        self._actions = tuple(actions)
        self._notes: list[str] = []
        self._n_steps = 0
        self._stop_asked = threading.Event()
        self._journal: Journal | None = None
        self._source: Source
        if isinstance(run, str | os.PathLike):
            from tdbg.trial import create_trial

            self.run = str(Path(run))
            self._source = create_trial(self.run)
            if record:
                from tdbg.rules.journal import Journal

                self._journal = Journal(self.run)
        else:
            self.run = str(getattr(run, "path", ""))
            self._source = run
        self._feed = Feed(self._source, chosen, max_window)
        self._began = self._asked = time.monotonic()
        self._record_statuses(self._judges)

    def poll(self) -> list[Finding]:
        """Judge all that is new; what begins, gets worse and ends, by step.

        Raises:
            StorageError: If the run cannot be read.
        """
        self._source.refresh()
        found: list[Finding] = []
        while self._feed.advance():
            found += self._judge_window()
        if not found and time.monotonic() - self._asked >= QUIET_SECONDS:
            found += self.ask_silence()
        return found

    def ask_silence(self) -> list[Finding]:
        """Ask rules about a standstill, now; ``poll`` does so once a second.

        Raises:
            StorageError: If the run cannot be read.
        """
        self._asked = time.monotonic()
        asked = [
            judge
            for judge in self._judges
            if type(judge.rule).silence is not Rule.silence
            and judge.status is not Status.ERROR
        ]
        if not asked or self._feed.pending():
            return []
        quiet = self._quiet()
        found: list[Finding] = []
        for judge in asked:
            found += self._fold(judge, partial(judge.rule.silence, quiet))
        self._tell(found)
        return found

    def follow(self, poll_seconds: float = POLL_SECONDS) -> Iterator[list[Finding]]:
        """Yield what each poll finds, until the run has ended or ``stop`` is called.

        Raises:
            StorageError: If the run cannot be read.
        """
        while not self._stop_asked.is_set():
            # Asked before the poll: what was written until then is judged.
            ended = self._source.loaded_all_steps
            found = self.poll()
            if ended and not self._feed.pending():
                found += self.ask_silence()
                if found:
                    yield found
                return
            if found:
                yield found
            self._stop_asked.wait(poll_seconds)
        self._set_all(Status.STOPPING)

    def stop(self) -> None:
        """Make ``follow`` return soon; the training is left alone."""
        self._stop_asked.set()

    def finish(self) -> Report:
        """Settle the statuses, close the engine's writer, and report."""
        for judge in self._judges:
            if judge.status is Status.STOPPING:
                judge.status = Status.STOPPED
            elif judge.status is Status.IN_PROGRESS:
                judge.status = Status.NO_ISSUES_FOUND
            else:
                continue
            self._record_statuses([judge])
        if self._journal is not None:
            self._journal.close()
            if self._journal.trouble:
                self._note(self._journal.trouble)
            self._journal = None
        return self.report()

    def seconds(self) -> dict[str, float]:
        """How long each rule has taken so far."""
        return {judge.rule.name: judge.seconds for judge in self._judges}

    def report(self) -> Report:
        """What has come of it so far."""
        findings = [f for judge in self._judges for f in judge.episodes.all]
        return Report(
            run=self.run,
            findings=tuple(sorted(findings, key=_first_and_worst)),
            statuses=tuple(judge.report for judge in self._judges),
            n_steps=self._n_steps,
            last_step=self._feed.next_step - 1,
            notes=tuple(self._notes),
        )

    def _judge_window(self) -> list[Finding]:
        self._n_steps += self._feed.n_new
        found: list[Finding] = []
        for i, judge in enumerate(self._judges):
            if i in self._feed.failures:
                self._fail(judge, self._feed.failures[i])
            if judge.status is not Status.ERROR:
                found += self._fold(judge, partial(self._evaluate, i, judge.rule))
        self._tell(found)
        return found

    def _evaluate(self, i: int, rule: Rule) -> Iterable[Judgement]:
        return rule.evaluate(self._feed.window(i))

    def _quiet(self) -> Quiet:
        mode = None
        seconds = time.monotonic() - self._began
        if self._feed.last is not None:
            mode, wall_ns = self._feed.last
            seconds = max(0.0, (time.time_ns() - wall_ns) / 1e9)
        status = self._source.status
        alive = {"running": True, "stalled": True, "dead": False, "closed": False}
        return Quiet(
            seconds=seconds,
            last_step=self._feed.next_step - 1,
            mode=mode,
            alive=alive.get(status),
            ended=status == "closed",
        )

    def _tell(self, found: list[Finding]) -> None:
        # Where both are the same: in the order of rules and tensors.
        found.sort(key=lambda finding: (finding.step, -finding.severity))
        for finding in found:
            if self._journal is not None:
                self._journal.finding(finding)
            self._act(finding)
        if found and self._journal is not None:
            self._journal.flush()

    def _fold(
        self, judge: _Judge, ask: Callable[[], Iterable[Judgement]]
    ) -> list[Finding]:
        found: list[Finding] = []
        started = time.perf_counter()
        try:
            for judgement in ask():
                found += judge.episodes.fold(judgement)
        except Exception as error:  # A rule is anybody's code.
            self._fail(judge, error)
        judge.seconds += time.perf_counter() - started
        begun = sum(finding.phase == "begin" for finding in found)
        judge.n_findings += begun
        if begun and judge.status is Status.IN_PROGRESS:
            judge.status = Status.ISSUES_FOUND
            self._record_statuses([judge])
        return found

    def _fail(self, judge: _Judge, error: Exception) -> None:
        if judge.status is Status.ERROR:
            return
        judge.status = Status.ERROR
        judge.message = f"{type(error).__name__}: {error}"
        self._record_statuses([judge])

    def _act(self, finding: Finding) -> None:
        for action in self._actions:
            try:
                action(finding)
            except Exception as error:  # An action may be anybody's.
                self._note(f"action {action.name}: {type(error).__name__}: {error}")

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _set_all(self, status: Status) -> None:
        changed = [judge for judge in self._judges if judge.status is not Status.ERROR]
        for judge in changed:
            judge.status = status
        self._record_statuses(changed)

    def _record_statuses(self, judges: Iterable[_Judge]) -> None:
        if self._journal is None:
            return
        for judge in judges:
            self._journal.status(judge.report, self._feed.next_step - 1)
        self._journal.flush()


def _first_and_worst(finding: Finding) -> tuple[int, int]:
    return finding.first_step, -finding.severity


def check(
    run: RunPath | Source,
    rules: Iterable[str | Rule] | str | Rule | None = None,
    *,
    record: bool = True,
) -> Report:
    """Judge what is in a run now, whether it has ended or not.

    Args:
        run: Directory of the run.
        rules: Rules or names of rules; None: all of tdbg's.
        record: Whether to write findings and statuses into the run.

    Raises:
        UnknownRule: If a name is of none.
        NotARun: If the directory is no run.
        StorageError: If it cannot be read.
    """
    engine = Engine(run, rules, record=record)
    engine.poll()
    engine.ask_silence()
    return engine.finish()


def watch(
    run: RunPath,
    rules: Iterable[str | Rule] | str | Rule | None = None,
    *,
    on_finding: str | Action = "report",
    stop_on: str | Severity = Severity.ERROR,
    record: bool = True,
    poll_seconds: float = POLL_SECONDS,
) -> Report:
    """Judge a run while it is written, until it has ended.

    Args:
        run: Directory of the run.
        rules: Rules or names of rules; None: all of tdbg's.
        on_finding: Name of an action ("report", "stop"), or an action.
        stop_on: Severity from which on "stop" stops.
        record: Whether to write findings and statuses into the run.
        poll_seconds: How long to sleep when there is nothing new.

    Raises:
        ConfigurationError: If a rule, an action or a severity is unknown.
        NotARun: If the directory is no run.
        StorageError: If it cannot be read.
    """
    if isinstance(on_finding, str):
        on_finding = named_actions.get(on_finding, run, stop_on=stop_on)
    engine = Engine(run, rules, (on_finding,), record=record)
    for _ in engine.follow(poll_seconds):
        pass
    return engine.finish()
