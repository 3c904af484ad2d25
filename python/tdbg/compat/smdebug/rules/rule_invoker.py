"""``smdebug.rules.rule_invoker``."""

from __future__ import annotations

from tdbg.compat.smdebug.analysis.utils import parse_bool
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
    start_step: int | str | None = 0,
    end_step: int | str | None = None,
    raise_eval_cond: bool | str = False,
) -> None:
    """Judge step after step, as they come, until the training ends.

    Steps at which nothing, or not what the rule needs, was saved are left out.
    Numbers may be texts, as SageMaker gives them.

    Args:
        rule_obj: The rule.
        start_step: The first global step.
        end_step: The one after the last; None: as long as the training goes on.
        raise_eval_cond: Raise when the condition holds, instead of going on.

    Raises:
        RuleEvaluationConditionMet: If it holds and *raise_eval_cond* says so.
        ValueError: If a text is no number, or no truth.
    """
    step = int(start_step or 0)
    end = None if end_step is None or end_step == "" else int(end_step)
    raises = parse_bool(raise_eval_cond, False)
    while end is None or step < end:
        try:
            rule_obj.invoke(step)
        except NoMoreData as error:
            _log.info("%s: %s", rule_obj.rule_name, error)
            break
        except (TensorUnavailableForStep, StepUnavailable, TensorUnavailable) as error:
            _log.debug("%s: %s", rule_obj.rule_name, error)
        except RuleEvaluationConditionMet as error:
            if raises:
                raise
            _log.info("%s", error)
            if error.end_of_rule:
                break
        step += 1
