"""smdebug's rules in tdbg's engine, step by step.

    tdbg check runs/digits --rule './their_rules.py:TheirRule(threshold=5)'

A class that derives from smdebug's ``Rule`` becomes one of tdbg's rules, whose
parameters are those of its constructor.  Its object lives as long as the engine: unlike
a rule of tdbg it may remember what it has seen.

Thread safety: that of the class; an engine asks from one thread.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.compat.smdebug.analysis.utils import parse_list_from_str
from tdbg.compat.smdebug.exceptions import (
    NoMoreData,
    RuleEvaluationConditionMet,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.trials.utils import create_trial
from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.needs import Needs
from tdbg.rules import Description, Judgement, TensorInfo, Window
from tdbg.rules import Rule as EngineRule
from tdbg.rules.verdicts import HEALTHY, UNKNOWN

__all__ = ["rule_of"]

# What a verdict is filed under: smdebug's rules judge steps, not tensors.
NAME = "training"
# Given by the engine, or by nobody.
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
    """Base of what ``rule_of`` makes; has no fields of its own."""

    # A condition that is met says nothing of how bad that is.
    _severity: ClassVar[Severity] = Severity.WARNING
    judged: ClassVar[type[Rule]]
    converted: ClassVar[frozenset[str]] = frozenset()

    @property
    def needs(self) -> Needs:
        """Nothing: what it looks at is known only when it looks."""
        return Needs()

    def selects(self, tensor: TensorInfo) -> bool:
        """All: every step is to be judged."""
        del tensor
        return True

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Invoke it for each new step, in order."""
        states: dict[str, _State] = self.__dict__.setdefault("_states", {})
        if window.run in states and window.first <= states[window.run].last:
            del states[window.run]  # Another engine begins anew.
        levels: dict[int, int] = {}
        for step, is_usable in sorted(
            (int(step), bool(usable))
            for table in window.tables()
            for step, usable in zip(
                table.steps[table.start :], table.usable[table.start :], strict=True
            )
        ):
            levels[step] = self._state(window.run).judge(step) if is_usable else UNKNOWN
        for table in window.tables():
            new = table.steps[table.start :]
            row = [levels[int(step)] for step in new]
            yield Judgement(
                names=(NAME,),
                steps=new,
                mode=table.mode,
                levels=np.array([row], dtype=np.int8),
                describe=functools.partial(self._describe, window.run, new),
            )

    def _describe(
        self, run: str, steps: NDArray[np.int64], _: int, j: int
    ) -> Description:
        return Description(message=self._state(run).message(int(steps[j])))

    def _state(self, run: str) -> _State:
        """The object of smdebug's class, made when it is needed first."""
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
    """A rule of smdebug's at work.

    Attributes:
        last: The last step that it has judged, or -1.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._has_ended = False
        self.last = -1
        self._messages: dict[int, str] = {}

    def judge(self, step: int) -> int:
        """The verdict on a step."""
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
        return HEALTHY

    def message(self, step: int) -> str:
        """What to say of a step at which the condition is met."""
        return self._messages[step]


def _message(names: list[str]) -> str:
    if not names:
        return "its condition is met"
    shown = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"its condition is met by {shown}{more}"


@functools.cache
def rule_of(judged: type[Rule]) -> type[EngineRule]:
    """What smdebug's class is as one of tdbg's rules; always the same class.

    Raises:
        ConfigurationError: If it is abstract, or a parameter has a name that it cannot
            have.

    Example::

        report = tdbg.rules.check("runs/digits", rule_of(TheirRule)(threshold=5))
    """
    missing = sorted(getattr(judged, "__abstractmethods__", ()))
    if missing:
        msg = f"{judged.__name__} is no rule yet: it lacks {', '.join(missing)}"
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
    # Where another process finds it: transport asks that class again what it is.
    made.__module__, made.__qualname__ = judged.__module__, judged.__qualname__
    made.__doc__ = judged.__doc__ or f"{judged.__name__}, written for smdebug."
    return made
