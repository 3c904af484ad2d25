"""The order in which a step makes its tensors: forward, loss, backward, update.

A run numbers its tensors as they first come, which for activations is the order of
execution.  Parameters are captured together at the optimizer's step; here each stands
where its module uses it, so that a wrong weight precedes what it makes wrong.

Thread safety: values, and functions that hold a trial's lock inside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tdbg.config.collections import Role
from tdbg.config.tensor_names import PREFIXES, parameter_in
from tdbg.trial import Trial

__all__ = [
    "ACTIVATIONS",
    "DATA",
    "GRADIENTS",
    "PARAMETERS",
    "ExecutionOrder",
    "StepPart",
    "ancestors",
    "call_of",
    "execution_of",
    "is_setting",
    "role_named",
]

ACTIVATIONS = frozenset(
    {Role.INPUT, Role.OUTPUT, Role.MODEL_INPUT, Role.PREDICTION, Role.LABEL, Role.LOSS}
)
PARAMETERS = frozenset({Role.WEIGHT, Role.BIAS})
#: What a training is given; it computes none of it.
DATA = frozenset({Role.MODEL_INPUT, Role.LABEL})
GRADIENTS = frozenset({Role.GRADIENT, Role.GRADIENT_UNCLIPPED, Role.GRADIENT_LOCAL})
OUTPUT, INPUT = "_output_", "_input_"
BUFFER = PREFIXES[Role.BUFFER]
STATE = PREFIXES[Role.OPTIMIZER_STATE]
OPTIMIZER_SCALAR = PREFIXES[Role.SCALAR] + "optimizer/"


class StepPart(IntEnum):
    """Parts of a step, in their order.

    Settings of the optimizer come first: they cause what differs beside them.
    """

    SETTINGS = 0
    FORWARD = 1
    BACKWARD = 2
    GRADIENTS = 3
    STATE = 4
    UPDATE = 5
    LATER = 6


PHASES = {
    Role.GRADIENT_LOCAL: StepPart.BACKWARD,
    Role.GRADIENT_UNCLIPPED: StepPart.BACKWARD,
    Role.OUTPUT_GRADIENT: StepPart.BACKWARD,
    Role.GRADIENT: StepPart.GRADIENTS,
    Role.OPTIMIZER_STATE: StepPart.STATE,
    Role.UPDATE: StepPart.UPDATE,
    Role.UNIT_SUMMARY: StepPart.LATER,
}
_ROLES = {role.name.lower(): role for role in Role}


def role_named(name: str) -> Role:
    """Return the role of that name, as ``TensorDescription`` has it."""
    return _ROLES.get(name, Role.OTHER)


def is_setting(name: str) -> bool:
    """Whether a scalar is a number that an optimizer is set to, as a learning rate."""
    return name.startswith(OPTIMIZER_SCALAR)


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionOrder:
    """Where each tensor of a run stands in a step.

    Attributes:
        order: All names, in the order of execution.
        roles: The role of each.
        depths: How many outputs the forward has made up to each; of gradients, those
            of the whole forward and of the way back.
        modules: The path of the module, or the loss, of each; empty if none is known.
    """

    order: tuple[str, ...]
    roles: Mapping[str, Role]
    depths: Mapping[str, int]
    modules: Mapping[str, str]


def execution_of(trial: Trial, names: Sequence[str]) -> ExecutionOrder:
    """Order tensors of a run as a step makes them.

    Args:
        trial: The run.
        names: Its tensors and scalars.
    """
    roles = {each.name: role_named(each.role) for each in trial.describe(names)}
    positions = dict(zip(names, trial.positions(names), strict=True))
    forward = _Forward(roles, positions)
    keys = {name: forward.key(name) for name in names}
    order = tuple(sorted(names, key=lambda name: (keys[name], name)))
    return ExecutionOrder(
        order,
        roles,
        {name: forward.depth(keys[name]) for name in names},
        {name: forward.module_of(name) for name in names},
    )


Key = tuple[StepPart, float, float]


class _Forward:
    """Where the modules of a run stand in its forward."""

    def __init__(self, roles: Mapping[str, Role], positions: Mapping[str, int]) -> None:
        self._roles, self._positions = roles, positions
        self._first: dict[str, int] = {}
        outputs: list[int] = []
        for name in sorted(positions, key=lambda name: positions[name]):
            if roles[name] not in ACTIVATIONS:
                continue
            path, is_output = call_of(name)
            if is_output:
                outputs.append(positions[name])
                self._first.setdefault(path, positions[name])
        self._outputs = outputs

    def module_of(self, name: str) -> str:
        """The module that makes or holds a tensor."""
        role = self._roles[name]
        if role in ACTIVATIONS or role is Role.OUTPUT_GRADIENT:
            return call_of(parameter_in(name))[0]
        if role in (Role.SCALAR, Role.OTHER):
            return ""
        return _parameter_of(name, role).rpartition(".")[0] or _slashed(name, role)

    def key(self, name: str) -> Key:
        role, position = self._roles[name], float(self._positions[name])
        if role in ACTIVATIONS or role is Role.OTHER:
            return StepPart.FORWARD, position, 0.0
        if role is Role.SCALAR:
            phase = StepPart.SETTINGS if is_setting(name) else StepPart.LATER
            return phase, position, 0.0
        phase = PHASES.get(role, StepPart.FORWARD)
        if phase is StepPart.LATER:
            return phase, position, 0.0
        used = self._used(self.module_of(name))
        if role is Role.BUFFER:
            # A module changes its buffers as it makes its output.
            return phase, used + 0.5, position
        if phase in (StepPart.BACKWARD, StepPart.GRADIENTS):
            return phase, -used, -position
        return phase, used - 0.5, position

    def depth(self, key: Key) -> int:
        """How many outputs have been made when a tensor is."""
        n = len(self._outputs)
        if key[0] is StepPart.FORWARD:
            return 1 + bisect_left(self._outputs, key[1])
        return 1 + 2 * n

    def _used(self, module: str) -> float:
        """Where a module makes its first output; the forward's beginning if unknown."""
        for path in ancestors(module):
            if path in self._first:
                return float(self._first[path])
        return 0.0


def call_of(name: str) -> tuple[str, bool]:
    """Return whose input or output a tensor is, and whether it is an output."""
    for mark, is_output in ((OUTPUT, True), (INPUT, False)):
        path, found, _ = name.rpartition(mark)
        if found:
            return path.partition("@")[0], is_output
    return name, True


def _parameter_of(name: str, role: Role) -> str:
    if role is Role.BUFFER:
        return name.removeprefix(BUFFER)
    if role is Role.OPTIMIZER_STATE:
        # optimizer/<state>/<parameter>
        return name.removeprefix(STATE).partition("/")[2]
    return parameter_in(name)


def _slashed(name: str, role: Role) -> str:
    """The layer of a parameter that is named as Keras does: dense/kernel."""
    return _parameter_of(name, role).rpartition("/")[0]


def ancestors(path: str) -> Iterator[str]:
    """Yield the path of a module, and of all that it is in, from inside out."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("/"), 0)]
