"""Findings: what is wrong, where, what to do, and the evidence as a chart."""

from __future__ import annotations

import numpy as np

from tdbg.config.quantities import plural
from tdbg.drawing.lines import Limit, Mark, line_chart
from tdbg.drawing.markup import Child, Markup, link_to, shortened, tag, with_code
from tdbg.drawing.scales import number
from tdbg.report.page import Section, badge, table
from tdbg.report.sections.overview import WORDS
from tdbg.report.subject import Subject
from tdbg.run.findings import Finding
from tdbg.trial import Series
from tdbg.view import Problem, interval_of
from tdbg.view.time import percent_text

__all__ = ["findings"]

# Tensors of a problem whose evidence is drawn into one chart, and listed in one table.
MOST_DRAWN = 4
MOST_LISTED = 100
# The section of a report that shows what a rule about time found.
_LOADING = ("loading", "Data loading")
_MACHINE = ("machine", "Cores and GPUs")
_MEMORY = ("memory", "Memory and energy")
_RANKS = ("ranks", "Ranks beside each other")
_PROGRAMS = ("programs", "Operators and lines")
SECTIONS = {
    **dict.fromkeys(
        ("DataLoaderBound", "Dataloader", "WorkerImbalance", "IOBottleneck"), _LOADING
    ),
    **dict.fromkeys(
        (
            *("CPUBottleneck", "CpuContention", "CpuThrottled", "LowGPUUtilization"),
            *("UnusedDevice", "BatchSize", "DeviceThrottled"),
            *("UnusedTensorCores", "HostBound"),
        ),
        _MACHINE,
    ),
    **dict.fromkeys(("MemoryLeak", "MemoryPressure", "GPUMemoryIncrease"), _MEMORY),
    **dict.fromkeys(("Straggler", "LoadBalancing", "ExposedCommunication"), _RANKS),
    **dict.fromkeys(("IdleBetweenSteps", "SyncInLoop", "UncopiedAhead"), _PROGRAMS),
}
FIELD_WORDS = {
    "l2": "l2 norm",
    "rms": "magnitude (rms)",
    "mean": "value",
    "abs_max": "largest |x|",
    "std": "standard deviation",
    "zero_share": "share of zeros",
}


def findings(subject: Subject, *, of_time: bool = False) -> Section:
    """All findings, the worst first; what is over, last.

    Args:
        subject: The run.
        of_time: Only what rules found about time, the greatest gain first.
    """
    problems = subject.time.problems if of_time else subject.diagnosis.problems
    if not problems:
        words = f"No rule {'about time ' if of_time else ''}found anything."
        if not subject.diagnosis.statuses:
            words = (
                "No rule has judged this run yet. To judge it, run `tdbg check RUN`."
            )
        return Section(
            "findings", "Findings", tag("p", with_code(words), class_="quiet")
        )
    return Section(
        "findings", "Findings", [_problem(each, subject) for each in problems]
    )


def _problem(problem: Problem, subject: Subject) -> list[Child]:
    worst = problem.worst
    label = problem.severity.label
    n = len(problem.findings)
    others = problem.place.removeprefix(worst.tensor)
    tone, words = (
        ("ok", f"{WORDS[label]}, recovered")
        if problem.is_over
        else (label, WORDS[label])
    )
    heading = tag(
        "h3",
        badge(tone, words),
        problem.rule,
        " in ",
        tag("code", worst.tensor),
        others,
        id=problem.anchor,
    )
    content: list[Child] = [
        heading,
        tag("p", f"{_when(problem)}: {worst.message}.".replace("..", ".")),
    ]
    if worst.advice:
        content.append(
            tag("p", tag("b", "What to do: "), worst.advice, class_="advice")
        )
    if problem.causes:
        known = {each.rule: each.anchor for each in subject.diagnosis.problems}
        links = [
            (", " if i else "", link_to(known[rule], rule) if rule in known else rule)
            for i, rule in enumerate(problem.causes)
        ]
        content.append(
            tag("p", "This follows from ", links, ". Look there first.", class_="note")
        )
    is_of_time = problem.episodes[0].is_of_time
    shown = _measured if is_of_time else _evidence
    content.append(shown(problem, subject))
    if n > 1:
        content.append(_tensors(problem))
    return content


def _when(problem: Problem) -> str:
    worst = problem.worst
    since = f"Since step {worst.first_step:,}"
    if worst.mode.name not in ("TRAIN", "GLOBAL"):
        since += f" ({worst.mode.name})"
    if problem.episodes[0].noticed > worst.first_step:
        since += f", noticed at {problem.episodes[0].noticed:,}"
    if problem.is_over:
        since += f", gone at {worst.step:,}"
    return since


def _measured(problem: Problem, subject: Subject) -> Markup:
    """The figure that the rule measured, and the section that shows it."""
    view = subject.time
    there = {
        "loading": view.loading,
        "machine": view.machine.table(),
        "memory": view.machine.memories(),
        "ranks": view.lateness,
        "programs": view.operators or view.python_lines,
    }
    anchor, title = SECTIONS.get(problem.rule, ("time", ""))
    if not there.get(anchor):
        anchor, title = "time", "Where the time went"
    worst = problem.worst
    told = f"{_comparison(worst)} " if worst.value is not None else ""
    if worst.gain:
        told += f"Expected gain: {percent_text(worst.gain)} of a step. "
    return tag("p", told, "See ", link_to(anchor, title), ".", class_="note")


def _comparison(finding: Finding) -> str:
    """Say what a rule measured, and its threshold."""
    limit = "" if finding.threshold is None else number(finding.threshold)
    compared = f", threshold {limit}" if limit else ""
    return f"The rule measured {number(finding.value or 0.0)}{compared}."


def _evidence(problem: Problem, subject: Subject) -> Markup | None:
    names = list(dict.fromkeys(each.tensor for each in problem.findings))
    drawn = [name for name in names if subject.trial.has_tensor(name)][:MOST_DRAWN]
    if not drawn:
        return None
    field, limit = _axis(problem.worst)
    if all(subject.is_number(name) for name in drawn):
        limit = limit if field == "mean" else None
        field = "mean"
    series = [each for each in _drawn_series(subject, drawn, field) if len(each)]
    if not series:
        return None
    worst = problem.worst
    last = max(worst.last_step, worst.first_step)
    mark = Mark(
        worst.first_step, last, f"since {worst.first_step:,}", problem.severity.label
    )
    what = FIELD_WORDS[field]
    caption: list[Child] = [
        f"{what[0].upper()}{what[1:]} over all steps, low to high and mean."
    ]
    if worst.value is not None and np.isfinite(worst.value):
        caption.append(f" {_comparison(worst)}")
    left_out = len(names) - len(drawn)
    if left_out > 0:
        caption.append(f" {plural(left_out, 'tensor')} more: see the table.")
    return line_chart(
        series if len(series) > 1 else [series[0].named("")],
        alt=f"Evidence of {problem.rule}: {what} of {_listed(drawn)}.",
        y_label=what,
        caption=tag("span", caption),
        marks=[mark],
        limit=limit,
        span=subject.span,
        with_zero=field == "zero_share",
        interval=interval_of(subject.trial, subject.trial.tensor(drawn[0]).role),
        height=220,
    )


def _axis(finding: Finding) -> tuple[str, Limit | None]:
    """The statistic to draw, and where its threshold lies; magnitude by default."""
    evidence = finding.evidence
    if evidence is None:
        return "rms", None
    is_mean = evidence.statistic == "abs_mean"
    field = "rms" if is_mean else evidence.statistic
    if evidence.limit is None:
        return field, None
    words = f"threshold {number(evidence.limit)}{' of mean |x|' if is_mean else ''}"
    return field, Limit(evidence.limit, words)


def _listed(names: list[str]) -> str:
    return ", ".join(shortened(name, 80) for name in names)


def _drawn_series(subject: Subject, names: list[str], field: str) -> list[Series]:
    """Return the series to draw; losses come with those they are compared with."""
    if field != "mean":
        return subject.series(names, field)
    for info in subject.trial.model_info():
        compared = [info.evaluates[name] for name in names if name in info.evaluates]
        names = list(dict.fromkeys([*names, *compared]))
    found = [
        (s, mode) for mode in subject.modes for s in subject.series(names, field, mode)
    ]
    found = [(s, mode) for s, mode in found if len(s)]
    if len({s.label for s, _ in found}) == len(found):
        return [s for s, _ in found]
    return [s.named(f"{s.label} ({mode.name})") for s, mode in found]


def _tensors(problem: Problem) -> Markup:
    listed = problem.findings[:MOST_LISTED]
    more = len(problem.findings) - len(listed)
    left = f"; {more} more are not listed" if more > 0 else ""
    columns: dict[str, list[Child]] = {
        "tensor": [tag("code", shortened(each.tensor, 120)) for each in listed],
        "severity": [each.severity.label for each in listed],
        "since step": [f"{each.first_step:,}" for each in listed],
        "measured": [_number(each.value) for each in listed],
        "threshold": [_number(each.threshold) for each in listed],
        "what": [each.message for each in listed],
    }
    if len({each.severity for each in listed}) == 1:
        del columns["severity"]
    if all(each.value is not None for each in listed):
        del columns["what"]
    found = table(
        list(columns),
        list(zip(*columns.values(), strict=True)),
        right=("since step", "measured", "threshold"),
    )
    return tag(
        "details",
        tag("summary", f"All {len(problem.findings)} tensors{left}"),
        found,
        open=len(problem.findings) <= 12,
    )


def _number(value: float | None) -> str:
    return "" if value is None else number(value)
