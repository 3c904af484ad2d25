"""JSON that comes from a file: any text may stand there, and any type in any place.

Whoever takes a value out of a document asks for its type first.  What is not as it
should be counts as not there; the document itself is shown as it is.

Nothing is parsed that is nested deeply.  The parser calls itself for each level, and
Python may collect garbage in the deepest call: the finalizers of the training whose
process this is would then fail for want of frames.

Thread safety: pure functions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

__all__ = [
    "is_integer",
    "list_of",
    "load_json",
    "mapping_of",
    "parse_document",
    "texts_of",
]

# Far more levels than anything has that tdbg writes.
MAX_NESTING = 100

# Digits of the longest integers that are sure to have 64 bits.
SHORT_DIGITS = 18
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def load_json(text: bytes, **options: Any) -> Any:
    """What the JSON says.

    Args:
        text: The document, in UTF-8.
        options: For ``json.loads``.

    Raises:
        ValueError: If it is no JSON, or is nested more than ``MAX_NESTING`` levels.
    """
    document = text.decode()
    if document.count("[") + document.count("{") > MAX_NESTING:
        _check_nesting(document)
    return json.loads(document, **options)


def _check_nesting(document: str) -> None:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", document)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_NESTING:
            msg = f"it is nested more than {MAX_NESTING} levels"
            raise ValueError(msg)


def parse_document(text: bytes) -> Any:
    """What the JSON says; numbers that no column can hold are None.

    Raises:
        ValueError: If it is no JSON, or is nested too deeply.
    """
    return load_json(
        text, parse_int=_integer, parse_float=_number, parse_constant=lambda _: None
    )


def _integer(text: str) -> int | float | None:
    return int(text) if len(text) <= SHORT_DIGITS else _long_integer(text)


def _long_integer(text: str) -> int | float | None:
    if len(text) <= SHORT_DIGITS + 2 and is_integer(int(text)):
        return int(text)
    return _number(text)


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is an integer of 64 bits, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return -(1 << 63) <= value < 1 << 63


def list_of(value: object) -> list[Any]:
    """The list, or an empty one for anything else."""
    return value if isinstance(value, list) else []


def texts_of(value: object) -> list[str]:
    """Return the members of a list that are texts; a single text is one."""
    members = [value] if isinstance(value, str) else list_of(value)
    return [each for each in members if isinstance(each, str)]


def mapping_of(value: object) -> Mapping[str, Any]:
    """The object, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}
