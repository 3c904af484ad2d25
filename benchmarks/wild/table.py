"""What came of it: captured, broken, accused, named.

The same tables go to the terminal and into README.md, between its markers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from benchmarks._harness.tables import Table
from benchmarks.wild.judge import Outcome, Sick

__all__ = ["tables"]


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """All of them."""
    return [
        _summary(outcomes),
        _programs(outcomes),
        _kinds(outcomes),
        _mistakes(outcomes),
        _accused(outcomes),
    ]


def _summary(outcomes: Sequence[Outcome]) -> Table:
    table = Table("all programs", ("what", "programs"))
    n = len(outcomes)
    for what in ("fully", "partly", "not"):
        here = sum(one.captured == what for one in outcomes)
        table.add(f"{what} captured", f"{here} of {n}")
    silent = sum(one.captured == "not" and not one.is_told for one in outcomes)
    table.add("not captured without a word", f"{silent} of {n}")
    table.add("broken", f"{sum(bool(one.differs) for one in outcomes)} of {n}")
    same = sum(one.same_weights for one in outcomes)
    table.add("same weights, bit for bit", f"{same} of {n}")
    table.add("healthy and accused", f"{sum(map(_is_accused, outcomes))} of {n}")
    sick = [one for outcome in outcomes for one in outcome.sick]
    for what, count in _counts(sick).items():
        table.add(f"mistakes: {what}", f"{count} of {len(sick)}")
    return table


def _is_accused(outcome: Outcome) -> bool:
    return bool(outcome.findings) and outcome.is_well


def _counts(sick: Sequence[Sick]) -> dict[str, int]:
    return {
        "cause named": sum(one.place > 0 for one in sick),
        "on the first line": sum(one.place == 1 for one in sick),
        "advice is the fix": sum(one.is_mended for one in sick),
    }


def _programs(outcomes: Sequence[Outcome]) -> Table:
    columns = ("program", "kind", "captured", "broken", "same weights", "accused")
    table = Table("each program", columns)
    for one in outcomes:
        captured = one.captured + (
            f", lacks {', '.join(one.lacks)}" if one.lacks else ""
        )
        if one.captured == "not":
            captured += ", and says so" if one.is_told else ", without a word"
        rules = ", ".join(dict.fromkeys(finding.rule for finding in one.findings))
        figure = "" if one.is_well else f" (not well: {one.figure})"
        table.add(
            one.program + figure,
            one.kind,
            captured,
            "yes" if one.differs else "no",
            "yes" if one.same_weights else "no",
            rules or "no",
        )
    return table


def _kinds(outcomes: Sequence[Outcome]) -> Table:
    columns = ("kind of mistake", "made", "named", "on the first line", "advice fits")
    table = Table("each kind of mistake", columns)
    sick = [one for outcome in outcomes for one in outcome.sick]
    for kind in sorted({one.kind for one in sick}):
        here = [one for one in sick if one.kind == kind]
        table.add(kind, len(here), *_counts(here).values())
    return table


def _mistakes(outcomes: Sequence[Outcome]) -> Table:
    columns = ("program", "mistake", "named", "said first")
    table = Table("mistakes that are not named on the first line", columns)
    for outcome in outcomes:
        for one in outcome.sick:
            if one.place == 1:
                continue
            first = one.findings[0].text if one.findings else "nothing"
            table.add(
                outcome.program,
                _short(one.mistake, 34),
                f"{one.place}. by {one.named_by}" if one.place else "no",
                _short(first, 40),
            )
    return table


def _accused(outcomes: Sequence[Outcome]) -> Table:
    table = Table("healthy programs that are accused", ("program", "finding"))
    for outcome in filter(_is_accused, outcomes):
        for one in outcome.findings:
            said = f"{one.severity} {one.rule} at step {one.step}: {one.message}"
            table.add(outcome.program, _short(said, 90))
    return table


def _short(text: str, width: int) -> str:
    return textwrap.shorten(text.replace("|", "/"), width, placeholder=" ...")
