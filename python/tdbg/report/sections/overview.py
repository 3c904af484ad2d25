"""What stands above all else: the verdict; and the facts of the run."""

from __future__ import annotations

import datetime as dt

import numpy as np

from tdbg.config.quantities import plural
from tdbg.drawing.markup import Child, Markup, join, link_to, tag, with_code
from tdbg.modes import TRAINING
from tdbg.report.page import Section, badge, table, tiles
from tdbg.report.subject import Subject
from tdbg.run.json_values import is_integer, list_of, mapping_of

__all__ = ["WORDS", "banner", "facts", "overview_facts", "size", "utc"]

# Problems that are listed one by one; the rest is counted.
MOST_PROBLEMS = 20
WORDS = {
    "error": "error",
    "warning": "warning",
    "info": "note",
    "ok": "nothing found",
    "unjudged": "not judged",
    "starting": "nothing yet",
}


def banner(subject: Subject) -> Markup:
    """The verdict, and what to do."""
    verdict = subject.view.verdict
    word = WORDS[verdict.tone]
    if verdict.recovered and not verdict.wrong:
        word = "recovered"
    problems = subject.diagnosis.accused
    do: Child = None
    if verdict.advice:
        do = tag("p", tag("b", "What to do: "), verdict.advice, class_="do")
    elif verdict.tone == "unjudged":
        do = tag(
            "p",
            tag("b", "What to do: "),
            "judge the run with ",
            tag("code", "tdbg check RUN"),
            class_="do",
        )
    links = None
    if len(problems) > 1:
        links = tag(
            "p",
            "Found: ",
            (
                (", " if i else "", link_to(each.anchor, each.rule))
                for i, each in enumerate(problems)
            ),
            class_="note",
        )
    return tag(
        "div",
        tag(
            "p",
            badge(verdict.tone, word),
            verdict.sentence,
            class_="sentence",
        ),
        do,
        links,
        _time_spent(subject),
        class_=f"verdict tone-{verdict.tone}",
        role="group",
        aria_label="Verdict",
    )


def _time_spent(subject: Subject) -> Child:
    """Where the time went, even if no rule found anything; and what it cost."""
    sentence = subject.time.sentence
    if not sentence:
        return None
    linked = link_to("time", "Where the time went")
    lines: list[Child] = [tag("p", linked, f": {sentence}.", class_="note")]
    if subject.cost is not None:
        text = f": {subject.cost.sentence}."
        lines.append(tag("p", link_to("cost", "Cost"), text, class_="note"))
    return lines


def facts(subject: Subject) -> Section:
    """Tell what ran, where and for how long, and what was recorded."""
    trial = subject.trial
    rows: list[tuple[str, Child]] = [
        ("State", _state(subject)),
        ("Steps", _steps(subject)),
        *_coverage(subject),
        ("Software", _software(subject)),
        ("Hardware", _hardware(subject)),
        ("Attempts", _attempts(subject)),
        ("Workers", plural(len(trial.workers()), "worker")),
        ("Cost of capture", _overhead(subject)),
        ("Lost records", str(trial.lost_records())),
        (
            "Size",
            f"{size(trial.n_bytes)} of {plural(len(trial.tensor_names()), 'tensor')}",
        ),
        ("Identity", tag("code", trial.uuid)),
    ]
    problems = trial.problems()
    listed: Child = None
    if problems:
        kinds = [
            (
                each.kind,
                "/".join(filter(None, ("w", each.writer, each.file))),
                each.message,
            )
            for each in problems[:MOST_PROBLEMS]
        ]
        more = len(problems) - len(kinds)
        note = f"; {more} more are not listed" if more > 0 else ""
        listed = [
            tag("h3", "Damage"),
            tag(
                "p",
                with_code(
                    f"What can be read is shown. `tdbg fsck` checks every byte{note}."
                ),
                class_="quiet",
            ),
            table(("kind", "file", "what is wrong"), kinds),
        ]
    return Section(
        "run",
        "The run",
        [overview_facts(subject), table(("fact", "value"), rows), listed],
    )


def overview_facts(subject: Subject) -> Markup:
    """The facts that are asked for first, in large letters."""
    head, loss = subject.view.head, subject.view.loss
    steps = "Rounds" if subject.are_trees else "Training steps"
    found: list[tuple[str, Child]] = [(steps, f"{head.steps:,}")]
    if loss is not None:
        mode = "" if loss.mode in TRAINING else f" ({loss.mode.name})"
        found.append((f"Last loss{mode}", loss.text))
    seconds = _duration(subject)
    if seconds:
        found.append(("Time in steps", _time(seconds)))
    own = subject.time.own_cost
    if own is not None:
        # Of whole steps; the cost of capture is of what lies between their borders.
        found.append(("Time in tdbg", f"{100 * own.share:.1f} %"))
    elif head.cost is not None:
        found.append(("Cost of capture", f"{100 * head.cost:.1f} %"))
    found.append(("State", head.state))
    return tiles(found)


def _duration(subject: Subject) -> float:
    steps, whole = subject.time.steps, subject.time.whole
    if whole is not None:
        return whole.total_ns / 1e9 / len(np.unique(steps["worker"]))
    return float(np.sum(subject.table["duration_ns"], dtype=np.float64)) / 1e9


def _time(seconds: float) -> str:
    """Write a duration in its two largest units.

    Example:
        >>> _time(3725.0)
        '1 h 2 min'
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def _overhead(subject: Subject) -> str:
    """Return the cost of capture, and why it may differ from that of the whole run."""
    text = str(subject.view.head.overhead).removeprefix("measured cost: ")
    own = subject.time.own_cost
    if own is None:
        return text
    share = f"{100 * own.share:.1f} %"
    return f"{text}. This leaves out what lies between steps; of all, tdbg took {share}"


def _state(subject: Subject) -> str:
    words = {
        "running": "the training continues",
        "stalled": "the process exists but shows no sign of life",
        "closed": "ended normally",
        "dead": "the process is gone and did not close the run",
        "unknown": "the run is from another machine, or nothing has written to it yet",
    }
    head = subject.view.head
    text = f"{head.state}: {words.get(head.state, head.state)}"
    if head.stopped is not None:
        text += f"; it was stopped: {head.stopped}"
    return text


def _steps(subject: Subject) -> str:
    head = subject.view.head
    if not len(subject.table):
        return "none"
    text = head.counted_steps
    if head.steps and head.evaluated and not subject.are_trees:
        text += f", and {head.evaluated:,} of evaluation"
    incomplete = int(np.count_nonzero(~subject.table["complete"]))
    lossy = int(np.count_nonzero(~subject.table["lossless"]))
    if incomplete:
        text += f"; {plural(incomplete, 'step')} not recorded by all workers"
    if lossy:
        text += f"; {plural(lossy, 'step')} with lost records"
    return text


def _coverage(subject: Subject) -> list[tuple[str, Child]]:
    """How much was recorded of each role, and what to do to record more."""
    coverage = subject.view.head.coverage
    if not coverage.text:
        return []
    return [("Recorded", f"{coverage.text}. {coverage.advice}".strip())]


def _software(subject: Subject) -> str:
    told = subject.configuration
    parts = [subject.framework]
    parts += [f"{k} {told[k]}" for k in ("python", "tdbg") if told.get(k)]
    return ", ".join(filter(None, parts)) or "unknown"


def _hardware(subject: Subject) -> str:
    """The machine of the first worker."""
    told = mapping_of(subject.configuration.get("hardware"))
    parts = [str(each) for each in list_of(told.get("accelerators"))]
    parts += [str(told["cpu"])] if told.get("cpu") else []
    if is_integer(told.get("cores")):
        parts.append(plural(told["cores"], "core"))
    if is_integer(told.get("memory")):
        parts.append(f"{size(told['memory'])} of memory")
    parts.append(" ".join(str(told[k]) for k in ("system", "machine") if told.get(k)))
    return ", ".join(filter(None, parts)) or "unknown"


def _attempts(subject: Subject) -> Child:
    attempts = subject.trial.attempts()[:MOST_PROBLEMS]
    if not attempts:
        return "none"
    lines: list[Child] = []
    for each in attempts:
        started = f", started {utc(each.started_ns)}" if each.started_ns > 0 else ""
        lines += [tag("br")] if lines else []
        (first,) = subject.trial.training_steps_at([each.first_step or 0])
        lines.append(f"{each.number}: from step {first:,}{started}")
    return join(lines)


def utc(ns: int) -> str:
    """Write a time as text in UTC."""
    try:
        at = dt.datetime.fromtimestamp(ns / 1e9, tz=dt.UTC)
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def size(n: float) -> str:
    """Write a number of bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"
