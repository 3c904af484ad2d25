"""Runs scenarios under ``tdbg run``, as a user would, and asks the rules about time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tdbg
from benchmarks._harness.machine import ROOT
from benchmarks.detection.scenarios.kit import TWIN, Scenario
from tdbg.rules import Rule, check, default_rules
from tdbg.rules.builtin.time.time_rule import TimeRule
from tdbg.rules.registry import make
from tdbg.run.findings import Finding, Severity

__all__ = ["Performance", "Recorded", "judge", "perform", "rules_of_time"]

# The share of 5 s without a core at which the machine is too busy: measured by the
# kernel, so that who says it is right.
BUSY = 0.08
# What is true then: it waits for cores, and some steps or all from then on are slower.
CROWDED = frozenset({"CpuContention", "StepOutlier", "StepTimeRegression"})
RUN, OUTCOME = "run", "outcome.json"
GROUP = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A performance that was recorded.

    Attributes:
        scenario: What was performed.
        mode: "sick", "twin", "mended" or, of what has no fault, "healthy".
        run: The run directory.
        outcome: What the performance measured of itself.
        trouble: Why there is nothing, or nothing.
    """

    scenario: Scenario
    mode: str
    run: Path
    outcome: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""

    @classmethod
    def of(cls, scenario: Scenario, mode: str, folder: Path) -> Recorded:
        """What is kept of a performance in a folder."""
        told = json.loads((folder / OUTCOME).read_text())
        return cls(scenario=scenario, mode=mode, run=folder / RUN, outcome=told)

    @property
    def name(self) -> str:
        return self.scenario.name + (TWIN if self.mode == "twin" else "")

    @property
    def is_sick(self) -> bool:
        return self.mode == "sick"

    @property
    def is_as_said(self) -> bool:
        """Whether the predicate holds where it must, and nowhere else."""
        return bool(self.outcome.get("shows")) == self.is_sick

    @property
    def is_busy(self) -> bool:
        """Whether others had the cores, by what the kernel says."""
        return float(self.outcome.get("queued", 0.0)) >= BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """What the rules say of a recorded performance.

    Attributes:
        recorded: The performance.
        roots: Warnings about time that follow from no other, the first cause first.
        symptoms: Warnings that follow from others.
        infos: Other findings about time.
        seconds: From the first step to the first finding that names the fault.
    """

    recorded: Recorded
    roots: tuple[Finding, ...]
    symptoms: tuple[Finding, ...]
    infos: tuple[Finding, ...]
    seconds: float | None

    @property
    def naming(self) -> list[Finding]:
        """The first causes that name the fault."""
        return [
            each
            for each in self.roots
            if each.rule in self.recorded.scenario.named_by and self.recorded.is_sick
        ]

    @property
    def crowded(self) -> list[Finding]:
        """First causes that follow from others having the cores, when they had."""
        others = [each for each in self.roots if each not in self.naming]
        return [
            each for each in others if each.rule in CROWDED and self.recorded.is_busy
        ]

    @property
    def wrong(self) -> list[Finding]:
        """First causes that name something that is not there."""
        named = [*self.naming, *self.crowded]
        return [each for each in self.roots if each not in named]


def perform(
    scenario: Scenario,
    mode: str,
    folder: Path,
    *,
    seconds: float | None = None,
    warm_up: float | None = None,
    workers: int | None = None,
) -> Recorded:
    """Run a scenario under tdbg in a folder of its own; old content is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run, outcome = folder / RUN, folder / OUTCOME
    config = folder / "tdbg.json"
    config.write_text(json.dumps({"include_workers": "all"}))
    given = [scenario.name, f"--outcome={outcome}"]
    if mode in ("sick", "mended"):
        given.append(f"--{mode}")
    asked = {"workers": workers, "seconds": seconds, "warm-up": warm_up}
    given += [f"--{name}={value}" for name, value in asked.items() if value is not None]
    ranks: list[str] = []
    if scenario.ranks:
        ranks = ["torch.distributed.run", "--standalone"]
        ranks += [f"--nproc-per-node={scenario.ranks}", "-m"]
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(run)]
    if scenario.ranks:
        command += ["--config", str(config)]
    command += ["--", sys.executable, "-m", *ranks]
    command += ["benchmarks.detection.scenarios.play", *given]
    try:
        limits = _limits(scenario if mode == "sick" else None)
    except OSError as error:
        return _nothing(scenario, mode, run, f"no right to limit cores: {error}")
    try:
        done = subprocess.run(
            [*limits, *command],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=180 + 2 * (seconds or scenario.seconds),
            check=False,
        )
    finally:
        _remove(limits)
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode or not outcome.exists():
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return _nothing(scenario, mode, run, f"exit {done.returncode}: {last}")
    return Recorded.of(scenario, mode, folder)


def _nothing(scenario: Scenario, mode: str, run: Path, trouble: str) -> Recorded:
    return Recorded(scenario=scenario, mode=mode, run=run, trouble=trouble)


def _limits(scenario: Scenario | None) -> list[str]:
    """The beginning of a command that runs in a control group with few cores.

    Raises:
        OSError: If there is no right to make one.
    """
    if scenario is None or scenario.quota is None:
        return []
    group = GROUP / f"scenario-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(int(scenario.quota * PERIOD_US)))
    entered = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    return ["sh", "-c", entered, str(group)]


def _remove(limits: Sequence[str]) -> None:
    if limits:
        Path(limits[-1]).rmdir()


def rules_of_time(scenario: Scenario | None = None) -> list[Rule]:
    """The default rules about time; those that a scenario asks for as it says."""
    asks = scenario.asks if scenario is not None else {}
    return [
        make(each.name, **asks[each.name]) if each.name in asks else each
        for each in default_rules()
        if isinstance(each, TimeRule)
    ]


def judge(recorded: Recorded) -> Performance:
    """Ask the rules about time, offline."""
    report = check(recorded.run, rules_of_time(recorded.scenario), record=False)
    grave = [each for each in report.findings if each.severity > Severity.INFO]
    roots = [each for each in grave if each.cause is None]
    roots.sort(key=lambda each: (each.stage or 0, each.step))
    named = [each for each in roots if each.rule in recorded.scenario.named_by]
    return Performance(
        recorded=recorded,
        roots=tuple(roots),
        symptoms=tuple(each for each in grave if each.cause is not None),
        infos=tuple(each for each in report.findings if each.severity is Severity.INFO),
        seconds=_seconds_until(recorded.run, named[0]) if named else None,
    )


def _seconds_until(run: Path, finding: Finding) -> float | None:
    """Seconds of training until the last step that a finding needed."""
    rows = tdbg.create_trial(run).profile.steps()
    step = finding.step if finding.global_step is None else finding.global_step
    at = np.flatnonzero(rows["global_step"] == step)
    if not len(at):
        return None
    began = int(rows["time"][0]) - int(rows["duration_ns"][0])
    return float(rows["time"][at[0]] - began) / 1e9
