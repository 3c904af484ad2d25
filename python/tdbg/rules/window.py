"""What a rule sees: columns of statistics over a stretch of steps.

Implements docs/rules.md, "Windows".  A window holds new steps, which a rule is to
judge, after older ones, which it may look back at.  It holds as many older steps as
the rule has declared to need, so that a verdict does not depend on where one window
ends and the next begins.

Thread safety: windows are read-only once made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.facts import Facts
from tdbg.modes import ModeKeys
from tdbg.rules.table import (
    FIELDS,
    LASTING,
    Bools,
    Cells,
    Floats,
    Table,
    TensorInfo,
    rows_of_lasting,
)
from tdbg.rules.verdicts import HEALTHY, UNKNOWN, Description, Judgement, Levels

__all__ = [
    "FIELDS",
    "HEALTHY",
    "LASTING",
    "UNKNOWN",
    "Bools",
    "Cells",
    "Description",
    "Floats",
    "Judgement",
    "Levels",
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
        name: The tensor whose units they are.
        steps: Global steps, ascending.
        mode: The mode of the steps.
        start: Index of the first new step.
        usable: Steps: whether the step is there without loss.
        active: How many values of the unit were above zero.
        beyond: How many were outside the range that the summary watches.
        count: How many there were.
    """

    name: str
    steps: NDArray[np.int64]
    mode: ModeKeys
    start: int
    usable: Bools
    active: NDArray[np.uint64]
    beyond: NDArray[np.uint64]
    count: NDArray[np.uint64]

    def judge(
        self, levels: NDArray[np.integer], describe: Callable[[int], Description]
    ) -> Judgement:
        """Verdicts on the tensor, at the new steps; *describe* has their index."""
        steps = self.steps[self.start :]
        return Judgement.of_one(self.name, steps, self.mode, levels, describe)


# So many changes of a model are looked back at: some freeze and thaw in every step.
CHANGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one rule is shown at once.

    Attributes:
        first: First new step.
        last: Last new step.
        n_workers: How many workers the training has.
        run: The run's directory; "" if it is none.
    """

    first: int
    last: int
    n_workers: int = 1
    run: str = ""
    _tables: tuple[Table, ...] = ()
    _unit_tables: tuple[UnitTable, ...] = ()
    _facts: Callable[[], Sequence[Facts]] = tuple

    def facts_at(self, step: int) -> Facts | None:
        """What was known of the model at a step, or None.

        Of what was written down later nothing is seen, so that a verdict does not
        depend on when it is asked for.
        """
        known = [facts for facts in self._facts() if facts.step <= step]
        return known[-1] if known else None

    def thawed_at(self, step: int) -> dict[str, int]:
        """Parameters that had been frozen and require a gradient now: since when.

        By what was known of the model at that step and the last changes before it.
        """
        known = [facts for facts in self._facts() if facts.step <= step]
        frozen: set[str] = set()
        thawed: dict[str, int] = {}
        for facts in known[-CHANGES:] if len(known) > 1 else ():
            for name, parameter in facts.parameters.items():
                if not parameter.requires_grad:
                    frozen.add(name)
                    thawed.pop(name, None)
                elif name in frozen:
                    frozen.remove(name)
                    thawed[name] = facts.step
        return thawed

    def tables(self, *modes: ModeKeys) -> Iterator[Table]:
        """The tables that have new steps, of these modes, or of every mode."""
        for table in self._tables:
            if (not modes or table.mode in modes) and table.start < len(table.steps):
                yield table

    def table(self, mode: ModeKeys) -> Table | None:
        """What is seen of a mode, with new steps in it or not; None: nothing.

        For rules that judge steps of one mode by those of another.  Steps of the other
        mode that come after the one that is judged are not to be looked at.
        """
        return next((table for table in self._tables if table.mode is mode), None)

    def units(self, *modes: ModeKeys) -> Iterator[UnitTable]:
        """The unit summaries that have new steps, of these modes, or of all."""
        for table in self._unit_tables:
            if (not modes or table.mode in modes) and table.start < len(table.steps):
                yield table
