"""SageMaker's LossNotDecreasing, by its parameters and their meaning."""

from __future__ import annotations

from collections.abc import Iterable

from tdbg.compat.smdebug.analysis.utils import parse_bool
from tdbg.compat.smdebug.core.base import str_to_mode_keys
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.rules.selection import items_of, select
from tdbg.compat.smdebug.trials.trial import Trial
from tdbg.modes import ModeKeys

__all__ = ["LossNotDecreasing"]

# Which mode is judged if none is given: the first that has steps.
_BY_DEFAULT = (ModeKeys.EVAL, ModeKeys.TRAIN)


class LossNotDecreasing(Rule):
    """Compares a loss with that of a step some steps before, every so many steps.

    At a check the loss is compared with that at the newest step which is at least
    ``num_steps`` back.  The next check is at the first step with a loss that is at
    least ``num_steps`` later.  tdbg's own rule of this name judges trends, beyond the
    noise of batches.

    All parameters may be text, as SageMaker gives them.

    Args:
        base_trial: The run.
        action_str: What to do when it fires: see ``Actions``.
        collection_names: Names of collections whose tensors are judged.
        tensor_regex: Expressions that find further ones.
        use_losses_collection: Whether to judge those of the collection ``losses``.
        num_steps: Steps from one check to the next, in the count of the mode.
        diff_percent: By how much the loss must have fallen; 0: at all.
        mode: The mode whose steps are judged; None: evaluation if there is any, or else
            training, or else all steps.

    Raises:
        SMDebugValueError: If a parameter is out of its range.
    """

    def __init__(
        self,
        base_trial: Trial,
        action_str: str | None = "",
        collection_names: str | Iterable[str] | None = None,
        tensor_regex: str | Iterable[str] | None = None,
        use_losses_collection: bool | str = True,
        num_steps: int | str = 10,
        diff_percent: float | str = 0.0,
        mode: ModeKeys | str | None = None,
    ) -> None:
        super().__init__(base_trial, action_str)
        self._collections = items_of(collection_names)
        if parse_bool(use_losses_collection, True):
            self._collections.append(CollectionKeys.LOSSES)
        self._regex = items_of(tensor_regex)
        self._num_steps, self._diff_percent = int(num_steps), float(diff_percent)
        if self._num_steps < 1 or not 0.0 <= self._diff_percent <= 100.0:
            msg = (
                f"num_steps must be at least 1 and diff_percent from 0 to 100, not "
                f"{num_steps!r} and {diff_percent!r}"
            )
            raise SMDebugValueError(msg)
        self._mode = str_to_mode_keys(mode) if isinstance(mode, str) else mode
        self._checked: tuple[ModeKeys, int] | None = None

    def invoke_at_step(self, step: int) -> bool:
        """Whether a loss has not fallen; False at steps without a check."""
        mode = self._mode_now()
        if mode is ModeKeys.GLOBAL:
            now = step
        else:
            of_step, mode_step = self.base_trial.mode_modestep(step)
            if of_step is not mode or mode_step is None:
                return False
            now = mode_step
        if self._checked is None or self._checked[0] is not mode:
            first = min(self.base_trial.steps(mode), default=now)
            self._checked = (mode, first)
        if now < self._checked[1] + self._num_steps:
            return False
        saved = [name for name in self._names() if self._has(name, now, mode)]
        if not saved:
            return False
        self._checked = (mode, now)
        flat = [name for name in saved if self._is_flat(name, now, mode)]
        if flat:
            self.logger.info("step %d: not decreasing: %s", step, ", ".join(flat))
        return bool(flat)

    def _mode_now(self) -> ModeKeys:
        if self._mode is not None:
            return self._mode
        modes = self.base_trial.modes()
        return next((mode for mode in _BY_DEFAULT if mode in modes), ModeKeys.GLOBAL)

    def _names(self) -> list[str]:
        return select(self.base_trial, self._collections, self._regex)

    def _has(self, name: str, step: int, mode: ModeKeys) -> bool:
        return self.base_trial.tensor(name).has_step(step, mode)

    def _is_flat(self, name: str, now: int, mode: ModeKeys) -> bool:
        tensor = self.base_trial.tensor(name)
        earlier = tensor.prev_steps(now - self._num_steps, 1, mode)
        if not earlier:
            return False
        before = tensor.reduction_value(earlier[0], "mean", mode)
        after = tensor.reduction_value(now, "mean", mode)
        requested = self._diff_percent / 100.0 * abs(before)
        return not (after < before and before - after >= requested)
