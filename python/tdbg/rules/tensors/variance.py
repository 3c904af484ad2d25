"""Tensors whose elements are all alike, or vary too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.findings import Severity
from tdbg.modes import TRAINING
from tdbg.needs import Needs, with_beginning
from tdbg.rules._base import built_in
from tdbg.rules._checks import check_number
from tdbg.rules.registry import register
from tdbg.rules.tensors.collapse import judge_collapse
from tdbg.rules.tensors.lasting import INPUTS, OfLastingRows
from tdbg.rules.window import (
    Bools,
    Description,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["TensorVariance"]

# Of the values of predictions; as often as rules of classifiers have them.
INTERVAL = 5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TensorVariance(OfLastingRows):
    """Report tensors whose variance is out of bounds, or next to nothing.

    Without bounds, a tensor is reported whose elements are all alike: whose standard
    deviation is less than ``relative`` times their root mean square.  So are
    predictions that have become the same for all samples.

    Args:
        max_threshold: A variance above this is reported; None: no bound.
        min_threshold: A variance below this is reported; None: no bound.
        relative: A standard deviation below this share of the root mean square is
            reported; None: do not compare.
        collapsed: Predictions, as a loss is given them, whose directions spread by
            less than this share of what independent ones do are reported; None: do
            not look.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    max_threshold: float | None = None
    min_threshold: float | None = None
    relative: float | None = 1e-4
    collapsed: float | None = 0.01

    def __post_init__(self) -> None:
        if self.min_threshold is not None:
            check_number(self, "min_threshold", least=0.0)
        if self.max_threshold is not None:
            check_number(self, "max_threshold", least=self.min_threshold or 0.0)
        if self.relative is not None:
            check_number(self, "relative", above=0.0, most=1.0)
        if self.collapsed is not None:
            check_number(self, "collapsed", above=0.0, most=0.1)
        OfLastingRows.__post_init__(self)
        # One element alone does not vary.
        check_number(self, "min_count", least=2, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """The rows of the collections; rows and values of predictions."""
        rows = with_beginning(Needs(collections=built_in(self.collections)))
        if self.collapsed is None:
            return rows
        given = Needs(
            collections=frozenset({"predictions"}),
            raw=True,
            interval=INTERVAL,
        )
        return *rows, *with_beginning(given)

    @property
    def anchor(self) -> int:
        """The first batch, to compare predictions with."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """What is named, and predictions, of which values may have been kept."""
        return self.is_named(tensor) or (
            self.collapsed is not None and tensor.role == "prediction"
        )

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge the rows of training, and the values of predictions."""
        yield from OfLastingRows.evaluate(self, window)
        if self.collapsed is None:
            return
        for table in window.tables(*TRAINING):
            for i in np.flatnonzero(~self._named(table)).tolist():
                yield judge_collapse(
                    table,
                    i,
                    limit=self.collapsed,
                    patience=self.patience,
                    look_back=self.look_back,
                )

    def _named(self, table: Table) -> Bools:
        """Which tensors are there for the sake of their rows."""
        infos = zip(table.names, table.roles, strict=True)
        return np.array(
            [self.is_named(TensorInfo(name=name, role=role)) for name, role in infos],
            dtype=bool,
        )

    def judge(self, table: Table, judged: Bools) -> Judgement:
        """Judge the variance of every row."""
        judged = judged & self._named(table)[:, np.newaxis]
        count = table["count"]
        judged = judged & (table.not_finite == 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = table["m2"] / count
            square = table["l2"] ** 2 / count
        small = np.zeros(judged.shape, dtype=bool)
        if self.relative is not None:
            # Zeros are for AllZero.
            small = (square > 0) & (variance < self.relative**2 * square)
        bad = small.copy()
        if self.min_threshold is not None:
            bad |= variance < self.min_threshold
        if self.max_threshold is not None:
            bad |= variance > self.max_threshold
        bad &= judged
        lasting = table.lasts(bad, judged, rows=self.patience)

        def describe(i: int, j: int) -> Description:
            return self._describe(
                variance=float(variance[i, j]),
                root=float(np.sqrt(square[i, j])),
                mean=float(table["mean"][i, j]),
                role=table.roles[i],
            )

        return table.judge_lasting(bad, lasting, Severity.WARNING, describe, judged)

    def _describe(
        self, *, variance: float, root: float, mean: float, role: str
    ) -> Description:
        lasting = f"at {self.patience} recorded steps in a row"
        if self.max_threshold is not None and variance > self.max_threshold:
            return Description(
                message=(
                    f"the variance is {variance:.3g}, above {self.max_threshold:g}, "
                    f"{lasting} (mean {mean:.3g})"
                ),
                value=variance,
                threshold=self.max_threshold,
                advice=(
                    "normalize what goes in, initialize for the layer's width (He, "
                    "Glorot), or lower the learning rate"
                ),
            )
        what = "the data is" if role in INPUTS else "what this layer gives is"
        threshold = (self.relative or 0.0) ** 2 * root**2
        if self.min_threshold is not None:
            threshold = max(threshold, self.min_threshold)
        return Description(
            message=(
                f"the variance is {variance:.3g}, below {threshold:.2g}, {lasting}: "
                f"all elements are close to {mean:.4g}"
            ),
            value=variance,
            threshold=threshold,
            advice=(
                f"{what} the same for all samples and units: look for a constant "
                "input, dead or saturated units before it, weights that are all "
                "alike, or a bias that outweighs everything else"
            ),
        )
