"""What a rule is: a value with parameters that judges windows of steps.

Implements docs/rules.md, "Writing a rule".

Thread safety: rules are immutable and hold no state.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from tdbg.collections import BUILT_IN
from tdbg.findings import Severity
from tdbg.needs import Needs, every_need

if TYPE_CHECKING:
    from tdbg.rules.quiet import Quiet
    from tdbg.rules.window import Judgement, TensorInfo, Window

__all__ = [
    "Rule",
    "built_in",
    "in_collections",
    "parameters_of",
]

# The roles that a built-in collection selects, as a tensor's info names them.
ROLES = {
    name: frozenset(role.name.lower() for role in roles)
    for name, roles in BUILT_IN.items()
}


class Rule(ABC):
    """Base of all rules.

    A rule is a frozen dataclass: its fields are its parameters.  It may be used for
    many runs and from many threads, because it remembers nothing between windows:
    whatever history it needs it declares, and finds in the window.

    Attributes:
        severities: Those that its findings may have, from the least.
    """

    __slots__ = ()

    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)

    @property
    def name(self) -> str:
        """What users call it."""
        return type(self).__name__

    @property
    @abstractmethod
    def needs(self) -> Needs | tuple[Needs, ...]:
        """What has to be captured for it: one thing, or several."""

    @property
    def look_back(self) -> int:
        """How many rows of a tensor before the first new one it looks at."""
        return 0

    @property
    def anchor(self) -> int:
        """How many of a tensor's very first rows it looks at, however old."""
        return 0

    def selects(self, tensor: TensorInfo) -> bool:
        """Whether it wants to see this tensor: by default, if a collection has it."""
        return any(
            in_collections(tensor, need.collections) for need in every_need(self.needs)
        )

    @abstractmethod
    def evaluate(self, window: Window) -> Iterable[Judgement]:
        """Judge the new steps of the window.

        A verdict on a step may depend on that step, on the ``look_back`` rows of
        the tensor before it and on its ``anchor`` first rows, and on nothing else.
        """

    def silence(self, quiet: Quiet) -> Iterable[Judgement]:
        """Judge that nothing new has come; asked about once a second meanwhile.

        For rules about a standstill; others leave it.  A judgement is of the last
        step: ``quiet.judge`` makes one.
        """
        del quiet
        return ()

    def parameters(self) -> dict[str, object]:
        """Its parameters by name."""
        return {
            field.name: getattr(self, field.name) for field in parameters_of(type(self))
        }


def parameters_of(rule: type[Rule]) -> list[Field[Any]]:
    """The parameters of a rule: first its own, then those it shares with others."""
    given: Any = rule
    known = {field.name: field for field in fields(given)}
    by_class = (inspect.get_annotations(parent) for parent in rule.__mro__)
    names = dict.fromkeys(name for of_class in by_class for name in of_class)
    return [known[name] for name in names if name in known]


def in_collections(tensor: TensorInfo, collections: Iterable[str]) -> bool:
    """Whether one of the collections has the tensor."""
    return any(
        name == "all"
        or tensor.role in ROLES.get(name, ())
        or name in tensor.collections
        for name in collections
    )


def built_in(collections: Iterable[str]) -> frozenset[str]:
    """Those that every hook knows; other ones are the business of their owner."""
    return frozenset(collections) & frozenset(BUILT_IN)
