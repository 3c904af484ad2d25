"""False alarms elsewhere: healthy scripts that know no tdbg, under ``tdbg run``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness.machine import ROOT
from benchmarks._harness.tables import Table
from benchmarks.detection.scenarios.stage import rules_of_time
from tdbg.errors import TdbgError
from tdbg.rules import check
from tdbg.run.findings import Finding, Severity

__all__ = ["scripts", "tables"]

PROGRAMS = ROOT / "benchmarks" / "wild" / "programs"


@dataclass(frozen=True, slots=True)
class _Heard:
    """What rules about time said of a script, and how many of them could judge."""

    name: str
    findings: tuple[Finding, ...]
    n_judged: int
    trouble: str = ""


def scripts(places: Sequence[Path], names: tuple[str, ...]) -> list[Path]:
    """Return the scripts (or those of folders) whose names begin with one of *names*.

    Without a place, those are the programs that know no tdbg.
    """
    files = [file for place in places or [PROGRAMS] for file in _files(place)]
    return [file for file in files if file.stem.startswith(names)]


def tables(files: Sequence[Path], seconds: float, jobs: int) -> tuple[Table, Table]:
    """Run scripts for so long each; return what was said."""
    with ThreadPoolExecutor(jobs) as pool:
        heard = list(pool.map(lambda file: _listen(file, seconds), files))
    return _totals(heard), _said(heard)


def _files(place: Path) -> list[Path]:
    return sorted(place.glob("*.py")) if place.is_dir() else [place]


def _listen(script: Path, seconds: float) -> _Heard:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "tdbg", "run", "--out", str(run), "--"]
        process = subprocess.Popen(
            [*command, sys.executable, str(script.resolve())],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        try:
            report = check(run, rules_of_time(), record=False)
        except TdbgError as error:
            return _Heard(script.stem, (), 0, str(error).splitlines()[0])
    judged = sum(not each.message for each in report.statuses)
    return _Heard(script.stem, tuple(report.findings), judged)


def _totals(heard: Sequence[_Heard]) -> Table:
    shown = Table(
        "healthy scripts",
        ("scripts", "with a run", "judged by a rule", "with a warning", "with an info"),
    )
    runs = [each for each in heard if not each.trouble]
    warned = sum(_has(each, grave=True) for each in runs)
    told = sum(_has(each, grave=False) for each in runs)
    judged = sum(each.n_judged > 0 for each in runs)
    shown.add(len(heard), len(runs), judged, warned, told)
    shown.note = "; ".join(f"{e.name}: {e.trouble}" for e in heard if e.trouble)
    return shown


def _said(heard: Sequence[_Heard]) -> Table:
    shown = Table("what was said", ("script", "rule", "severity", "message"))
    for each in heard:
        for finding in each.findings:
            shown.add(each.name, finding.rule, finding.severity.label, finding.message)
    counts = Counter(f.rule for each in heard for f in each.findings)
    shown.note = ", ".join(f"{rule} {n}" for rule, n in counts.most_common())
    return shown


def _has(heard: _Heard, *, grave: bool) -> bool:
    return any((each.severity > Severity.INFO) is grave for each in heard.findings)
