"""DeadEmbedding: embeddings of which most rows are never used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.columns import model_info_of_steps
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    TensorInfo,
    UnitTable,
    Window,
)
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo

__all__ = ["DeadEmbedding"]

PREFIX = "unit/gradient/"
# Rows used in one step only must be fewer than this share of the used rows:
# otherwise further steps will use more of them.
SINGLES = 0.1
# Chao's estimate of unseen rows is a lower bound: where many rows were used once, the
# upper bound is this many times the estimate.
MARGIN = 20.0
# Bytes that no text has, but for the first one, which may be its padding.
N_BYTES = 256
NEVER_IN_TEXT = np.array([*range(1, 9), *range(14, 32), 127])
# So many small letters are in any text.
FEW = 10


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEmbedding(Rule):
    """Report embeddings of which most rows never get a gradient.

    How many rows are in use is estimated from how many were used in one and in two
    of the last steps (Chao's estimator); while many were used once only, nothing is
    said unless 20 times as many as it estimates would change nothing.

    Args:
        threshold: Percentage of rows that are not in use from which on it is reported.
        min_steps: Recorded steps to judge by, at least.
        max_steps: Recorded steps to judge by, at most.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    threshold: float = 50.0
    min_steps: int = 10
    max_steps: int = 20

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "min_steps", least=2, whole=True)
        check_number(self, "max_steps", least=self.min_steps, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Unit summaries of the gradients of embeddings: rows that have a gradient."""
        return with_beginning(
            Needs(
                collections=frozenset({"gradients"}),
                modules=frozenset({Kind.EMBEDDING}),
                statistics=False,
                unit_summaries=True,
            )
        )

    @property
    def lookback(self) -> int:
        """The steps that one verdict sums up."""
        return self.max_steps - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the unit summaries of gradients."""
        return tensor.name.startswith(PREFIX)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each embedding by the rows that its last steps used."""
        for table in window.units(*TRAINING):
            # A model with a single embedding has no embedding of positions.
            several = np.zeros(len(table.steps), dtype=bool)
            for model_info, steps in model_info_of_steps(window, table):
                several[steps] = (
                    model_info is not None and _n_embeddings(model_info) > 1
                )
            yield self._judge(table, several)

    def _judge(self, table: UnitTable, several: Bools) -> Evaluation:
        n_new, n_rows = len(table.steps) - table.start, table.active.shape[1]
        unused = np.full(n_new, np.nan)
        seen = np.zeros(n_new, dtype=np.int64)
        taken = np.zeros(n_new, dtype=np.int64)
        are_places, are_bytes = np.zeros((2, n_new), dtype=bool)
        used = np.zeros(n_rows, dtype=np.int64)
        usable = np.flatnonzero(table.usable)
        starts = [_block_start(table.active[at] > 0) for at in usable.tolist()]
        for k, at in enumerate(usable.tolist()):
            used += table.active[at] > 0
            if k >= self.max_steps:
                used -= table.active[usable[k - self.max_steps]] > 0
            n_steps = min(k + 1, self.max_steps)
            j = at - table.start
            if j >= 0 and n_steps >= self.min_steps:
                taken[j], seen[j] = n_steps, np.count_nonzero(used)
                unused[j] = 100.0 * _share_unused(used, n_steps, self.threshold / 100.0)
                are_places[j] = several[at] and _are_places(
                    used, starts[k + 1 - n_steps : k + 1], n_steps
                )
                are_bytes[j] = _are_bytes(used)
        severities = np.full(n_new, UNKNOWN, dtype=np.int8)
        severities[unused <= self.threshold] = OK
        severities[unused > self.threshold] = Severity.WARNING
        is_meant = are_places | are_bytes
        severities[(unused > self.threshold) & is_meant] = Severity.INFO

        def describe(j: int) -> Description:
            if are_places[j]:
                return self._places(int(seen[j]), n_rows, float(unused[j]))
            if are_bytes[j]:
                return self._bytes(int(seen[j]), float(unused[j]))
            return Description(
                message=(
                    f"{seen[j]} of {n_rows} rows had a gradient in the last {taken[j]} "
                    f"recorded steps, and most of them more than once: about "
                    f"{unused[j]:.0f} % of the rows are never used"
                ),
                value=float(unused[j]),
                threshold=self.threshold,
                advice=(
                    f"about {round(n_rows * (1 - unused[j] / 100))} rows are enough "
                    "for this data; if it should use more, see how tokens become "
                    "indices (a vocabulary of other data, a clamp, a hash or a "
                    "remainder that is too small)"
                ),
            )

        return table.judge(severities, describe)

    def _places(self, n_seen: int, n_rows: int, unused: float) -> Description:
        return Description(
            message=(
                f"{n_seen} of {n_rows} rows had a gradient, at every recorded step the "
                "same or a row of neighbors from the same one on, as of a table of "
                "places or distances that is made for longer texts"
            ),
            value=unused,
            threshold=self.threshold,
            advice=(
                f"nothing, if these are places and longer texts are to come; otherwise "
                f"{n_seen} rows are enough, or indices are clamped or cut too short"
            ),
        )

    def _bytes(self, n_seen: int, unused: float) -> Description:
        return Description(
            message=(
                f"{n_seen} of 256 rows had a gradient in the last steps: those "
                "of letters and signs, as of the bytes of a text"
            ),
            value=unused,
            threshold=self.threshold,
            advice="nothing, if tokens are bytes: no text has all of them",
        )


def _n_embeddings(model_info: ModelInfo) -> int:
    kinds = map(model_info.kind_of_class, model_info.modules.values())
    return sum(kind == Kind.EMBEDDING for kind in kinds)


def _block_start(used: Bools) -> int:
    """Where the used rows begin, if no row between them is unused; otherwise -1."""
    rows = np.flatnonzero(used)
    is_block = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
    return int(rows[0]) if is_block else -1


def _are_places(used: NDArray[np.int64], starts: Sequence[int], n_steps: int) -> bool:
    """Whether the steps used rows as positions do, and tokens do not.

    Of texts of one length all steps use the same rows (of distances, in the order of
    their buckets, these are no neighbors); of others they use neighbors from the same
    row on, as many as the longest text of a batch has tokens.
    """
    is_same = bool(((used == 0) | (used == n_steps)).all())
    return is_same or (starts[0] >= 0 and len(set(starts)) == 1)


def _are_bytes(used: NDArray[np.int64]) -> bool:
    """Whether rows are used as the bytes of a text are: letters, no control signs."""
    if len(used) != N_BYTES:
        return False
    seen = used > 0
    n_letters = np.count_nonzero(seen[ord("a") : ord("z") + 1])
    is_text = not seen[NEVER_IN_TEXT].any() and seen[ord(" ")]
    return bool(is_text and n_letters >= FEW)


def _share_unused(used: NDArray[np.int64], n_steps: int, limit: float) -> float:
    """Estimate the share of unused rows; NaN if there were too few steps.

    Args:
        used: At how many steps each row was used.
        n_steps: Number of these steps.
        limit: If the estimate is rough, the result is NaN unless the share is surely
            above this.
    """
    n_seen = int(np.count_nonzero(used))
    if n_seen == 0:
        return float("nan")
    once, twice = int((used == 1).sum()), int((used == 2).sum())
    unseen = (n_steps - 1) / n_steps * once * (once - 1) / (2 * (twice + 1))
    is_rough = once > SINGLES * n_seen
    if is_rough:
        unseen *= MARGIN
    share = max(0.0, 1.0 - (n_seen + unseen) / len(used))
    return float("nan") if is_rough and share <= limit else share
