"""How a run is, in a tone and a sentence.

Thread safety: functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tdbg.config.quantities import plural
from tdbg.view.head import Head
from tdbg.view.problems import Diagnosis, Problem

__all__ = ["Tone", "Verdict", "verdict_of", "verdict_of_rules"]

Tone = Literal["starting", "unjudged", "ok", "info", "warning", "error"]

_BEGINNINGS = {
    "running": "Training, {} so far",
    "stalled": "Stalled after {}: the process is alive but makes no progress",
    "closed": "Trained for {}",
    "dead": "Killed after {}",
}
_UNKNOWN = "Recorded {}; tdbg cannot tell how the training ended"
# So many rules are named in the sentence; the rest is counted.
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run is.

    Attributes:
        tone: "starting": there is no step yet; "unjudged": no rule has judged it; "ok":
            nothing was ever wrong; "info": nothing is wrong now, but there is something
            to say; "warning" or "error": the severity of the worst problem, or a rule
            failed.
        sentence: The same in words.
        short: The sentence without the length of the training, for tables that have a
            column for it.
        advice: What to do about the worst problem; empty if nothing is wrong.
        wrong: Number of problems that are there now, consequences left out.
        recovered: Number of problems that were there and have recovered.
        notes: Number of notes: findings that accuse nothing.
    """

    tone: Tone
    sentence: str
    short: str
    advice: str = ""
    wrong: int = 0
    recovered: int = 0
    notes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def verdict_of(head: Head, diagnosis: Diagnosis) -> Verdict:
    """Return the verdict on a run.

    Example:
        >>> verdict_of(head, diagnosis).sentence
        'Trained for 60 steps. One thing is wrong: ExplodingTensor in fc.weight.'
    """
    if not head.recorded:
        text = (
            "Nothing was recorded." if head.has_ended else "Waiting for the first step."
        )
        return Verdict("starting", text, text)
    found = verdict_of_rules(diagnosis)
    is_whole = not head.missing and head.state in ("closed", "running")
    tone = "info" if found.tone == "ok" and not is_whole else found.tone
    lost = f"Data is missing: {head.missing}. " if head.missing else ""
    short = lost + found.short
    return replace(
        found, tone=tone, sentence=f"{_beginning(head)} {short}", short=short
    )


def verdict_of_rules(diagnosis: Diagnosis) -> Verdict:
    """Return the verdict of the rules alone, whatever became of the training."""
    if diagnosis.accused:
        tone, words, advice = _with_problems(diagnosis)
    else:
        (tone, words), advice = _without_problems(diagnosis), ""
    return Verdict(
        tone,
        words,
        words,
        advice,
        wrong=len(diagnosis.at_fault),
        recovered=len(diagnosis.recovered),
        notes=len(diagnosis.notes),
    )


def _beginning(head: Head) -> str:
    """How far the training came."""
    template = _BEGINNINGS.get(head.state, _UNKNOWN)
    if not head.steps and head.state == "closed":
        template = "Recorded {}"
    text = template.format(head.counted_steps)
    if head.stopped is not None:
        text += ", then stopped"
    return f"{text}."


def _with_problems(diagnosis: Diagnosis) -> tuple[Tone, str, str]:
    at_fault, accused = diagnosis.at_fault, diagnosis.accused
    worst = at_fault[0]
    n = len(at_fault)
    what = "One thing is wrong" if n == 1 else f"{n} things are wrong, the worst"
    following = len(accused) - n
    tail = f", with {plural(following, 'consequence')}" if following else ""
    words = f"{what}: {worst.rule} in {worst.place}{tail}."
    tone = max(each.severity for each in accused).label
    if diagnosis.failed:
        words += f" {_failed(diagnosis)}"
    return "error" if tone == "error" else "warning", words, worst.worst.advice


def _without_problems(diagnosis: Diagnosis) -> tuple[Tone, str]:
    if not diagnosis.statuses and not diagnosis.problems:
        return "unjudged", "No rule has judged this run yet."
    quiet, blind = len(diagnosis.quiet), len(diagnosis.blind)
    if diagnosis.failed:
        others = f" {plural(quiet, 'other rule').capitalize()} found nothing wrong."
        return "warning", _failed(diagnosis) + (others if quiet else "")
    recovered, notes = diagnosis.recovered, diagnosis.notes
    tone: Tone = "ok"
    if recovered:
        tone = "info"
        words = f"{plural(len(recovered), 'problem')} occurred and recovered"
        words += f": {_names(recovered)}; nothing is wrong now"
    elif notes:
        words = "Nothing is wrong"
    elif quiet:
        words = f"{plural(quiet, 'rule')} found nothing wrong"
    elif blind:
        return "info", f"{_had_too_little(blind)}."
    else:
        return "info", "No rule applies to this training."
    if notes:
        tone = "info"
        words += f"; {plural(len(notes), 'note')}: {_names(notes)}"
    if blind:
        words += f". {_had_too_little(blind)}"
    return tone, f"{words}."


def _had_too_little(n: int) -> str:
    return f"{plural(n, 'rule')} had too little data to judge"


def _failed(diagnosis: Diagnosis) -> str:
    failed = diagnosis.failed
    return f"{plural(len(failed), 'rule')} failed and judged nothing: {_some(failed)}."


def _names(problems: Sequence[Problem]) -> str:
    return _some([f"{each.rule} in {each.place}" for each in problems])


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    listed = ", ".join(names[:MOST_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed
