"""SageMaker's own rules, by their parameters and their meaning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tdbg.compat.smdebug.analysis.utils import parse_bool, parse_list_from_str
from tdbg.compat.smdebug.core.base import str_to_mode_keys
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.tensor import Tensor
from tdbg.compat.smdebug.exceptions import SMDebugValueError, TensorUnavailableForStep
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.trials.trial import Trial
from tdbg.modes import TRAINING, ModeKeys

__all__ = [
    "LossNotDecreasing",
    "Overfit",
    "Overtraining",
    "PoorWeightInitialization",
    "SimilarAcrossRuns",
]


def _items_of(given: str | Iterable[str] | None) -> list[str]:
    """Return the items of a list, or of text with commas."""
    texts = parse_list_from_str(given) if isinstance(given, str) else list(given or ())
    return [text.strip() for text in texts if text.strip()]


def _select(
    trial: Trial, collections: Iterable[str], expressions: Sequence[str]
) -> list[str]:
    """Return the tensors of these collections, and those that match, sorted."""
    known = trial.collections()
    found: set[str] = set()
    for name in collections:
        if name in known:
            found |= known[name].tensor_names
    if expressions:
        found.update(trial.tensor_names(regex=expressions))
    return sorted(found)


def _mean_at(trial: Trial, names: Iterable[str], step: int) -> float | None:
    """Return the mean of these losses at a global step; None if none was saved."""
    means = [
        tensor.reduction_value(step, "mean", ModeKeys.GLOBAL)
        for tensor in map(trial.tensor, names)
        if tensor.has_step(step, ModeKeys.GLOBAL)
    ]
    return sum(means) / len(means) if means else None


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
        self._collections = _items_of(collection_names)
        if parse_bool(use_losses_collection, True):
            self._collections.append(CollectionKeys.LOSSES)
        self._regex = _items_of(tensor_regex)
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
        """Return whether a loss has not fallen; False at steps without a check."""
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
        return _select(self.base_trial, self._collections, self._regex)

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
        self._regex = _items_of(tensor_regex)
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
        """Return whether the ratio was exceeded for the last *patience* steps."""
        if step < self._start_step or self.base_trial.mode(step) is not ModeKeys.EVAL:
            return False
        collections = () if self._regex else (CollectionKeys.LOSSES,)
        names = _select(self.base_trial, collections, self._regex)
        validation = _mean_at(self.base_trial, names, step)
        training = self._of_training(names, step)
        if validation is None or training is None:
            return False
        if validation - training > self._ratio * abs(training):
            self._n_exceeded += 1
        else:
            self._n_exceeded = 0
        return self._n_exceeded >= self._patience

    def _of_training(self, names: list[str], step: int) -> float | None:
        """Return the mean loss at the newest step of training before *step*."""
        trial = self.base_trial
        for earlier in reversed([each for each in trial.steps() if each < step]):
            if trial.mode(earlier) is ModeKeys.TRAIN:
                found = _mean_at(trial, names, earlier)
                if found is not None:
                    return found
        return None


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
        """Return whether no loss has improved for as long as its patience says."""
        mode = self.base_trial.mode(step)
        if mode not in self._patience:
            return False
        names = _select(self.base_trial, (CollectionKeys.LOSSES,), ())
        loss = _mean_at(self.base_trial, names, step)
        if loss is None:
            return False
        if loss < self._best.get(mode, math.inf) - self._delta:
            self._best[mode], self._waited[mode] = loss, 0
        else:
            self._waited[mode] = self._waited.get(mode, 0) + 1
        return all(n >= self._patience[of] for of, n in self._waited.items())


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
        self._regex = _items_of(activation_inputs_regex)
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
        """Return whether one of the three holds in the first *steps* steps."""
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
        tensors = map(self.base_trial.tensor, _select(self.base_trial, (), self._regex))
        variances = [
            tensor.reduction_value(step, "variance")
            for tensor in tensors
            if tensor.has_step(step)
        ]
        return bool(variances) and max(variances) > self._threshold * min(variances)

    def _gradients_are_narrow(self, step: int) -> bool:
        for name in _select(self.base_trial, (CollectionKeys.GRADIENTS,), ()):
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
        names = _select(self.base_trial, (CollectionKeys.LOSSES,), ())
        loss = _mean_at(self.base_trial, names, step)
        if loss is None:
            return False
        self._losses.append(loss)
        return len(self._losses) - 1 - int(np.argmin(self._losses)) >= self._patience


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
        self._collections = _items_of(collection_names)
        self._regex = _items_of(tensor_regex)

    def invoke_at_step(self, step: int) -> bool:
        """Return whether a tensor differs from that of another run."""
        base = self.base_trial
        if self._collections or self._regex:
            names = _select(base, self._collections, self._regex)
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
