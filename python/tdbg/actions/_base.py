"""What an action is, and actions by name."""

from __future__ import annotations

import difflib
import importlib
import os
from typing import Protocol

from tdbg.errors import ConfigurationError
from tdbg.findings import Finding, Severity

__all__ = ["Action", "get", "names"]

_ACTIONS = {
    "report": ("tdbg.actions.report", "Report"),
    "stop": ("tdbg.actions.stop", "Stop"),
}


class Action(Protocol):
    """Something that is done about findings."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def __call__(self, finding: Finding) -> None:
        """Act, or decide not to.  What it raises is reported and does no harm."""
        ...


def names() -> list[str]:
    """Names of all actions."""
    return sorted(_ACTIONS)


def get(
    name: str,
    run_directory: str | os.PathLike[str],
    *,
    stop_on: str | Severity = Severity.ERROR,
) -> Action:
    """The action of that name, for one run.

    Args:
        name: "report" or "stop".
        run_directory: The run that it acts upon.
        stop_on: Severity from which on "stop" stops.

    Raises:
        ConfigurationError: If there is no such action or severity.
    """
    if name not in _ACTIONS:
        near = difflib.get_close_matches(name, _ACTIONS, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
        )
        msg = f"there is no action {name!r}; {hint}"
        raise ConfigurationError(msg)
    if isinstance(stop_on, str):
        try:
            stop_on = Severity.of(stop_on)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
    module, class_ = _ACTIONS[name]
    action: Action = getattr(importlib.import_module(module), class_)(
        run_directory, severity=stop_on
    )
    return action
