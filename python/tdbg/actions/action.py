"""The protocol of actions, and helpers that they share.

Thread safety: an action belongs to the engine's thread, unless its file says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from tdbg.errors import ConfigurationError, TdbgError
from tdbg.run.findings import Finding

__all__ = [
    "Action",
    "close_all",
    "message_of",
    "seconds_of",
    "text_of",
    "texts_of",
    "trouble_of",
]


class Action(Protocol):
    """A callable that the engine calls with every finding.

    Two methods are optional.  ``begin()`` is called before the first finding, for an
    action made by name and not in a dry run.  ``close(seconds)`` finishes pending work
    within that time and returns errors, one line each.
    """

    @property
    def name(self) -> str:
        """The name of the action, for users."""
        ...

    def __call__(self, finding: Finding) -> None:
        """Act on the finding, or ignore it.  Exceptions are reported in the report."""
        ...


def close_all(actions: Iterable[Action], seconds: float = 10.0) -> list[str]:
    """Close all actions; return errors, one line each.  Never raises."""
    troubles: list[str] = []
    for action in actions:
        close: Any = getattr(action, "close", None)
        if close is None:
            continue
        try:
            troubles += close(seconds) or ()
        except Exception as error:  # User code: an action may raise anything.
            troubles.append(trouble_of(action, error))
    return troubles


def trouble_of(action: Action, error: Exception) -> str:
    """Describe the failure of an action in one line.

    Example:
        action webhook: hooks.example.com answered 404
    """
    # Messages of tdbg are complete; those of other errors need the class.
    kind = "" if isinstance(error, TdbgError) else f"{type(error).__name__}: "
    return f"action {action.name}: {kind}{error}"


def message_of(finding: Finding, run: str) -> str:
    """Describe a finding in words.

    Example:
        error in runs/digits: DeadRelu at step 120: fc1.act_output_0: 60 of 64 units ...
        -> restart with a lower learning rate
    """
    gone = " is over" if finding.is_over else ""
    head = f"{finding.severity.label}{gone} in {run}: {finding.rule} at step "
    text = f"{head}{finding.step}: {finding.tensor}: {finding.message}"
    if finding.cause is not None:
        text += f" (follows from {finding.cause.rule} in {finding.cause.tensor})"
    return f"{text}\n-> {finding.advice}" if finding.advice and not gone else text


MAX_SECONDS = 86_400.0


def text_of(action: str, parameter: str, value: object, what: str) -> str:
    """Return *value*, which must be a text that is not empty."""
    if isinstance(value, str) and value.strip():
        return value
    msg = f"action {action}: {parameter} is {value!r}; give {what}"
    raise ConfigurationError(msg)


def texts_of(action: str, parameter: str, value: object) -> dict[str, str]:
    """Return *value*, which must be a mapping of texts to texts; {} for None."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        pairs = dict(value)
        if all(isinstance(each, str) for pair in pairs.items() for each in pair):
            return pairs
    # The values are not printed: they may be secrets.
    msg = f"action {action}: {parameter} must be a mapping of texts to texts"
    raise ConfigurationError(msg)


def seconds_of(action: str, parameter: str, value: object) -> float:
    """Return *value*, which must be a time in seconds, above 0 and at most a day."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < float(str(value)) <= MAX_SECONDS:
        return float(str(value))
    msg = (
        f"action {action}: {parameter} is {value!r}; give seconds above 0 "
        "and up to a day"
    )
    raise ConfigurationError(msg)
