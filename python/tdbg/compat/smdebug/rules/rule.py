"""``smdebug.rules.rule``: rules of one's own, step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tdbg.compat.smdebug.analysis.utils import no_refresh
from tdbg.compat.smdebug.core.logger import get_logger
from tdbg.compat.smdebug.exceptions import RuleEvaluationConditionMet
from tdbg.compat.smdebug.rules.req_tensors import RequiredTensors
from tdbg.compat.smdebug.trials.trial import Trial

if TYPE_CHECKING:
    from tdbg.rules import Rule as EngineRule

__all__ = ["Rule"]


class Rule(ABC):
    """Judges one step at a time.

    Args:
        base_trial: The run.
        action_str: Accepted; smdebug's actions are SageMaker's. ``tdbg watch`` and
            tdbg's own rules have actions.
        other_trials: Further runs to compare with.
    """

    def __init__(
        self,
        base_trial: Trial,
        action_str: str = "",
        other_trials: Iterable[Trial] | None = None,
    ) -> None:
        self.base_trial = base_trial
        self.other_trials = None if other_trials is None else list(other_trials)
        self.trials = [base_trial, *(self.other_trials or ())]
        self.req_tensors = RequiredTensors(base_trial, self.other_trials)
        self.action_str = action_str
        self.logger = get_logger()
        self.rule_name = type(self).__name__
        self.report: dict[str, Any] = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    @classmethod
    def __tdbg_rule__(cls) -> type[EngineRule]:
        """What it is to tdbg's engine: ``--rule FILE.py:CLASS`` asks."""
        from tdbg.compat.smdebug.rules.judged import rule_of

        return rule_of(cls)

    def set_required_tensors(self, step: int) -> None:
        """Say with ``self.req_tensors.add(...)`` what *step* needs; nothing does."""
        del step

    @abstractmethod
    def invoke_at_step(self, step: int) -> bool:
        """Whether the condition holds at this global step."""

    def invoke(self, step: int) -> None:
        """Wait for a global step and judge it.

        Raises:
            RuleEvaluationConditionMet: If the condition holds.
            StepUnavailable: If nothing was saved at the step.
            NoMoreData: If the training ended before it.
        """
        self.base_trial.wait_for_steps([step])
        with no_refresh(self.trials):
            self.req_tensors.clear()
            self.set_required_tensors(step)
            self.req_tensors.fetch()
            is_met = self.invoke_at_step(step)
        if is_met:
            raise RuleEvaluationConditionMet(self.rule_name, step)
