"""Labels and predictions of a run, by mode and step.

Thread safety: as the subject's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.report.subject import Subject
from tdbg.report.trees.evaluation import PredictionKind, kind_of

__all__ = ["Samples", "samples_of"]

# Steps of a mode that are read, the first and the last among them.
MOST_STEPS = 120
# Objectives whose predictions are neither classes nor the labels themselves.
OTHERS = (
    "rank",
    "lambdarank",
    "survival",
    "xe_ndcg",
    # Those of CatBoost: by pairs, by groups, and of survival.
    "pairlogit",
    "yetirank",
    "query",
    "groupquantile",
    "stochasticrank",
    "lambdamart",
    "cox",
)
OBJECTIVE = "hyperparameters/objective"


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What one mode has.

    Attributes:
        name: What the data are called.
        kind: What is predicted.
        steps: Steps in the count of the mode, ascending.
        labels: Of each step, one number a sample.
        predictions: Of each step.
        n_steps: At how many steps there are some; more than ``steps`` has.
    """

    name: str
    kind: PredictionKind
    steps: list[int]
    labels: list[NDArray[Any]]
    predictions: list[NDArray[Any]]
    n_steps: int

    @property
    def n_classes(self) -> int:
        """How many classes there are; REQUIRES: a classification."""
        if self.kind is PredictionKind.BINARY:
            return 2
        width = self.predictions[-1].shape[1] if self.predictions[-1].ndim == 2 else 0
        return max(width, *(int(each.max()) + 1 for each in self.labels))


def samples_of(subject: Subject) -> list[Samples]:
    """The samples of each mode that has labels and predictions of one kind."""
    labels = sorted(subject.in_collection("labels"))
    predictions = sorted(subject.in_collection("predictions"))
    if len(labels) != 1 or len(predictions) != 1 or _is_other(subject):
        return []
    found = []
    for mode in subject.modes:
        samples = _of_mode(subject, labels[0], predictions[0], mode)
        if samples is not None:
            found.append(samples)
    # Data of two kinds in one run (a multi-task training) are no data of this report.
    return found if len({each.kind for each in found}) == 1 else []


def _is_other(subject: Subject) -> bool:
    return objective(subject).lower().startswith(OTHERS)


def objective(subject: Subject) -> str:
    """Return the objective that the hyperparameters name; empty if none."""
    if not subject.trial.has_tensor(OBJECTIVE):
        return ""
    tensor = subject.trial.tensor(OBJECTIVE)
    steps = tensor.steps(what="values")
    value = subject.read(OBJECTIVE, tensor.value, steps[-1]) if steps else None
    return "" if value is None else str(value)


def _of_mode(
    subject: Subject, label: str, prediction: str, mode: ModeKeys
) -> Samples | None:
    trial = subject.trial
    known = set(trial.tensor(prediction).steps(mode, what="values"))
    steps = [s for s in trial.tensor(label).steps(mode, what="values") if s in known]
    if not steps:
        return None
    at = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS)).round())
    chosen, labels, predictions = [], [], []
    kind: PredictionKind | None = None
    for step in (steps[int(i)] for i in at):
        y = subject.read(label, trial.tensor(label).value, step, mode)
        p = subject.read(prediction, trial.tensor(prediction).value, step, mode)
        if y is None or p is None:
            continue
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        of_step = kind_of(y, p)
        # A batch of zeros and ones alone does not make numbers classes.
        kinds = {kind, of_step} - {None}
        if of_step is None:
            return None
        kind = (
            PredictionKind.REGRESSION if PredictionKind.REGRESSION in kinds else of_step
        )
        chosen.append(step)
        labels.append(y)
        predictions.append(p)
    if kind is None:
        return None
    return Samples(_name(subject, mode), kind, chosen, labels, predictions, len(steps))


def _name(subject: Subject, mode: ModeKeys) -> str:
    """What the data of a mode are called.

    smdebug's hook has those held back, too, in steps of training.
    """
    held_back = any(info.evaluates for info in subject.trial.model_info())
    if mode is ModeKeys.TRAIN and held_back and ModeKeys.EVAL not in subject.modes:
        return "saved data"
    names = {ModeKeys.TRAIN: "training", ModeKeys.EVAL: "validation"}
    return names.get(mode, mode.name.lower())
