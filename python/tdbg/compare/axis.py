"""What runs are aligned by: a step's place on an axis that they share.

Thread safety: values and functions over them.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tdbg.trial import edges_of

__all__ = ["Axis"]

NS_OF_MS = 1_000_000


class Axis(StrEnum):
    """What the place of a step is.

    ``STEP``: where it stands in the training, so that runs that evaluate at other times
    are aligned.  ``GLOBAL``: its global step, which counts evaluation, too.  ``TIME``:
    milliseconds since the first recorded step was ended.  ``WALL``: milliseconds since
    1970 UTC when the step was ended.
    """

    STEP = "step"
    GLOBAL = "global"
    TIME = "time"
    WALL = "wall"

    @property
    def is_time(self) -> bool:
        """Whether places are milliseconds, which match no steps of two runs."""
        return self in (Axis.TIME, Axis.WALL)

    def places(self, table: NDArray[np.void]) -> NDArray[np.int64]:
        """Where each recorded step lies; they never descend.

        Args:
            table: As ``Trial.step_table`` gives it, of n steps.

        Returns:
            int64 (n,).

        Example:
            places = Axis.TIME.places(trial.step_table())
            seconds = places[-1] / 1000
        """
        if not len(table):
            return np.empty(0, np.int64)
        if self is Axis.GLOBAL:
            return table["step"].astype(np.int64)
        if self is Axis.STEP:
            found = table["training_step"]
        else:
            # A clock that was set back does not turn time around.
            begin = table["wall_ns"][0] if self is Axis.TIME else 0
            found = (table["wall_ns"] - begin) // NS_OF_MS
        return np.maximum.accumulate(np.maximum(found, 0))

    def span(self, table: NDArray[np.void]) -> tuple[int, int]:
        """The place of the first recorded step and that after the last; 0, 0 of none.

        Args:
            table: The recorded steps.
        """
        places = self.places(table)
        return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)

    def edges(
        self, table: NDArray[np.void], marks: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The global steps that are the bounds of columns between marks of the axis.

        Args:
            table: The recorded steps.
            marks: int64 (columns + 1,), ascending: column j covers what lies at
                ``marks[j] <= place < marks[j + 1]``.

        Returns:
            int64 (columns + 1,), never descending, for ``Trial.envelope(edges=)``.
        """
        if self is Axis.GLOBAL:
            return marks
        return edges_of(table["step"].astype(np.int64), self.places(table), marks)
