"""Which rules judged the run, what they said, and which had nothing to judge by."""

from __future__ import annotations

from tdbg.report.markup import Child, tag
from tdbg.report.page import Section, badge, table
from tdbg.report.subject import Subject

__all__ = ["rules_ran"]

WORDS = {
    "InProgress": "judging",
    "NoIssuesFound": "nothing found",
    "IssuesFound": "found something",
    "Error": "failed",
    "StopState": "stopping",
    "Stopped": "stopped before the end",
}
TONES = {"IssuesFound": "warning", "Error": "error", "NoIssuesFound": "ok"}


def rules_ran(subject: Subject) -> Section:
    """A row for each rule; those that were blind by themselves, with the reason."""
    statuses = subject.judgement.statuses
    if not statuses:
        words = "None: `tdbg check RUN` judges the run with all of them."
        return Section("rules", "Rules that ran", tag("p", words, class_="quiet"))
    judged, blind = [], []
    for rule, status in statuses.items():
        word, message = str(status.get("status", "")), str(status.get("message") or "")
        if word == "NoIssuesFound" and message:
            blind.append(
                (tag("code", rule), message.removeprefix("nothing to judge: "))
            )
            continue
        found = status.get("n_findings") or ""
        label = badge(TONES.get(word, "info"), WORDS.get(word, word))
        judged.append((tag("code", rule), label, str(found), message))
    content: list[Child] = []
    if judged:
        judged.sort(key=lambda row: "found something" not in row[1])
        content.append(
            table(
                ("rule", "result", "findings", "what it says"),
                judged,
                right=("findings",),
            )
        )
    if blind:
        content += [
            tag("h3", "Nothing to judge by"),
            table(("rule", "what it lacked"), blind),
        ]
    return Section("rules", "Rules that ran", content)
