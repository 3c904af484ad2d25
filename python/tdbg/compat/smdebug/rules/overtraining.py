"""SageMaker's Overtraining, by its parameters and their meaning."""

from __future__ import annotations

import math

from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.rules.selection import mean_at, select
from tdbg.compat.smdebug.trials.trial import Trial
from tdbg.modes import ModeKeys

__all__ = ["Overtraining"]


class Overtraining(Rule):
    """Finds that the losses of training and of validation do not improve any more.

    A loss is a new optimum when it is below the last one by more than *delta*, in
    units of the loss.  SageMaker does not document how the two patiences combine: here
    the rule fires when all losses that were saved, of training, validation or both, had
    no new optimum for their steps.  tdbg's own rule of this name looks at validation,
    in passes and in shares of the loss.

    All parameters may be text, as SageMaker gives them.

    Args:
        base_trial: The run.
        action_str: What to do when it fires: see ``Actions``.
        patience_train: Steps of training without a new optimum.
        patience_validation: Steps of evaluation without one.
        delta: By how much a loss must be below the last optimum to be a new one.

    Raises:
        SMDebugValueError: If a parameter is out of its range.
    """

    def __init__(
        self,
        base_trial: Trial,
        action_str: str | None = "",
        patience_train: int | str = 5,
        patience_validation: int | str = 10,
        delta: float | str = 0.1,
    ) -> None:
        super().__init__(base_trial, action_str)
        patiences = int(patience_train), int(patience_validation)
        self._delta = float(delta)
        if min(patiences) < 1 or not self._delta >= 0.0:
            msg = (
                "patience_train and patience_validation must be at least 1 and delta "
                f"0, not {patience_train!r}, {patience_validation!r} and {delta!r}"
            )
            raise SMDebugValueError(msg)
        self._patience = dict(
            zip((ModeKeys.TRAIN, ModeKeys.EVAL), patiences, strict=True)
        )
        self._best: dict[ModeKeys, float] = {}
        self._waited: dict[ModeKeys, int] = {}

    def invoke_at_step(self, step: int) -> bool:
        """Whether no loss has improved for as long as its patience says."""
        mode = self.base_trial.mode(step)
        if mode not in self._patience:
            return False
        names = select(self.base_trial, (CollectionKeys.LOSSES,), ())
        loss = mean_at(self.base_trial, names, step, ModeKeys.GLOBAL)
        if loss is None:
            return False
        if loss < self._best.get(mode, math.inf) - self._delta:
            self._best[mode], self._waited[mode] = loss, 0
        else:
            self._waited[mode] = self._waited.get(mode, 0) + 1
        return all(n >= self._patience[of] for of, n in self._waited.items())
