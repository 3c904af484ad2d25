"""What a rule needs captured, as plain data.

A rule states it, a hook acts on it; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tdbg.collections import BUILT_IN
from tdbg.config import nearest
from tdbg.errors import ConfigurationError

__all__ = ["Needs", "every_need"]

_NUMBERS = {"interval": 1, "first_steps": 1, "raw_limit": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be captured so that a rule can decide.

    A rule that needs different things of different tensors gives several; each is
    honoured by itself.

    Args:
        collections: Names of built-in collections.
        modules: Of what modules take and give only that of modules of these classes,
            by the class's name (``"Tanh"``); empty: of all. Of parameters and their
            gradients, only those whose owner is of these classes.
        statistics: Whether it reads their statistics.
        unit_summaries: Whether it reads unit summaries of them.
        histogram: Whether it reads their histograms.
        raw: Whether it reads raw values.
        interval: All of that at least every so many steps; None: as the hook does.
        first_steps: Only in the first so many steps of a mode; None: always.
        raw_limit: Tensors of more bytes than this are not kept raw for it.

    Raises:
        ConfigurationError: If a collection is unknown or a number out of its range.

    Example:
        >>> Needs(collections=frozenset({"labels"}), raw=True, interval=5).raw_limit
        1048576
    """

    collections: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    statistics: bool = True
    unit_summaries: bool = False
    histogram: bool = False
    raw: bool = False
    interval: int | None = None
    first_steps: int | None = None
    raw_limit: int = 1 << 20

    def __post_init__(self) -> None:
        for field in ("collections", "modules"):
            value = getattr(self, field)
            if isinstance(value, str):
                msg = f"needs: {field} is a set of names, not the text {value!r}"
                raise ConfigurationError(msg)
            object.__setattr__(self, field, frozenset(str(name) for name in value))
        for name in self.collections:
            if name not in BUILT_IN:
                msg = f"needs: no collection {name!r}; {nearest(name, BUILT_IN)}"
                raise ConfigurationError(msg)
        for field, least in _NUMBERS.items():
            number = getattr(self, field)
            if number is not None and number < least:
                msg = f"needs: {field} must be at least {least}, not {number}"
                raise ConfigurationError(msg)


def every_need(needs: Needs | Iterable[Needs]) -> tuple[Needs, ...]:
    """The needs of a rule that gives one or several.

    Example:
        >>> every_need(Needs()) == every_need([Needs()])
        True
    """
    return (needs,) if isinstance(needs, Needs) else tuple(needs)
