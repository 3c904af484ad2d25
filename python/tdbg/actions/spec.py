"""Which actions are taken about which findings: from the command line or a file.

Implements docs/actions.md, "Choosing actions".

Errors: ConfigurationError, naming the value and what is valid.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tdbg.actions.kinds import names, target_of
from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.settings.documents import read_document
from tdbg.settings.place import Place, short

__all__ = ["COMMON", "ActionSpec", "parse", "read_specs"]

# Fields of a file's entry that every action has; the others are its own.
COMMON = ("rules", "severity", "cool_down", "dry_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """An action, and when it is taken.

    Args:
        name: Name of the action.
        parameters: Its own: ``{"url": "https://..."}``.
        rules: Only for findings of these rules; None: of every rule.
        severity: Only for findings at least so bad; None: as the action does: "stop"
            for errors, others for warnings and errors.
        cool_down: Seconds in which it is not taken again for the same rule; None: as
            the action does.
        dry_run: Only say what would be done.

    Raises:
        ConfigurationError: If a value is not of its kind.
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
            msg = f"action {self.name}: cool_down is {seconds!r}; give seconds, from 0"
            raise ConfigurationError(msg)


def parse(text: str) -> ActionSpec:
    """The action that ``NAME`` or ``NAME:TARGET`` asks for.

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
    """The actions that a YAML or JSON file lists under ``actions``.

    Raises:
        ConfigurationError: If it cannot be read, or says what can never work.
    """
    place = Place(os.fspath(path))
    document = read_document(path, place)
    is_theirs = isinstance(document, dict) and list(document) == ["actions"]
    entries = document["actions"] if isinstance(document, dict) and is_theirs else None
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
            f"{short(entry)} is no action; write a name, 'name:target', or a mapping "
            "as {webhook: {url: ..., severity: warning}}"
        )
        if isinstance(entry, dict) and next(iter(entry), None) in names():
            msg += ": its parameters stand further in than its name"
        raise ConfigurationError(msg)
    ((name, given),) = entry.items()
    if isinstance(name, str) and isinstance(given, str):
        return parse(f"{name}:{given}")
    values = dict(given) if isinstance(given, dict) else {}
    if not isinstance(given, dict | None) or not isinstance(name, str):
        msg = f"{name!r}: {short(given)} is no mapping of parameters"
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
