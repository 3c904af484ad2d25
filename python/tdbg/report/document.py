"""A run as one HTML file, and two runs beside each other.

Thread safety: functions; each holds the trial still while it reads.

Errors: damage in a run never fails a report of the rest of it; what cannot be written
raises ``StorageError``.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.cost import Pricing
from tdbg.drawing.markup import Markup, join
from tdbg.drawing.snippet import unstyled
from tdbg.errors import ConfigurationError, StorageError
from tdbg.report.compare import banners, compared
from tdbg.report.page import Section, page
from tdbg.report.sections.costs import cost, profiling
from tdbg.report.sections.distributions import distributions
from tdbg.report.sections.findings import findings
from tdbg.report.sections.layers import gradient_flow, layer_map
from tdbg.report.sections.losses import losses
from tdbg.report.sections.machine import (
    cores_and_gpus,
    data_loading,
    memory,
    programs,
    ranks,
)
from tdbg.report.sections.overview import banner, facts
from tdbg.report.sections.rules_ran import rules_ran
from tdbg.report.sections.settings import reproduce, settings
from tdbg.report.sections.time import time_spent
from tdbg.report.sections.workers import workers
from tdbg.report.subject import Subject
from tdbg.report.trees.sections import of_predictions, of_trees
from tdbg.rules import Report, check
from tdbg.trial import Trial
from tdbg.view import Verdict, diagnosis_of_report, diagnosis_of_run

__all__ = [
    "Written",
    "comparison",
    "render",
    "tree_sections",
    "write",
    "write_comparison",
]


@dataclass(frozen=True, slots=True)
class Written:
    """A report that was written.

    Attributes:
        path: The file.
        n_bytes: Its size.
        verdicts: How the run does; of two runs, one each.
    """

    path: str
    n_bytes: int
    verdicts: tuple[Verdict, ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "file": self.path,
            "bytes": self.n_bytes,
            "verdicts": [each.to_json() for each in self.verdicts],
        }


def write(
    trial: Trial,
    path: str | os.PathLike[str],
    *,
    judged: Report | None = None,
    profile: bool = False,
    pricing: Pricing | None = None,
) -> Written:
    """Write the report of a run, finished or not.

    The file needs nothing else: it opens from the disk, prints, has no script and asks
    for nothing.  The same run gives the same bytes.

    Args:
        trial: The run.
        path: The file; one that is there is replaced as a whole.
        judged: What an engine has just reported.  By default it is what the run holds
            of who judged it; if nobody did, all rules judge it now, and nothing is
            written into the run.
        profile: Whether the report is about time alone: where it went, and what to
            change.
        pricing: What the hosts of the run cost; None: the report says nothing of cost.

    Raises:
        StorageError: If the file cannot be written.
        ConfigurationError: If *path* is a directory.

    Example:
        trial = tdbg.create_trial("runs/digits")
        print(tdbg.report.write(trial, "digits.html").verdicts[0].sentence)
    """
    _check_place(path)
    with trial.no_refresh():
        subject = _subject(trial, judged, pricing)
        text = _render_profile(subject) if profile else _render(subject)
    return _write(text, path, (subject.view.verdict,))


def render(
    trial: Trial,
    *,
    judged: Report | None = None,
    profile: bool = False,
    pricing: Pricing | None = None,
) -> str:
    """The text that ``write`` writes."""
    with trial.no_refresh():
        subject = _subject(trial, judged, pricing)
        return _render_profile(subject) if profile else _render(subject)


def write_comparison(
    first: Trial, second: Trial, path: str | os.PathLike[str]
) -> Written:
    """Write the report of two runs beside each other.

    Args:
        first: The run that the other is compared with.
        second: The other one.
        path: As of ``write``, which also says who judges.

    Raises:
        StorageError: If the file cannot be written.
        ConfigurationError: If *path* is a directory.
    """
    _check_place(path)
    with first.no_refresh(), second.no_refresh():
        subjects = _subject(first, None), _subject(second, None)
        text = _render_comparison(*subjects)
    return _write(text, path, tuple(each.view.verdict for each in subjects))


def comparison(first: Trial, second: Trial) -> str:
    """The text that ``write_comparison`` writes."""
    with first.no_refresh(), second.no_refresh():
        return _render_comparison(_subject(first, None), _subject(second, None))


def tree_sections(trial: Trial) -> list[tuple[str, Markup]]:
    """Return title and markup of the sections about trees, labels and predictions.

    The markup needs no style sheet.  Empty for a run that is not of boosted trees.
    """
    with trial.no_refresh():
        subject = Subject(trial, diagnosis_of_run(trial))
        sections = of_trees(subject) if subject.are_trees else []
        return [(each.title, unstyled(join(each.content))) for each in sections]


def _subject(
    trial: Trial, judged: Report | None, pricing: Pricing | None = None
) -> Subject:
    if judged is not None:
        return Subject(trial, diagnosis_of_report(judged), pricing)
    diagnosis = diagnosis_of_run(trial)
    is_judged = diagnosis.statuses or diagnosis.problems
    if is_judged or not len(trial.step_table()):
        return Subject(trial, diagnosis, pricing)
    return Subject(trial, diagnosis_of_report(check(trial, record=False)), pricing)


def _render(subject: Subject) -> str:
    sections: list[Section | None] = [facts(subject), findings(subject)]
    if subject.are_trees:
        sections += of_trees(subject)
    else:
        sections += [
            losses(subject),
            layer_map(subject),
            gradient_flow(subject),
            distributions(subject),
            *of_predictions(subject),
        ]
    sections += [
        workers(subject),
        *_profile(subject),
        rules_ran(subject),
        settings(subject),
        # The last to be made: it tells what could not be read for the others.
        reproduce(subject),
    ]
    return page(
        subject.trial.name,
        "Report of a training",
        banner(subject),
        [each for each in sections if each is not None],
    )


def _profile(subject: Subject) -> list[Section | None]:
    """The sections about time."""
    return [
        time_spent(subject),
        data_loading(subject),
        cores_and_gpus(subject),
        memory(subject),
        ranks(subject),
        programs(subject),
        cost(subject),
        profiling(subject),
    ]


def _render_profile(subject: Subject) -> str:
    """The sections about time alone, and what they need beside them."""
    sections = [
        findings(subject, of_time=True),
        *_profile(subject),
        facts(subject),
        rules_ran(subject),
        reproduce(subject, "--profile"),
    ]
    return page(
        subject.trial.name,
        "Profile of a training",
        banner(subject),
        [each for each in sections if each is not None],
    )


def _render_comparison(first: Subject, second: Subject) -> str:
    names = _told_apart(first.trial.name, second.trial.name)
    return page(
        f"{names[0]} and {names[1]}",
        "Comparison of two trainings",
        banners((first, second), names),
        compared((first, second), names),
    )


def _told_apart(first: str, second: str) -> tuple[str, str]:
    """The names of two runs; runs of one name are numbered."""
    return (f"{first} (1)", f"{second} (2)") if first == second else (first, second)


def _check_place(path: str | os.PathLike[str]) -> None:
    place = Path(path)
    if os.path.isdir(place):  # noqa: PTH112 - a name that is too long is not a directory
        msg = f"{place} is a directory: name a file, such as {place / 'report.html'}"
        raise ConfigurationError(msg)


def _write(
    text: str, path: str | os.PathLike[str], verdicts: tuple[Verdict, ...]
) -> Written:
    """Write a file beside its place, then put it there: a reader sees a whole one."""
    place = Path(path)
    content = text.encode("utf-8", "backslashreplace")
    beside = place.with_name(f".tdbg-report-{os.getpid()}.tmp")
    try:
        beside.write_bytes(content)
        beside.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        msg = f"the report could not be written to {place}: {error.strerror or error}"
        raise StorageError(msg) from error
    return Written(str(place), len(content), verdicts)
