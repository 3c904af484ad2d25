"""VanishingGradient: gradients that are too small for a layer to learn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs, with_beginning
from tdbg.rules.columns import is_bias
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number, check_switch
from tdbg.rules.window import (
    OK,
    Bools,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
    rows_of_lasting,
)
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["VanishingGradient"]

# A gradient below this share of the largest is what float32 leaves of a zero.
ROUNDING = float(np.finfo(np.float32).eps)
DEPTH = (
    "{} do not learn: use ReLU or GELU in place of sigmoid or tanh, add normalization "
    "or residual connections between the layers, initialize for the activation in use "
    "(He, Glorot), or make the network shallower"
)
NO_EFFECT = (
    "the layers before it and behind it are well: this is what rounding leaves of "
    "zero, and the loss does not depend on this weight.  So it is where the weight "
    "adds the same to all that a softmax compares, or to all that a normalization "
    "centres; it can be left out.  Otherwise see what saturates behind it"
)
# The recurrent weights of the reverse direction of a layer of PyTorch's.
REVERSE = re.compile(r"weight_hh_l\d+_reverse$")
LAST_PLACE = (
    "of a bidirectional layer the program seems to use the last place only (out[:, "
    "-1]): there the reverse direction has read one element.  Use its final state (h_n "
    "of both directions), its output at the first place, or a mean over all places"
)
LITTLE_EFFECT = (
    "the layers before it and behind it are well, so it is not for the depth: the loss "
    "hardly depends on this weight.  If it should, see what scales down what it adds, "
    "or saturates behind it; if not, nothing"
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class VanishingGradient(Rule):
    """Report layers whose gradient is next to nothing while others' is not.

    The mean of |g| is taken over the elements that are not zero, so that embeddings
    and other sparse gradients are judged by the rows that were used.

    What vanishes with depth is small for several layers in a row, up to the first.  One
    weight between two that are well is not told as an error, unless nothing at all
    reaches it: the loss hardly depends on it, as on a few keys that attention has
    beside many, or not at all, as on what adds the same to all that a softmax compares.

    Args:
        threshold: A mean of |g| below this has vanished.
        relative: It must also be below this share of the largest mean of |g| of all
            layers at that step: late in a good training all gradients are small
            together, and that is no fault.  None: do not compare.
        patience: Recorded steps in a row at which this must hold.
        biases: Judge biases too.  The gradient of a bias in front of a normalization
            is zero by construction, so they are left out by default.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.ERROR)
    stage = Stage.GRADIENTS

    threshold: float = 1e-7
    relative: float | None = 1e-3
    patience: int = 3
    biases: bool = False

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0)
        if self.relative is not None:
            check_number(self, "relative", above=0.0, most=1.0)
        check_number(self, "patience", least=1, whole=True)
        check_switch(self, "biases")

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of gradients."""
        return with_beginning(
            Needs(collections=frozenset({"gradients"}), statistics=True)
        )

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return rows_of_lasting(self.patience)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select gradients of weights, and of biases if requested."""
        if tensor.role != "gradient":
            return False
        return self.biases or not is_bias(tensor.name)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each gradient against both limits."""
        for table in window.tables():
            yield self._judge(table)

    def _judge(self, table: Table) -> Evaluation:
        used = table["count"] - table["zero"]
        mean = np.where(used > 0, table["l1"] / np.maximum(used, 1.0), 0.0)
        # Skipped steps, and gradients with NaN or Inf, say nothing about small ones;
        # ExplodingTensor reports them.
        known = table.known & (table.not_finite == 0) & ~table.skipped[np.newaxis, :]
        largest = np.max(np.where(known, mean, 0.0), axis=0, initial=0.0)
        small = mean < self.threshold
        if self.relative is not None:
            small &= mean < self.relative * largest[np.newaxis, :]
        lasting = table.lasts(small, known, rows=self.patience)
        is_alone = _between(known & ~small) & (mean > 0)
        severities = np.where(is_alone, Severity.INFO, Severity.ERROR)
        severities = np.where(lasting, severities, OK)

        def describe(i: int, j: int) -> Description:
            top = int(np.argmax(np.where(known[:, j], mean[:, j], -1.0)))
            affected = int(np.count_nonzero(lasting[:, j]))
            present = int(np.count_nonzero(known[:, j]))
            return self._describe(
                mean=float(mean[i, j]),
                largest=float(mean[top, j]),
                largest_name=table.names[top],
                affected=f"{affected} of {present} layers",
                is_alone=bool(is_alone[i, j]),
                is_reverse=REVERSE.search(table.names[i]) is not None,
            )

        return table.judge(severities, describe, known & (lasting | ~small))

    @property
    def _evidence(self) -> Evidence:
        return Evidence("abs_mean", self.threshold)

    def _describe(
        self,
        *,
        mean: float,
        largest: float,
        largest_name: str,
        affected: str,
        is_alone: bool,
        is_reverse: bool,
    ) -> Description:
        if mean == 0:
            return Description(
                message=(
                    "every element of the gradient was exactly zero at "
                    f"{self.patience} recorded steps in a row"
                ),
                value=mean,
                threshold=self.threshold,
                evidence=self._evidence,
                advice=LAST_PLACE
                if is_reverse
                else (
                    f"nothing reaches this layer ({affected} are affected): see "
                    "whether it is used in the forward, whether a detach() cuts it "
                    "off, whether all ReLUs behind it are dead, and whether float16 "
                    "underflows without a loss scale"
                ),
            )
        advice = DEPTH.format(affected)
        if is_alone:
            advice = NO_EFFECT if mean < ROUNDING * largest else LITTLE_EFFECT
        less = f", {largest / mean:.2g} times less than {largest_name}"
        return Description(
            message=(
                f"mean |gradient| is {mean:.1e}, {self.threshold / mean:.2g} times "
                f"below the threshold {self.threshold:g}"
                f"{less if largest > mean else ''}, for {self.patience} recorded "
                "steps in a row"
            ),
            value=mean,
            threshold=self.threshold,
            evidence=self._evidence,
            advice=advice,
        )


def _between(sound: Bools) -> Bools:
    """Where the weight before is sound, and the one behind, if there is any."""
    before, behind = np.zeros_like(sound), np.ones_like(sound)
    before[1:], behind[:-1] = sound[:-1], sound[1:]
    return before & behind
