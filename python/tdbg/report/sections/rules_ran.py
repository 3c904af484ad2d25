"""Which rules judged the run, what they said, and which had nothing to judge by."""

from __future__ import annotations

from tdbg.drawing.markup import Child, tag, with_code
from tdbg.report.page import Section, badge, table
from tdbg.report.subject import Subject

__all__ = ["rules_ran"]

WORDS = {
    "InProgress": "judging",
    "IssuesFound": "found something",
    "Error": "failed",
    "StopState": "stopping",
    "Stopped": "stopped before the end",
}
TONES = {"IssuesFound": "warning", "Error": "error"}
QUIET = "NoIssuesFound"


def rules_ran(subject: Subject) -> Section:
    """List the rules: first those that found something or failed, then the others."""
    statuses = subject.diagnosis.statuses
    if not statuses:
        words = "None. `tdbg check RUN` judges the run with all default rules."
        return Section(
            "rules", "Rules that ran", tag("p", with_code(words), class_="quiet")
        )
    told, silent, blind, others = [], [], [], []
    inapplicable = set(subject.diagnosis.inapplicable)
    for rule, status in statuses.items():
        word, message = str(status.get("status", "")), str(status.get("message") or "")
        if word != QUIET:
            found = str(status.get("n_findings") or "")
            label = badge(TONES.get(word, "info"), WORDS.get(word, word))
            told.append((tag("code", rule), label, found, message))
        elif rule in inapplicable:
            others.append((tag("code", rule), message.removeprefix("does not apply: ")))
        elif message:
            blind.append(
                (tag("code", rule), message.removeprefix("nothing to judge: "))
            )
        else:
            silent.append(tag("code", rule))
    content: list[Child] = []
    if told:
        columns = ("rule", "result", "findings", "what it says")
        content.append(table(columns, told, right=("findings",)))
    if silent:
        content += [
            tag("h3", "Found nothing wrong"),
            tag("p", ((", " if i else "", each) for i, each in enumerate(silent))),
        ]
    if blind:
        content += [
            tag("h3", "Nothing to judge by"),
            table(("rule", "what it lacked"), blind),
        ]
    if others:
        content += [
            tag("h3", "Do not apply to this training"),
            table(("rule", "why"), others),
        ]
    return Section("rules", "Rules that ran", content)
