"""Values that say nothing: all zero, or all alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.needs import Needs
from tdbg.rules._base import (
    Rule,
    built_in,
    check_names,
    check_number,
    check_regex,
    finds,
    selects_by,
)
from tdbg.rules.registry import register
from tdbg.rules.window import Description, Judgement, Table, TensorInfo, Window

__all__ = ["AllZero", "TensorVariance"]

Bools = NDArray[np.bool_]
TRAINING = (ModeKeys.TRAIN, ModeKeys.GLOBAL)
INPUTS = {"input", "model_input", "prediction", "label"}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class AllZero(Rule):
    """Report tensors of which all elements are zero.

    Args:
        threshold: Percentage of zeros from which on a tensor is reported.
        patience: Recorded steps in a row at which this must hold.
        min_count: Smaller tensors are not judged.
        collections: Where to look.
        tensor_regex: Look at tensors of such names too.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    threshold: float = 100.0
    patience: int = 3
    min_count: int = 8
    collections: tuple[str, ...] = ("outputs", "model_inputs")
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "min_count", least=1, whole=True)
        check_names(self, "collections")
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs:
        """The rows of the collections."""
        return Needs(collections=built_in(self.collections))

    @property
    def look_back(self) -> int:
        """The steps that patience counts."""
        return self.patience - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """What the collections or the expression name."""
        return selects_by(tensor, self.collections, self.tensor_regex)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge every row by its count of zeros."""
        for table in window.tables(*TRAINING):
            yield self._judge(table)

    def _judge(self, table: Table) -> Judgement:
        count = table["count"]
        judged = table.known & (count >= self.min_count)
        judged &= _says_something(table, self.tensor_regex)[:, np.newaxis]
        zero = judged & (100.0 * table["zero"] >= self.threshold * count)
        streak = table.streak(zero, judged)
        levels = np.where(streak >= self.patience, int(Severity.WARNING), 0)

        def describe(i: int, j: int) -> Description:
            share = 100.0 * table["zero"][i, j] / count[i, j]
            affected = int(np.count_nonzero((levels[:, j] > 0) & judged[:, j]))
            return Description(
                message=(
                    f"{share:.4g} % of {count[i, j]:.0f} elements are zero, at "
                    f"{self.patience} recorded steps in a row"
                ),
                value=float(share),
                threshold=self.threshold,
                advice=_zero_advice(table.roles[i], affected),
            )

        return table.judge(levels, describe, judged & (levels > 0) | judged & ~zero)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TensorVariance(Rule):
    """Report tensors whose variance is out of bounds, or next to nothing.

    Without bounds, a tensor is reported whose elements are all alike: whose standard
    deviation is less than ``relative`` times their root mean square.

    Args:
        max_threshold: A variance above this is reported; None: no bound.
        min_threshold: A variance below this is reported; None: no bound.
        relative: A standard deviation below this share of the root mean square is
            reported; None: do not compare.
        patience: Recorded steps in a row at which this must hold.
        min_count: Smaller tensors are not judged.
        collections: Where to look.
        tensor_regex: Look at tensors of such names too.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    max_threshold: float | None = None
    min_threshold: float | None = None
    relative: float | None = 1e-4
    patience: int = 3
    min_count: int = 8
    collections: tuple[str, ...] = ("outputs", "model_inputs")
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        if self.min_threshold is not None:
            check_number(self, "min_threshold", least=0.0)
        if self.max_threshold is not None:
            check_number(self, "max_threshold", least=self.min_threshold or 0.0)
        if self.relative is not None:
            check_number(self, "relative", above=0.0, most=1.0)
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "min_count", least=2, whole=True)
        check_names(self, "collections")
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs:
        """The rows of the collections."""
        return Needs(collections=built_in(self.collections))

    @property
    def look_back(self) -> int:
        """The steps that patience counts."""
        return self.patience - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """What the collections or the expression name."""
        return selects_by(tensor, self.collections, self.tensor_regex)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge the variance of every row."""
        for table in window.tables(*TRAINING):
            yield self._judge(table)

    def _judge(self, table: Table) -> Judgement:
        count = table["count"]
        judged = table.known & (count >= self.min_count) & (table.not_finite == 0)
        judged &= _says_something(table, self.tensor_regex)[:, np.newaxis]
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
        streak = table.streak(bad, judged)
        levels = np.where(streak >= self.patience, int(Severity.WARNING), 0)

        def describe(i: int, j: int) -> Description:
            return self._describe(
                variance=float(variance[i, j]),
                root=float(np.sqrt(square[i, j])),
                mean=float(table["mean"][i, j]),
                role=table.roles[i],
            )

        return table.judge(levels, describe, judged & ((levels > 0) | ~bad))

    def _describe(
        self, *, variance: float, root: float, mean: float, role: str
    ) -> Description:
        lasting = f"at {self.patience} recorded steps in a row"
        if self.max_threshold is not None and variance > self.max_threshold:
            return Description(
                message=f"the variance is {variance:.3g} (mean {mean:.3g}), {lasting}",
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
                f"the variance is {variance:.3g}, all elements are close to "
                f"{mean:.4g}, {lasting}"
            ),
            value=variance,
            threshold=threshold,
            advice=(
                f"{what} the same for all samples and units: look for a constant "
                "input, dead or saturated units before it, weights that are all "
                "alike, or a bias that outweighs everything else"
            ),
        )


def _says_something(table: Table, regex: str | None) -> Bools:
    """Which tensors are judged: not masks, indices, and states that begin at zero.

    Of the inputs of a model the first one: others are masks and states of recurrent
    layers.  What the expression names is judged whatever it is.
    """
    asked = np.array([regex is not None and finds(regex, name) for name in table.names])
    floats = np.array(
        ["float" in dtype or not dtype for dtype in table.dtypes], dtype=bool
    )
    first = np.array(
        [
            role != "model_input" or name.endswith("_input_0")
            for name, role in zip(table.names, table.roles, strict=True)
        ],
        dtype=bool,
    )
    judged = floats & first
    # Of parameters and losses zeros count whatever they are made of.
    return np.asarray(judged | asked.astype(bool))


def _zero_advice(role: str, affected: int) -> str:
    if role in INPUTS:
        return "the data holds nothing: see how it is loaded and normalized"
    if role == "output":
        return (
            f"nothing passes this layer ({affected} tensors are affected): look for "
            "dead ReLUs, weights that are all zero, a mask that hides everything, or "
            "inputs that are zero"
        )
    return (
        f"{affected} tensors are affected: see how it is initialized, and whether "
        "anything reaches it"
    )
