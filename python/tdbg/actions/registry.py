"""Actions by name: those of tdbg, and those that other packages bring.

Another package brings one by an entry point of the group ``tdbg.actions``, whose name
is that of the action and whose object is called as ``Class(run_directory,
**parameters)``.  It is imported when it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from tdbg.actions._base import Action
from tdbg.actions.background import Background
from tdbg.actions.gate import Gate
from tdbg.actions.spec import COMMON, ActionSpec, parse
from tdbg.config import nearest
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.findings import Severity

__all__ = ["get", "make", "names", "target_of"]

GROUP = "tdbg.actions"


class _Kind(NamedTuple):
    """How an action of tdbg is made, and when it acts."""

    place: str
    target: str | None = None
    severity: Severity = Severity.WARNING
    cool_down: float = 0.0
    takes_time: bool = False
    hears_ends: bool = False
    once: bool = False


_ACTIONS = {
    "command": _Kind("command:Command", "command", cool_down=60.0, takes_time=True),
    "notify": _Kind("notify:Notify", "url", cool_down=300.0, takes_time=True),
    "opentelemetry": _Kind(
        "opentelemetry:OpenTelemetry",
        "endpoint",
        severity=Severity.INFO,
        hears_ends=True,
    ),
    "prometheus": _Kind(
        "prometheus:Prometheus", "path", severity=Severity.INFO, hears_ends=True
    ),
    "report": _Kind("report:Report", severity=Severity.INFO),
    "stop": _Kind("stop:Stop", severity=Severity.ERROR, once=True),
    "webhook": _Kind("webhook:Webhook", "url", cool_down=60.0, takes_time=True),
}
# Of other packages: nothing is known of how long they take.
_FOREIGN = _Kind("", takes_time=True)


def names() -> list[str]:
    """Names of all actions."""
    return sorted({*_ACTIONS, *(point.name for point in _entry_points())})


def target_of(name: str) -> str | None:
    """Which of an action's parameters ``NAME:TARGET`` gives; None: it has none.

    Raises:
        ConfigurationError: If there is no such action.
    """
    if name in _ACTIONS:
        return _ACTIONS[name].target
    if any(point.name == name for point in _entry_points()):
        return None
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
    msg = f"there is no action {name!r}; {hint}"
    raise ConfigurationError(msg)


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
    target_of(spec.name)
    kind = _ACTIONS.get(spec.name, _FOREIGN)
    action = _made(spec, kind, os.fspath(run_directory))
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


def _made(spec: ActionSpec, kind: _Kind, run_directory: str) -> Action:
    make_it = _class_of(spec.name, kind)
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


def _class_of(name: str, kind: _Kind) -> Any:
    if kind.place:
        module, _, class_ = kind.place.partition(":")
        return getattr(importlib.import_module(f"tdbg.actions.{module}"), class_)
    point = next(point for point in _entry_points() if point.name == name)
    try:
        return point.load()
    except Exception as error:
        msg = f"action {name} ({point.value}) cannot be imported: {error}"
        raise ConfigurationError(msg) from error


def _entry_points() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)
