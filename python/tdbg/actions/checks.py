"""Checks of what an action is given, whatever its annotations say.

Errors: ConfigurationError, naming the action and the parameter.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from tdbg.errors import ConfigurationError

__all__ = ["seconds_of", "text_of", "url_of"]


def text_of(action: str, parameter: str, value: object, what: str) -> str:
    """A text that is not empty."""
    if isinstance(value, str) and value.strip():
        return value
    msg = f"action {action}: {parameter} is {value!r}; give {what}"
    raise ConfigurationError(msg)


def seconds_of(action: str, parameter: str, value: object) -> float:
    """A number of seconds above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and float(str(value)) > 0:
        return float(str(value))
    msg = f"action {action}: {parameter} is {value!r}; give seconds above 0"
    raise ConfigurationError(msg)


def url_of(action: str, parameter: str, value: object) -> SplitResult:
    """The parts of an http or https URL; it may hold a secret, and is not printed."""
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is not None and parts.scheme in {"http", "https"} and parts.hostname:
        return parts
    msg = (
        f"action {action}: its {parameter} must begin with http://HOST or https://HOST"
    )
    raise ConfigurationError(msg)
