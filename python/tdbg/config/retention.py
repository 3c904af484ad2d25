"""``Retention``: which data of a run goes again while it is written.

Thread safety: values and pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.config.messages import check_known, whole_number
from tdbg.errors import ConfigurationError

__all__ = ["VARIABLE", "Retention", "parse_bytes"]

VARIABLE = "TDBG_RETENTION"
NONE = "none"
# What a writer divides into shards: fewer bytes for one would be none.
LEAST_BYTES = 1 << 20
_UNITS = {
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("", "K", "M", "G"))},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G"), 1)},
    "TB": 1000**4,
    "TiB": 1024**4,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_VALUES = re.compile(r"(last|every)\s+(\d{1,18})")
_EXAMPLES = "'last 1000', 'every 100', 'last 1000, every 100' or 'none'"


def parse_bytes(name: str, value: object) -> int:
    """Return a number of bytes that was given as such, or as text.

    Args:
        name: Of the setting, for messages.
        value: 50_000_000_000, ``"50GB"``, ``"1.5 TiB"``.

    Raises:
        ConfigurationError: If it is neither.

    Example:
        >>> parse_bytes("max_bytes", "50GB"), parse_bytes("max_bytes", "1 MiB")
        (50000000000, 1048576)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    size = units.get((match[2] or "B").lower()) if match else None
    if match is None or size is None:
        msg = (
            f"{name} must be a number of bytes, such as 50_000_000_000 or '50GB', "
            f"not {value!r}; units are {', '.join(_UNITS)}"
        )
        raise ConfigurationError(msg)
    return int(float(match[1]) * size)


@dataclass(frozen=True, slots=True)
class Retention:
    """What a run keeps: docs/retention.md.  The rest goes while it is written.

    Args:
        values: Raw values that stay: ``"last 1000"`` those of the last 1000 steps;
            ``"every 100"`` those of each step whose number in its mode is divisible
            by 100; both, with a comma, or ``"none"``.  None: all.  Statistics, scalars
            and all else stay.
        max_bytes: Bytes of the run's files, a number or text such as ``"50GB"``; the
            ranks that write share them.  Beyond it, the oldest values go, then all but
            the events of the oldest steps.  None: any number.

    Raises:
        ConfigurationError: If a value can never work.

    Example:
        >>> Retention(values="last 1000", max_bytes="50GB").max_bytes
        50000000000
    """

    values: str | None = None
    max_bytes: int | str | None = None

    def __post_init__(self) -> None:
        if self.values is None and self.max_bytes is None:
            msg = (
                "retention says nothing: give values, such as 'last 1000', or "
                "max_bytes, such as '50GB'"
            )
            raise ConfigurationError(msg)
        _parse_values(self.values)
        if self.max_bytes is not None:
            size = parse_bytes("retention.max_bytes", self.max_bytes)
            if size < LEAST_BYTES:
                msg = (
                    f"retention.max_bytes must be at least 1 MiB (1,048,576), "
                    f"not {self.max_bytes!r}"
                )
                raise ConfigurationError(msg)
            object.__setattr__(self, "max_bytes", size)

    @classmethod
    def of(cls, value: object) -> Retention | None:
        """Return a retention that was given as one, as a mapping or as text.

        Raises:
            ConfigurationError: If it is none of these.

        Example:
            >>> Retention.of("last 1000, 50GB")
            Retention(values='last 1000', max_bytes=50000000000)
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            check_known(value, ("values", "max_bytes"), "retention: no")
            return cls(**value)
        if not isinstance(value, str):
            msg = (
                "retention must be a Retention, a mapping of values and max_bytes, or "
                f"text such as 'last 1000, 50GB', not {value!r}"
            )
            raise ConfigurationError(msg)
        items = [item.strip() for item in value.split(",")]
        sizes = [item for item in items if _SIZE.fullmatch(item)]
        if len(sizes) > 1:
            msg = f"retention: several sizes in {value!r}: give one"
            raise ConfigurationError(msg)
        rest = ", ".join(item for item in items if item not in sizes)
        return cls(values=rest or None, max_bytes=sizes[0] if sizes else None)

    @property
    def last(self) -> int | None:
        """The number of last steps whose values stay; None: age removes none."""
        return None if self.values is None else _parse_values(self.values)["last"]

    @property
    def every(self) -> int:
        """The divisor of older steps whose values stay; 0: none do."""
        return _parse_values(self.values)["every"]

    def share(self, n_writers: int) -> int:
        """Return the bytes of each of several writers; 0: any number."""
        return int(self.max_bytes or 0) // n_writers

    def check_share(self, n_writers: int) -> None:
        """Refuse a size that is too small for so many writers.

        Raises:
            ConfigurationError: If it is.
        """
        if self.max_bytes is not None and self.share(n_writers) < LEAST_BYTES:
            msg = (
                f"retention.max_bytes is {self.max_bytes:,} bytes, shared by "
                f"{n_writers} ranks: each needs at least 1 MiB (1,048,576)"
            )
            raise ConfigurationError(msg)

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {"values": self.values, "max_bytes": self.max_bytes}


def _parse_values(text: object) -> dict[str, int]:
    """Return ``last`` and ``every``; zeros where the text has none."""
    found = {"last": 0, "every": 0}
    if text is None or text == NONE:
        return found
    items = text.split(",") if isinstance(text, str) else [""]
    seen = set()
    for item in items:
        match = _VALUES.fullmatch(item.strip())
        if match is None or match[1] in seen or not int(match[2]):
            msg = f"retention.values must be {_EXAMPLES}, not {text!r}"
            raise ConfigurationError(msg)
        seen.add(match[1])
        found[match[1]] = whole_number(int(match[2]), 1) or 0
    return found
