"""Runs one program as its author would, then with tdbg, then with each mistake.

Each run is a process of its own in a folder of its own.  Of the program as it stands
there are three: by itself, as ``tdbg run --rules default -- python program.py``, and
once more so under ``witness.py``, which tells the weights.  A mistake is one more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.wild.corpus import Mistake, Program

__all__ = ["Finding", "Outcome", "Sick", "judge", "name_cause"]

WITNESS = Path(__file__).with_name("witness.py")
_TIMEOUT_S = 300
# Of what was captured, and of what the program has.
_ENOUGH = 0.9
# What a trainer prints of the time it took.
_TIMES = re.compile(r"'\w*(?:runtime|per_second)': '?[\d.]+'?")


@dataclass(frozen=True, slots=True)
class Finding:
    """What ``tdbg check`` printed, of a warning or worse."""

    rule: str
    severity: str
    step: int
    tensor: str
    message: str
    advice: str

    @property
    def text(self) -> str:
        """All that it says."""
        return f"{self.rule}: {self.message} -> {self.advice}"


@dataclass(slots=True)
class Sick:
    """What came of one mistake.

    Attributes:
        mistake: Its name.
        kind: Its kind.
        figure: What the program printed in the end; None: nothing.
        is_harmed: Whether that is not what a healthy training prints.
        silent: Why it need not be.
        findings: In the order in which they were printed.
        named_by: The rule whose finding names the cause; empty: none does.
        place: Which of the findings that is, from 1; 0: none.
        is_mended: Whether the advice of one that names it is how to mend it.
        last_line: What ``tdbg run`` said at last.
    """

    mistake: str
    kind: str
    figure: float | None
    is_harmed: bool
    silent: str
    findings: list[Finding]
    named_by: str = ""
    place: int = 0
    is_mended: bool = False
    last_line: str = ""


@dataclass(slots=True)
class Outcome:
    """What came of one program with one seed.

    Attributes:
        program: Its name.
        kind: What it trains.
        seed: As given; None: its own.
        figure: What it printed in the end.
        is_well: Whether that is what a healthy training prints.
        captured: ``fully``, ``partly`` or ``not``.
        lacks: What was not captured.
        is_told: Whether ``tdbg run`` said a word at its end.
        last_line: That word.
        differs: What differs from the program by itself; empty: nothing does.
        same_weights: Whether all weights are the same, bit for bit.
        findings: Those of the program as it stands: false ones.
        exit_code: Of ``tdbg check``; None: there was no run to judge.
        has_labels: Whether labels were captured.
        sick: Of each mistake.
    """

    program: str
    kind: str
    seed: int | None
    figure: float | None = None
    is_well: bool = False
    captured: str = "not"
    lacks: list[str] = field(default_factory=list)
    is_told: bool = False
    last_line: str = ""
    differs: str = ""
    same_weights: bool = False
    findings: list[Finding] = field(default_factory=list)
    exit_code: int | None = None
    has_labels: bool = False
    sick: list[Sick] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ran:
    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """What ``tdbg run`` said of it at the end; empty: nothing."""
        told = re.findall(r"^tdbg: (.*)$", self.err, re.MULTILINE)
        told = [line for line in told if not line.startswith("writing the run to")]
        return told[-1] if told else ""


def judge(
    program: Program,
    folder: Path,
    seed: int | None = None,
    mistakes: bool = True,
) -> Outcome:
    """Run a program, and each of its mistakes, in *folder*, which is made anew.

    Raises:
        RuntimeError: If the program fails by itself.
        subprocess.TimeoutExpired: If a process takes 5 minutes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    outcome = Outcome(program=program.name, kind=program.kind, seed=seed)
    _judge_healthy(program, folder / "healthy", outcome)
    for i, mistake in enumerate(program.mistakes if mistakes else ()):
        outcome.sick.append(
            _judge_sick(program, mistake, folder / f"mistake-{i + 1}", seed)
        )
    return outcome


def _judge_healthy(program: Program, folder: Path, outcome: Outcome) -> None:
    script = _written(program, folder, outcome.seed)
    alone = _run(_witness(folder / "alone.json", script), folder)
    if alone.status:
        msg = f"{program.name} fails by itself: {alone.err[-2000:]}"
        raise RuntimeError(msg)
    outcome.figure = program.figure(alone.out)
    outcome.is_well = program.is_well(outcome.figure)

    ran = _run(_launch(folder / "run", [sys.executable, str(script)]), folder)
    outcome.last_line, outcome.is_told = ran.last_line, bool(ran.last_line)
    if ran.status != alone.status:
        outcome.differs = f"exit status {ran.status}: {ran.err[-500:]}"
    else:
        outcome.differs = _first_difference(alone.out, ran.out)
    witnessed = _run(
        _launch(folder / "again", _witness(folder / "watched.json", script)), folder
    )
    made = json.loads((folder / "alone.json").read_text(encoding="utf-8"))
    if witnessed.status == 0:
        watched = json.loads((folder / "watched.json").read_text(encoding="utf-8"))
        outcome.same_weights = watched == made
    runs = _runs(folder / "run")
    outcome.exit_code, outcome.findings = _check(runs, folder)
    _judge_capture(program, runs, made["n_trained"], outcome)


def _judge_capture(
    program: Program, runs: list[Path], n_trained: int, outcome: Outcome
) -> None:
    """Compare what runs hold with what the program has trained."""
    import tdbg

    trials = [tdbg.create_trial(run) for run in runs]
    # A budget leaves out records of steps, and says so: their numbers go on.
    n_steps = sum(max(trial.steps(mode="TRAIN"), default=-1) + 1 for trial in trials)
    gradients = sum(len(trial.tensor_names(collection="gradients")) for trial in trials)
    has_losses = [bool(trial.tensor_names(collection="losses")) for trial in trials]
    outcome.has_labels = any(
        trial.tensor_names(collection="labels") for trial in trials
    )
    if not n_steps:
        return
    if n_steps < _ENOUGH * program.steps:
        outcome.lacks.append(f"{program.steps - n_steps} of {program.steps} steps")
    if gradients < n_trained:
        outcome.lacks.append(f"{n_trained - gradients} of {n_trained} gradients")
    if not all(has_losses):
        outcome.lacks.append("the loss")
    outcome.captured = "partly" if outcome.lacks else "fully"


def _judge_sick(
    program: Program, mistake: Mistake, folder: Path, seed: int | None
) -> Sick:
    script = _written(program, folder, seed, mistake)
    ran = _run(_launch(folder / "run", [sys.executable, str(script)]), folder)
    figure = program.figure(ran.out)
    _, findings = _check(_runs(folder / "run"), folder)
    sick = Sick(
        mistake=mistake.name,
        kind=mistake.kind,
        figure=figure,
        is_harmed=not program.is_well(figure),
        silent=mistake.silent,
        findings=findings,
        last_line=ran.last_line,
    )
    name_cause(sick, mistake)
    return sick


def name_cause(sick: Sick, mistake: Mistake) -> None:
    """See which of the findings names the cause, and whether it says how to mend it."""
    sick.named_by, sick.place, sick.is_mended = "", 0, False
    for place, finding in enumerate(sick.findings, 1):
        if re.search(mistake.cause, finding.text, re.IGNORECASE):
            sick.named_by = sick.named_by or finding.rule
            sick.place = sick.place or place
            fits = re.search(mistake.fix, finding.advice, re.IGNORECASE)
            sick.is_mended |= fits is not None


def _written(
    program: Program, folder: Path, seed: int | None, mistake: Mistake | None = None
) -> Path:
    folder.mkdir(parents=True)
    script = folder / program.path.name
    script.write_text(program.source(seed, mistake), encoding="utf-8")
    return script


def _witness(out: Path, script: Path) -> list[str]:
    return [sys.executable, str(WITNESS), str(out), str(script)]


def _launch(run: Path, command: list[str]) -> list[str]:
    tdbg = [sys.executable, "-m", "tdbg", "run", "--rules", "default"]
    return [*tdbg, "--out", str(run), "--", *command]


def _run(command: list[str], folder: Path) -> _Ran:
    # Without bytecode to read, each process would compile torch for four seconds.
    not_ours = ("TDBG_", "PYTHONDONTWRITEBYTECODE")
    ours = {k: v for k, v in os.environ.items() if not k.startswith(not_ours)}
    environment = {**ours, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return _Ran(done.returncode, done.stdout, done.stderr)


def _runs(out: Path) -> list[Path]:
    """The runs of one launch: ``run``, ``run-2``, ..."""
    found = [path.parent for path in out.parent.glob(f"{out.name}*/RUN.json")]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _check(runs: list[Path], folder: Path) -> tuple[int | None, list[Finding]]:
    """Judge runs as a user does; the findings in the order in which they are told."""
    if not runs:
        return None, []
    check = [sys.executable, "-m", "tdbg", "check", "--json", "--jobs", "1"]
    ran = _run([*check, *map(str, runs)], folder)
    document: dict[str, Any] = json.loads(ran.out)
    findings = []
    for run in document.get("runs", [document]):
        for one in run["findings"]:
            if one["severity"] in {"warning", "error"}:
                named = {name: one[name] for name in Finding.__dataclass_fields__}
                findings.append(Finding(**named))
    return ran.status, findings


def _first_difference(alone: str, watched: str) -> str:
    """The first line that differs, times apart; empty: none does."""
    ours, theirs = (_TIMES.sub("", text).splitlines() for text in (alone, watched))
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return f"printed {other!r}, by itself {one!r}"
    return "" if len(ours) == len(theirs) else "printed more or fewer lines"
