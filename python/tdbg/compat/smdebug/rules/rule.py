"""``smdebug.rules``: rules of smdebug's contract, and how they are invoked."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, KeysView, ValuesView
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.compat.smdebug.analysis.utils import (
    no_refresh,
    parse_bool,
    parse_list_from_str,
)
from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.core.tensor import Tensor
from tdbg.compat.smdebug.exceptions import (
    NoMoreData,
    RuleEvaluationConditionMet,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from tdbg.compat.smdebug.rules.action import Actions
from tdbg.compat.smdebug.trials.trial import Trial, create_trial
from tdbg.config.needs import Needs
from tdbg.errors import ConfigurationError
from tdbg.rules import OK, UNKNOWN, Description, Evaluation, TensorInfo, Window
from tdbg.rules import Rule as EngineRule
from tdbg.run.findings import Severity

if TYPE_CHECKING:
    from tdbg.rules import Rule as EngineRule

__all__ = [
    "RequiredTensors",
    "RequiredTensorsForTrial",
    "Rule",
    "invoke_rule",
    "rule_of",
]


class Rule(ABC):
    """Judges one step at a time.

    Args:
        base_trial: The run.
        action_str: What to do when the condition holds: see ``Actions``.
        other_trials: Further runs to compare with.
    """

    def __init__(
        self,
        base_trial: Trial,
        action_str: str | None = "",
        other_trials: Iterable[Trial] | None = None,
    ) -> None:
        self.base_trial = base_trial
        self.other_trials = None if other_trials is None else list(other_trials)
        self.trials = [base_trial, *(self.other_trials or ())]
        self.req_tensors = RequiredTensors(base_trial, self.other_trials)
        self.action_str = action_str
        self.logger = get_logger()
        self.rule_name = type(self).__name__
        self._actions = Actions(action_str, self.rule_name, base_trial)
        self.report: dict[str, Any] = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    @classmethod
    def __tdbg_rule__(cls) -> type[EngineRule]:
        """Return tdbg's rule that invokes this one; for ``--rule FILE.py:CLASS``."""
        return rule_of(cls)

    def set_required_tensors(self, step: int) -> None:
        """Add what *step* needs, with ``self.req_tensors.add(...)``; adds nothing."""
        del step

    @abstractmethod
    def invoke_at_step(self, step: int) -> bool:
        """Return whether the condition holds at this global step."""

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
            self._actions.invoke(f"its condition is met at step {step}")
            raise RuleEvaluationConditionMet(self.rule_name, step)


# The tensor name of findings: smdebug's rules judge steps, not tensors.
NAME = "training"
# Parameters that are no parameters of tdbg's rule.
_GIVEN = ("self", "base_trial", "action_str")
_OTHERS = "other_trials"
_VARIABLE = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_SHOWN = 3
_NOT_THERE = (
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)


@dataclass(frozen=True, kw_only=True)
class JudgedRule(EngineRule):
    """Base of the classes that ``rule_of`` makes; has no fields of its own."""

    # smdebug's rules have no severities.
    _severity: ClassVar[Severity] = Severity.WARNING
    judged: ClassVar[type[Rule]]
    converted: ClassVar[frozenset[str]] = frozenset()

    @property
    def needs(self) -> Needs:
        """No needs: a rule of smdebug does not declare any in advance."""
        return Needs()

    def selects(self, tensor: TensorInfo) -> bool:
        """Return whether to select the tensor: always, so that every step is judged."""
        del tensor
        return True

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Invoke smdebug's rule for each new step, in order."""
        states: dict[str, _State] = self.__dict__.setdefault("_states", {})
        if window.run in states and window.first <= states[window.run].last:
            del states[window.run]  # Another engine starts at the first step.
        severities: dict[int, int] = {}
        for step, is_usable in sorted(
            (int(step), bool(usable))
            for table in window.tables()
            for step, usable in zip(
                table.steps[table.start :], table.usable[table.start :], strict=True
            )
        ):
            severities[step] = (
                self._state(window.run).judge(step) if is_usable else UNKNOWN
            )
        for table in window.tables():
            new = table.steps[table.start :]
            row = [severities[int(step)] for step in new]
            yield Evaluation(
                names=(NAME,),
                steps=new,
                mode=table.mode,
                severities=np.array([row], dtype=np.int8),
                describe=functools.partial(self._describe, window.run, new),
            )

    def _describe(
        self, run: str, steps: NDArray[np.int64], _: int, j: int
    ) -> Description:
        return Description(message=self._state(run).message(int(steps[j])))

    def _state(self, run: str) -> _State:
        """Return the state of smdebug's rule for a run; make it at first use."""
        states: dict[str, _State] = self.__dict__.setdefault("_states", {})
        if run not in states:
            states[run] = _State(self._made(run))
        return states[run]

    def _made(self, run: str) -> Rule:
        given: dict[str, Any] = dict(self.parameters())
        for name in self.converted:
            given[name] = list(given[name])
        accepted = inspect.signature(self.judged).parameters
        if _OTHERS in given:
            others = parse_list_from_str(given[_OTHERS])
            given[_OTHERS] = [create_trial(each.strip()) for each in others] or None
        if "action_str" in accepted:
            given["action_str"] = ""
        return self.judged(create_trial(run), **given)


class _State:
    """The state of one rule of smdebug for one run.

    Attributes:
        last: The last step that it has judged, or -1.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._has_ended = False
        self.last = -1
        self._messages: dict[int, str] = {}

    def judge(self, step: int) -> int:
        """Invoke the rule at a step; return the verdict."""
        self.last = step
        if self._has_ended:
            return UNKNOWN
        try:
            self._rule.invoke(step)
        except _NOT_THERE:
            return UNKNOWN
        except RuleEvaluationConditionMet as error:
            self._has_ended = error.end_of_rule
            looked_at = [
                name
                for trial in self._rule.trials
                for name in self._rule.req_tensors.get_names(trial)
            ]
            self._messages[step] = _message(looked_at)
            return int(JudgedRule._severity)
        return OK

    def message(self, step: int) -> str:
        """Return the message for a step at which the condition is met."""
        return self._messages[step]


def _message(names: list[str]) -> str:
    if not names:
        return "its condition is met"
    shown = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"its condition is met by {shown}{more}"


@functools.cache
def rule_of(judged: type[Rule]) -> type[EngineRule]:
    """Make tdbg's rule that invokes a rule of smdebug; the same class at every call.

    Raises:
        ConfigurationError: If the class is abstract, or one of its parameters has a
            name that tdbg's rules use themselves.

    Example::

        report = tdbg.rules.check("runs/digits", rule_of(TheirRule)(threshold=5))
    """
    missing = sorted(getattr(judged, "__abstractmethods__", ()))
    if missing:
        msg = f"{judged.__name__} is not a rule yet: it lacks {', '.join(missing)}"
        raise ConfigurationError(msg)
    fields: list[tuple[str, Any, Any]] = []
    converted: set[str] = set()
    for name, parameter in inspect.signature(judged.__init__).parameters.items():
        is_variable = parameter.kind in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        }
        if name in _GIVEN or is_variable:
            continue
        if hasattr(JudgedRule, name):
            msg = f"{judged.__name__}: tdbg cannot give it its parameter {name!r}"
            raise ConfigurationError(msg)
        default = "" if name == _OTHERS else parameter.default
        if isinstance(default, list):
            converted.add(name)
            default = tuple(default)
        if default is inspect.Parameter.empty:
            fields.append((name, object, field()))
        else:
            fields.append((name, object, field(default=default)))
    made = make_dataclass(
        judged.__name__,
        fields,
        bases=(JudgedRule,),
        namespace={"judged": judged, "converted": frozenset(converted)},
        frozen=True,
        kw_only=True,
    )
    # The sandbox imports smdebug's class by this name and calls this function again.
    made.__module__, made.__qualname__ = judged.__module__, judged.__qualname__
    made.__doc__ = judged.__doc__ or f"{judged.__name__}, written for smdebug."
    return made


_log = get_logger()


def invoke_rule(
    rule_obj: Rule,
    start_step: int | str | None = 0,
    end_step: int | str | None = None,
    raise_eval_cond: bool | str = False,
) -> None:
    """Judge one step after the other, as they come, until the training ends.

    Steps without the tensors that the rule needs are skipped.  Numbers may be given as
    text, as SageMaker does.

    Args:
        rule_obj: The rule.
        start_step: The first global step.
        end_step: The step after the last one; None: all steps of the training.
        raise_eval_cond: Whether to raise when the condition holds, and not go on.

    Raises:
        RuleEvaluationConditionMet: If the condition holds and *raise_eval_cond* is
            True.
        ValueError: If a text is not that of a number or a bool.
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


class RequiredTensorsForTrial:
    """The tensors of one trial that a rule needs, and at which steps."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self._steps: dict[str, list[int]] = {}
        self._tensors: dict[str, Tensor] = {}

    def add(
        self, name: str, steps: Iterable[int], should_match_regex: bool = False
    ) -> None:
        """Add a tensor, or all tensors whose names an expression finds.

        Raises:
            TensorUnavailable: If there is no tensor of that name.
        """
        if should_match_regex:
            names = self.trial.tensor_names(regex=name)
        elif self.trial.has_tensor(name):
            names = [name]
        else:
            raise TensorUnavailable(name)
        requested = list(steps)
        for each in names:
            self._steps.setdefault(each, []).extend(requested)
            self._tensors.setdefault(each, self.trial.tensor(each))

    def get_tensor_steps(self, name: str) -> list[int]:
        """Return the steps at which a tensor is needed."""
        return self._steps[name]

    def get_names(self) -> KeysView[str]:
        """Return the names of the tensors that are needed."""
        return self._steps.keys()

    def get(self) -> ValuesView[Tensor]:
        """Return the tensors that are needed."""
        return self._tensors.values()

    def clear(self) -> None:
        """Remove all tensors."""
        self._steps.clear()
        self._tensors.clear()

    def fetch(self) -> None:
        """Wait for the tensors that are needed.

        Raises:
            TensorUnavailableForStep: If a tensor was not saved at a step.
            StepUnavailable: If nothing was saved at a step.
            NoMoreData: If the training ended before a step.
        """
        needed = {step for steps in self._steps.values() for step in steps}
        self.trial.wait_for_steps(sorted(needed))
        for name, steps in self._steps.items():
            for step in steps:
                if not self._tensors[name].has_step(step):
                    raise TensorUnavailableForStep(name, step)


class RequiredTensors:
    """The tensors that a rule needs, by trial."""

    def __init__(self, base_trial: Trial, other_trials: Iterable[Trial] | None) -> None:
        self.base_trial = base_trial
        every = [base_trial, *(other_trials or ())]
        self._per_trial = {trial: RequiredTensorsForTrial(trial) for trial in every}

    def add(
        self,
        name: str,
        steps: Iterable[int],
        trial: Trial | None = None,
        should_match_regex: bool = False,
    ) -> None:
        """Add a tensor of *trial*, or all whose names an expression finds.

        Raises:
            TensorUnavailable: If there is no tensor of that name.
        """
        self._of(trial).add(name, steps, should_match_regex)

    def get_tensor_steps(self, name: str, trial: Trial | None = None) -> list[int]:
        """Return the steps at which a tensor is needed."""
        return self._of(trial).get_tensor_steps(name)

    def get_names(self, trial: Trial | None = None) -> KeysView[str]:
        """Return the names of the tensors that are needed."""
        return self._of(trial).get_names()

    def get(self, trial: Trial | None = None) -> ValuesView[Tensor]:
        """Return the tensors that are needed."""
        return self._of(trial).get()

    def clear(self) -> None:
        """Remove all tensors."""
        for each in self._per_trial.values():
            each.clear()

    def fetch(self) -> None:
        """Wait for the tensors of all trials."""
        for each in self._per_trial.values():
            each.fetch()

    def _of(self, trial: Trial | None) -> RequiredTensorsForTrial:
        return self._per_trial[self.base_trial if trial is None else trial]
