"""Checks of what an action is given, whatever its annotations say.

Errors: ConfigurationError, naming the action and the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from tdbg.errors import ConfigurationError

__all__ = ["seconds_of", "text_of", "texts_of", "url_of"]

LONGEST = 86_400.0


def text_of(action: str, parameter: str, value: object, what: str) -> str:
    """A text that is not empty."""
    if isinstance(value, str) and value.strip():
        return value
    msg = f"action {action}: {parameter} is {value!r}; give {what}"
    raise ConfigurationError(msg)


def texts_of(action: str, parameter: str, value: object) -> dict[str, str]:
    """A mapping of texts to texts; None: an empty one."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        pairs = dict(value)
        if all(isinstance(each, str) for pair in pairs.items() for each in pair):
            return pairs
    # Its values may be secrets, and are not printed.
    msg = f"action {action}: {parameter} must be a mapping of texts to texts"
    raise ConfigurationError(msg)


def seconds_of(action: str, parameter: str, value: object) -> float:
    """A number of seconds above 0, of a day at most: a wait must end."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < float(str(value)) <= LONGEST:
        return float(str(value))
    msg = (
        f"action {action}: {parameter} is {value!r}; give seconds above 0, "
        "a day at most"
    )
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
