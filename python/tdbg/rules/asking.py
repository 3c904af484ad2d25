"""Rules as a command line writes them: ``VanishingGradient(threshold=1e-6)``.

Thread safety: pure functions, but that a rule in a file is imported.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tdbg.errors import ConfigurationError
from tdbg.rules._base import Rule
from tdbg.rules.registry import make, resolve

__all__ = ["from_anywhere", "parse_rule", "parse_rules"]

# The name, in a file or not, and what is in parentheses behind it.
_RULE = re.compile(
    r"\s*(?P<name>.+?\.py(?::\w*)?|[^\W\d]\w*)\s*(?P<call>\(.*\))?\s*", re.DOTALL
)


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
