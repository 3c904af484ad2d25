"""What a user reads: the cause on the first line, a symptom, or nothing.

    python -m benchmarks.detection told --origin sixth --seeds 1

A recorded run is judged as ``tdbg check`` judges it, and read in the order in which it
prints.  The fault is *named first* if the first problem says its cause, *named* if one
of them does.  A problem that says something else is a *symptom*, even if it is true;
what is only a note (an info) accuses nothing.  The *advice is the fix* if that of a
problem that names the cause says what the case's ``Cause`` asks for.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness.tables import Table
from benchmarks.detection.judge import rules_for
from benchmarks.detection.kit.case import HALVES, Case, case_named, load
from benchmarks.detection.record import Recording
from benchmarks.detection.table import share
from tdbg.rules import check
from tdbg.view import Problem, diagnosis_of_report

__all__ = ["Told", "accused_table", "told", "told_by_class", "told_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was said of one run.

    Attributes:
        case: Its name.
        half: Of the collection.
        of_class: The class of the case: the file that it stands in.
        is_sick: Whether the training is.
        n_problems: How many problems there are at the end.
        accused_by: Rules of the problems at the end.
        gone_by: Rules of those that are over.
        place: Which of the problems names the cause, from 1; 0: none.
        is_noted: Whether a note names it.
        is_mended: Whether the advice of one that names it is the fix.
    """

    case: str
    half: str
    is_sick: bool
    n_problems: int
    of_class: str = ""
    accused_by: tuple[str, ...] = ()
    gone_by: tuple[str, ...] = ()
    place: int = 0
    is_noted: bool = False
    is_mended: bool = False

    @property
    def n_gone(self) -> int:
        """How many problems there were that are over."""
        return len(self.gone_by)


def told(
    recordings: Iterable[Recording], *, jobs: int = 1, paths: Sequence[str] = ()
) -> Iterator[Told]:
    """Judge recorded runs.

    Args:
        recordings: The runs.
        jobs: Processes.
        paths: Files of cases other than this corpus.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(jobs, load, (tuple(paths),)) as pool:
        yield from pool.imap(_told, (one for one in recordings if not one.trouble))


def _told(recording: Recording) -> Told:
    case = case_named(recording.case)
    report = check(recording.run, rules_for(recording, {}), record=False)
    return read(case, diagnosis_of_report(report).problems)


def read(case: Case, problems: Sequence[Problem]) -> Told:
    """Return what problems, in the order in which they are printed, say of a case."""
    accused = [each for each in problems if each.accuses]
    naming = [each for each in accused if _names(case, each)]
    return Told(
        case=case.name,
        half=case.half,
        of_class=Path(case.source).stem,
        is_sick=case.is_sick,
        n_problems=len(accused),
        accused_by=tuple(each.rule for each in accused),
        gone_by=tuple(
            each.rule for each in problems if each.is_over and not each.is_note
        ),
        place=accused.index(naming[0]) + 1 if naming else 0,
        is_noted=any(each.is_note and _names(case, each) for each in problems),
        is_mended=any(_mends(case, each) for each in naming),
    )


def _names(case: Case, problem: Problem) -> bool:
    return any(case.names(each.rule, each.message) for each in problem.findings)


def _mends(case: Case, problem: Problem) -> bool:
    cause = case.cause
    return cause is not None and cause.is_mended(problem.worst.advice)


def told_table(read: Sequence[Told]) -> Table:
    """Return how often the cause, a symptom, or nothing was read, by half."""
    parts = {half: [one for one in read if one.half == half] for half in HALVES}
    return _told_table("what is read first", "half", parts | {"all": list(read)})


def told_by_class(read: Sequence[Told]) -> Table:
    """Return the same for each class of cases, by half."""
    parts = {
        f"{each}, {half}": [
            one for one in read if (one.of_class, one.half) == (each, half)
        ]
        for each in sorted({one.of_class for one in read})
        for half in HALVES
    }
    return _told_table("what is read first, by class", "class", parts)


def _told_table(title: str, by: str, parts: Mapping[str, Sequence[Told]]) -> Table:
    table = Table(
        title,
        (
            by,
            "sick runs",
            "cause on the first line",
            "cause named",
            "advice is the fix",
            "only as a note",
            "a symptom",
            "silent",
            "twins",
            "accused",
            "gone at the end",
        ),
        note="Gone: healthy runs of which something was said that is over at the end.",
    )
    for name, here in parts.items():
        sick = [one for one in here if one.is_sick]
        well = [one for one in here if not one.is_sick]
        unnamed = [one for one in sick if not one.place]
        noted = [one for one in unnamed if one.is_noted]
        rest = [one for one in unnamed if not one.is_noted]
        table.add(
            name,
            len(sick),
            share(one.place == 1 for one in sick),
            share(one.place > 0 for one in sick),
            sum(one.is_mended for one in sick),
            len(noted),
            sum(one.n_problems > 0 for one in rest),
            sum(not one.n_problems for one in rest),
            len(well),
            share(one.n_problems > 0 for one in well),
            sum(one.n_gone > 0 for one in well),
        )
    return table


def accused_table(read: Sequence[Told]) -> Table:
    """Return by which rules healthy runs were accused, at the end or only for a time.

    A finding that is over at the end of a healthy run was wrong when it was printed.
    """
    well = [one for one in read if not one.is_sick]
    table = Table(
        f"who accuses {len(well):,} healthy runs",
        ("rule", *(f"{half}: {end}" for half in HALVES for end in ("at end", "gone"))),
        note="Runs, not findings.  Gone: said, and over at the end.",
    )
    rules = {rule for one in well for rule in (*one.accused_by, *one.gone_by)}
    for rule in sorted(rules):
        cells: list[int] = []
        for half in HALVES:
            here = [one for one in well if one.half == half]
            cells.append(sum(rule in one.accused_by for one in here))
            cells.append(sum(rule in one.gone_by for one in here))
        table.add(rule, *cells)
    return table
