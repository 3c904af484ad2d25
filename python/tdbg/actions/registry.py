"""Actions by name: makes an action for a run from a text or an entry of a file.

Thread safety: pure functions, except that making an action imports its module.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from tdbg.actions.action import Action
from tdbg.actions.delivery import Background, Gate
from tdbg.config.documents import Location, read_document
from tdbg.config.messages import nearest, short
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.run.findings import Severity

__all__ = [
    "COMMON",
    "ActionKind",
    "ActionSpec",
    "class_of",
    "get",
    "kind_of",
    "make",
    "names",
    "parse",
    "read_specs",
    "target_of",
]


GROUP = "tdbg.actions"


class ActionKind(NamedTuple):
    """Where an action is defined, and its defaults.

    Attributes:
        path: ``module:Class`` within this package; "" for actions of other packages.
        target: The parameter that ``NAME:TARGET`` sets; None: there is none.
        severity: Default for ``ActionSpec.severity``.
        cool_down: Default for ``ActionSpec.cool_down``, in seconds.
        is_slow: Whether the action is called in a thread of its own.
        all_changes: See ``Gate``.
        once: See ``Gate``.
    """

    path: str
    target: str | None = None
    severity: Severity = Severity.WARNING
    cool_down: float = 0.0
    is_slow: bool = False
    all_changes: bool = False
    once: bool = False


_ACTIONS = {
    "command": ActionKind("command:Command", "command", cool_down=60.0, is_slow=True),
    "notify": ActionKind("notify:Notify", "url", cool_down=300.0, is_slow=True),
    "opentelemetry": ActionKind(
        "metrics:OpenTelemetry",
        "endpoint",
        severity=Severity.INFO,
        all_changes=True,
    ),
    "profile": ActionKind("profile:OpenWindow", cool_down=300.0),
    "prometheus": ActionKind(
        "metrics:Prometheus", "path", severity=Severity.INFO, all_changes=True
    ),
    "report": ActionKind("stop:ReportOnly", severity=Severity.INFO),
    "stop": ActionKind("stop:Stop", severity=Severity.ERROR, once=True),
    "webhook": ActionKind("webhook:Webhook", "url", cool_down=60.0, is_slow=True),
}
# Actions of other packages may be slow.
_FOREIGN = ActionKind("", is_slow=True)


def names() -> list[str]:
    """Return the names of all actions."""
    return sorted({*_ACTIONS, *(point.name for point in _entry_points())})


def target_of(name: str) -> str | None:
    """Return the parameter that ``NAME:TARGET`` sets; None if there is none.

    Raises:
        ConfigurationError: If there is no such action.
    """
    if name in _ACTIONS:
        return _ACTIONS[name].target
    if any(point.name == name for point in _entry_points()):
        return None
    msg = f"there is no action {name!r}; {nearest(name, names())}"
    raise ConfigurationError(msg)


def kind_of(name: str) -> ActionKind:
    """Return where an action is defined, and its defaults.

    Raises:
        ConfigurationError: If there is no such action.
    """
    target_of(name)
    return _ACTIONS.get(name, _FOREIGN)


def class_of(name: str) -> Any:
    """Import the class of an action.

    Raises:
        ConfigurationError: If there is no such action, or it cannot be imported.
    """
    kind = kind_of(name)
    if kind.path:
        module, _, class_ = kind.path.partition(":")
        return getattr(importlib.import_module(f"tdbg.actions.{module}"), class_)
    point = next(point for point in _entry_points() if point.name == name)
    try:
        return point.load()
    except Exception as error:
        msg = f"action {name} ({point.value}) cannot be imported: {error}"
        raise ConfigurationError(msg) from error


def _entry_points() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


# Fields that every action has in a file; others are parameters of the action.
COMMON = ("rules", "severity", "cool_down", "dry_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """The configuration of an action.

    Args:
        name: Name of the action.
        parameters: Parameters of this action: ``{"url": "https://..."}``.
        rules: Act on findings of these rules only; None: of every rule.
        severity: Act on findings at least this severe; None: the default of the
            action: "stop" acts on errors, the others on warnings and errors.
        cool_down: Seconds after a finding in which the action does not act on others
            of the same rule; None: the default of the action.
        dry_run: Only report what the action would do.

    Raises:
        ConfigurationError: If a value is not valid.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rules: frozenset[str] | None = None
    severity: Severity | None = None
    cool_down: float | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        seconds: object = self.cool_down
        if seconds is None:
            return
        sound = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not sound or not 0 <= float(str(seconds)) < math.inf:
            msg = (
                f"action {self.name}: cool_down is {seconds!r}; give 0 or more seconds"
            )
            raise ConfigurationError(msg)


def parse(text: str) -> ActionSpec:
    """Parse ``NAME`` or ``NAME:TARGET``.

    Examples: ``stop``, ``command:./page.sh``, ``webhook:https://example.com/hook``,
    ``notify:mailto://user:password@example.com``, ``prometheus:/var/lib/tdbg.prom``.

    Raises:
        ConfigurationError: If there is no such action, or its target is missing.
    """
    name, found, target = text.partition(":")
    parameter = target_of(name)
    if found and parameter is None:
        msg = f"action {name!r} takes no target; write only {name!r}"
        raise ConfigurationError(msg)
    if parameter is None:
        return ActionSpec(name=name)
    if not target:
        msg = (
            f"action {name!r} needs its {parameter}: write '{name}:{parameter.upper()}'"
        )
        raise ConfigurationError(msg)
    return ActionSpec(name=name, parameters={parameter: target})


def read_specs(path: str | os.PathLike[str]) -> tuple[ActionSpec, ...]:
    """Read the actions that a YAML or JSON file lists under ``actions``.

    Raises:
        ConfigurationError: If the file cannot be read, or an entry is not valid.
    """
    place = Location(os.fspath(path))
    document = read_document(path, place)
    is_valid = isinstance(document, dict) and list(document) == ["actions"]
    entries = document["actions"] if isinstance(document, dict) and is_valid else None
    if not isinstance(entries, list):
        msg = "must be a mapping with the key 'actions' and a list of actions"
        raise place.error(msg)
    specs = []
    for i, entry in enumerate(entries):
        here = place.key("actions").item(i)
        with here.inside():
            specs.append(_entry(entry))
    return tuple(specs)


def _entry(entry: object) -> ActionSpec:
    if isinstance(entry, str):
        return parse(entry)
    if not (isinstance(entry, dict) and len(entry) == 1):
        msg = (
            f"{short(entry)} is not an action; write a name, 'name:target', or a "
            "mapping such as {webhook: {url: ..., severity: warning}}"
        )
        if isinstance(entry, dict) and next(iter(entry), None) in names():
            msg += "; indent its parameters further than its name"
        raise ConfigurationError(msg)
    ((name, given),) = entry.items()
    if isinstance(name, str) and isinstance(given, str):
        return parse(f"{name}:{given}")
    values = dict(given) if isinstance(given, dict) else {}
    if not isinstance(given, dict | None) or not isinstance(name, str):
        msg = f"{name!r}: {short(given)} is not a mapping of parameters"
        raise ConfigurationError(msg)
    target_of(name)
    common = {key: values.pop(key) for key in COMMON if key in values}
    return ActionSpec(
        name=name,
        parameters=values,
        rules=_rules(common.get("rules")),
        severity=_severity(common.get("severity")),
        cool_down=common.get("cool_down"),
        dry_run=_flag(common.get("dry_run", False)),
    )


def _rules(value: object) -> frozenset[str] | None:
    if value is None:
        return None
    names = [value] if isinstance(value, str) else value
    if isinstance(names, Iterable):
        names = list(names)
        if names and all(isinstance(name, str) for name in names):
            return frozenset(names)
    msg = f"rules: {short(value)}; give names of rules"
    raise ConfigurationError(msg)


def _severity(value: object) -> Severity | None:
    if value is None:
        return None
    try:
        return Severity.of(str(value))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    msg = f"dry_run: {short(value)}; give true or false"
    raise ConfigurationError(msg)


def make(
    spec: ActionSpec | str,
    run_directory: str | os.PathLike[str],
    *,
    checks_only: bool = False,
) -> Action:
    """Make an action for one run, behind a ``Gate``.

    Args:
        spec: Its configuration, or ``NAME`` or ``NAME:TARGET``.
        run_directory: The run.
        checks_only: Only check that the action can be made: ``begin`` is not called.

    Raises:
        ConfigurationError: If there is no such action, a parameter is unknown, missing
            or bad, or a package that it needs is not installed.
    """
    if isinstance(spec, str):
        spec = parse(spec)
    kind = kind_of(spec.name)
    action = _instantiate(spec, os.fspath(run_directory))
    if not (spec.dry_run or checks_only):
        _begin(action)
    if kind.is_slow and not spec.dry_run:
        action = Background(action)
    return Gate(
        action,
        rules=spec.rules,
        severity=kind.severity if spec.severity is None else spec.severity,
        cool_down=kind.cool_down if spec.cool_down is None else spec.cool_down,
        all_changes=kind.all_changes,
        once=kind.once,
        dry_run=spec.dry_run,
    )


def get(
    name: str,
    run_directory: str | os.PathLike[str],
    *,
    stop_on: str | Severity = Severity.ERROR,
) -> Action:
    """Make the action ``NAME`` or ``NAME:TARGET`` for one run.

    Args:
        name: The action.
        run_directory: The run.
        stop_on: The least severity at which "stop" acts.

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


def _instantiate(spec: ActionSpec, run_directory: str) -> Action:
    cls = class_of(spec.name)
    known = list(inspect.signature(cls).parameters.values())[1:]
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
        action: Action = cls(run_directory, **spec.parameters)
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
    """Call ``begin``, if the action has it."""
    begin: Any = getattr(action, "begin", None)
    if begin is None:
        return
    try:
        begin()
    except OSError as error:
        msg = f"action {action.name}: {error.filename}: {error.strerror or error}"
        raise ConfigurationError(msg) from error
