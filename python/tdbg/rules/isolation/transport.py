"""A rule as JSON, so that another process can make the same one.

A rule is a class that can be imported, or found in a file, and parameters: numbers,
texts, modes, and tuples, sets and mappings of these.

Thread safety: pure functions, but that ``build`` imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules._base import Rule
from tdbg.rules.files import FACE, as_rule, execute

__all__ = ["build", "describe", "is_foreign"]

PACKAGE = "tdbg"
# Under this name a module that cannot be imported by its own is loaded.
ALIAS = "tdbg_rules_of_a_file"
_ENUMS = {"mode": ModeKeys, "severity": Severity}


def is_foreign(rule: Rule) -> bool:
    """Whether somebody else than tdbg has written it."""
    return type(rule).__module__.partition(".")[0] != PACKAGE


def describe(rule: Rule) -> dict[str, Any]:
    """What ``build`` makes the same rule of, as JSON can hold it.

    Raises:
        ConfigurationError: If its class cannot be found again, or a parameter is of
            another kind; says which.
    """
    made = type(rule)
    module = sys.modules.get(made.__module__)
    found: Any = module
    for part in made.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not made and hasattr(found, FACE):
        found = as_rule(found)
    if found is not made:
        msg = f"its class {made.__qualname__} cannot be imported from {made.__module__}"
        raise ConfigurationError(msg)
    file = getattr(module, "__file__", None)
    if made.__module__ == "__main__" and file is None:
        msg = "its class was typed in and is in no file"
        raise ConfigurationError(msg)
    return {
        "module": made.__module__,
        "file": file,
        "class": made.__qualname__,
        "parameters": {
            name: _encode(name, value) for name, value in rule.parameters().items()
        },
    }


def build(description: Mapping[str, Any]) -> Rule:
    """The rule that was described.

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
    """Whether the name imports that file."""
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
