"""What a rule sees: tables of statistics over consecutive steps.

Implements docs/rules.md, "Windows".  A window holds new steps, which the rule judges,
after older steps, which it may look back at.  The rule declares how many older rows it
needs, so that a verdict does not depend on where one window ends and the next begins.

Thread safety: windows are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.profile import NO_PROFILE, ProfileWindow
from tdbg.rules.table import (
    LASTING,
    OK,
    UNKNOWN,
    Advice,
    Bools,
    Description,
    Evaluation,
    Floats,
    Severities,
    Table,
    TensorInfo,
    rows_of_lasting,
)
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo
from tdbg.run.observations import Fault, Observation

__all__ = [
    "LASTING",
    "OK",
    "UNKNOWN",
    "Advice",
    "Bools",
    "Description",
    "Evaluation",
    "Floats",
    "Idle",
    "Severities",
    "Table",
    "TensorInfo",
    "UnitTable",
    "Window",
    "rows_of_lasting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTable:
    """Unit summaries of one tensor in one mode: steps x units.

    Attributes:
        name: The tensor that the units belong to.
        steps: Global steps, ascending.
        mode: Mode of the steps.
        start: Index of the first new step.
        usable: For each step, whether it was recorded completely.
        active: How many values of the unit were above zero.
        out_of_range: How many were outside of the summary's range.
        count: How many values the unit had.
    """

    name: str
    steps: NDArray[np.int64]
    mode: ModeKeys
    start: int
    usable: Bools
    active: NDArray[np.uint64]
    out_of_range: NDArray[np.uint64]
    count: NDArray[np.uint64]

    def judge(
        self, severities: NDArray[np.integer], describe: Callable[[int], Description]
    ) -> Evaluation:
        """Make the verdicts on the tensor.

        Args:
            severities: Of the new steps only.
            describe: Called with the index of a finding among the new steps.
        """
        steps = self.steps[self.start :]
        return Evaluation.of_one(self.name, steps, self.mode, severities, describe)


# How many changes of a model count: some models freeze and thaw in every step.
CHANGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The new steps that one call of ``Rule.evaluate`` judges.

    Attributes:
        first: First new step.
        last: Last new step.
        n_workers: How many workers the training has.
        run: The run's directory; "" if there is none.
        profile: New bins of the profile, for rules whose needs name tables of it.
    """

    first: int
    last: int
    n_workers: int = 1
    run: str = ""
    profile: ProfileWindow = NO_PROFILE
    _tables: tuple[Table, ...] = ()
    _unit_tables: tuple[UnitTable, ...] = ()
    _infos: Callable[[], Sequence[ModelInfo]] = tuple
    _observed: Callable[[], Sequence[Observation]] = tuple
    _training_step: Callable[[int], int] = int

    def model_info_at(self, step: int) -> ModelInfo | None:
        """Return the model info as of a step, or None.

        Model info that was recorded later is left out, so that a verdict does not
        depend on when the rule runs.
        """
        known = self._infos_until(step)
        return known[-1] if known else None

    def observations(self, faults: Container[Fault]) -> list[Observation]:
        """Return what hooks saw up to the last new step, of these faults, by step."""
        return [
            each
            for each in self._observed()
            if each.step <= self.last and each.fault in faults
        ]

    def training_step(self, step: int) -> int:
        """Return where a step stands in the training, for messages.

        The steps of tables and verdicts are global ones, which count evaluation, too.
        People count training steps.
        """
        return self._training_step(step)

    def thawed_at(self, step: int) -> dict[str, int]:
        """Return the parameters that were frozen once and require a gradient now.

        Considers the model info as of the step, and the last changes before it.

        Returns:
            The step of the change, by name of the parameter.
        """
        known = self._infos_until(step)
        frozen: set[str] = set()
        thawed: dict[str, int] = {}
        for model_info in known[-CHANGES:] if len(known) > 1 else ():
            for name, parameter in model_info.parameters.items():
                if not parameter.requires_grad:
                    frozen.add(name)
                    thawed.pop(name, None)
                elif name in frozen:
                    frozen.remove(name)
                    thawed[name] = model_info.step
        return thawed

    def tables(self, *modes: ModeKeys) -> Iterator[Table]:
        """Yield the tables that have new steps, of these modes or of every mode."""
        for table in self._tables:
            if (not modes or table.mode in modes) and table.start < len(table.steps):
                yield table

    def table(self, mode: ModeKeys) -> Table | None:
        """Return the table of a mode, with new steps or without; None if there is none.

        For rules that judge steps of one mode by steps of another.  Such a rule must
        not look at steps of the other mode after the step that it judges.
        """
        return next((table for table in self._tables if table.mode is mode), None)

    def units(self, *modes: ModeKeys) -> Iterator[UnitTable]:
        """Yield the unit tables that have new steps, of these modes or of all."""
        for table in self._unit_tables:
            if (not modes or table.mode in modes) and table.start < len(table.steps):
                yield table

    def _infos_until(self, step: int) -> list[ModelInfo]:
        return [each for each in self._infos() if each.step <= step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A run without new steps: for how long, and the state of its training.

    Attributes:
        seconds: Time since the last step was recorded, or since the training was
            started again after it; before the first step, since the engine started.
        last_step: The last step that was judged, or -1.
        mode: The mode of that step; None if there is none.
        alive: Whether the training's process exists; None: unknown, for example
            because it runs on another machine.
        ended: Whether the training has ended normally, so that no step will follow.
        model_info: What was last known of the model, if it has ended.
        observations: What hooks saw, if it has ended.
        where: Asks the processes of the training where they are, which takes a second
            or more, and returns it in sentences; "" if none answers.
    """

    seconds: float
    last_step: int
    mode: ModeKeys | None
    alive: bool | None
    ended: bool
    model_info: ModelInfo | None = None
    observations: tuple[Observation, ...] = ()
    where: Callable[[], str] = str

    def judge(
        self,
        name: str,
        severity: Severity | None,
        describe: Callable[[], Description],
    ) -> Evaluation:
        """Make a verdict on the last step.

        Args:
            name: Stands in place of a tensor's name, for example "training".
            severity: Of the finding; None: no finding.
            describe: Called if there is a finding.
        """
        level = OK if severity is None else int(severity)
        return Evaluation(
            names=(name,),
            steps=np.array([self.last_step], dtype=np.int64),
            mode=self.mode or ModeKeys.GLOBAL,
            severities=np.array([[level]], dtype=np.int8),
            describe=lambda _i, _j: describe(),
        )
