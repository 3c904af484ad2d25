"""The numbers of optimizers' parameter groups: learning rate, betas, weight decay.

Each is recorded when it differs from what was recorded last, and at every step at
which the hook takes statistics, so that a reader finds it near any step and a training
of constant numbers writes next to nothing.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import torch
from torch.optim import Optimizer

from tdbg.capture.naming import UniqueNames, group_scalar_name, scalar_name
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.collections import Role
from tdbg.hooks.pytorch.cuda import CudaTensors, number_of

__all__ = ["GroupScalars"]


class _Group:
    """What is followed of one group.

    Attributes:
        size: Of the group, when its keys were looked at.
    """

    __slots__ = ("_getter", "_numbers", "_tensors", "_versions", "size")

    def __init__(self, group: dict[str, Any]) -> None:
        self.size = len(group)
        self._tensors = [k for k, v in group.items() if isinstance(v, torch.Tensor)]
        plain = [k for k, v in group.items() if _is_plain(v) and k != "params"]
        self._getter = itemgetter(*plain) if plain else _nothing
        self._numbers: Any = None
        self._versions: list[tuple[int, int]] = []

    def has_changed(self, group: dict[str, Any]) -> bool:
        """Whether anything is not what it was at the last call."""
        numbers = self._getter(group)
        versions = [_version(group[key]) for key in self._tensors]
        if numbers == self._numbers and versions == self._versions:
            return False
        self._numbers, self._versions = numbers, versions
        return True


class GroupScalars:
    """Follows the numbers in the parameter groups of one optimizer.

    Args:
        recorder: Where they go.
        number: Of the optimizer, from 0, in the order of their first steps.
        remote: Reads those that lie on devices.
    """

    def __init__(self, recorder: Recorder, number: int, remote: CudaTensors) -> None:
        self._recorder = recorder
        self._number = number
        self._remote = remote
        self._groups: list[_Group] = []
        self._recorded: dict[str, Any] = {}
        self._captured: dict[str, bool] = {}

    def refresh(self) -> None:
        """Think again after a change of collections."""
        self._captured.clear()
        self._groups.clear()

    def take(self, context: StepContext, optimizer: Optimizer) -> None:
        """Record what has changed, or all of it if that is due at this step."""
        policy, step = self._recorder.policy, context.step
        config, place = policy.save_config.of(step.mode), step.mode_step
        is_due = policy.reduces(step.mode, place)
        is_over = config.end_step is not None and place >= config.end_step
        if not is_due and (place < config.start_step or is_over):
            return
        groups = optimizer.param_groups
        if len(self._groups) != len(groups):
            self._groups = [_Group(group) for group in groups]
        names: list[str] = []
        for index, group in enumerate(groups):
            known = self._groups[index]
            if is_due or known.size != len(group):
                known = self._groups[index] = _Group(group)
            if known.has_changed(group):  # A new one has.
                names = names or _names(groups)
                self._record(context, names[index], group, is_due=is_due)

    def _record(
        self, context: StepContext, name: str, group: dict[str, Any], *, is_due: bool
    ) -> None:
        for key, value in _numbers_of(group):
            full = group_scalar_name(self._number, name, key)
            mark = _mark(value)
            if not is_due and self._recorded.get(full) == mark:
                continue
            if full not in self._captured:
                captures = self._recorder.policy.captures
                self._captured[full] = captures(scalar_name(full), Role.SCALAR)
            if self._captured[full]:
                self._recorded[full] = mark
                number = number_of(value, self._remote)
                self._recorder.scalar(context, full, number)


def _nothing(_: dict[str, Any]) -> tuple[()]:
    return ()


def _is_plain(value: Any) -> bool:
    """Whether it is compared by its value, and cannot be a number otherwise."""
    return isinstance(value, int | float | tuple | list)


def _version(tensor: Any) -> tuple[int, int]:
    """Tells a tensor that was written to without reading it."""
    counts = isinstance(tensor, torch.Tensor) and not tensor.is_inference()
    return id(tensor), tensor._version if counts else 0


def _mark(value: Any) -> Any:
    return _version(value) if isinstance(value, torch.Tensor) else value


def _names(groups: list[dict[str, Any]]) -> list[str]:
    """``group_0``, or the name that a group has of its own; each once."""
    unique = UniqueNames()
    names = []
    for index, group in enumerate(groups):
        given = group.get("name")
        name = given if isinstance(given, str) and given else f"group_{index}"
        names.append(unique.take(name))
    return names


def _numbers_of(group: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """All numbers of a group; of a tuple each, as ``betas_0`` and so on."""
    for key, value in group.items():
        if key == "params":
            continue
        if isinstance(value, tuple | list):
            for index, item in enumerate(value):
                if _is_number(item):
                    yield f"{key}_{index}", item
        elif _is_number(value):
            yield str(key), value


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)
