"""What is wrong with a run, in one sentence, and the findings put together.

Thread safety: functions over values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdbg.config.messages import counted
from tdbg.run.findings import Finding, Severity

__all__ = ["Episode", "episodes_of", "verdict"]

# States of a training that has begun and writes no more.
ENDED = ("closed", "dead")
_VERBS = {
    "running": "Training",
    "stalled": "Training, without a sign of life",
    "closed": "Trained",
    "dead": "Trained, and was killed",
    "unknown": "Trained, as far as is known,",
}


@dataclass(frozen=True, slots=True)
class Episode:
    """One problem of one tensor, from its beginning to its end.

    Attributes:
        newest: What was last said about it.
        worst: The gravest severity that it ever had.
        noticed: The global step at which a rule first noticed it.
        n_consequences: How many others follow from it.
    """

    newest: Finding
    worst: Severity
    noticed: int
    n_consequences: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from others: rule, tensor and first step."""
        return self.newest.rule, self.newest.tensor, self.newest.first_step

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            **self.newest.to_json(),
            "severity": self.worst.label,
            "noticed": self.noticed,
            "over": self.newest.is_over,
            "consequences": self.n_consequences,
        }


def episodes_of(findings: Iterable[Finding]) -> list[Episode]:
    """The problems, the one to look at first foremost.

    What goes on comes before what is over, the grave before the slight, causes before
    what follows from them, and what began earlier before what began later.  A cause is
    as grave as what follows from it.
    """
    parts: dict[tuple[str, str, int], list[Finding]] = {}
    for each in findings:
        parts.setdefault((each.rule, each.tensor, each.first_step), []).append(each)
    followers: dict[tuple[str, str, int], int] = {}
    graveness = {
        key: max(each.severity for each in found) for key, found in parts.items()
    }
    worst = dict(graveness)
    for key, found in parts.items():
        cause = found[-1].cause
        if cause is not None:
            of_cause = (cause.rule, cause.tensor, cause.first_step)
            followers[of_cause] = followers.get(of_cause, 0) + 1
            if of_cause in graveness and not found[-1].is_over:
                graveness[of_cause] = max(graveness[of_cause], worst[key])
    episodes = [
        Episode(
            newest=found[-1],
            worst=worst[key],
            noticed=min(each.step for each in found),
            n_consequences=followers.get(key, 0),
        )
        for key, found in parts.items()
    ]
    return sorted(
        episodes,
        key=lambda each: (
            each.newest.is_over,
            -graveness[each.key],
            each.newest.cause is not None,
            -each.n_consequences,
            each.newest.first_step,
            each.newest.rule,
            each.newest.tensor,
        ),
    )


def verdict(
    status: str,
    n_steps: int,
    episodes: Sequence[Episode],
    rules: Mapping[str, Mapping[str, Any]],
    stopped: str | None = None,
) -> dict[str, Any]:
    """How the run does: ``tone`` and ``sentence``.

    Args:
        status: State of the training, as ``Trial.status``.
        n_steps: How many steps it has trained for, recorded or not.
        episodes: As ``episodes_of`` sorts them.
        rules: What was last said of each rule that judges; empty: none does.
        stopped: Why the training was stopped, if it was.

    Returns:
        ``tone``: starting, unjudged, ok, info, warning or error.
    """
    if not n_steps:
        begun = status in ENDED
        text = "Nothing was recorded" if begun else "Waiting for the first step"
        return {"tone": "starting", "sentence": f"{text}."}
    begin = f"{_VERBS.get(status, 'Trained')} for {n_steps:,} steps"
    if n_steps == 1:
        begin = begin.removesuffix("s")
    if stopped is not None:
        begin += ", then stopped"
    active = [each for each in episodes if not each.newest.is_over]
    if not active:
        if episodes:
            gone = counted(len(episodes), "problem").capitalize()
            return _verdict(
                "ok", f"{begin}. {gone} came and went; nothing is wrong now."
            )
        if rules:
            blind = sum(bool(each.get("message")) for each in rules.values())
            said = f"{counted(len(rules) - blind, 'rule')} found nothing wrong"
            if blind:
                said += f", {blind} had too little to judge by"
            return _verdict("ok", f"{begin}. {said}.")
        return _verdict("unjudged", f"{begin}. No rule has judged this run yet.")
    worst = active[0]
    at_fault = {each.newest.rule for each in active if each.newest.cause is None}
    n = len(at_fault | {worst.newest.rule})
    others = sum(each.newest.rule == worst.newest.rule for each in active) - 1
    name = f"{worst.newest.rule} in {worst.newest.tensor}"
    name += f" and {others} more" if others else ""
    tone = max(each.worst for each in active).label
    if n == 1:
        return _verdict(tone, f"{begin}. One thing is wrong: {name}.")
    return _verdict(tone, f"{begin}. {n} things are wrong, the worst: {name}.")


def _verdict(tone: str, sentence: str) -> dict[str, Any]:
    return {"tone": tone, "sentence": sentence}
