"""PoorWeightInitialization: initial weights from which training cannot start well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs
from tdbg.modes import TRAINING
from tdbg.rules.builtin.weights.first_step import (
    WEIGHTED,
    FirstStep,
    Found,
    stay_zero,
    too_large,
    units_alike,
    units_copied,
)
from tdbg.rules.builtin.weights.signal_propagation import (
    first_loss,
    gradients_change,
    outputs_change,
    outputs_one_sided,
)
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity, Stage

__all__ = ["PoorWeightInitialization"]

ROLES = {"weight", "gradient", "input", "output", "loss", "prediction", "label"}
# Values only show whether units are alike, so the hook captures them up to this size:
# those of weights, and of the gradients that tell alike units apart.
RAW_LIMIT, RAW_LIMIT_OF_GRADIENTS = 1 << 18, 1 << 16


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class PoorWeightInitialization(Rule):
    """Report initial weights that are alike, or let signals explode or die out.

    The rule judges the first forward and backward pass, before any update.  It finds

    - units of a layer with equal weights;
    - layers that are zero and get no gradient;
    - weights far too large for the number of inputs;
    - outputs or gradients that grow or shrink from layer to layer;
    - outputs far from zero compared with their spread;
    - a first loss far above that of guessing.

    Args:
        steps: Most recorded steps of training to judge; the second and later ones only
            while the loss scaler has skipped every update so far.
        output_threshold: Factor by which the outputs' root mean square may grow or
            shrink over a chain of layers that changes in one direction.
        gradient_threshold: The factor for the gradients of weights.
        asymmetry: Largest distance of outputs from zero, in standard deviations.
        gain: Largest root mean square of weights, times the square root of a unit's
            number of inputs.
        loss_excess: Largest excess of the first cross-entropy over that of guessing.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING, Severity.ERROR)
    stage = Stage.NUMBERS

    steps: int = 3
    output_threshold: float = 100.0
    gradient_threshold: float = 1000.0
    asymmetry: float = 5.0
    gain: float = 4.0
    loss_excess: float = 5.0

    def __post_init__(self) -> None:
        check_number(self, "steps", least=1, whole=True)
        thresholds = ("output_threshold", "gradient_threshold", "asymmetry", "gain")
        for parameter in thresholds:
            check_number(self, parameter, above=1.0)
        check_number(self, "loss_excess", above=0.0)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of the first steps, and the values of small weights once."""
        return (
            Needs(
                collections=frozenset({"weights", "gradients", "losses"}),
                interval=1,
                first_steps=self.steps,
            ),
            Needs(
                collections=frozenset({"outputs"}),
                modules=WEIGHTED,
                interval=1,
                first_steps=self.steps,
            ),
            Needs(
                collections=frozenset({"inputs", "predictions", "labels"}),
                first_steps=1,
            ),
            Needs(
                collections=frozenset({"weights"}),
                raw=True,
                first_steps=1,
                raw_limit=RAW_LIMIT,
            ),
            Needs(
                collections=frozenset({"gradients"}),
                raw=True,
                first_steps=1,
                raw_limit=RAW_LIMIT_OF_GRADIENTS,
            ),
        )

    @property
    def lookback(self) -> int:
        """The previous steps, and whether the loss scaler skipped them."""
        return self.steps

    def selects(self, tensor: TensorInfo) -> bool:
        """Select tensors by their roles."""
        return tensor.role in ROLES

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the steps before the first update, each by itself."""
        for table in window.tables(*TRAINING):
            for j in self._before_updates(table):
                model_info = window.model_info_at(int(table.steps[j]))
                if model_info is not None:
                    yield self._judge(FirstStep(table, j, model_info))

    def _before_updates(self, table: Table) -> Iterator[int]:
        """Yield the columns of new steps at which weights have their initial values."""
        nth = table.ordinal.max(axis=0, initial=0)
        columns = np.flatnonzero(nth > 0)[: self.steps].tolist()
        for n, j in enumerate(columns):
            # An update may lie between steps that are incomplete.
            follows = table.steps[j] - table.steps[columns[0]] == n
            if nth[j] != n + 1 or not follows or not table.usable[j]:
                return
            if j >= table.start:
                yield j
            if not table.skipped[j]:
                return

    def _judge(self, step: FirstStep) -> Evaluation:
        table, j = step.table, step.j
        found: dict[str, Found] = {}
        for each in self._checks(step):
            if each is not None:
                found.setdefault(each.name, each)
        severities = np.full((len(table.names), 1), UNKNOWN, dtype=np.int8)
        severities[table.known[:, j]] = OK
        for i, name in enumerate(table.names):
            if name in found:
                severities[i] = found[name].severity
        return Evaluation(
            names=table.names,
            steps=table.steps[j : j + 1],
            mode=table.mode,
            severities=severities,
            describe=lambda i, _: found[table.names[i]].description,
        )

    def _checks(self, step: FirstStep) -> tuple[Found | None, ...]:
        """Return the findings of all checks; the first one for each tensor counts."""
        return (
            units_alike(step),
            units_copied(step),
            stay_zero(step),
            too_large(step, self.gain),
            outputs_change(step, self.output_threshold),
            gradients_change(step, self.gradient_threshold),
            outputs_one_sided(step, self.asymmetry),
            first_loss(step, self.loss_excess),
        )
