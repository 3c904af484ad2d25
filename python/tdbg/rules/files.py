"""Rules in files: ``./my_rules.py:LargeWeights``.

A file is imported only because somebody has named it, and never if it lies in a run
directory: what is in a run may come from anybody.

Thread safety: importing is meant for one thread; the rest are pure functions.

Errors: ConfigurationError, naming the file and what is wrong with it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tdbg.config import nearest
from tdbg.errors import ConfigurationError
from tdbg.rules._base import Rule
from tdbg.run_directory import RUN_FILE

__all__ = ["as_rule", "execute", "is_in_file", "load"]

# Another library's class of rules says by a method of this name which rule it is.
FACE = "__tdbg_rule__"
# Packages that tdbg answers for where they are not installed, and who does.
FACES = {"smdebug": "tdbg.compat.smdebug"}
_NAME = re.compile(r"(?P<file>.+\.py):(?P<rule>[^:]*)", re.DOTALL)


def is_in_file(name: str) -> bool:
    """Whether the name of a rule says in which file it is."""
    return _NAME.fullmatch(name) is not None or name.endswith(".py")


def load(name: str) -> type[Rule]:
    """The class that ``FILE.py:CLASS`` names; imports the file, once.

    Raises:
        ConfigurationError: If there is no such file or class, it lies in a run, it
            cannot be imported, or the class is no rule.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        msg = f"rule {name}: write which class of the file, as {name}:ClassName"
        raise ConfigurationError(msg)
    path = Path(os.path.abspath(Path(match["file"]).expanduser()))  # noqa: PTH100
    _refuse_runs(path)
    module = _module(path)
    found = vars(module).get(match["rule"])
    if found is None:
        every = [key for key, value in vars(module).items() if _may_be(value, module)]
        hint = nearest(match["rule"], every) if every else "it has no rule at all"
        msg = f"{match['file']} has no rule {match['rule']!r}; {hint}"
        raise ConfigurationError(msg)
    return as_rule(found)


def as_rule(found: object) -> type[Rule]:
    """A class as a class of rules: itself, or what another library's class is to us.

    Raises:
        ConfigurationError: If it is none.
    """
    name = getattr(found, "__name__", repr(found))
    if isinstance(found, type) and hasattr(found, FACE):
        return cast("type[Rule]", getattr(found, FACE)())
    if not (isinstance(found, type) and issubclass(found, Rule)):
        msg = f"{name} is no rule: a rule is a class that derives from tdbg.rules.Rule"
        raise ConfigurationError(msg)
    parameters: Any = getattr(found, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        msg = f"{name} is no rule yet: make it a frozen dataclass"
        raise ConfigurationError(msg)
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        msg = f"{name} is no rule yet: it lacks {', '.join(missing)}"
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
            face = FACES.get(error.name or "")
            if face is None:
                raise
            importlib.import_module(face).install()
        except BaseException:
            del sys.modules[name]
            raise
        else:
            break
    return module


def _module(path: Path) -> ModuleType:
    # The same file is the same module, whatever it was called.
    real = str(path.resolve())
    name = f"tdbg_rule_file_{hashlib.sha256(real.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ConfigurationError(_no_file(path))
    try:
        return execute(str(path), name)
    except (Exception, SystemExit) as error:  # It is anybody's code.
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
        return f"there is no file {path}: {folder} is no directory"
    if path.exists():
        return f"{path} is no file"
    near = sorted(entry.name for entry in folder.glob("*.py"))
    hint = nearest(path.name, near) if near else f"{folder} has no .py file"
    return f"there is no file {path}; {hint}"


def _may_be(value: object, module: ModuleType) -> bool:
    """Whether a name of the module is worth offering."""
    own = getattr(value, "__module__", "") == module.__name__
    is_rule = isinstance(value, type) and (
        issubclass(value, Rule) or hasattr(value, FACE)
    )
    return own and is_rule
