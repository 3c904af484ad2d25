"""What is insisted on about the parameters of a rule, and expressions among them.

Thread safety: pure functions.

Errors: ConfigurationError, naming rule, parameter, value and what to give instead.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable

from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.patterns import NamePattern
from tdbg.rules._base import Rule

__all__ = [
    "check_choice",
    "check_names",
    "check_number",
    "check_regex",
    "check_switch",
    "finds",
    "mode_of",
]


def check_number(
    rule: Rule,
    parameter: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    whole: bool = False,
) -> None:
    """Insist that a parameter is a number within its bounds.

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
    """Insist that a parameter is True or False.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    if not isinstance(value, bool):
        msg = f"{rule.name}.{parameter} is {value!r}; give True or False"
        raise ConfigurationError(msg)


def check_choice(rule: Rule, parameter: str, choices: Iterable[str]) -> None:
    """Insist that a parameter is one of these.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    if value in tuple(choices):
        return
    msg = f"{rule.name}.{parameter} is {value!r}; give one of {', '.join(choices)}"
    raise ConfigurationError(msg)


def check_names(rule: Rule, parameter: str) -> None:
    """Insist that a parameter is a tuple of names.

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
    """Whether an expression is found in a name, in time that grows with the name."""
    return _compiled(regex).search(name)


@functools.lru_cache(maxsize=256)
def _compiled(regex: str) -> NamePattern:
    return NamePattern(regex)


def check_regex(rule: Rule, parameter: str) -> None:
    """Insist that a parameter is None or a regular expression.

    Raises:
        ConfigurationError: If it is not.
    """
    value = getattr(rule, parameter)
    if value is None:
        return
    try:
        _compiled(value)
    except (re.error, TypeError) as error:
        msg = f"{rule.name}.{parameter} is {value!r}, no regular expression: {error}"
        raise ConfigurationError(msg) from error


def mode_of(rule: Rule, parameter: str) -> ModeKeys | None:
    """The mode that a parameter means, given as one, as its name, or None.

    Raises:
        ConfigurationError: If it means none.
    """
    value: object = getattr(rule, parameter)
    if value is None or isinstance(value, ModeKeys):
        return value
    if isinstance(value, str) and value.upper() in ModeKeys.__members__:
        return ModeKeys[value.upper()]
    modes = ", ".join(ModeKeys.__members__)
    msg = f"{rule.name}.{parameter} is {value!r}; give one of {modes}, or None"
    raise ConfigurationError(msg)
