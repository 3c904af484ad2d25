"""Causes: which findings follow from which, so that the cause comes first.

One fault soon leads to many findings.  If the learning rate is a thousand times too
high, units die, outputs are zero, weights stand still and the loss does not fall.  Each
finding has a stage in this chain.  Among all findings that it can follow from, the one
in the earliest stage is its cause.

Findings about time have a chain of their own.  There a cause need not begin first: two
of them belong together if they last at the same time.

Implements docs/rules.md, "Causes and consequences".

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tdbg.run.findings import Cause, Finding, Severity, Stage

__all__ = ["AFTERMATH", "Causes", "cause_of", "with_causes"]

# Steps after the end of an error within which new findings may still follow from it: an
# update that replaces the weights lasts for one step, and units die about ten later.
AFTERMATH = 100
# What a cause saves at the least, as a part of what its consequence costs.
LEAST_PART = 0.5


@dataclass(frozen=True, slots=True)
class _Source:
    """A finding that others may follow from; *root* is the first cause of its chain."""

    first_step: int
    severity: Severity
    root: Cause
    root_stage: Stage
    until: float = math.inf


@dataclass(slots=True)
class _Sources:
    """Open findings of one rule and stage, and the last one that ended."""

    open: dict[Cause, _Source] = field(default_factory=dict)
    ended: _Source | None = None

    def at(self, step: int) -> _Source | None:
        """Return the oldest finding that a new one at a step may follow from."""
        for source in self.open.values():
            return source
        is_recent = self.ended is not None and step <= self.ended.until
        return self.ended if is_recent else None


class Causes:
    """Record of which findings follow from which, as they begin and end.

    A finding follows from one in an earlier stage that began no later, or from one in
    its own stage that began earlier and is worse or belongs to another rule.  Facts
    follow from nothing.  Only facts, errors, and gradients that reach no weight explain
    why a model does not learn.

    The cause of a finding is the first in its chain, which has no cause itself.
    """

    def __init__(self) -> None:
        self._sources: dict[tuple[str, Stage], _Sources] = {}
        self._causes: dict[Cause, Cause] = {}
        self._n_open: Counter[Cause] = Counter()

    def begin(self, finding: Finding) -> Cause | None:
        """Add a finding that begins or gets worse; return its cause.

        If several begin at one step, add those in earlier stages first.
        """
        stage, itself = finding.stage, cause_of(finding)
        if stage is None:
            return None
        cause = self._causes.get(itself)
        root = cause or itself
        root_stage = stage
        if cause is None and not stage.is_fact:
            found = self._first_cause(finding, stage)
            if found is not None:
                root, root_stage = found.root, found.root_stage
                cause = self._causes[itself] = root
                self._n_open[root] += 1
        if finding.severity > Severity.INFO:
            sources = self._sources.setdefault((finding.rule, stage), _Sources())
            known = sources.open.get(itself)
            sources.open[itself] = _Source(
                finding.first_step,
                finding.severity,
                root,
                root_stage if known is None else known.root_stage,
            )
        return cause

    def end(self, finding: Finding) -> Cause | None:
        """Note that a finding is over; return its cause."""
        itself = cause_of(finding)
        cause = self._causes.get(itself)
        if cause is not None:
            self._n_open[cause] -= 1
        sources = finding.stage and self._sources.get((finding.rule, finding.stage))
        source = sources.open.pop(itself, None) if sources else None
        if sources and source is not None:
            is_grave = finding.severity is Severity.ERROR
            until = finding.last_step + (AFTERMATH if is_grave else 0)
            if sources.ended is None or sources.ended.until < until:
                sources.ended = replace(source, until=until)
        return cause

    def goes_on(self, cause: Cause) -> bool:
        """Return whether a finding has consequences that are not over."""
        return self._n_open[cause] > 0

    def _first_cause(self, finding: Finding, stage: Stage) -> _Source | None:
        found = [
            source
            for (rule, before), sources in self._sources.items()
            if before <= stage
            if (source := sources.at(finding.first_step)) is not None
            if _explains(source, rule, before, finding, stage)
        ]
        return min(
            found,
            key=lambda each: (each.root_stage, each.root.first_step),
            default=None,
        )


def _explains(
    source: _Source, rule: str, before: Stage, finding: Finding, stage: Stage
) -> bool:
    if before.is_of_time or stage.is_of_time:
        return _delays(before, stage)
    if before == stage:
        is_other = rule != finding.rule or source.severity > finding.severity
        return is_other and source.first_step < finding.first_step
    sure = before.is_fact or source.severity is Severity.ERROR
    # Vanished gradients are errors, and a warning where none reaches any weight.
    sure |= before is Stage.GRADIENTS
    return sure or stage < Stage.LEARNING


def _delays(before: Stage, stage: Stage) -> bool:
    """Return whether time lost in one stage makes another look slow."""
    if not (before.is_of_time and stage.is_of_time and before < stage):
        return False
    # The host's own code takes its time besides loading, not because of it.
    return stage is not Stage.HOST or before is Stage.CONTENTION


def cause_of(finding: Finding) -> Cause:
    """Return a finding as the cause of others."""
    return Cause(
        finding.rule, finding.tensor, finding.first_step, finding.first_global_step
    )


def with_causes(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, each in its last state, with their causes.

    A finding whose consequences are not over goes on itself: the damage is still there.
    """
    causes, result = Causes(), list(findings)
    order = sorted(
        range(len(result)), key=lambda i: (result[i].first_step, result[i].stage or 0)
    )
    for i in order:
        if _is_of_time(result[i]):
            continue
        result[i] = replace(result[i], cause=causes.begin(result[i]))
        if result[i].is_over:
            causes.end(result[i])
    _add_causes_of_time(result)
    go_on = {each.cause for each in result if not each.is_over}
    return [
        replace(each, phase="begin")
        if each.is_over and cause_of(each) in go_on
        else each
        for each in result
    ]


def _is_of_time(finding: Finding) -> bool:
    return finding.stage is not None and finding.stage.is_of_time


def _add_causes_of_time(findings: list[Finding]) -> None:
    """Name the causes of findings about time: those that last at the same time."""
    chain = [(i, each) for i, each in enumerate(findings) if _is_of_time(each)]
    chain.sort(key=lambda item: (item[1].stage or 0, item[1].first_step))
    for place, (i, finding) in enumerate(chain):
        before = (findings[k] for k, _ in chain[:place])
        source = next((each for each in before if _lasts_with(each, finding)), None)
        cause = None if source is None else source.cause or cause_of(source)
        findings[i] = replace(finding, cause=cause)


def _lasts_with(source: Finding, finding: Finding) -> bool:
    if source.stage is None or finding.stage is None:
        return False
    return (
        source.severity > Severity.INFO
        and _delays(source.stage, finding.stage)
        and _saves_as_much(source, finding)
        and source.first_step <= finding.last_step
        and (not source.is_over or source.last_step >= finding.first_step)
    )


def _saves_as_much(source: Finding, finding: Finding) -> bool:
    """Return whether mending one may mend most of the other, where both are measured.

    A core that is missing for a tenth of the time is not why a loader takes half of it.
    """
    if source.gain is None or finding.gain is None:
        return True
    return source.gain >= LEAST_PART * finding.gain
