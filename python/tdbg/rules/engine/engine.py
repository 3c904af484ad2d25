"""The engine: runs rules over a run, offline or while it is written.

Implements docs/rules.md, "The engine".

Thread safety: an Engine belongs to one thread; ``stop`` may be called from any.

Errors: a rule or an action that raises is contained and reported in its status or in
``Report.notes``; only what makes the run unreadable raises.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg import actions as named_actions
from tdbg.actions import Action, close_all, trouble_of
from tdbg.errors import ConfigurationError
from tdbg.findings import Finding, Severity
from tdbg.rules._base import Rule
from tdbg.rules.asking import resolve
from tdbg.rules.engine.feed import Feed
from tdbg.rules.engine.judge import Judge
from tdbg.rules.engine.report import Report
from tdbg.rules.engine.wanting import what_is_wanting
from tdbg.rules.isolation.isolated import Isolated
from tdbg.rules.isolation.process import Limits
from tdbg.rules.isolation.transport import is_foreign
from tdbg.rules.quiet import Quiet
from tdbg.rules.source import Source
from tdbg.rules.status import RuleStatus
from tdbg.rules.verdicts import Judgement

if TYPE_CHECKING:
    from tdbg.rules.engine.journal import Journal

__all__ = ["POLL_SECONDS", "Engine", "Report", "check", "watch"]

# How long the engine sleeps when a live run has nothing new.
POLL_SECONDS = 0.05
# How often rules are asked about a standstill.
QUIET_SECONDS = 1.0

RunPath = str | os.PathLike[str]


class Engine:
    """Judges one run with a set of rules.

    Args:
        run: Directory of the run, or anything that reads like a ``Trial``.
        rules: Rules or names of rules; None: all of tdbg's, with their defaults.
        actions: What is done about each finding.
        record: Whether to write findings and statuses into the run.
        max_window: Steps to judge at once, at most; None: as many as fit.
        isolate: Whether rules that are not tdbg's run in processes of their own;
            only if *run* is a directory.
        limits: What such a process may take.

    Attributes:
        run: The run's directory, as given.
        on_window: Called before each window is judged.
        on_look: Called when all that was new has been judged.

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
        isolate: bool = True,
        limits: Limits | None = None,
    ) -> None:
        chosen = resolve(rules)
        self.on_window: Callable[[], None] | None = None
        self.on_look: Callable[[], None] | None = None
        self._actions = tuple(actions)
        self._notes: list[str] = []
        self._n_steps = 0
        self._stop_asked = threading.Event()
        self._journal: Journal | None = None
        self._source: Source
        isolate &= isinstance(run, str | os.PathLike)
        if isinstance(run, str | os.PathLike):
            from tdbg.trial import create_trial

            self.run = str(Path(run))
            self._source = create_trial(self.run)
            if record:
                from tdbg.rules.engine.journal import Journal

                self._journal = Journal(self.run)
        else:
            self.run = str(getattr(run, "path", ""))
            self._source = run
        self._limits = limits or Limits()
        self._max_window = max_window
        self._judges = [self._judge(rule, isolate=isolate) for rule in chosen]
        self._local = [judge for judge in self._judges if isinstance(judge, Judge)]
        self._apart = [judge for judge in self._judges if isinstance(judge, Isolated)]
        local = [judge.rule for judge in self._local]
        self._feed = Feed(self._source, local, max_window)
        self._began = self._asked = time.monotonic()
        for judge in self._judges:
            self._record(judge.status)

    @property
    def state(self) -> str:
        """Of the training: "running", "stalled", "closed", "dead" or "unknown"."""
        return self._source.status

    def poll(self) -> list[Finding]:
        """Judge all that is new; what begins, gets worse and ends, by step.

        Raises:
            StorageError: If the run cannot be read.
        """
        return self._poll(wait=True)

    def ask_silence(self) -> list[Finding]:
        """Ask rules about a standstill, now; ``poll`` does so once a second.

        Raises:
            StorageError: If the run cannot be read.
        """
        return self._ask_silence(apart=True)

    def _ask_silence(self, *, apart: bool) -> list[Finding]:
        """Those in processes of their own ask themselves, but not always now."""
        self._asked = time.monotonic()
        found: list[Finding] = []
        asked = [j for j in self._local if type(j.rule).silence is not Rule.silence]
        if asked and not self._feed.pending():
            quiet = self._quiet()
            for judge in asked:
                found += judge.ask(partial(judge.rule.silence, quiet))
        for other in self._apart if apart else ():
            if type(other.rule).silence is not Rule.silence:
                found += other.poll(ask="silence", wait=True)
        self._tell(found)
        return found

    def follow(self, poll_seconds: float = POLL_SECONDS) -> Iterator[list[Finding]]:
        """Yield what each poll finds, until the run has ended or ``stop`` is called.

        A rule in a process of its own is waited for at the end only, so that it
        delays nobody else.

        Raises:
            StorageError: If the run cannot be read.
        """
        while not self._stop_asked.is_set():
            # Asked before the poll: what was written until then is judged.
            ended = self._source.loaded_all_steps
            found = self._poll(wait=ended)
            if ended and not self._feed.pending():
                found += self.ask_silence()
                if found:
                    yield found
                return
            if found:
                yield found
            self._stop_asked.wait(poll_seconds)
        for judge in self._judges:
            judge.stop()

    def stop(self) -> None:
        """Make ``follow`` return soon; the training is left alone."""
        self._stop_asked.set()

    def finish(self) -> Report:
        """Settle the statuses, end all processes, close the writer, and report."""
        captured = cache(self._source.collections)
        for judge, is_blind in zip(self._local, self._feed.unseen(), strict=True):
            judge.finish(
                what_is_wanting(
                    judge.rule,
                    self._source,
                    captured,
                    is_blind=is_blind,
                    has_judged=judge.n_judged > 0,
                )
            )
        for other in self._apart:
            other.finish()
        if self._journal is not None:
            self._journal.close()
            if self._journal.trouble:
                self._note(self._journal.trouble)
            self._journal = None
        for trouble in close_all(self._actions):
            self._note(trouble)
        self._actions = ()
        return self.report()

    def seconds(self) -> dict[str, float]:
        """How long each rule has taken so far; 0 for those in other processes."""
        return {judge.rule.name: judge.seconds for judge in self._judges}

    def judged(self) -> dict[str, int]:
        """How many verdicts each rule has given so far, unknown ones left out."""
        return {judge.rule.name: judge.n_judged for judge in self._judges}

    def episodes(self) -> list[Finding]:
        """Every episode so far as one finding, as it stands, by rule."""
        return [finding for judge in self._judges for finding in judge.findings]

    def report(self) -> Report:
        """What has come of it so far."""
        return Report(
            run=self.run,
            findings=tuple(sorted(self.episodes(), key=_first_and_worst)),
            statuses=tuple(judge.status for judge in self._judges),
            n_steps=self._n_steps,
            last_step=self._feed.next_step - 1,
            notes=tuple(self._notes),
        )

    def _judge(self, rule: Rule, *, isolate: bool) -> Judge | Isolated:
        if not isolate or not is_foreign(rule):
            return Judge(rule, self._record)
        try:
            return Isolated(
                rule, self.run, self._record, self._limits, self._max_window
            )
        except ConfigurationError as error:
            self._note(f"rule {rule.name} runs in this process: {error}")
            return Judge(rule, self._record)

    def _poll(self, *, wait: bool) -> list[Finding]:
        self._source.refresh()
        found: list[Finding] = []
        last = self._feed.next_step
        # Thousands of questions are asked of a window: none looks for news again.
        with getattr(self._source, "no_refresh", contextlib.nullcontext)():
            while self._feed.advance():
                found += self._judge_window()
        is_due = time.monotonic() - self._asked >= QUIET_SECONDS
        # Of a run that stands still nothing is asked more often than that.
        ask = "poll" if wait or is_due or self._feed.next_step > last else None
        apart = [each for judge in self._apart for each in judge.poll(ask=ask)]
        if wait:
            for judge in self._apart:
                apart += judge.poll(ask=None, wait=True)
        self._tell(apart)
        found += apart
        if not found and is_due:
            found += self._ask_silence(apart=False)
        if self.on_look is not None:
            self.on_look()
        return found

    def _judge_window(self) -> list[Finding]:
        self._n_steps += self._feed.n_new
        if self.on_window is not None:
            self.on_window()
        found: list[Finding] = []
        for i, judge in enumerate(self._local):
            if i in self._feed.failures:
                judge.fail(self._feed.failures[i])
            found += judge.ask(partial(self._evaluate, i, judge.rule))
            self._feed.release(i)
        self._tell(found)
        return found

    def _evaluate(self, i: int, rule: Rule) -> Iterable[Judgement]:
        return rule.evaluate(self._feed.window(i))

    def _quiet(self) -> Quiet:
        mode = None
        seconds = time.monotonic() - self._began
        if self._feed.last is not None:
            mode, wall_ns = self._feed.last
            # A training that was started again stood still while nobody ran it.
            since = [attempt.started_ns for attempt in self._source.attempts()]
            seconds = max(0.0, (time.time_ns() - max([wall_ns, *since])) / 1e9)
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

    def _act(self, finding: Finding) -> None:
        for action in self._actions:
            try:
                action(finding)
            except Exception as error:  # An action may be anybody's.
                self._note(trouble_of(action, error))

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _record(self, status: RuleStatus) -> None:
        if self._journal is not None:
            self._journal.status(status, self._feed.next_step - 1)
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
    on_finding: str | Action | Sequence[str | Action] = (),
    stop_on: str | Severity = Severity.ERROR,
    record: bool = True,
    poll_seconds: float = POLL_SECONDS,
) -> Report:
    """Judge a run while it is written, until it has ended.

    Args:
        run: Directory of the run.
        rules: Rules or names of rules; None: all of tdbg's.
        on_finding: An action, as ``"stop"`` or ``"webhook:https://..."``
            (docs/actions.md), or several.
        stop_on: Severity from which on "stop" stops.
        record: Whether to write findings and statuses into the run.
        poll_seconds: How long to sleep when there is nothing new.

    Raises:
        ConfigurationError: If a rule, an action or a severity is unknown.
        NotARun: If the directory is no run.
        StorageError: If it cannot be read.
    """
    asked = [on_finding] if not isinstance(on_finding, Sequence) else on_finding
    asked = [on_finding] if isinstance(on_finding, str) else asked
    taken = [
        named_actions.get(each, run, stop_on=stop_on) if isinstance(each, str) else each
        for each in asked
    ]
    engine = Engine(run, rules, taken, record=record)
    for _ in engine.follow(poll_seconds):
        pass
    return engine.finish()
