"""``Bridge``: forwards a run to a tracker, once or until its training has ended.

Thread safety: one thread forwards; any thread, and a handler of signals, may stop it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from tdbg.bridge.rows import StepRow, StepRowReader
from tdbg.bridge.tracker import (
    TRACKERS,
    Destination,
    DryRun,
    Forwarded,
    TrackedRun,
    tracker_of,
)
from tdbg.bridge.verdicts import Alert, RunOutcome, alerts_of, outcome_of
from tdbg.compare import hyperparameters_of
from tdbg.config.messages import check_choice
from tdbg.errors import ConfigurationError
from tdbg.export import Selection
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, Rule
from tdbg.run.findings import Severity
from tdbg.trial import create_trial

__all__ = ["ALERTS", "Bridge", "BridgeReport"]

#: From which severity on somebody is told.
ALERTS = (*(each.label for each in Severity), "none")
# Trackers that can tell somebody of a finding.
ALERTING = ("wandb", "trackio")
# Rows that are sent together, and numbers in them.
MOST_ROWS, MOST_NUMBERS = 500, 20_000
POLL_SECONDS = 2.0
# A live run's findings are shown again no more often than this.
JUDGE_SECONDS = 30.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeReport:
    """What a bridge has sent.

    Attributes:
        run: The directory of the run, or its URL.
        tracker: Name of the tracker.
        where: What to open or call to see the run there.
        first_step: First global step that was sent; -1: none was.
        last_step: The last one; -1: none was.
        rows: Number of steps that were sent.
        numbers: How many numbers each name has got.
        sent_before: Whether an earlier bridge had sent the steps before the first one.
        alerts: Titles of the alerts.
        findings: Number of findings that are shown.
        verdict: What rules say, in a sentence.
        notes: What went wrong beside it, as text.
        complete: Whether the training has ended and all of it was sent.
        dry_run: Whether nothing was sent, but counted.
    """

    run: str
    tracker: str
    where: str
    first_step: int
    last_step: int
    rows: int
    numbers: dict[str, int]
    sent_before: bool
    alerts: tuple[str, ...]
    findings: int
    verdict: str
    notes: tuple[str, ...]
    complete: bool
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


@dataclass(slots=True)
class _Counts:
    """Counts of all that was sent so far."""

    first: int = -1
    last: int = -1
    rows: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    alerts: list[str] = field(default_factory=list)

    def add(self, rows: Sequence[StepRow]) -> None:
        """Count rows."""
        self.first = rows[0].global_step if self.first < 0 else self.first
        self.last = rows[-1].global_step
        self.rows += len(rows)
        for row in rows:
            for name in row.values:
                self.numbers[name] = self.numbers.get(name, 0) + 1


class Bridge:
    """Forwards losses, scalars, statistics and findings of a run to a tracker.

    Whoever makes a bridge of the same run to the same place again goes on where the
    last one ended.

    Args:
        run: The run's directory, or its URL.
        tracker: "wandb", "mlflow" or "trackio".
        destination: Where in the tracker; None: its defaults.
        regex: Forward only names in which one of these expressions is found.
        collection: Forward only members of this collection.
        statistics: Statistics of tensors to forward as numbers, such as "l2".
        steps: Which steps charts have as their axis: "training", "mode" or "global".
        rules: Rules or names of rules that judge the run; None: all rules of tdbg; an
            empty list: only what others have recorded is forwarded.
        alerts: The least severity at which the tracker tells somebody, or "none"; None:
            "warning", where the tracker can do that (MLflow cannot).
        rate: Most steps a second; 0: as many as the tracker takes.
        dry_run: Count what would be sent to a tracker that has nothing yet.

    Attributes:
        is_stopped: Whether ``stop`` was called.

    Raises:
        ConfigurationError: If the tracker's library is not installed, or an argument
            can never work.
        NotARun: If there is no run.
        QueryError: If there is no such collection.

    Example:
        bridge = Bridge("runs/digits", "mlflow", Destination(project="digits"))
        print(bridge.forward().where)
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        tracker: str,
        destination: Destination | None = None,
        *,
        regex: str | Iterable[str] | None = None,
        collection: str | None = None,
        statistics: Iterable[str] = (),
        steps: str = "training",
        rules: Iterable[str | Rule] | str | Rule | None = None,
        alerts: str | None = None,
        rate: float = 1000.0,
        dry_run: bool = False,
    ) -> None:
        check_choice("tracker", tracker, TRACKERS)
        self._least = _least_of(alerts, tracker)
        if not rate >= 0:
            msg = f"rate must be a number of steps a second, or 0, not {rate!r}"
            raise ConfigurationError(msg)
        selection = Selection(
            regex=regex,
            collection=collection,
            statistics=statistics,
            histograms="none",
            steps=steps,
        )
        self._name, self._dry_run = tracker, dry_run
        self._tracker: TrackedRun = (
            DryRun() if dry_run else tracker_of(tracker, destination or Destination())
        )
        self._rate = rate
        self._trial = create_trial(run)
        self._rows = StepRowReader(self._trial, selection)
        self._engine = Engine(run, rules, record=False)
        self._counts, self._next, self._alerted = _Counts(), 0, set[str]()
        self._shown: list[dict[str, Any]] | None = None
        self._judged_at = float("-inf")
        self._is_open = self._is_whole = self._sent_before = False
        self._stop = threading.Event()
        self._where = ""

    @property
    def is_stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Make ``follow`` and ``forward`` return soon; a next bridge goes on there."""
        self._stop.set()
        self._engine.stop()

    def forward(self, progress: Progress | None = None) -> BridgeReport:
        """Send what the run has now.

        Args:
            progress: Called with the number of steps sent, and 0.

        Raises:
            StorageError: If the run cannot be read, or the tracker refuses.
            ConfigurationError: If the tracker has another run of that name.
        """
        try:
            self._open()
            self._engine.poll()
            self._engine.poll_idle()
            self._advance(progress)
            return self._finish()
        finally:
            self._close()

    def follow(self, progress: Progress | None = None) -> BridgeReport:
        """Send what the run has, and what it gets, until its training has ended.

        Args:
            progress: Called with the number of steps sent, and 0.

        Raises:
            StorageError: If the run cannot be read, or the tracker refuses.
            ConfigurationError: If the tracker has another run of that name.
        """

        def poll() -> None:
            self._advance(progress)
            self._tell()

        try:
            self._open()
            self._engine.on_poll = poll
            for _ in self._engine.follow(POLL_SECONDS):
                self._tell()
            self._advance(progress)
            return self._finish()
        finally:
            self._close()

    def _open(self) -> None:
        trial = self._trial
        with trial.no_refresh():
            about = Forwarded(
                uuid=trial.uuid,
                name=PurePosixPath(trial.path).name,
                path=trial.path,
                created=trial.created,
                axis=self._rows.axis,
                modes=tuple(mode.name.lower() for mode in ModeKeys),
                hyperparameters=hyperparameters_of(trial),
            )
        self._is_open = True
        sent = self._tracker.open(about)
        self._next, self._alerted = sent.next_step, set(sent.alerts)
        self._sent_before = sent.next_step > 0
        # What an earlier bridge has shown is not shown at once.
        self._judged_at = time.monotonic() if self._sent_before else float("-inf")
        self._where = self._tracker.where

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            state = self._trial.status if self._is_whole else "running"
            self._tracker.close(state)

    def _advance(self, progress: Progress | None) -> None:
        """Send the steps that the run has got, no faster than the bound allows."""
        self._trial.refresh()
        ended = self._trial.loaded_all_steps
        rows = self._rows.read(self._next)
        while not self.is_stopped and (some := self._some(rows)):
            began = time.monotonic()
            self._tracker.send(some)
            self._next = some[-1].global_step + 1
            self._counts.add(some)
            if progress is not None:
                progress(self._counts.rows, 0)
            if self._rate and not self._dry_run:
                least = len(some) / self._rate
                self._stop.wait(max(0.0, began + least - time.monotonic()))
        self._is_whole = ended and not self.is_stopped

    @staticmethod
    def _some(rows: Iterable[StepRow]) -> list[StepRow]:
        """Return the next rows, as many as are sent together."""
        found: list[StepRow] = []
        n = 0
        for row in islice(rows, MOST_ROWS):
            found.append(row)
            n += len(row.values)
            if n >= MOST_NUMBERS:
                break
        return found

    def _tell(self) -> None:
        """Send alerts that are new; show findings that are new now and then."""
        outcome = outcome_of(self._trial, self._engine.report())
        self._alert(outcome)
        is_due = time.monotonic() - self._judged_at >= JUDGE_SECONDS
        if is_due and self._shown != outcome.findings():
            self._show(outcome)

    def _alert(self, outcome: RunOutcome) -> None:
        for alert in self._new_alerts(outcome):
            self._tracker.alert(alert)
            self._alerted.add(alert.key)
            self._counts.alerts.append(alert.title)

    def _new_alerts(self, outcome: RunOutcome) -> list[Alert]:
        if self._least is None:
            return []
        found = alerts_of(outcome, self._least)
        return [each for each in found if each.key not in self._alerted]

    def _show(self, outcome: RunOutcome) -> None:
        self._tracker.judge(outcome)
        self._shown, self._judged_at = outcome.findings(), time.monotonic()

    def _finish(self) -> BridgeReport:
        """Send the last of the findings; return what was sent."""
        report = self._engine.finish()
        outcome, counts = outcome_of(self._trial, report), self._counts
        self._alert(outcome)
        # Nor is it shown twice where both would stand.
        has_news = bool(counts.rows or counts.alerts) or not self._sent_before
        if has_news or self._tracker.replaces:
            self._show(outcome)
        return BridgeReport(
            run=self._trial.path,
            tracker=self._name,
            where=self._where,
            first_step=counts.first,
            last_step=counts.last,
            rows=counts.rows,
            numbers=counts.numbers,
            sent_before=self._sent_before,
            alerts=tuple(counts.alerts),
            findings=len(outcome.findings()),
            verdict=outcome.verdict.sentence,
            notes=report.notes,
            complete=self._is_whole,
            dry_run=self._dry_run,
        )


def _least_of(alerts: str | None, tracker: str) -> Severity | None:
    """Return the least severity of alerts; None: there are none.

    Raises:
        ConfigurationError: If there is no such severity, or the tracker alerts nobody.
    """
    can_alert = tracker in ALERTING
    if alerts is None:
        return Severity.WARNING if can_alert else None
    check_choice("alerts", alerts, ALERTS)
    if alerts == "none":
        return None
    if not can_alert:
        msg = f"{tracker} alerts nobody: leave alerts out; its tags have the findings"
        raise ConfigurationError(msg)
    return Severity.of(alerts)
