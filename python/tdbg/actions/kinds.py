"""Which actions there are: those of tdbg, and those that other packages bring.

Another package brings one by an entry point of the group ``tdbg.actions``, whose name
is that of the action and whose object is called as ``Class(run_directory,
**parameters)``.  It is imported when it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from tdbg.errors import ConfigurationError
from tdbg.findings import Severity

__all__ = ["Kind", "class_of", "kind_of", "names", "target_of"]

GROUP = "tdbg.actions"


class Kind(NamedTuple):
    """How an action of tdbg is made, and when it acts."""

    place: str
    target: str | None = None
    severity: Severity = Severity.WARNING
    cool_down: float = 0.0
    takes_time: bool = False
    hears_ends: bool = False
    once: bool = False


_ACTIONS = {
    "command": Kind("command:Command", "command", cool_down=60.0, takes_time=True),
    "notify": Kind("notify:Notify", "url", cool_down=300.0, takes_time=True),
    "opentelemetry": Kind(
        "opentelemetry:OpenTelemetry",
        "endpoint",
        severity=Severity.INFO,
        hears_ends=True,
    ),
    "prometheus": Kind(
        "prometheus:Prometheus", "path", severity=Severity.INFO, hears_ends=True
    ),
    "report": Kind("report:Report", severity=Severity.INFO),
    "stop": Kind("stop:Stop", severity=Severity.ERROR, once=True),
    "webhook": Kind("webhook:Webhook", "url", cool_down=60.0, takes_time=True),
}
# Of other packages: nothing is known of how long they take.
_FOREIGN = Kind("", takes_time=True)


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


def kind_of(name: str) -> Kind:
    """How the action is made, and when it acts.

    Raises:
        ConfigurationError: If there is no such action.
    """
    target_of(name)
    return _ACTIONS.get(name, _FOREIGN)


def class_of(name: str) -> Any:
    """What makes the action, given a run directory and parameters.

    Raises:
        ConfigurationError: If there is no such action, or it cannot be imported.
    """
    kind = kind_of(name)
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
