"""``smdebug.rules.rule_invoker``."""

from __future__ import annotations

from tdbg.compat.smdebug.core.logger import get_logger
from tdbg.compat.smdebug.exceptions import (
    NoMoreData,
    RuleEvaluationConditionMet,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from tdbg.compat.smdebug.rules.rule import Rule

__all__ = ["invoke_rule"]

_log = get_logger()


def invoke_rule(
    rule_obj: Rule,
    start_step: int | None = 0,
    end_step: int | None = None,
    raise_eval_cond: bool = False,
) -> None:
    """Judge step after step, as they come, until the training ends.

    Steps at which nothing, or not what the rule needs, was saved are left out.

    Args:
        rule_obj: The rule.
        start_step: The first global step.
        end_step: The one after the last; None: as long as the training goes on.
        raise_eval_cond: Raise when the condition holds, instead of going on.

    Raises:
        RuleEvaluationConditionMet: If it holds and *raise_eval_cond* says so.
    """
    step = start_step or 0
    while end_step is None or step < end_step:
        try:
            rule_obj.invoke(step)
        except NoMoreData as error:
            _log.info("%s: %s", rule_obj.rule_name, error)
            break
        except (TensorUnavailableForStep, StepUnavailable, TensorUnavailable) as error:
            _log.debug("%s: %s", rule_obj.rule_name, error)
        except RuleEvaluationConditionMet as error:
            if raise_eval_cond:
                raise
            _log.info("%s", error)
            if error.end_of_rule:
                break
        step += 1
