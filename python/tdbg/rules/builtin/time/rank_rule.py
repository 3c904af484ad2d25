"""The base of rules that compare the ranks of a training."""

from __future__ import annotations

from tdbg.rules.builtin.time.time_rule import TimeRule
from tdbg.rules.training_facts import ONE_WORKER, TrainingFacts
from tdbg.run.told_phases import unrecorded_ranks

__all__ = ["RankRule"]


class RankRule(TimeRule):
    """Base class of rules that compare all ranks, and need the rows of each."""

    __slots__ = ()

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there is one rank, if so."""
        if training.n_ranks < 2:
            return ONE_WORKER
        return TimeRule.inapplicable(self, training)

    def unjudged(self, training: TrainingFacts) -> str:
        """Return that some ranks wrote nothing, if so."""
        lacking = unrecorded_ranks(training.n_workers, training.n_ranks)
        return lacking or TimeRule.unjudged(self, training)
