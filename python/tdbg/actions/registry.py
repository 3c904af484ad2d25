"""Actions by name, made for one run and taken when their spec says."""

from __future__ import annotations

import inspect
import os
from typing import Any

from tdbg.actions._base import Action
from tdbg.actions.background import Background
from tdbg.actions.gate import Gate
from tdbg.actions.kinds import class_of, kind_of
from tdbg.actions.spec import COMMON, ActionSpec, parse
from tdbg.config import nearest
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.findings import Severity

__all__ = ["get", "make"]


def make(
    spec: ActionSpec | str,
    run_directory: str | os.PathLike[str],
    *,
    checks_only: bool = False,
) -> Action:
    """The action for one run, taken when its spec says.

    Args:
        spec: Or ``NAME`` or ``NAME:TARGET``.
        run_directory: The run that it is about.
        checks_only: Whether it is made only to see that it can be: writes nothing.

    Raises:
        ConfigurationError: If there is no such action, a parameter is unknown, missing
            or bad, or a package that it needs is not installed.
    """
    if isinstance(spec, str):
        spec = parse(spec)
    kind = kind_of(spec.name)
    action = _made(spec, os.fspath(run_directory))
    if not (spec.dry_run or checks_only):
        _begin(action)
    if kind.takes_time and not spec.dry_run:
        action = Background(action)
    return Gate(
        action,
        rules=spec.rules,
        severity=kind.severity if spec.severity is None else spec.severity,
        cool_down=kind.cool_down if spec.cool_down is None else spec.cool_down,
        hears_ends=kind.hears_ends,
        once=kind.once,
        dry_run=spec.dry_run,
    )


def get(
    name: str,
    run_directory: str | os.PathLike[str],
    *,
    stop_on: str | Severity = Severity.ERROR,
) -> Action:
    """The action ``NAME`` or ``NAME:TARGET`` for one run; "stop" from a severity on.

    Raises:
        ConfigurationError: If there is no such action or severity.
    """
    spec = parse(name)
    if isinstance(stop_on, str):
        try:
            stop_on = Severity.of(stop_on)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
    if spec.name == "stop":
        spec = ActionSpec(name="stop", severity=stop_on)
    return make(spec, run_directory)


def _made(spec: ActionSpec, run_directory: str) -> Action:
    make_it = class_of(spec.name)
    known = list(inspect.signature(make_it).parameters.values())[1:]
    allowed = [parameter.name for parameter in known]
    for name in spec.parameters:
        if name not in allowed:
            hint = nearest(name, [*allowed, *COMMON])
            msg = f"action {spec.name} has no parameter {name!r}; {hint}"
            raise ConfigurationError(msg)
    for parameter in known:
        needed = parameter.default is inspect.Parameter.empty
        if needed and parameter.name not in spec.parameters:
            msg = f"action {spec.name} needs the parameter {parameter.name!r}"
            raise ConfigurationError(msg)
    try:
        action: Action = make_it(run_directory, **spec.parameters)
    except TdbgError:
        raise
    except ImportError as error:
        msg = (
            f"action {spec.name} needs a package that is not installed ({error}): "
            "pip install 'tdbg[actions]'"
        )
        raise ConfigurationError(msg) from error
    return action


def _begin(action: Action) -> None:
    """Do what is done before the first finding; not every action has any."""
    begin: Any = getattr(action, "begin", None)
    if begin is None:
        return
    try:
        begin()
    except OSError as error:
        msg = f"action {action.name}: {error.filename}: {error.strerror or error}"
        raise ConfigurationError(msg) from error
