"""The case study: watch the training, stop it, mend it, and see what each fix does."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import tdbg
from examples.case_study import captured
from examples.case_study.train import RULES, Options, Outcome, train
from tdbg.actions import ActionSpec, make
from tdbg.rules import Finding, Report, Severity, check, watch

__all__ = ["FIXES", "Judged", "Variant", "Watched", "try_fixes", "watch_and_stop"]

# One after the other, each on top of those before it.
FIXES: tuple[tuple[str, dict[str, float | bool]], ...] = (
    ("a sane learning rate", {"learning_rate": 0.02}),
    ("no mirroring", {"mirroring": False}),
    ("balanced batches", {"balanced": True}),
)
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A training that was followed live."""

    run: Path
    outcome: Outcome
    report: Report

    def findings(self, rule: str) -> list[Finding]:
        """What a rule found, by step."""
        return [f for f in self.report.findings if f.rule == rule]


@dataclass(frozen=True, slots=True)
class Judged:
    """A training that was judged when it had ended."""

    run: Path
    outcome: Outcome
    findings: tuple[Finding, ...]

    @property
    def accuracy(self) -> float:
        """Balanced: the mean of what is recognized of each digit."""
        return statistics.fmean(self.outcome.recall)


@dataclass(frozen=True, slots=True)
class Variant:
    """The training with some fixes, once for each seed."""

    name: str
    trainings: tuple[Judged, ...]

    def found(self, rule: str, mode: tdbg.ModeKeys, *, at_end: bool = False) -> int:
        """In how many of the trainings a rule found something, or still does."""

        def is_one(finding: Finding) -> bool:
            return (finding.rule, finding.mode) == (rule, mode) and not (
                at_end and finding.is_over
            )

        return sum(any(is_one(f) for f in t.findings) for t in self.trainings)

    @property
    def accuracy(self) -> float:
        """Median of the seeds, of the balanced accuracy on test images."""
        return statistics.median(training.accuracy for training in self.trainings)

    def recall(self, digit: int) -> float:
        """Median of the seeds, of the share of a digit that is recognized."""
        return statistics.median(t.outcome.recall[digit] for t in self.trainings)

    def mixed_up(self, label: int, taken_for: int) -> float:
        """Median of the seeds, of the share of a digit that is taken for another."""
        shares = []
        for training in self.trainings:
            last = captured.read(training.run, tdbg.ModeKeys.EVAL)[-1]
            counts = captured.confusion(last)[label]
            shares.append(float(counts[taken_for] / counts.sum()))
        return statistics.median(shares)


def watch_and_stop(run: Path, options: Options) -> Watched:
    """Train as the script is, in a process of its own, and follow it.

    An imbalance is something to know; a loss that does not fall is a reason to stop.
    """
    script = Path(__file__).with_name("train.py")
    command = [sys.executable, str(script), f"--out={run}"]
    command += [f"--steps={options.n_steps}", f"--seed={options.seed}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        try:
            _wait_for(run, training)
            stop = ActionSpec(
                name="stop",
                severity=Severity.WARNING,
                rules=frozenset({"LossNotDecreasing"}),
            )
            report = watch(run, RULES, on_finding=make(stop, run))
            printed, _ = training.communicate(timeout=START_SECONDS)
        except BaseException:
            training.kill()
            raise
    return Watched(run, Outcome(**json.loads(printed)), report)


def try_fixes(out: Path, options: Options, seeds: int) -> list[Variant]:
    """Train with more and more fixes; each training is judged when it has ended."""
    variants = []
    for i, (name, change) in enumerate(FIXES, 1):
        options = replace(options, **change)
        trainings = []
        for seed in range(seeds):
            run = out / f"{i}-{name.replace(' ', '-')}-{seed}"
            outcome = train(run, replace(options, seed=seed))
            trainings.append(Judged(run, outcome, check(run, RULES).findings))
        variants.append(Variant(name, tuple(trainings)))
    return variants


def _wait_for(run: Path, training: subprocess.Popen[str]) -> None:
    """Return when there is a run to follow.

    Raises:
        RuntimeError: If the training has ended before, or takes too long to begin.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            tdbg.create_trial(run)
        except tdbg.errors.NotARun:
            if training.poll() is not None or time.monotonic() > deadline:
                msg = f"{' '.join(map(str, training.args))} did not begin to train"
                raise RuntimeError(msg) from None
            time.sleep(0.02)
        else:
            return
