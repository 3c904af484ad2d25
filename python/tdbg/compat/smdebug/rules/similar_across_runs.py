"""SageMaker's SimilarAcrossRuns, by its parameters and their meaning."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tdbg.compat.smdebug.core.tensor import Tensor
from tdbg.compat.smdebug.exceptions import SMDebugValueError, TensorUnavailableForStep
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.rules.selection import items_of, select
from tdbg.compat.smdebug.trials.trial import Trial

__all__ = ["SimilarAcrossRuns"]


class SimilarAcrossRuns(Rule):
    """Finds tensors that differ from those of other runs at the same global step.

    Values are compared as ``numpy.allclose`` does, reductions where values were not
    saved.  Tensors and steps that another run lacks are not compared.  tdbg's own rule
    of this name compares rows of statistics, with tolerances that can be set.

    All parameters may be text, as SageMaker gives them.

    Args:
        base_trial: The run.
        action_str: What to do when it fires: see ``Actions``.
        other_trials: The runs to compare with; one at least.
        collection_names: Names of collections whose tensors are compared.
        tensor_regex: Expressions that find further ones; without either all tensors.

    Raises:
        SMDebugValueError: If there is no other run.
    """

    def __init__(
        self,
        base_trial: Trial,
        action_str: str | None = "",
        other_trials: Iterable[Trial] | None = None,
        collection_names: str | Iterable[str] | None = None,
        tensor_regex: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(base_trial, action_str, other_trials)
        if not self.other_trials:
            msg = "other_trials is empty: give the runs to compare with"
            raise SMDebugValueError(msg)
        self._collections = items_of(collection_names)
        self._regex = items_of(tensor_regex)

    def invoke_at_step(self, step: int) -> bool:
        """Whether a tensor differs from that of another run."""
        base = self.base_trial
        if self._collections or self._regex:
            names = select(base, self._collections, self._regex)
        else:
            names = base.tensor_names(step=step)
        for other in self.other_trials or ():
            for name in names:
                if not (base.has_tensor(name) and other.has_tensor(name)):
                    continue
                ours, theirs = base.tensor(name), other.tensor(name)
                both = ours.has_step(step) and theirs.has_step(step)
                if both and _differ(ours, theirs, step):
                    self.logger.info("step %d: %s differs", step, name)
                    return True
        return False


def _differ(ours: Tensor, theirs: Tensor, step: int) -> bool:
    if ours.shape(step) != theirs.shape(step):
        return True
    try:
        a, b = ours.value(step), theirs.value(step)
    except TensorUnavailableForStep:
        found, other = ours.reduction_values(step), theirs.reduction_values(step)
        keys = sorted(found.keys() & other.keys())
        a, b = (np.array([each[key] for key in keys]) for each in (found, other))
    return not np.allclose(a.astype(np.float64), b.astype(np.float64), equal_nan=True)
