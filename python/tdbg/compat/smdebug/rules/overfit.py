"""SageMaker's Overfit, by its parameters and their meaning."""

from __future__ import annotations

from collections.abc import Iterable

from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.rules.selection import items_of, mean_at, select
from tdbg.compat.smdebug.trials.trial import Trial
from tdbg.modes import ModeKeys

__all__ = ["Overfit"]


class Overfit(Rule):
    """Compares the mean loss of validation with that of training.

    At each step of evaluation at which losses were saved, their mean is compared with
    that at the newest step of training before.  tdbg's own rule of this name compares
    passes of evaluation, and tells a gap from a harm.

    All parameters may be text, as SageMaker gives them.

    Args:
        base_trial: The run.
        action_str: What to do when it fires: see ``Actions``.
        tensor_regex: Expressions that find the losses; None: the collection ``losses``.
        start_step: The first global step that is judged.
        patience: Steps of evaluation in a row at which the ratio must be exceeded.
        ratio_threshold: By how much the loss of validation may be above that of
            training, divided by the latter.

    Raises:
        SMDebugValueError: If a parameter is out of its range.
    """

    def __init__(
        self,
        base_trial: Trial,
        action_str: str | None = "",
        tensor_regex: str | Iterable[str] | None = None,
        start_step: int | str = 0,
        patience: int | str = 1,
        ratio_threshold: float | str = 0.1,
    ) -> None:
        super().__init__(base_trial, action_str)
        self._regex = items_of(tensor_regex)
        self._start_step, self._patience = int(start_step), int(patience)
        self._ratio = float(ratio_threshold)
        if self._start_step < 0 or self._patience < 1 or not self._ratio >= 0.0:
            msg = (
                "start_step and ratio_threshold must be at least 0 and patience 1, not "
                f"{start_step!r}, {ratio_threshold!r} and {patience!r}"
            )
            raise SMDebugValueError(msg)
        self._n_exceeded = 0

    def invoke_at_step(self, step: int) -> bool:
        """Whether the ratio was exceeded for the last *patience* steps."""
        if step < self._start_step or self.base_trial.mode(step) is not ModeKeys.EVAL:
            return False
        collections = () if self._regex else (CollectionKeys.LOSSES,)
        names = select(self.base_trial, collections, self._regex)
        validation = mean_at(self.base_trial, names, step, ModeKeys.GLOBAL)
        training = self._of_training(names, step)
        if validation is None or training is None:
            return False
        if validation - training > self._ratio * abs(training):
            self._n_exceeded += 1
        else:
            self._n_exceeded = 0
        return self._n_exceeded >= self._patience

    def _of_training(self, names: list[str], step: int) -> float | None:
        """The mean loss at the newest step of training before *step*."""
        trial = self.base_trial
        for earlier in reversed([each for each in trial.steps() if each < step]):
            if trial.mode(earlier) is ModeKeys.TRAIN:
                found = mean_at(trial, names, earlier, ModeKeys.GLOBAL)
                if found is not None:
                    return found
        return None
