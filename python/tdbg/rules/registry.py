"""Rules by name: built-in ones, those of other packages, and those in files.

A package adds a rule by an entry point of the group ``tdbg.rules``, which has the name
of the rule and refers to its class.  Rules are imported when somebody requests them.

Thread safety: registration is meant for import time; looking up is safe.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from tdbg.config.messages import nearest
from tdbg.config.quantities import conjoin
from tdbg.errors import ConfigurationError, UnknownRule
from tdbg.rules.catalog import BUILT_IN
from tdbg.rules.rule import Rule, parameters_of
from tdbg.run.directory import RUN_FILE

__all__ = [
    "BUILT_IN",
    "REPORTED",
    "as_rule",
    "default_rules",
    "describe",
    "execute",
    "get",
    "is_default",
    "is_in_file",
    "load",
    "make",
    "names",
    "register",
]


# A rule class of another library converts itself by a class method of this name.
FACE = "__tdbg_rule__"
# Entry points named like a package: each installs a replacement for it, which a rule
# in a file can import where the package itself is missing.
FACES = "tdbg.faces"
#: Rules of smdebug that judge nothing, and what ``tdbg report RUN --profile`` shows
#: instead of them.
REPORTED: Mapping[str, str] = {
    "OverallFrameworkMetrics": "where the time of steps went",
    "OverallSystemUsage": "cores, GPUs, memory, disks and networks in a table",
    "ProfilerReport": "all of it",
}
_NAME = re.compile(r"(?P<file>.+\.py):(?P<rule>[^:]*)", re.DOTALL)


def is_in_file(name: str) -> bool:
    """Return whether the name of a rule names a file."""
    return _NAME.fullmatch(name) is not None or name.endswith(".py")


def load(name: str) -> type[Rule]:
    """Return the class that ``FILE.py:CLASS`` names; imports the file once.

    Raises:
        ConfigurationError: If there is no such file or class, if the file lies in a
            run or cannot be imported, or if the class is not a rule.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        msg = f"rule {name}: say which class in the file, as {name}:ClassName"
        raise ConfigurationError(msg)
    path = Path(os.path.abspath(Path(match["file"]).expanduser()))  # noqa: PTH100
    _refuse_runs(path)
    module = _module(path)
    found = vars(module).get(match["rule"])
    if found is None:
        every = [key for key, value in vars(module).items() if _is_rule(value, module)]
        hint = nearest(match["rule"], every) if every else "it has no rule at all"
        msg = f"{match['file']} has no rule {match['rule']!r}; {hint}"
        raise ConfigurationError(msg)
    return as_rule(found)


def as_rule(found: object) -> type[Rule]:
    """Return a class of rules as such, and convert a class of another library.

    Raises:
        ConfigurationError: If it is not a rule.
    """
    name = getattr(found, "__name__", repr(found))
    if isinstance(found, type) and hasattr(found, FACE):
        return cast("type[Rule]", getattr(found, FACE)())
    if not (isinstance(found, type) and issubclass(found, Rule)):
        msg = (
            f"{name} is not a rule: a rule is a class that derives from tdbg.rules.Rule"
        )
        raise ConfigurationError(msg)
    parameters: Any = getattr(found, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        msg = f"{name} is not a rule yet: make it a frozen dataclass"
        raise ConfigurationError(msg)
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        msg = f"{name} is not a rule yet: it lacks {', '.join(missing)}"
        raise ConfigurationError(msg)
    return found


def execute(path: str, name: str) -> ModuleType:
    """Import a file under a name.

    Raises:
        Exception: Whatever the file raises.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"{path} cannot be loaded as a module"
        raise ImportError(msg)
    for _ in range(2):
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            del sys.modules[name]
            if not _install_face(error.name or ""):
                raise
        except BaseException:
            del sys.modules[name]
            raise
        else:
            break
    return module


def _install_face(package: str) -> bool:
    """Install the replacement of a missing package; return whether there is one."""
    for point in entry_points(group=FACES, name=package):
        point.load()()
        return True
    return False


def _module(path: Path) -> ModuleType:
    # One module for each file, whichever path names it.
    real = str(path.resolve())
    name = f"tdbg_rule_file_{hashlib.sha256(real.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ConfigurationError(_no_file(path))
    try:
        return execute(str(path), name)
    except (Exception, SystemExit) as error:  # User code: may raise anything.
        msg = f"{path} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigurationError(msg) from error


def _refuse_runs(path: Path) -> None:
    for place in dict.fromkeys((path, path.resolve())):
        for folder in place.parents:
            if (folder / RUN_FILE).exists():
                msg = (
                    f"{path} lies in the run {folder}, and nothing of a run is ever "
                    "executed; copy it elsewhere if you trust it"
                )
                raise ConfigurationError(msg)


def _no_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: {folder} is not a directory"
    if path.exists():
        return f"{path} is not a file"
    near = sorted(entry.name for entry in folder.glob("*.py"))
    hint = nearest(path.name, near) if near else f"{folder} has no .py file"
    return f"there is no file {path}; {hint}"


def _is_rule(value: object, module: ModuleType) -> bool:
    """Return whether a global of the module is a rule that the module defines."""
    own = getattr(value, "__module__", "") == module.__name__
    is_rule = isinstance(value, type) and (
        issubclass(value, Rule) or hasattr(value, FACE)
    )
    return own and is_rule


GROUP = "tdbg.rules"
# The only mutable global: registered rules by name.
_registered: dict[str, type[Rule]] = {}

RuleType = TypeVar("RuleType", bound=type[Rule])


def register(rule: RuleType) -> RuleType:
    """Register a class under its name; a decorator.

    Raises:
        ConfigurationError: If the class is no frozen dataclass that derives from
            ``Rule``, or if another class has the name.
    """
    given: Any = rule
    name = getattr(given, "__name__", repr(given))
    is_rule = isinstance(given, type) and issubclass(given, Rule)
    frozen = getattr(getattr(given, "__dataclass_params__", None), "frozen", False)
    if not (is_rule and frozen):
        msg = f"{name} cannot be registered: a rule is a frozen dataclass and a Rule"
        raise ConfigurationError(msg)
    known = _registered.get(name)
    if known is not None and known.__module__ != rule.__module__:
        msg = f"{name} of {rule.__module__}: {known.__module__} has a rule of that name"
        raise ConfigurationError(msg)
    _registered[name] = rule
    return rule


def names() -> list[str]:
    """Return the names of all rules."""
    return sorted({*_registered, *BUILT_IN, *(point.name for point in _entry_points())})


def get(name: str) -> type[Rule]:
    """Return the class of a rule by its name, or ``FILE.py:CLASS``.

    Raises:
        UnknownRule: If there is no such rule; names the most similar one.
        ConfigurationError: If the package or file of the rule cannot be imported.
    """
    if is_in_file(name):
        return load(name)
    if name in BUILT_IN:
        importlib.import_module(BUILT_IN[name])
    if name in _registered:
        return _registered[name]
    for point in _entry_points():
        if point.name == name:
            return _load(point)
    if name in REPORTED:
        msg = (
            f"{name} judges nothing: 'tdbg report RUN --profile' shows {REPORTED[name]}"
        )
    else:
        known = nearest(name, names(), command="tdbg rules")
        msg = f"there is no rule {name!r}; {known}"
    raise UnknownRule(msg)


def make(name: str, **parameters: object) -> Rule:
    """Make a rule by its name.

    Raises:
        UnknownRule: If there is no such rule.
        ConfigurationError: If a parameter is unknown, missing or not valid.
    """
    rule = get(name)
    known = [field.name for field in parameters_of(rule)]
    for parameter in parameters:
        if parameter not in known:
            hint = nearest(parameter, known) if known else "it has none"
            msg = f"{name} has no parameter {parameter!r}; {hint}"
            raise ConfigurationError(msg)
    required = [
        field.name
        for field in parameters_of(rule)
        if field.init and field.default is field.default_factory is dataclasses.MISSING
    ]
    missing = [each for each in required if each not in parameters]
    if missing:
        example = f"{name}({', '.join(f'{each}=...' for each in required)})"
        msg = f"{name} needs {conjoin(missing)}: write {example!r}"
        raise ConfigurationError(msg)
    # Configuration files have lists where rules take tuples.
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in parameters.items()
    }
    try:
        return rule(**given)
    except TypeError as error:
        msg = f"{name}: {str(error).removeprefix(f'{name}.__init__() ')}"
        raise ConfigurationError(msg) from error


def default_rules() -> tuple[Rule, ...]:
    """Return all built-in rules that need no parameters, with their defaults."""
    return tuple(make(name) for name in BUILT_IN if is_default(name))


def is_default(name: str) -> bool:
    """Return whether a rule is judged where nobody names rules."""
    return name in BUILT_IN and get(name).by_default


def describe(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """Return rules with their parameters, as JSON can hold them."""
    return [
        {
            "name": rule.name,
            **{key: _plain(value) for key, value in rule.parameters().items()},
        }
        for rule in rules
    ]


def _plain(value: object) -> object:
    if isinstance(value, tuple | list | frozenset):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return str(value)


def _entry_points() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _load(point: EntryPoint) -> type[Rule]:
    try:
        rule: type[Rule] = point.load()
    except Exception as error:
        msg = f"rule {point.name} ({point.value}) cannot be imported: {error}"
        raise ConfigurationError(msg) from error
    return register(rule)
