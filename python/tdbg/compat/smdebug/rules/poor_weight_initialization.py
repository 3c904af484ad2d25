"""SageMaker's PoorWeightInitialization, by its parameters and their meaning."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.exceptions import SMDebugValueError, TensorUnavailableForStep
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.rules.selection import items_of, mean_at, select
from tdbg.compat.smdebug.trials.trial import Trial
from tdbg.modes import TRAINING, ModeKeys

__all__ = ["PoorWeightInitialization"]

_PERCENTILES = (5.0, 95.0)


class PoorWeightInitialization(Rule):
    """Looks at the first steps: variances, gradients, and whether the loss falls.

    It fires when one of these holds: the greatest variance of activation inputs is more
    than *threshold* times the least; the gradient with the narrowest distribution has
    less than *distribution_range* between its 5th and 95th percentiles; the loss had no
    new minimum for *patience* steps.  SageMaker documents the three, not how they
    combine.  Gradients count where their values were saved.  tdbg's own rule of this
    name judges the weights themselves, and the first forward and backward.

    All parameters may be text, as SageMaker gives them.

    Args:
        base_trial: The run.
        action_str: What to do when it fires: see ``Actions``.
        activation_inputs_regex: Expressions that find the inputs of activations.
        threshold: By how much their variances may differ, as a ratio.
        distribution_range: The least distance of a gradient's percentiles.
        patience: Steps without a new minimum of the loss.
        steps: How many steps are judged, from the first on.

    Raises:
        SMDebugValueError: If a parameter is out of its range.
    """

    def __init__(
        self,
        base_trial: Trial,
        action_str: str | None = "",
        activation_inputs_regex: str | Iterable[str] = ".*relu_input",
        threshold: float | str = 10.0,
        distribution_range: float | str = 0.001,
        patience: int | str = 5,
        steps: int | str = 10,
    ) -> None:
        super().__init__(base_trial, action_str)
        self._regex = items_of(activation_inputs_regex)
        self._threshold, self._range = float(threshold), float(distribution_range)
        self._patience, self._n_left = int(patience), int(steps)
        least = min(self._threshold, self._patience, self._n_left)
        if not (least >= 1 and self._range >= 0.0):
            msg = (
                "threshold, patience and steps must be at least 1 and "
                f"distribution_range 0, not {threshold!r}, {patience!r}, {steps!r} and "
                f"{distribution_range!r}"
            )
            raise SMDebugValueError(msg)
        self._losses: list[float] = []

    def invoke_at_step(self, step: int) -> bool:
        """Whether one of the three holds; False after the first *steps* steps."""
        if self._n_left == 0 or self.base_trial.mode(step) not in TRAINING:
            return False
        self._n_left -= 1
        found = {
            "variances of activation inputs": self._variances_differ(step),
            "narrow gradients": self._gradients_are_narrow(step),
            "loss": self._loss_stays(step),
        }
        bad = [name for name, holds in found.items() if holds]
        if bad:
            self.logger.info("step %d: poor: %s", step, ", ".join(bad))
        return bool(bad)

    def _variances_differ(self, step: int) -> bool:
        tensors = map(self.base_trial.tensor, select(self.base_trial, (), self._regex))
        variances = [
            tensor.reduction_value(step, "variance")
            for tensor in tensors
            if tensor.has_step(step)
        ]
        return bool(variances) and max(variances) > self._threshold * min(variances)

    def _gradients_are_narrow(self, step: int) -> bool:
        for name in select(self.base_trial, (CollectionKeys.GRADIENTS,), ()):
            tensor = self.base_trial.tensor(name)
            if not tensor.has_step(step):
                continue
            try:
                value = tensor.value(step).astype(np.float64)
            except TensorUnavailableForStep:
                continue
            if value.size and np.ptp(np.percentile(value, _PERCENTILES)) < self._range:
                return True
        return False

    def _loss_stays(self, step: int) -> bool:
        names = select(self.base_trial, (CollectionKeys.LOSSES,), ())
        loss = mean_at(self.base_trial, names, step, ModeKeys.GLOBAL)
        if loss is None:
            return False
        self._losses.append(loss)
        return len(self._losses) - 1 - int(np.argmin(self._losses)) >= self._patience
