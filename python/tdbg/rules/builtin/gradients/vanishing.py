"""VanishingGradient: gradients that are too small for a layer to learn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import affected, exact, number, plural, times
from tdbg.rules.columns import is_bias, model_info_of_steps
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
from tdbg.run.model_info import owner_of

__all__ = ["VanishingGradient"]

# Once every loss is below this share of its first value, the model has learned, and
# small gradients are what is left.
LEARNED = 0.01
# A gradient below this share of the largest is a zero that float32 has rounded.
ROUNDING = float(np.finfo(np.float32).eps)
DEPTH = (
    "Use ReLU or GELU instead of sigmoid or tanh, add normalization or residual "
    "connections between the layers, initialize for the activation (He, Glorot), or "
    "make the network shallower."
)
NO_EFFECT = (
    "The neighboring layers are fine, and this gradient is a zero with rounding "
    "errors: the loss does not depend on this weight. If the weight adds the same to "
    "all inputs of a softmax or of a normalization, you can remove it. Otherwise, "
    "check what saturates behind it."
)
# The recurrent weights of the reverse direction of PyTorch's layers.
REVERSE = re.compile(r"weight_hh_l\d+_reverse$")
LAST_PLACE = (
    "The program seems to use only the last position of a bidirectional layer (out[:, "
    "-1]), where the reverse direction has read a single element. Use its final state "
    "(h_n of both directions), its output at the first position, or a mean over all "
    "positions."
)
IDLE = (
    "Layers before it do get gradients, so the loss reaches them on another way. If "
    "this layer is idle for now, as an expert without tokens or the head of another "
    "task, do nothing. Otherwise: "
)
# The weights by which a recurrent layer gets its state of the step before.
RECURRENT = re.compile(r"weight_hh_l\d+$")
FIRST_PLACE = (
    "The loss uses only what the recurrent layer has said of the first element, which "
    "depends on no other. If sequences have one element each, reshape the inputs to "
    "(batch, steps, features), or use a linear layer. Otherwise, use the last position "
    "(out[:, -1]) or h_n instead of the first (out[:, 0]), and see which dimension is "
    "that of the steps (batch_first=True)."
)
UNFED = (
    "The loss reaches the layer, but all of its inputs are zero, so the weight has no "
    "effect. If an initial state of zeros is meant, do nothing. Otherwise, check what "
    "zeroes the inputs: a mask, a factor, or dead ReLUs before the layer."
)
LITTLE_EFFECT = (
    "The neighboring layers are fine, so depth is not the reason: the loss hardly "
    "depends on this weight. If it should, check what scales its output down or "
    "saturates behind it. Otherwise, do nothing."
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class VanishingGradient(Rule):
    """Report layers whose gradient is next to nothing while that of others is not.

    The mean of |g| leaves out zeros, so that the rule judges embeddings and other
    sparse gradients by the rows in use.

    A gradient that vanishes with depth is small in several consecutive layers, down to
    the first.  One weight between two healthy ones is an info, unless nothing at all
    reaches it: the loss hardly depends on it, as on a few keys among many of an
    attention, or not at all, as on a weight that adds the same to all inputs of a
    softmax.  It is an info, too, once all losses are below 1% of their first values.

    A gradient that is exactly zero is an info while a layer before it gets one: the
    loss reaches that layer on another way, and this one is idle, as an expert without
    tokens or the head of another task.  So it is while the bias of the layer gets one:
    the inputs of the layer are all zero.  In all other cases, it is a warning, as it is
    if these inputs are the state of a recurrent layer: only its first step counts.

    If every gradient has been exactly zero since the beginning, there is nothing to
    compare with, and the finding is a warning: the loss depends on no weight.

    Args:
        threshold: A mean of |g| below this has vanished.
        relative: Share of the step's largest mean of |g| that it must also be below:
            late in a good training, all gradients are small.  None: do not compare.
        patience: Consecutive recorded steps at which this must hold.
        biases: Judge biases too.  By default the rule leaves them out, since the
            gradient of a bias before a normalization is zero by construction.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING, Severity.ERROR)
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
        """Rows of gradients, and losses."""
        rows = Needs(collections=frozenset({"gradients"}), statistics=True)
        return *with_beginning(rows), Needs(collections=frozenset({"losses"}))

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return rows_of_lasting(self.patience)

    @property
    def head_rows(self) -> int:
        """The first row of each gradient and loss, to compare with."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and gradients."""
        return tensor.role in {"loss", "gradient"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each gradient against both limits."""
        for table in window.tables():
            is_loss = np.array([role == "loss" for role in table.roles])
            biases = np.array([is_bias(name) for name in table.names]) & ~is_loss
            judged = ~is_loss if self.biases else ~is_loss & ~biases
            gradients = table.select(np.flatnonzero(judged))
            if gradients.names:
                learned = _have_learned(table.select(np.flatnonzero(is_loss)))
                by_bias = _reached(gradients, table.select(np.flatnonzero(biases)))
                yield self._judge(gradients, learned, by_bias, window)

    def _judge(
        self, table: Table, learned: Bools, by_bias: Bools, window: Window
    ) -> Evaluation:
        used = table["count"] - table["zero"]
        mean = np.where(used > 0, table["l1"] / np.maximum(used, 1.0), 0.0)
        # Skipped steps and gradients with NaN or Inf, which ExplodingTensor reports,
        # say nothing about small ones.
        known = table.known & (table.not_finite == 0) & ~table.skipped[np.newaxis, :]
        largest = np.max(np.where(known, mean, 0.0), axis=0, initial=0.0)
        small = mean < self.threshold
        if self.relative is not None:
            small &= mean < self.relative * largest[np.newaxis, :]
        # A loss that is fitted exactly has such gradients at the end, not at first.
        nothing = known & (np.maximum.accumulate(largest) == 0)[np.newaxis, :]
        nothing &= ~_rewarded(window, table)
        small |= nothing
        lasting = table.lasts(small, known, rows=self.patience)
        is_zero = mean == 0
        is_alone = _between(known & ~small) & ~is_zero
        reached = np.logical_or.accumulate(known & ~is_zero, axis=0)
        # A reverse direction that has read one element is never meant.
        is_reverse = _named(table, REVERSE)[:, 0]
        # Nor is a recurrent layer whose state of the step before is always zero.
        is_first = by_bias & _named(table, RECURRENT)
        reached = (reached | by_bias) & ~_named(table, REVERSE) & ~is_first
        severities = np.where(
            is_alone | learned[np.newaxis, :], Severity.INFO, Severity.ERROR
        )
        severities[is_zero] = np.where(reached, Severity.INFO, Severity.WARNING)[
            is_zero
        ]
        severities = np.where(nothing, Severity.WARNING, severities)
        severities = np.where(lasting, severities, OK)

        def describe(i: int, j: int) -> Description:
            top = int(np.argmax(np.where(known[:, j], mean[:, j], -1.0)))
            n_small = int(np.count_nonzero(lasting[:, j]))
            present = int(np.count_nonzero(known[:, j]))
            if nothing[i, j]:
                return self._describe_nothing(present)
            return self._describe(
                mean=float(mean[i, j]),
                largest=float(mean[top, j]),
                largest_name=table.names[top],
                layers=affected(n_small, present, "layer"),
                is_alone=bool(is_alone[i, j]),
                is_reverse=bool(is_reverse[i]),
                is_idle=bool(reached[i, j]),
                unfed=""
                if is_reverse[i] or not by_bias[i, j]
                else _unfed(is_first[i, j]),
            )

        return table.judge(severities, describe, known & (lasting | ~small))

    @property
    def _evidence(self) -> Evidence:
        return Evidence("abs_mean", self.threshold)

    def _describe_nothing(self, n_gradients: int) -> Description:
        return Description(
            message=(
                "No gradient reaches any weight: every element of "
                f"{plural(n_gradients, 'gradient')} has been exactly zero since the "
                "training began."
            ),
            value=0.0,
            threshold=self.threshold,
            evidence=self._evidence,
            advice=lambda words: (
                "The loss does not depend on any weight, so no learning rate helps. "
                "Check for a factor or mask that is zero, for labels that the loss "
                f"ignores, for {words.detaching} between the model and the loss, and "
                "for outputs that are constant: dead ReLUs, clipping, or rounding."
            ),
        )

    def _describe(
        self,
        *,
        mean: float,
        largest: float,
        largest_name: str,
        layers: str,
        is_alone: bool,
        is_reverse: bool,
        is_idle: bool,
        unfed: str,
    ) -> Description:
        if mean == 0 and unfed:
            return Description(
                message=(
                    "The gradient of this weight was exactly zero at "
                    f"{plural(self.patience, 'recorded step')} in a row, while the "
                    f"bias of its layer has one. {layers}"
                ),
                value=mean,
                threshold=self.threshold,
                evidence=self._evidence,
                advice=unfed,
            )
        if mean == 0:
            return Description(
                message=(
                    "No gradient reaches this layer: every element was exactly zero at "
                    f"{plural(self.patience, 'recorded step')} in a row. {layers}"
                ),
                value=mean,
                threshold=self.threshold,
                evidence=self._evidence,
                advice=LAST_PLACE
                if is_reverse
                else lambda words: (
                    f"{IDLE if is_idle else ''}Check that the forward pass uses this "
                    f"layer, that no {words.detaching} cuts it off, that not all "
                    "ReLUs behind it are dead, and that float16 does not underflow "
                    "without a loss scale."
                ),
            )
        advice = DEPTH
        if is_alone:
            advice = NO_EFFECT if mean < ROUNDING * largest else LITTLE_EFFECT
        other = f" and {times(largest / mean)} smaller than {largest_name}"
        return Description(
            message=(
                f"The gradient has vanished: its mean magnitude is {number(mean, 2)} "
                f"at {plural(self.patience, 'recorded step')} in a row, "
                f"{times(self.threshold / mean)} smaller than the limit of "
                f"{exact(self.threshold)}{other if largest > mean else ''}. {layers}"
            ),
            value=mean,
            threshold=self.threshold,
            evidence=self._evidence,
            advice=advice,
        )


def _have_learned(losses: Table) -> Bools:
    """Find the steps at which all losses are next to nothing, by their first values."""
    result = np.zeros(len(losses.steps), dtype=bool)
    loss = np.where(losses.known, losses["mean"], np.nan)
    first = np.where(losses.ordinal == 1, loss, -np.inf).max(axis=1, initial=-np.inf)
    judged = np.flatnonzero(first > 0)
    if len(judged):
        low = (loss >= 0) & (loss < LEARNED * first[:, np.newaxis])
        result = low[judged].any(axis=0) & ~(losses.known & ~low)[judged].any(axis=0)
    return result


def _reached(table: Table, biases: Table) -> Bools:
    """Find where the bias of a gradient's layer has a gradient."""
    nonzero = biases.known & (biases["l1"] > 0)
    rows = dict(zip(biases.names, nonzero, strict=True))
    nowhere = np.zeros(len(table.steps), dtype=bool)
    return np.array([rows.get(_bias_of(name), nowhere) for name in table.names])


def _named(table: Table, pattern: re.Pattern[str]) -> Bools:
    """Find the rows whose names end as a pattern says, as a column."""
    found = [pattern.search(name) is not None for name in table.names]
    return np.array(found, dtype=bool)[:, np.newaxis]


def _unfed(is_first: bool) -> str:
    """Return what to do about a weight whose inputs are all zero."""
    return FIRST_PLACE if is_first else UNFED


def _bias_of(name: str) -> str:
    """Return what the bias beside a weight is called: weight_hh_l0, bias_hh_l0."""
    owner = owner_of(name)
    leaf = name[len(owner) :]
    return owner + leaf.replace("weight", "bias").replace("kernel", "bias")


def _rewarded(window: Window, table: Table) -> Bools:
    """Find the steps of losses that are zero until there is a reward."""
    found = np.zeros(len(table.steps), dtype=bool)
    for model_info, steps in model_info_of_steps(window, table):
        found[steps] = model_info is not None and model_info.is_surrogate
    return found


def _between(sound: Bools) -> Bools:
    """Find weights between two healthy ones; the last needs none behind it."""
    before, behind = np.zeros_like(sound), np.ones_like(sound)
    before[1:], behind[:-1] = sound[:-1], sound[1:]
    return before & behind
