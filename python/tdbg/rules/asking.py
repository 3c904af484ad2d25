"""Rules as they are asked for: by name, ``DeadRelu(min_steps=4)``, or as a mapping.

Thread safety: pure functions, but that a rule in a file is imported.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tdbg.errors import ConfigurationError
from tdbg.needs import Needs, every_need
from tdbg.rules._base import Rule
from tdbg.rules.registry import default_rules, make
from tdbg.settings.place import Placed

__all__ = [
    "Asked",
    "from_anywhere",
    "needs_of",
    "parse_rule",
    "parse_rules",
    "resolve",
]

_Asked = str | Rule | Mapping[str, Any] | Placed
Asked = Iterable[_Asked] | _Asked | None
DEFAULT = "default"  # Stands for all that are judged by where none is named.

# The name, in a file or not, and what is in parentheses behind it.
_RULE = re.compile(
    r"\s*(?P<name>.+?\.py(?::\w*)?|[^\W\d]\w*)\s*(?P<call>\(.*\))?\s*", re.DOTALL
)


def resolve(rules: Asked) -> tuple[Rule, ...]:
    """Rules from rules or what asks for them; None: the default ones.

    A text is ``NAME``, ``NAME(parameter=value)`` or the same with ``FILE.py:CLASS``;
    the name ``default`` stands for the default ones. A mapping has the ``name`` and
    beside it parameters. Of what stands in a file or a variable errors say where.

    Raises:
        UnknownRule: If a name is of none.
        ConfigurationError: If something is none of these, or a parameter is bad.

    Example:
        >>> resolve([{"name": "DeadRelu", "threshold_layer": 80}])[0].threshold_layer
        80
    """
    if rules is None:
        return default_rules()
    if isinstance(rules, str | Rule | Mapping | Placed):
        rules = (rules,)
    return tuple(each for rule in rules for each in _resolve(rule))


def needs_of(rules: Asked) -> tuple[Needs, ...]:
    """What has to be captured for all of these rules; of what is equal only one.

    Raises:
        UnknownRule: If a name is of none.
        ConfigurationError: If something is neither a rule nor a name.
    """
    needs = [need for rule in resolve(rules) for need in every_need(rule.needs)]
    return tuple(dict.fromkeys(needs))


def parse_rule(text: str) -> Rule:
    """The rule that ``NAME`` or ``NAME(parameter=literal, ...)`` asks for.

    NAME is that of a rule, or ``FILE.py:CLASS``.

    Raises:
        UnknownRule: If there is no rule of that name.
        ConfigurationError: If the text is none of these, the file or class cannot be
            used, or a parameter is unknown or out of range.
    """
    match = _RULE.fullmatch(text)
    call = None
    if match is not None:
        # Parsed as Python, and never run.
        call = _call(match["call"] or "()")
    if match is None or call is None:
        msg = f"rule {text!r}: write NAME or 'NAME(parameter=value, ...)'"
        raise ConfigurationError(msg)
    return make(match["name"].strip(), **call)


def parse_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that texts ask for; none, or ``default``: the default ones.

    Raises:
        ConfigurationError: As ``parse_rule`` does.
    """
    return resolve(texts or None)


def from_anywhere(text: str) -> str:
    """The same text, with the path of a file in it from the root.

    Example:
        >>> from_anywhere("DeadRelu(min_steps=4)")
        'DeadRelu(min_steps=4)'
    """
    match = _RULE.fullmatch(text)
    if match is None or ".py" not in match["name"]:
        return text
    file, _, rest = text.strip().partition(".py")
    return f"{os.path.abspath(Path(file).expanduser())}.py{rest}"  # noqa: PTH100


def _resolve(rule: object) -> tuple[Rule, ...]:
    if isinstance(rule, Rule):
        return (rule,)
    if isinstance(rule, Placed):
        with rule.place.inside():
            return _resolve(rule.value)
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


def _call(text: str) -> dict[str, object] | None:
    """The keywords of a call; None: it has others, or what is no literal."""
    try:
        expression = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(expression, ast.Call) or expression.args:
            return None
        if not isinstance(expression.func, ast.Name):
            return None
        if any(keyword.arg is None for keyword in expression.keywords):
            return None
        return {
            str(keyword.arg): ast.literal_eval(keyword.value)
            for keyword in expression.keywords
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
