"""ObservedRule: base class of rules that say what an observation of a hook means."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs
from tdbg.modes import TRAIN, TRAINING, ModeKeys
from tdbg.rules.rule import Rule
from tdbg.rules.table import nothing_to_describe
from tdbg.rules.training_facts import NO_LAYERS, TrainingFacts
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Idle,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity
from tdbg.run.observations import Fault, Observation

__all__ = ["ObservedRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRule(Rule):
    """Base class of rules about what a hook saw once.

    A finding begins at the step as of which the hook knew it, and lasts.  There is one
    for each first name of the observations; the most severe of them describes it.

    Attributes:
        faults: What the rule is about.
        hooks: The frameworks whose hooks look for any of these.
    """

    faults: ClassVar[frozenset[Fault]]
    hooks: ClassVar[frozenset[str]] = frozenset({"PyTorch"})

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Losses, or learning rates without a loss, which have a row at each step."""
        losses = Needs(collections=frozenset({"losses"}))
        return losses, Needs(collections=frozenset({"scalars"}))

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that trees have no such state, if so."""
        return NO_LAYERS if training.has_trees else ""

    def unobserved(self, training: TrainingFacts) -> str:
        """Return that the framework's hook does not look for this, if so."""
        return self.inapplicable(training) or training.not_observed_by(self.hooks)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and learning rates."""
        return tensor.role in {"loss", "scalar"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Report the observations at each step that has them behind it."""
        by_name = _by_name(window.observations(self.faults))
        for table in window.tables(*TRAINING):
            for name, observations in by_name.items():
                new = table.steps[table.start :]
                yield self._evaluation(name, observations, new, table.mode)
            info = window.model_info_at(int(table.steps[-1]))
            if not by_name and info is not None:
                yield _sound(table, next(iter(info.modules), "model"))

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Report what became known when no step followed."""
        last = idle.last_step
        known = [
            replace(each, step=min(each.step, last))
            for each in idle.observations
            if each.fault in self.faults
        ]
        for name, observations in _by_name(known).items():
            yield self._evaluation(name, observations, np.array([last]), TRAIN)

    def severity_of(self, observation: Observation) -> Severity:  # noqa: ARG002
        """Return the severity of an observation; by default, the rule's only one."""
        (severity,) = self.severities
        return severity

    @abstractmethod
    def describe(self, observation: Observation) -> Description:
        """Say what an observation means and what to do about it."""

    def _evaluation(
        self,
        name: str,
        observations: Sequence[Observation],
        steps: NDArray[np.int64],
        mode: ModeKeys,
    ) -> Evaluation:
        severities = np.full(len(steps), UNKNOWN, dtype=np.int8)
        for each in observations:
            level = np.where(steps >= each.step, int(self.severity_of(each)), UNKNOWN)
            severities = np.maximum(severities, level)

        def describe(j: int) -> Description:
            known = [each for each in observations if each.step <= steps[j]]
            worst = max(known, key=self.severity_of)
            described = self.describe(worst)
            since = worst.step if described.since is None else described.since
            return replace(described, since=since)

        return Evaluation.of_one(name, steps, mode, severities, describe)


def _by_name(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    found: dict[str, list[Observation]] = {}
    for each in observations:
        found.setdefault(next(iter(each.names), "model"), []).append(each)
    return found


def _sound(table: Table, name: str) -> Evaluation:
    """Judge that nothing is wrong at the new steps that have a row."""
    known = table.known[:, table.start :].any(axis=0)
    severities = np.where(known, OK, UNKNOWN).astype(np.int8)
    return table.judge_one(name, severities, nothing_to_describe)
