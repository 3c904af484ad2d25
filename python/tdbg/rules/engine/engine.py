"""The engine: runs rules over a run, offline or while it is written.

Implements docs/rules.md, "The engine".

Thread safety: an Engine belongs to one thread; ``stop`` may be called from any.

Errors: an exception of a rule ends up in the status of that rule, one of an action in
``Report.notes``.  The engine raises only if the run cannot be read.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg import actions as named_actions
from tdbg.actions import Action, close_all, trouble_of
from tdbg.config.quantities import plural
from tdbg.errors import ConfigurationError
from tdbg.remote import is_url
from tdbg.rules.causes import Causes, cause_of, with_causes
from tdbg.rules.engine.feed import Feed
from tdbg.rules.engine.missing_capture import describe_missing, facts_of
from tdbg.rules.engine.profile_feed import ProfileFeed
from tdbg.rules.parsing import resolve
from tdbg.rules.rule import Rule
from tdbg.rules.runner import LocalRunner, RuleStatus, Status
from tdbg.rules.sandbox.sandbox import Limits, SandboxedRule
from tdbg.rules.sandbox.transport import is_foreign
from tdbg.rules.table import Evaluation
from tdbg.rules.vocabulary import Vocabulary, vocabulary_of
from tdbg.rules.window import Idle
from tdbg.run.findings import Cause, Finding, Severity
from tdbg.run.stack_groups import Stalls
from tdbg.shown import Shown

if TYPE_CHECKING:
    from tdbg.rules.engine.finding_writer import FindingWriter
    from tdbg.trial import FileProblem, Trial


__all__ = ["POLL_SECONDS", "Engine", "Report", "check", "watch"]

# How long the engine sleeps when a live run has nothing new.
POLL_SECONDS = 0.05
# How often idle rules are called, and sandboxed rules of a run that stands still.
IDLE_SECONDS = 1.0
# States of a run of which nothing more comes.
ENDED = ("closed", "dead")
# The program of a sandboxed rule's process.
WORKER = "from tdbg.rules.engine.worker import main; main()"

RunPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Shown):
    """The result of running rules over a run.

    Attributes:
        run: Directory of the run.
        findings: One finding for every episode, in its last state; sorted by first
            step, the worst first where steps are equal.
        statuses: One for every rule, in the order in which the rules were given.
        n_steps: How many recorded steps of training were judged.
        n_evaluated: How many steps of evaluation and prediction.
        last_step: The last step that was judged, as a training step, or -1.
        last_global_step: Its global number, or -1.
        notes: Errors of recording and of actions, as text.
    """

    run: str
    findings: tuple[Finding, ...]
    statuses: tuple[RuleStatus, ...]
    n_steps: int
    last_step: int
    n_evaluated: int = 0
    last_global_step: int = -1
    notes: tuple[str, ...] = ()

    @property
    def accuses(self) -> bool:
        """Whether a finding says that something is wrong: a warning or an error."""
        return any(finding.severity > Severity.INFO for finding in self.findings)

    @property
    def healthy(self) -> bool:
        """Whether nothing was found to be wrong and no rule failed."""
        failed = any(status.status is Status.ERROR for status in self.statuses)
        return not self.accuses and not failed

    @property
    def n_recorded(self) -> int:
        """How many recorded steps of any mode were judged."""
        return self.n_steps + self.n_evaluated

    @property
    def judged(self) -> str:
        """How many steps were judged, in words, evaluation apart."""
        trained = plural(self.n_steps, "recorded step")
        if not self.n_evaluated:
            return trained
        if not self.n_steps:
            return f"{plural(self.n_evaluated, 'recorded step')} of evaluation"
        return f"{trained} of training and {self.n_evaluated:,} of evaluation"

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary that JSON can hold."""
        return {
            "run": self.run,
            "findings": [finding.to_json() for finding in self.findings],
            "statuses": [status.to_json() for status in self.statuses],
            "n_steps": self.n_steps,
            "n_evaluated": self.n_evaluated,
            "last_step": self.last_step,
            "last_global_step": self.last_global_step,
            "notes": list(self.notes),
        }


class Engine:
    """Runs a set of rules over one run.

    Args:
        run: Directory or URL of the run, or a trial of it.
        rules: Rules or names of rules; None: all rules of tdbg, with their defaults.
        actions: Called with every finding.
        record: Whether to write findings and statuses into the run, unless the run
            has the same from an engine before.  Needs *run* to be a path or URL.
        max_window: Largest number of steps in a window; None: what fits in memory.
        isolate: Whether rules from outside of tdbg run in processes of their own.
            Needs *run* to be a path or URL.
        limits: What such a process may use.

    Attributes:
        run: The run's directory, as given.
        is_stopped: Whether ``stop`` was called.
        on_window: Called before each window is judged.
        on_poll: Called at the end of each poll.

    Raises:
        UnknownRule: If there is no rule of a given name.
        NotARun: If the directory is no run.
    """

    def __init__(
        self,
        run: RunPath | Trial,
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
        self.on_poll: Callable[[], None] | None = None
        self._actions = tuple(actions)
        self._notes: list[str] = []
        self._causes = Causes()
        # Ends of findings from which others follow that go on.
        self._ends: dict[Cause, Finding] = {}
        self._n_steps = self._n_evaluated = 0
        self.is_stopped = False
        # Wakes ``follow``; a signal may come while its lock is held, as an event's.
        self._wake = queue.SimpleQueue[None]()
        self._writer: FindingWriter | None = None
        isolate &= isinstance(run, str | os.PathLike)
        if isinstance(run, str | os.PathLike):
            from tdbg.trial import create_trial

            self._trial = create_trial(run)
            self.run = os.fspath(run) if is_url(run) else str(Path(run))
            if record:
                from tdbg.rules.engine.finding_writer import FindingWriter

                self._writer = FindingWriter(self._trial.path, self._trial)
        else:
            self._trial = run
            self.run = run.path
        self._limits = limits or Limits()
        self._max_window = max_window
        self._runners = [self._runner(rule, isolate=isolate) for rule in chosen]
        self._local = [each for each in self._runners if isinstance(each, LocalRunner)]
        self._sandboxed = [
            each for each in self._runners if isinstance(each, SandboxedRule)
        ]
        rules_here = [runner.rule for runner in self._local]
        self._feed = Feed(self._trial, rules_here, max_window)
        self._stalls = Stalls(self.run)
        self._profile = ProfileFeed(self._trial, rules_here, max_window)
        self._began = self._idle_checked = time.monotonic()
        for runner in self._runners:
            self._record(runner.status)

    @property
    def state(self) -> str:
        """State of the training: "running", "stalled", "closed", "dead", "unknown"."""
        return self._trial.status

    def problems(self) -> list[FileProblem]:
        """Return the problems in the run's files, as far as the engine has read."""
        return self._trial.problems()

    def poll(self) -> list[Finding]:
        """Judge all new steps.

        Returns:
            Episodes that began, got worse or ended, by step.

        Raises:
            StorageError: If the run cannot be read.
        """
        return self._poll(wait=True)

    def poll_idle(self) -> list[Finding]:
        """Call ``Rule.on_idle`` now; ``poll`` does so once a second.

        Returns:
            Episodes that began, got worse or ended, by step.

        Raises:
            StorageError: If the run cannot be read.
        """
        return self._poll_idle(sandboxed=True)

    def follow(
        self, poll_seconds: float = POLL_SECONDS, *, until: Callable[[], bool] = bool
    ) -> Iterator[list[Finding]]:
        """Yield the findings of each poll until the run ends or ``stop`` is called.

        The engine waits for sandboxed rules only at the end, so that a slow one does
        not delay the others.

        Args:
            poll_seconds: How long to sleep when there is nothing new.
            until: Returns True once nobody will end the run any more.  Every rule
                still judges the steps written by then; after ``stop`` none does.

        Raises:
            StorageError: If the run cannot be read.
        """
        if self._writer is not None and self.state not in ENDED:
            # Whoever looks at the run sees that it is being judged.
            self._writer.begin()
            self._writer.flush()
        while not self.is_stopped:
            # Read both before the poll: the poll then covers all steps until here.
            is_last = until()
            ended = self._trial.loaded_all_steps
            found = self._poll(wait=ended or is_last)
            if ended and not self._feed.pending():
                found += self.poll_idle()
                if found:
                    yield found
                return
            if found:
                yield found
            if is_last and not ended:
                break
            with suppress(queue.Empty):
                self._wake.get(timeout=poll_seconds)
        for runner in self._runners:
            runner.stop()

    def stop(self) -> None:
        """Make ``follow`` return soon; the training is not affected.

        Any thread may call it, and a handler of signals.
        """
        self.is_stopped = True
        self._wake.put(None)

    def finish(self) -> Report:
        """Set the final statuses, end all processes, close the writer; report."""
        collections = cache(self._trial.collections)
        facts = cache(
            lambda: facts_of(
                self._trial,
                collections(),
                self._profile.seen,
                self._profile.n_bins,
                self._profile.told,
            )
        )
        for runner, is_blind in zip(self._local, self._feed.blind(), strict=True):
            silence = describe_missing(
                runner.rule,
                self._trial,
                collections,
                facts,
                is_blind=is_blind,
                has_judged=runner.n_judged > 0,
            )
            runner.finish(silence.message, applies=silence.applies)
        for sandboxed in self._sandboxed:
            sandboxed.finish()
        if self._writer is not None:
            self._writer.close()
            if self._writer.trouble:
                self._note(self._writer.trouble)
            self._writer = None
        for trouble in close_all(self._actions):
            self._note(trouble)
        self._actions = ()
        return self.report()

    def seconds(self) -> dict[str, float]:
        """Return the run time of each rule so far; 0 for sandboxed ones."""
        return {runner.rule.name: runner.seconds for runner in self._runners}

    def judged(self) -> dict[str, int]:
        """Return how many verdicts each rule gave so far, unknown ones left out."""
        return {runner.rule.name: runner.n_judged for runner in self._runners}

    def episodes(self) -> list[Finding]:
        """Return one finding for every episode, in its current state, by rule.

        Its steps are global ones.
        """
        return [finding for runner in self._runners for finding in runner.findings]

    def report(self) -> Report:
        """Return the report as of now."""
        found, last = with_causes(self.episodes()), self._feed.next_step - 1
        return Report(
            run=self.run,
            findings=tuple(self._in_training(sorted(found, key=_first_and_worst))),
            statuses=tuple(runner.status for runner in self._runners),
            n_steps=self._n_steps,
            n_evaluated=self._n_evaluated,
            last_step=self._trial.training_steps_at([last])[0],
            last_global_step=last,
            notes=tuple(self._notes),
        )

    def _in_training(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return findings of rules by training steps."""
        with self._trial.no_refresh():
            return [
                each.in_training(self._trial.training_steps_at) for each in findings
            ]

    def _runner(self, rule: Rule, *, isolate: bool) -> LocalRunner | SandboxedRule:
        if not is_foreign(rule) or not isolate:
            return LocalRunner(rule, self._record, self._words)
        try:
            return SandboxedRule(
                rule,
                self.run,
                self._record,
                WORKER,
                limits=self._limits,
                max_window=self._max_window,
            )
        except ConfigurationError as error:
            self._note(f"rule {rule.name} runs in this process: {error}")
            return LocalRunner(rule, self._record, self._words)

    def _words(self) -> Vocabulary:
        """Return the vocabulary of the framework that writes the run."""
        framework = self._trial.configuration().get("framework")
        name = framework.get("name") if isinstance(framework, Mapping) else None
        return vocabulary_of(name)

    def _poll(self, *, wait: bool) -> list[Finding]:
        self._trial.refresh()
        found: list[Finding] = []
        last = self._feed.next_step
        # A window takes thousands of queries: none of them needs to refresh again.
        with self._trial.no_refresh():
            while self._feed.advance():
                found += self._judge_window()
            while self._profile.advance():
                found += self._judge_profile()
        is_idle_due = time.monotonic() - self._idle_checked >= IDLE_SECONDS
        # While the run stands still, sandboxed rules are polled no more often either.
        is_due = wait or is_idle_due or self._feed.next_step > last
        command = "poll" if is_due else None
        of_sandboxed = [
            finding for each in self._sandboxed for finding in each.poll(command)
        ]
        if wait:
            for each in self._sandboxed:
                of_sandboxed += each.poll(None, wait=True)
        found += self._publish(of_sandboxed)
        if not found and is_idle_due:
            found += self._poll_idle(sandboxed=False)
        if self.on_poll is not None:
            self.on_poll()
        return found

    def _judge_window(self) -> list[Finding]:
        self._n_steps += self._feed.n_new
        self._n_evaluated += self._feed.n_evaluated
        if self.on_window is not None:
            self.on_window()
        found: list[Finding] = []
        for i, runner in enumerate(self._local):
            if i in self._feed.failures:
                runner.fail(self._feed.failures[i])
            found += runner.run(partial(self._evaluate, i, runner.rule))
            self._feed.release(i)
        return self._publish(found)

    def _judge_profile(self) -> list[Finding]:
        if self.on_window is not None:
            self.on_window()
        found: list[Finding] = []
        window = self._profile.window()
        for i in self._profile.readers:
            runner = self._local[i]
            found += runner.run(partial(runner.rule.evaluate, window))
        return self._publish(found)

    def _evaluate(self, i: int, rule: Rule) -> Iterable[Evaluation]:
        return rule.evaluate(self._feed.window(i))

    def _poll_idle(self, *, sandboxed: bool) -> list[Finding]:
        """Call ``on_idle``; the engines of sandboxed rules also do so by themselves."""
        self._idle_checked = time.monotonic()
        found: list[Finding] = []
        local = [each for each in self._local if _has_on_idle(each.rule)]
        if local and not self._feed.pending():
            idle = self._idle()
            for runner in local:
                found += runner.run(partial(runner.rule.on_idle, idle))
        for each in self._sandboxed if sandboxed else ():
            if _has_on_idle(each.rule):
                found += each.poll("idle", wait=True)
        return self._publish(found)

    def _idle(self) -> Idle:
        mode = None
        seconds = time.monotonic() - self._began
        if self._feed.last is not None:
            mode, wall_ns = self._feed.last
            # The time between the end of one attempt and the next does not count.
            starts = [attempt.started_ns for attempt in self._trial.attempts()]
            seconds = max(0.0, (time.time_ns() - max([wall_ns, *starts])) / 1e9)
        status = self._trial.status
        has_ended = status == "closed"
        infos = self._trial.model_info() if has_ended else ()
        alive = {"running": True, "stalled": True, "dead": False, "closed": False}
        return Idle(
            seconds=seconds,
            last_step=self._feed.next_step - 1,
            mode=mode,
            alive=alive.get(status),
            ended=has_ended,
            model_info=infos[-1] if infos else None,
            observations=self._trial.observations() if has_ended else (),
            where=partial(self._stalls.where, self._feed.next_step),
        )

    def _publish(self, changes: list[Finding]) -> list[Finding]:
        """Name causes, write findings into the run, call the actions; return them.

        The end of a finding waits until all is over that follows from it.
        """
        found: list[Finding] = []
        for change in sorted(changes, key=lambda each: (each.step, each.stage or 0)):
            if not change.is_over:
                found.append(replace(change, cause=self._causes.begin(change)))
                continue
            cause, itself = self._causes.end(change), cause_of(change)
            if self._causes.goes_on(itself):
                self._ends[itself] = change
            else:
                found.append(replace(change, cause=cause))
            if cause in self._ends and not self._causes.goes_on(cause):
                found.append(replace(self._ends.pop(cause), step=change.step))
        # A stable sort: findings of equal keys stay in the order of causes, rules and
        # tensors.
        found.sort(key=lambda finding: (finding.step, -finding.severity))
        shown = self._in_training(found)
        for finding, as_shown in zip(found, shown, strict=True):
            if self._writer is not None:
                self._writer.write_finding(finding)
            self._act(as_shown)
        if found and self._writer is not None:
            self._writer.flush()
        return shown

    def _act(self, finding: Finding) -> None:
        for action in self._actions:
            try:
                action(finding)
            except Exception as error:  # User code: an action may raise anything.
                self._note(trouble_of(action, error))

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _record(self, status: RuleStatus) -> None:
        if self._writer is not None:
            self._writer.write_status(status, self._feed.next_step - 1)
            self._writer.flush()


def check(
    run: RunPath | Trial,
    rules: Iterable[str | Rule] | str | Rule | None = None,
    *,
    record: bool = True,
) -> Report:
    """Judge what is in a run now, whether it has ended or not.

    Args:
        run: Directory of the run.
        rules: Rules or names of rules; None: all rules of tdbg.
        record: Whether to write findings and statuses into the run.

    Raises:
        UnknownRule: If there is no rule of a given name.
        NotARun: If the directory is no run.
        StorageError: If the run cannot be read.
    """
    engine = Engine(run, rules, record=record)
    engine.poll()
    engine.poll_idle()
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
        rules: Rules or names of rules; None: all rules of tdbg.
        on_finding: An action, as ``"stop"`` or ``"webhook:https://..."``
            (docs/actions.md), or several.
        stop_on: The least severity at which "stop" stops.
        record: Whether to write findings and statuses into the run.
        poll_seconds: How long to sleep when there is nothing new.

    Raises:
        ConfigurationError: If a rule, an action or a severity is unknown.
        NotARun: If the directory is no run.
        StorageError: If the run cannot be read.
    """
    if isinstance(on_finding, str) or not isinstance(on_finding, Sequence):
        on_finding = (on_finding,)
    actions = [
        named_actions.get(each, run, stop_on=stop_on) if isinstance(each, str) else each
        for each in on_finding
    ]
    engine = Engine(run, rules, actions, record=record)
    for _ in engine.follow(poll_seconds):
        pass
    return engine.finish()


def _first_and_worst(finding: Finding) -> tuple[int, int]:
    return finding.first_step, -finding.severity


def _has_on_idle(rule: Rule) -> bool:
    return type(rule).on_idle is not Rule.on_idle
