"""No parameter of any rule takes what is not of its kind, and what it is told is plain.

Limits of their ranges are held in the tests of the rules.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tdbg.errors import ConfigurationError
from tdbg.rules import Rule, registry

# What a rule cannot be made without.
GIVEN: dict[str, dict[str, Any]] = {"SimilarAcrossRuns": {"other_runs": ("runs/a",)}}


class Nothing:
    """Of no kind that a parameter is of."""


def rule_of(name: str, **parameters: object) -> Rule:
    return registry.make(name, **{**GIVEN.get(name, {}), **parameters})


PARAMETERS = [
    (name, field.name, rule_of(name).parameters()[field.name])
    for name in registry.BUILT_IN
    for field in fields(registry.get(name))  # type: ignore[arg-type]
]
NUMBERS = [
    (name, parameter)
    for name, parameter, default in PARAMETERS
    if isinstance(default, int | float) and not isinstance(default, bool)
]
# Where None says: do not compare.
MAY_BE_NONE = {
    ("TensorVariance", "relative"),
    ("TensorVariance", "collapsed"),
    ("VanishingGradient", "relative"),
}


@pytest.mark.parametrize(("name", "parameter", "default"), PARAMETERS)
def test_what_is_of_another_kind_is_refused_by_name(
    name: str, parameter: str, default: object
) -> None:
    bad: list[object] = [Nothing(), (Nothing(),), 1j]
    if default is not None and (name, parameter) not in MAY_BE_NONE:
        bad.append(None)
    if isinstance(default, bool):
        bad += [1, "yes"]
    elif isinstance(default, int | float):
        bad += [True, "1", float("nan")]
    elif isinstance(default, tuple):
        bad += ["weights", 3]
    for value in bad:
        with pytest.raises(ConfigurationError, match=rf"{name}\.{parameter} is "):
            rule_of(name, **{parameter: value})


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_numbers_far_below_zero_are_refused_by_name(name: str, parameter: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}\.{parameter} is -1"):
        rule_of(name, **{parameter: -1e9})
