"""``smdebug.rules.req_tensors``: what a rule looks at in a step."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, ValuesView

from tdbg.compat.smdebug.core.tensor import Tensor
from tdbg.compat.smdebug.exceptions import TensorUnavailable, TensorUnavailableForStep
from tdbg.compat.smdebug.trials.trial import Trial

__all__ = ["RequiredTensors", "RequiredTensorsForTrial"]


class RequiredTensorsForTrial:
    """Tensors of one trial, with the steps at which they are needed."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self._steps: dict[str, list[int]] = {}
        self._tensors: dict[str, Tensor] = {}

    def add(
        self, name: str, steps: Iterable[int], should_match_regex: bool = False
    ) -> None:
        """Need a tensor, or all whose names an expression finds.

        Raises:
            TensorUnavailable: If there is no tensor of that name.
        """
        if should_match_regex:
            names = self.trial.tensor_names(regex=name)
        elif self.trial.has_tensor(name):
            names = [name]
        else:
            raise TensorUnavailable(name)
        wanted = list(steps)
        for each in names:
            self._steps.setdefault(each, []).extend(wanted)
            self._tensors.setdefault(each, self.trial.tensor(each))

    def get_tensor_steps(self, name: str) -> list[int]:
        """Steps at which a tensor is needed."""
        return self._steps[name]

    def get_names(self) -> KeysView[str]:
        """Names of what is needed."""
        return self._steps.keys()

    def get(self) -> ValuesView[Tensor]:
        """What is needed."""
        return self._tensors.values()

    def clear(self) -> None:
        """Need nothing."""
        self._steps.clear()
        self._tensors.clear()

    def fetch(self) -> None:
        """Wait for what is needed.

        Raises:
            TensorUnavailableForStep: If a tensor was not saved at a step.
            StepUnavailable: If nothing was.
            NoMoreData: If the training ended before a step.
        """
        needed = {step for steps in self._steps.values() for step in steps}
        self.trial.wait_for_steps(sorted(needed))
        for name, steps in self._steps.items():
            for step in steps:
                if not self._tensors[name].has_step(step):
                    raise TensorUnavailableForStep(name, step)


class RequiredTensors:
    """What a rule needs of its trials."""

    def __init__(self, base_trial: Trial, other_trials: Iterable[Trial] | None) -> None:
        self.base_trial = base_trial
        every = [base_trial, *(other_trials or ())]
        self._per_trial = {trial: RequiredTensorsForTrial(trial) for trial in every}

    def add(
        self,
        name: str,
        steps: Iterable[int],
        trial: Trial | None = None,
        should_match_regex: bool = False,
    ) -> None:
        """Need a tensor, or all whose names an expression finds; of *trial*.

        Raises:
            TensorUnavailable: If there is no tensor of that name.
        """
        self._of(trial).add(name, steps, should_match_regex)

    def get_tensor_steps(self, name: str, trial: Trial | None = None) -> list[int]:
        """Steps at which a tensor is needed."""
        return self._of(trial).get_tensor_steps(name)

    def get_names(self, trial: Trial | None = None) -> KeysView[str]:
        """Names of what is needed."""
        return self._of(trial).get_names()

    def get(self, trial: Trial | None = None) -> ValuesView[Tensor]:
        """What is needed."""
        return self._of(trial).get()

    def clear(self) -> None:
        """Need nothing."""
        for each in self._per_trial.values():
            each.clear()

    def fetch(self) -> None:
        """Wait for what is needed, of all trials."""
        for each in self._per_trial.values():
            each.fetch()

    def _of(self, trial: Trial | None) -> RequiredTensorsForTrial:
        return self._per_trial[self.base_trial if trial is None else trial]
