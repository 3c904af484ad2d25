"""``Rule``, the base class of all rules, and checks of parameters.

Implements docs/rules.md, "Writing a rule".

Thread safety: rules are immutable and hold no state.

Errors: the checks raise ``ConfigurationError``, which names the parameter.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from tdbg.config.collections import BUILT_IN
from tdbg.config.needs import Needs, every_need
from tdbg.config.patterns import NamePattern
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.run.findings import Severity, Stage

if TYPE_CHECKING:
    from tdbg.rules.training_facts import TrainingFacts
    from tdbg.rules.window import Evaluation, Idle, TensorInfo, Window


__all__ = [
    "Rule",
    "built_in",
    "check_choice",
    "check_names",
    "check_number",
    "check_regex",
    "check_switch",
    "finds",
    "in_collections",
    "mode_of",
    "parameters_of",
]


# Roles that each built-in collection selects, as `TensorInfo.role` names them.
ROLES = {
    name: frozenset(role.name.lower() for role in roles)
    for name, roles in BUILT_IN.items()
}


class Rule(ABC):
    """Base class of all rules.

    A rule is a frozen dataclass; its fields are its parameters.  A rule keeps nothing
    between two windows, so one object may serve many runs and threads.  If it needs
    earlier rows, it declares how many (``lookback``, ``head_rows``) and finds them in
    the window.

    Attributes:
        by_default: Whether a built-in rule is among the default rules; False if it
            needs parameters.
        severities: The severities that its findings may have, the least first.
        stage: Where its findings stand in the chain from causes to consequences;
            None: they neither bring about others nor follow from them.
    """

    __slots__ = ()

    by_default: ClassVar[bool] = True
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)
    stage: ClassVar[Stage | None] = None

    @property
    def name(self) -> str:
        """The name of the rule, for users."""
        return type(self).__name__

    @property
    @abstractmethod
    def needs(self) -> Needs | tuple[Needs, ...]:
        """Return what a hook must capture for the rule."""

    @property
    def lookback(self) -> int:
        """How many rows of each tensor the rule reads before the first new one."""
        return 0

    @property
    def head_rows(self) -> int:
        """How many of the first rows of each tensor the rule reads, however old."""
        return 0

    @property
    def lookback_bins(self) -> int:
        """How many bins of the profile the rule reads before the first new one."""
        return 0

    @property
    def fewest_bins(self) -> int:
        """How many bins of the profile there must be for a finding.

        With fewer, that the rule found nothing says nothing.
        """
        return 0

    @property
    def lookback_steps(self) -> int:
        """How many usual steps it reads up to a bin: ``profile.steps_until``."""
        return 0

    @property
    def first_verdict(self) -> str:
        """What must have been recorded before the rule can judge, in words.

        Said where it could not: "a loss at 50 recorded steps of training or more".
        """
        return ""

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return why the rule's question does not arise in a training; "" if it may.

        Asked if the rule gave no verdict: "tdbg saw no embedding in the model".  By
        default, the rule applies where the training may have what ``needs`` names.
        """
        return training.lacks(every_need(self.needs))

    def unobserved(self, training: TrainingFacts) -> str:
        """Return why no hook looked for the rule's faults; "": one did.

        Where no hook looks, no finding does not mean that all is well.  The engine asks
        if the rule gave no finding: "tdbg does not look for this in JAX".
        """
        del training
        return ""

    def unjudged(self, training: TrainingFacts) -> str:
        """Return what nobody tells of a training that the rule needs; "": nothing.

        Asked if the rule gave no verdict though it applies: "JAX does not tell ...".
        """
        del training
        return ""

    def absent(self, names: Iterable[str]) -> str | None:
        """Say that nothing in the run has the names that the user gave the rule.

        Args:
            names: Those of the run's tensors and scalars.

        Returns:
            "" if something has them; None, as by default, if the user gives the rule
            none: ``needs`` then tells what is missing.
        """
        del names
        return None

    def selects(self, tensor: TensorInfo) -> bool:
        """Return whether the rule judges a tensor; by default, as ``needs`` says."""
        return any(
            in_collections(tensor, need.collections) for need in every_need(self.needs)
        )

    @abstractmethod
    def evaluate(self, window: Window) -> Iterable[Evaluation]:
        """Judge the new steps of a window.

        A verdict on a step may depend only on that step, on the ``lookback`` rows of
        the tensor before it, and on the ``head_rows`` first rows of the tensor.
        """

    def on_idle(self, idle: Idle) -> Iterable[Evaluation]:
        """Judge a run without new steps; called about once a second.

        Only rules about a standstill override this.  The verdict is on the last step:
        ``idle.judge`` makes one.
        """
        del idle
        return ()

    def parameters(self) -> dict[str, object]:
        """Return the values of the parameters by name."""
        return {
            field.name: getattr(self, field.name) for field in parameters_of(type(self))
        }


def parameters_of(rule: type[Rule]) -> list[Field[Any]]:
    """Return the parameters of a rule, its own before those of its base classes."""
    given: Any = rule
    known = {field.name: field for field in fields(given)}
    by_class = (inspect.get_annotations(parent) for parent in rule.__mro__)
    names = dict.fromkeys(name for of_class in by_class for name in of_class)
    return [known[name] for name in names if name in known]


def in_collections(tensor: TensorInfo, collections: Iterable[str]) -> bool:
    """Return whether one of the collections has the tensor."""
    return any(
        name == "all"
        or tensor.role in ROLES.get(name, ())
        or name in tensor.collections
        for name in collections
    )


def built_in(collections: Iterable[str]) -> frozenset[str]:
    """Return the built-in ones of some collections; the user defines the others."""
    return frozenset(collections) & frozenset(BUILT_IN)


def check_number(
    rule: Rule,
    parameter: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    whole: bool = False,
) -> None:
    """Check that a parameter is a number within bounds.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    kinds = (int,) if whole else (int, float)
    if (
        isinstance(value, kinds)
        and not isinstance(value, bool)
        and least <= value <= most
        and value > above
    ):
        return
    bounds = []
    if above > -math.inf:
        bounds.append(f"above {above:g}")
    if least > -math.inf:
        bounds.append(f"of at least {least:g}")
    if most < math.inf:
        bounds.append(f"of at most {most:g}")
    kind = "a whole number" if whole else "a number"
    msg = f"{rule.name}.{parameter} is {value!r}; give {kind} {' and '.join(bounds)}"
    raise ConfigurationError(msg.rstrip())


def check_switch(rule: Rule, parameter: str) -> None:
    """Check that a parameter is True or False.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    if not isinstance(value, bool):
        msg = f"{rule.name}.{parameter} is {value!r}; give True or False"
        raise ConfigurationError(msg)


def check_choice(rule: Rule, parameter: str, choices: Iterable[str]) -> None:
    """Check that a parameter is one of *choices*.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    if value in tuple(choices):
        return
    msg = f"{rule.name}.{parameter} is {value!r}; give one of {', '.join(choices)}"
    raise ConfigurationError(msg)


def check_names(rule: Rule, parameter: str) -> None:
    """Check that a parameter is a tuple of names.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    if isinstance(value, tuple) and all(isinstance(name, str) for name in value):
        return
    example = value if isinstance(value, str) and value else "weights"
    msg = f"{rule.name}.{parameter} is {value!r}; give a tuple, as {(example,)!r}"
    raise ConfigurationError(msg)


def finds(regex: str, name: str) -> bool:
    """Return whether a regular expression matches within a name, in linear time."""
    return _compiled(regex).search(name)


@functools.lru_cache(maxsize=256)
def _compiled(regex: str) -> NamePattern:
    return NamePattern(regex)


def check_regex(rule: Rule, parameter: str) -> None:
    """Check that a parameter is None or a regular expression.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    if value is None:
        return
    try:
        _compiled(value)
    except (re.error, TypeError) as error:
        msg = f"{rule.name}.{parameter} is {value!r}, not a regular expression: {error}"
        raise ConfigurationError(msg) from error


def mode_of(rule: Rule, parameter: str) -> ModeKeys | None:
    """Return the mode that a parameter means: a mode, the name of one, or None.

    Raises:
        ConfigurationError: If it is none of these.
    """
    value: object = getattr(rule, parameter)
    if value is None or isinstance(value, ModeKeys):
        return value
    if isinstance(value, str) and value.upper() in ModeKeys.__members__:
        return ModeKeys[value.upper()]
    modes = ", ".join(ModeKeys.__members__)
    msg = f"{rule.name}.{parameter} is {value!r}; give one of {modes}, or None"
    raise ConfigurationError(msg)
