"""Serializes a rule as JSON, so that another process can make the same rule.

The JSON names the class, by module or file, and holds the parameters: numbers, texts,
modes, severities, and tuples and sets of these.

Thread safety: pure functions, except that ``build`` imports modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.rules.registry import FACE, as_rule, execute
from tdbg.rules.rule import Rule
from tdbg.run.findings import Severity

__all__ = ["build", "describe", "is_foreign"]

PACKAGE = "tdbg"
# The name of a module that is loaded from a file.
ALIAS = "tdbg_rules_of_a_file"
_ENUMS = {"mode": ModeKeys, "severity": Severity}


def is_foreign(rule: Rule) -> bool:
    """Whether the rule is no part of tdbg."""
    return type(rule).__module__.partition(".")[0] != PACKAGE


def describe(rule: Rule) -> dict[str, Any]:
    """Return what ``build`` needs to make the same rule, as JSON can hold it.

    Raises:
        ConfigurationError: If the class cannot be imported again, or a parameter has
            a type that JSON cannot hold.
    """
    cls = type(rule)
    module = sys.modules.get(cls.__module__)
    found: Any = module
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not cls and hasattr(found, FACE):
        found = as_rule(found)
    if found is not cls:
        msg = f"its class {cls.__qualname__} cannot be imported from {cls.__module__}"
        raise ConfigurationError(msg)
    file = getattr(module, "__file__", None)
    if cls.__module__ == "__main__" and file is None:
        msg = "its class is in no file, because it was typed in"
        raise ConfigurationError(msg)
    return {
        "module": cls.__module__,
        "file": file,
        "class": cls.__qualname__,
        "parameters": {
            name: _encode(name, value) for name, value in rule.parameters().items()
        },
    }


def build(description: Mapping[str, Any]) -> Rule:
    """Make the rule that *description*, a result of ``describe``, describes.

    Raises:
        Exception: Whatever importing it raises.
    """
    found: Any = _module(description["module"], description["file"])
    for part in description["class"].split("."):
        found = getattr(found, part)
    if hasattr(found, FACE):
        found = as_rule(found)
    parameters = description["parameters"]
    made: Rule = found(**{name: _decode(value) for name, value in parameters.items()})
    return made


def _module(name: str, file: str | None) -> ModuleType:
    if file is None or (name != "__main__" and _is_at(name, file)):
        return importlib.import_module(name)
    return execute(file, ALIAS)


def _is_at(name: str, file: str) -> bool:
    """Whether importing *name* loads *file*."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == file


def _encode(name: str, value: object) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    for kind, enum in _ENUMS.items():
        if isinstance(value, enum):
            return {kind: value.name}
    if type(value) is tuple:
        return {"tuple": [_encode(name, item) for item in value]}
    if type(value) is frozenset:
        return {"set": [_encode(name, item) for item in sorted(value, key=repr)]}
    msg = f"its parameter {name} is a {type(value).__name__}"
    raise ConfigurationError(msg)


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _ENUMS:
        return _ENUMS[kind][content]
    items = [_decode(item) for item in content]
    return tuple(items) if kind == "tuple" else frozenset(items)
