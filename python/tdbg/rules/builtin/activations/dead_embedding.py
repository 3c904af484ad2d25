"""DeadEmbedding: embeddings whose rows are mostly unused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import percent, plural
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
# Percentage of unused rows from which a table is at least five times too large.  Below,
# it may be meant: room for words to come, or the vocabulary of a pretrained model.
FAR_TOO_LARGE = 80.0
# Rows used in one step only must be fewer than this share of the used rows; otherwise
# further steps will use more rows.
SINGLES = 0.1
# Chao's estimate of unseen rows is a lower bound; where steps used many rows once, the
# upper bound is this many times as high.
MARGIN = 20.0
# Least number of used rows that show how they lie; and the limit of the distance of
# Kolmogorov and Smirnov, times the root of their number, that chance exceeds in one of
# 20 cases.
LEAST_BUCKETS = 8
BY_CHANCE = 1.358
# Bytes that no text contains; byte 0 may be padding.
N_BYTES = 256
NEVER_IN_TEXT = np.array([*range(1, 9), *range(14, 32), 127])
# Any text contains this many lowercase letters.
FEW = 10


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEmbedding(Rule):
    """Report embeddings in which most rows never get a gradient.

    Chao's estimator gives the number of rows in use from the numbers of rows that one
    and two of the last steps used.  While many rows were used only once, the rule says
    nothing unless 20 times as many unseen rows would change nothing.

    Args:
        threshold: Percentage of unused rows above which the rule reports.
        min_steps: Least number of recorded steps to judge by.
        max_steps: Largest number of recorded steps to judge by.

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
            # The only embedding of a model does not embed positions.
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
        are_places, are_bytes, are_hashed = np.zeros((3, n_new), dtype=bool)
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
                are_hashed[j] = _are_hashed(used)
        severities = np.full(n_new, UNKNOWN, dtype=np.int8)
        severities[unused <= self.threshold] = OK
        severities[unused > self.threshold] = Severity.WARNING
        is_meant = are_places | are_bytes | are_hashed | (unused < FAR_TOO_LARGE)
        severities[(unused > self.threshold) & is_meant] = Severity.INFO

        def describe(j: int) -> Description:
            if are_places[j]:
                return self._places(int(seen[j]), n_rows, float(unused[j]))
            if are_bytes[j]:
                return self._bytes(int(seen[j]), float(unused[j]))
            if are_hashed[j]:
                return self._hashed(int(seen[j]), n_rows, float(unused[j]))
            return Description(
                message=(
                    f"About {percent(unused[j])} of this embedding's rows are never "
                    f"used: only {seen[j]:,} of {plural(n_rows, 'row')} had a gradient "
                    f"in the last {plural(int(taken[j]), 'recorded step')}, most of "
                    "them more than once."
                ),
                value=float(unused[j]),
                threshold=self.threshold,
                advice=(
                    "Spare rows do no harm: this data needs about "
                    f"{plural(round(n_rows * (1 - unused[j] / 100)), 'row')}. If it "
                    "should use more, check how tokens become indices: a vocabulary "
                    "of other data, a clamp, or a hash or modulus that is too small."
                ),
            )

        return table.judge(severities, describe)

    def _places(self, n_seen: int, n_rows: int, unused: float) -> Description:
        return Description(
            message=(
                f"Only {n_seen:,} of this embedding's {plural(n_rows, 'row')} had a "
                "gradient. At every recorded step these were the same rows, or "
                "neighbors from the same row on, as in a table of positions or "
                "distances made for longer texts."
            ),
            value=unused,
            threshold=self.threshold,
            advice=(
                "Nothing, if these are positions and longer texts will come. "
                f"Otherwise {n_seen:,} rows are enough, or the program clamps indices "
                "or truncates sequences."
            ),
        )

    def _hashed(self, n_seen: int, n_rows: int, unused: float) -> Description:
        return Description(
            message=(
                f"Only {n_seen:,} of this embedding's {plural(n_rows, 'row')} had a "
                "gradient in the last steps. They lie scattered over the whole table, "
                "as the buckets of a hash."
            ),
            value=unused,
            threshold=self.threshold,
            advice=(
                "Nothing, if indices come from a hash: empty buckets avoid collisions. "
                f"Otherwise number the {n_seen:,} tokens from 0."
            ),
        )

    def _bytes(self, n_seen: int, unused: float) -> Description:
        return Description(
            message=(
                f"Only {n_seen:,} of 256 rows had a gradient in the last steps: those "
                "of letters and punctuation, as for the bytes of a text."
            ),
            value=unused,
            threshold=self.threshold,
            advice="Nothing, if tokens are bytes: no text contains all of them.",
        )


def _n_embeddings(model_info: ModelInfo) -> int:
    kinds = map(model_info.kind_of_class, model_info.modules.values())
    return sum(kind == Kind.EMBEDDING for kind in kinds)


def _block_start(used: Bools) -> int:
    """Return where the used rows begin, or -1 if unused rows lie between them."""
    rows = np.flatnonzero(used)
    is_block = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
    return int(rows[0]) if is_block else -1


def _are_places(used: NDArray[np.int64], starts: Sequence[int], n_steps: int) -> bool:
    """Return whether the steps used rows as positions do, unlike tokens.

    For texts of one length, all steps use the same rows; those of distances need not be
    neighbors.  For other texts, they use neighbors from the same row on, as many as the
    longest text of a batch has tokens.
    """
    is_same = bool(((used == 0) | (used == n_steps)).all())
    return is_same or (starts[0] >= 0 and len(set(starts)) == 1)


def _are_hashed(used: NDArray[np.int64]) -> bool:
    """Return whether the used rows lie as if drawn by chance from the whole table.

    A vocabulary fills a table from its beginning.  The test is that of Kolmogorov and
    Smirnov: the shares of used rows up to each row and of the table up to there differ
    by no more than chance explains.
    """
    rows = np.flatnonzero(used)
    n = len(rows)
    if n < LEAST_BUCKETS or n == len(used):
        return False
    share = (rows + 0.5) / len(used)
    ranks = np.arange(n + 1) / n
    distance = max(float((ranks[1:] - share).max()), float((share - ranks[:-1]).max()))
    return distance * math.sqrt(n) < BY_CHANCE


def _are_bytes(used: NDArray[np.int64]) -> bool:
    """Return whether the rows are bytes of a text: letters, no control characters."""
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
        limit: A rough estimate gives NaN unless the share is surely above this.
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
