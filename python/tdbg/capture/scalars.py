"""Numbers of an optimizer's parameter groups, recorded when they change.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any

from tdbg.capture.adapter import DeviceArray
from tdbg.capture.naming import UniqueNames, group_scalar_name, scalar_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.collections import Role

__all__ = ["GroupScalars"]

_Group = Mapping[str, Any]
_Version = Callable[[Any], object]


class GroupScalars:
    """Records the numbers in the parameter groups of one optimizer.

    Args:
        session: Receives them.
        number: Number of the optimizer, from 0, in the order of their first steps.
        read_number: Reads a number, or begins to fetch it from a device.
        tensor_type: The type of the framework's tensors.
        version: Returns what changes when a tensor is written to, without reading
            the tensor.
        not_numbers: Keys of a group that hold no numbers, such as its parameters.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        *,
        read_number: Callable[[Any], float | DeviceArray | None],
        tensor_type: type,
        version: _Version,
        not_numbers: AbstractSet[str] = frozenset(),
    ) -> None:
        self._tensor_type = tensor_type
        self._session = session
        self._number = number
        self._read_number = read_number
        self._version = version
        self._not_numbers = not_numbers
        self._groups: list[_KnownGroup] = []
        self._is_within = True  # The steps at which changed numbers are recorded.
        self._recorded: dict[str, Any] = {}
        self._captured: dict[str, bool] = {}

    def refresh(self) -> None:
        """Forget what is captured, because collections have changed."""
        self._captured.clear()
        self._groups.clear()

    def take(self, context: StepContext, groups: Sequence[_Group]) -> None:
        """Record the numbers that have changed; all of them if they are due."""
        step = context.step
        is_due = self._session.policy.scalars_due(step.mode, step.mode_step)
        self._is_within = is_due is not None
        if is_due is None:
            return
        if len(self._groups) != len(groups):
            self._groups = [self._know(group) for group in groups]
        names: list[str] = []
        for index, group in enumerate(groups):
            known = self._groups[index]
            if is_due or known.size != len(group):
                known = self._groups[index] = self._know(group)
            if known.has_changed(group):  # A new group counts as changed.
                names = names or _names(groups)
                self._record(context, names[index], group, is_due=is_due)

    def has_news(self, groups: Sequence[_Group]) -> bool:
        """Whether ``take`` would record any that has changed.

        REQUIRES: as many are recorded as at the last call of ``take``: all, or none.
        """
        if not self._is_within:
            return False
        known = self._groups
        return len(known) != len(groups) or any(
            each.size != len(group) or each.differs(group)
            for each, group in zip(known, groups, strict=True)
        )

    def _know(self, group: _Group) -> _KnownGroup:
        return _KnownGroup(group, self._tensor_type, self._version, self._not_numbers)

    def _record(
        self, context: StepContext, name: str, group: _Group, *, is_due: bool
    ) -> None:
        for key, value in self._numbers_of(group):
            full = group_scalar_name(self._number, name, key)
            is_tensor = isinstance(value, self._tensor_type)
            mark = self._version(value) if is_tensor else value
            if not is_due and self._recorded.get(full) == mark:
                continue
            if full not in self._captured:
                captures = self._session.captures
                self._captured[full] = captures(scalar_name(full), Role.SCALAR)
            if self._captured[full]:
                self._recorded[full] = mark
                self._session.recorder.scalar(context, full, self._read_number(value))

    def _numbers_of(self, group: _Group) -> Iterator[tuple[str, Any]]:
        """Yield all numbers of a group by name; those of a tuple as ``betas_0``, ..."""
        for key, value in group.items():
            if key in self._not_numbers:
                continue
            if isinstance(value, tuple | list):
                for index, item in enumerate(value):
                    if self._is_number(item):
                        yield f"{key}_{index}", item
            elif self._is_number(value):
                yield str(key), value

    def _is_number(self, value: Any) -> bool:
        if isinstance(value, self._tensor_type):
            shape: Sequence[int] = value.shape  # type: ignore[attr-defined]
            return math.prod(shape) == 1
        return isinstance(value, int | float) and not isinstance(value, bool)


_NO_VERSIONS: list[object] = []


class _KnownGroup:
    """A group as it was when its numbers were recorded.

    Attributes:
        size: How many keys the group had.
    """

    __slots__ = ("_getter", "_numbers", "_tensors", "_version", "_versions", "size")

    def __init__(
        self,
        group: _Group,
        tensor_type: type,
        version: _Version,
        not_numbers: AbstractSet[str],
    ) -> None:
        self.size = len(group)
        self._version = version
        self._tensors = [k for k, v in group.items() if isinstance(v, tensor_type)]
        plain = [
            k
            for k, v in group.items()
            if isinstance(v, int | float | tuple | list) and k not in not_numbers
        ]
        self._getter = itemgetter(*plain) if plain else _nothing
        self._numbers: Any = None
        self._versions = _NO_VERSIONS

    def has_changed(self, group: _Group) -> bool:
        """Whether anything differs from the last call."""
        numbers, versions = self._getter(group), _NO_VERSIONS
        if self._tensors:
            versions = [self._version(group[key]) for key in self._tensors]
        if numbers == self._numbers and versions == self._versions:
            return False
        self._numbers, self._versions = numbers, versions
        return True

    def differs(self, group: _Group) -> bool:
        """Return what ``has_changed`` would, without remembering the new numbers."""
        numbers, versions = self._numbers, self._versions
        try:
            return self.has_changed(group)
        finally:
            self._numbers, self._versions = numbers, versions


def _nothing(_: _Group) -> tuple[()]:
    return ()


def _names(groups: Sequence[_Group]) -> list[str]:
    """``group_0``, or the name that a group has of its own; each once."""
    unique = UniqueNames()
    names = []
    for index, group in enumerate(groups):
        given = group.get("name")
        name = given if isinstance(given, str) and given else f"group_{index}"
        names.append(unique.take(name))
    return names
