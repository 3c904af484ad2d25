"""Parses rules: names, texts as ``DeadRelu(min_steps=4)``, or mappings.

The name of a tensor that begins the parameters needs no quotes: ``Below(loss, 0.5)``.

Thread safety: pure functions, except that a rule in a file is imported.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tdbg.config.documents import Located
from tdbg.config.needs import Needs, every_need
from tdbg.errors import ConfigurationError
from tdbg.rules.registry import default_rules, get, make
from tdbg.rules.rule import Rule

__all__ = [
    "RulesLike",
    "needs_of",
    "parse_rule",
    "parse_rules",
    "resolve",
    "with_absolute_path",
]

_RuleLike = str | Rule | Mapping[str, Any] | Located
RulesLike = Iterable[_RuleLike] | _RuleLike | None
DEFAULT = "default"  # Stands for the default rules.

# A name, in a file or not, and parameters in parentheses.
_RULE = re.compile(
    r"\s*(?P<name>.+?\.py(?::\w*)?|[^\W\d]\w*)\s*(?P<call>\(.*\))?\s*", re.DOTALL
)
# The first parameter, if it is text without quotes: the name of a tensor.
_BARE = re.compile(r"\(\s*(?P<name>[^\s\"'()\[\]{}=,\d+-][^\s\"'(){}=,]*)\s*(?=[,)])")


def resolve(rules: RulesLike) -> tuple[Rule, ...]:
    """Make rules from rules, texts or mappings; None: the default rules.

    A text is ``NAME``, ``NAME(parameter=value)`` or the same with ``FILE.py:CLASS``;
    the name ``default`` stands for the default rules.  ``-NAME`` leaves a rule out of
    those before it, or of the default rules if none are.  A mapping holds the ``name``
    and the parameters.  Errors name the file or variable that a rule comes from.

    Raises:
        UnknownRule: If there is no rule of a name.
        ConfigurationError: If something is none of these, a parameter is not valid, or
            a rule to leave out is not among those before it.

    Example:
        >>> resolve([{"name": "DeadRelu", "threshold_layer": 80}])[0].threshold_layer
        80
        >>> len(resolve("default")) - len(resolve("-DeadRelu"))
        1
    """
    if rules is None:
        return default_rules()
    if isinstance(rules, str | Rule | Mapping | Located):
        rules = (rules,)
    chosen: tuple[Rule, ...] | None = None
    for rule in rules:
        chosen = _with(rule, chosen)
    return chosen or ()


def needs_of(rules: RulesLike) -> tuple[Needs, ...]:
    """Return what a hook must capture for all of these rules, without duplicates.

    Raises:
        UnknownRule: If there is no rule of a name.
        ConfigurationError: If something is neither a rule nor a name.
    """
    needs = [need for rule in resolve(rules) for need in every_need(rule.needs)]
    return tuple(dict.fromkeys(needs))


def parse_rule(text: str) -> Rule:
    """Make a rule from ``NAME`` or ``NAME(parameter=literal, ...)``.

    NAME is the name of a rule, or ``FILE.py:CLASS``.  A rule that takes parameters by
    position in Python takes them so here, too: ``Below(loss, 0.5)``.

    Raises:
        UnknownRule: If there is no rule of that name.
        ConfigurationError: If the text is none of these, the file or class cannot be
            used, or a parameter is unknown or out of range.
    """
    match = _RULE.fullmatch(text)
    call = None
    if match is not None:
        # Parsed as Python, but never executed.
        call = _call(_BARE.sub(_quoted, match["call"] or "()", count=1))
    if match is None or call is None:
        msg = f"rule {text!r}: write NAME or 'NAME(parameter=value, ...)'"
        raise ConfigurationError(msg)
    name, (values, parameters) = match["name"].strip(), call
    by_position = _named(text, name, values)
    for twice in by_position.keys() & parameters.keys():
        msg = f"rule {text!r} has {twice} twice: by position and by name"
        raise ConfigurationError(msg)
    return make(name, **by_position, **parameters)


def parse_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """Make rules from texts; without any, the default rules.

    Raises:
        ConfigurationError: As ``parse_rule`` does.
    """
    return resolve(texts or None)


def with_absolute_path(text: str) -> str:
    """Make the path of a file in the text of a rule absolute.

    Example:
        >>> with_absolute_path("DeadRelu(min_steps=4)")
        'DeadRelu(min_steps=4)'
    """
    match = _RULE.fullmatch(text)
    if match is None or ".py" not in match["name"]:
        return text
    file, _, rest = text.strip().partition(".py")
    return f"{os.path.abspath(Path(file).expanduser())}.py{rest}"  # noqa: PTH100


def _with(rule: object, chosen: tuple[Rule, ...] | None) -> tuple[Rule, ...]:
    """Add a rule to those chosen so far, or leave one out."""
    if isinstance(rule, Located):
        with rule.place.inside():
            return _with(rule.value, chosen)
    if not (isinstance(rule, str) and rule.lstrip().startswith("-")):
        return (*(chosen or ()), *_resolve(rule))
    name = rule.strip().removeprefix("-").strip()
    left_out = get(name)
    before = default_rules() if chosen is None else chosen
    kept = tuple(each for each in before if type(each) is not left_out)
    if len(kept) == len(before):
        msg = f"'-{name}' leaves out nothing: {name} is not among the rules before it"
        raise ConfigurationError(msg)
    return kept


def _resolve(rule: object) -> tuple[Rule, ...]:
    if isinstance(rule, Rule):
        return (rule,)
    if isinstance(rule, str):
        return default_rules() if rule == DEFAULT else (parse_rule(rule),)
    if isinstance(rule, Mapping):
        parameters = {str(key): value for key, value in rule.items()}
        name = parameters.pop("name", None)
        if isinstance(name, str):
            return (make(name, **parameters),)
        msg = f'a rule as a mapping has a name and parameters: {{"name": ...}}: {rule}'
        raise ConfigurationError(msg)
    msg = f"{rule!r} is neither a rule nor the name of one"
    raise ConfigurationError(msg)


def _quoted(bare: re.Match[str]) -> str:
    return f"({bare['name']!r}"


def _named(text: str, name: str, values: Sequence[object]) -> dict[str, object]:
    """Return the parameters of a rule that were given by position, by name."""
    if not values:
        return {}
    given: Any = get(name)
    known = [field.name for field in fields(given) if not field.kw_only]
    if len(values) > len(known):
        msg = f"rule {text!r}: write NAME or 'NAME(parameter=value, ...)'"
        raise ConfigurationError(msg)
    return dict(zip(known, values, strict=False))


def _call(text: str) -> tuple[list[object], dict[str, object]] | None:
    """Return the values and keywords of a call; None if it is none of literals."""
    try:
        expression = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(expression, ast.Call):
            return None
        if not isinstance(expression.func, ast.Name):
            return None
        if any(keyword.arg is None for keyword in expression.keywords):
            return None
        keywords = {
            str(keyword.arg): ast.literal_eval(keyword.value)
            for keyword in expression.keywords
        }
        return [ast.literal_eval(each) for each in expression.args], keywords
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
