"""Checks of settings, and the words of their messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tdbg.errors import ConfigurationError

__all__ = [
    "check_choice",
    "check_flag",
    "check_known",
    "nearest",
    "nearest_recorded",
    "printable",
    "short",
    "whole_number",
]

_LONGEST = 200
# To compare names takes the square of their lengths.
_LONGEST_COMPARED = 500


def nearest(value: object, valid: Iterable[str], *, command: str = "") -> str:
    """Return the end of a message about a bad name: proposes the name that was meant.

    Args:
        value: The bad name.
        valid: The good ones.
        command: Lists them, where they are too many for a message.

    Example:
        >>> nearest("meen", ["max", "mean"])
        "did you mean 'mean'?"
    """
    names = sorted(valid)
    close = difflib.get_close_matches(str(value), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if command:
        return f"'{command}' lists them"
    return f"valid are {', '.join(repr(name) for name in names)}"


def nearest_recorded(name: str, recorded: Iterable[str]) -> str:
    """Return the end of a message about a name that a run has not: up to three near it.

    A run may have any number of names of any length; comparing them stays cheap.

    Example:
        >>> nearest_recorded("los", ["loss", "rate"])
        "did you mean 'loss'?"
    """
    known = sorted(recorded)
    close = []
    if len(name) <= _LONGEST_COMPARED:
        some = [each for each in known[:5000] if len(each) <= _LONGEST_COMPARED]
        close = difflib.get_close_matches(name, some, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(short, close))}?"
    if not known:
        return "there is none so far"
    shown = ", ".join(map(short, known[:5]))
    return f"there are {len(known)}: {shown}{', ...' if len(known) > 5 else ''}"


def short(value: object, longest: int = _LONGEST) -> str:
    """Return at most *longest* characters of the ``repr``, for a message."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def printable(text: str) -> str:
    r"""A text without control characters and halves of characters.

    Whoever may write into a run chooses names, messages and reasons: a terminal must
    not obey them, and every encoding must have them.

    Example:
        >>> printable("\x1b[2J")
        '\ufffd[2J'
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def check_known(
    names: Iterable[object], known: Iterable[str], what: str = "unknown setting"
) -> None:
    """Refuse the first of *names* that is not among the *known* ones.

    Raises:
        ConfigurationError: If there is one; the message proposes the nearest name.

    Example:
        >>> check_known(["interval"], ["interval", "steps"])
    """
    valid = list(known)
    for name in names:
        if not isinstance(name, str) or name not in valid:
            msg = f"{what} {short(name)}; {nearest(name, valid)}"
            raise ConfigurationError(msg)


def check_choice(setting: str, value: object, valid: Iterable[str]) -> None:
    """Refuse a value that is none of the *valid* words.

    Raises:
        ConfigurationError: If it is none; the message names the setting and proposes
            the nearest word.
    """
    check_known([value], valid, f"{setting}: unknown")


def check_flag(setting: str, value: object) -> None:
    """Refuse a value that is neither True nor False.

    Raises:
        ConfigurationError: If it is neither; the message names the setting.
    """
    if not isinstance(value, bool):
        msg = f"{setting} must be True or False, not {short(value)}"
        raise ConfigurationError(msg)


def whole_number(
    value: object, least: int | None = None, most: int | None = None
) -> int | None:
    """Return the value if it is a whole number from *least* to *most*; otherwise None.

    An integer of NumPy is a whole number; a bool is not, since nobody means it as one.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    number = int(value.__index__())
    is_within = (least is None or least <= number) and (most is None or number <= most)
    return number if is_within else None
