"""ModelStateRule: base class of rules about a state that hooks observe."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tdbg.config.needs import Needs
from tdbg.modes import TRAINING, ModeKeys
from tdbg.rules.columns import model_info_of_steps
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.training_facts import NO_LAYERS, TrainingFacts
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo

__all__ = ["ModelStateRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStateRule(Rule):
    """Base class of rules that report a state of the model for as long as it lasts.

    Args:
        num_steps: Steps for which the state must have lasted.

    Attributes:
        modes: Modes of the steps that show the state.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    modes: ClassVar[frozenset[ModeKeys]] = TRAINING

    num_steps: int = 1

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=1, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Losses, or learning rates without a loss, which have a row at each step."""
        losses = Needs(collections=frozenset({"losses"}))
        return losses, Needs(collections=frozenset({"scalars"}))

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that trees have no such state, if so."""
        return NO_LAYERS if training.has_trees else ""

    def unobserved(self, training: TrainingFacts) -> str:
        """Return that only the hook for PyTorch sees such states, if so."""
        return self.inapplicable(training) or training.not_observed_by({"PyTorch"})

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and learning rates."""
        return tensor.role in {"loss", "scalar"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge steps by the model info as of each step."""
        for table in window.tables(*self.modes):
            for model_info, steps in model_info_of_steps(window, table):
                start = max(steps.start, table.start)
                if model_info is not None and model_info.modules and start < steps.stop:
                    new = slice(start, steps.stop)
                    since = self._since(window, model_info)
                    yield self._judge(window, table, model_info, new, since)

    def _judge(
        self,
        window: Window,
        table: Table,
        model_info: ModelInfo,
        new: slice,
        since: int | None,
    ) -> Evaluation:
        steps = table.steps[new]
        known = table.known[:, new].any(axis=0)
        severities = np.where(known, OK, UNKNOWN).astype(np.int8)
        if since is not None:
            severity = self.severity_of(model_info)
            lasting = steps - since + 1 >= self.num_steps
            severities = np.where(known & lasting, int(severity), UNKNOWN)
        # The finding concerns the model, so report it at the first output.
        return Evaluation.of_one(
            f"{next(iter(model_info.modules))}_output_0",
            steps,
            table.mode,
            severities,
            lambda _: replace(
                self.describe(model_info, window.training_step(since or 0)),
                since=since,
            ),
        )

    def _since(self, window: Window, model_info: ModelInfo) -> int | None:
        """Return the step since which the model is in the state, or None."""
        if not self.holds(model_info):
            return None
        since = model_info.step
        while (before := window.model_info_at(since - 1)) is not None:
            if not self.holds(before):
                break
            since = before.step
        return since

    @abstractmethod
    def holds(self, model_info: ModelInfo) -> bool:
        """Return whether the model is in the state."""

    def severity_of(self, model_info: ModelInfo) -> Severity:  # noqa: ARG002
        """Return the severity of the state; by default, the rule's only one."""
        (severity,) = self.severities
        return severity

    @abstractmethod
    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Describe the state, which the model entered at training step *since*."""
