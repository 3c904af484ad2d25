"""TreeSettings: settings that keep boosted trees from learning, or from stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.needs import Needs
from tdbg.config.quantities import number
from tdbg.modes import TRAINING
from tdbg.rules.builtin.trees.tree_depth import NODE
from tdbg.rules.columns import model_info_of_steps
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.training_facts import NO_TREES, TrainingFacts
from tdbg.rules.window import OK, Description, Evaluation, TensorInfo, Window
from tdbg.run.findings import Severity, Stage
from tdbg.run.tree_facts import TreeFacts

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["TreeSettings"]

# A smoke test has fewer rounds, which go nowhere with any usual rate.
ROUNDS = 20
# A penalty that leaves less of the leaves than this is what slows the training.
HALF = 0.5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings(Rule):
    """Report settings of boosted trees that cannot work.

    The rule finds

    - early stopping that goes by the training data;
    - a first prediction from which the objective cannot start, or that is far from
      all labels;
    - a learning rate and a penalty with which all rounds together hardly move the
      predictions.

    Args:
        way: Percentage of the way to the labels that all rounds together must be able
            to go.
        far: Standard deviations of the labels beyond which a first prediction outside
            of their range is a warning.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP

    way: float = 10.0
    far: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "way", least=0.0, most=100.0)
        check_number(self, "far", least=0.0)

    @property
    def needs(self) -> Needs:
        """Losses, which have a row at each round."""
        return Needs(collections=frozenset({"losses"}))

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there are no trees, if so."""
        return "" if training.has_trees else NO_TREES

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses, and trees where there is none."""
        return tensor.role == "loss" or tensor.name == NODE

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the settings at each round."""
        for table in window.tables(*TRAINING):
            for info, steps in model_info_of_steps(window, table):
                new = table.steps[max(steps.start, table.start) : steps.stop]
                if info is None or info.trees is None or not len(new):
                    continue
                facts = info.trees
                for name, level, describe in (
                    ("early_stopping", _level_of_stopping(facts), _of_stopping),
                    ("first_prediction", self._level_of_first(facts), _of_first),
                    ("rounds", self._level_of_rounds(facts), self._of_rounds),
                ):
                    levels = np.full(len(new), level, dtype=np.int8)
                    said = partial(_said, describe, facts)
                    yield Evaluation.of_one(name, new, table.mode, levels, said)

    def _level_of_first(self, facts: TreeFacts) -> int:
        if not facts.is_possible or facts.distance > self.far:
            return Severity.WARNING
        return Severity.INFO if facts.distance else OK

    def _level_of_rounds(self, facts: TreeFacts) -> int:
        falls_short = facts.n_rounds >= ROUNDS and 100 * facts.way < self.way
        return Severity.WARNING if falls_short else OK

    def _of_rounds(self, facts: TreeFacts) -> Description:
        rate, penalty = facts.learning_rate, facts.penalty
        is_penalty = facts.kept < HALF
        kept = ""
        if is_penalty:
            kept = (
                f" of what the penalty ({number(penalty)}) leaves of a leaf, "
                f"{_share(facts.kept)} or less"
            )
        return Description(
            message=(
                "The rounds hardly move the predictions: each takes "
                f"{_share(rate)} of a full step (the learning rate){kept}. So all "
                f"{facts.n_rounds:,} rounds together go at most {_share(facts.way)} of "
                "the way from the first prediction to the labels."
            ),
            value=100 * facts.way,
            threshold=self.way,
            advice=lambda words: (
                f"Lower {words.leaf_penalty}: it is added to the number of samples in "
                "a leaf, so it should be far below that."
                if is_penalty
                else "Raise learning_rate to 0.1, or use more rounds: learning_rate "
                "times the number of rounds should be well above 1."
            ),
        )


def _said(
    describe: Callable[[TreeFacts], Description], facts: TreeFacts, _: int
) -> Description:
    return describe(facts)


def _level_of_stopping(facts: TreeFacts) -> int:
    return Severity.WARNING if facts.stops_by_training else OK


def _of_stopping(facts: TreeFacts) -> Description:
    return Description(
        message=(
            f"Early stopping goes by the data set {facts.stops_by_training!r}, which "
            "is the training data. Their score gets better as long as the trees split, "
            "so the training does not stop where the model begins to overfit, and the "
            "best round means nothing."
        ),
        value=1.0,
        threshold=0.0,
        advice=lambda words: (
            "Hold data back (sklearn.model_selection.train_test_split), and "
            f"{words.validating}."
        ),
    )


def _of_first(facts: TreeFacts) -> Description:
    given = facts.first_prediction or 0.0
    if not facts.is_possible:
        return Description(
            message=(
                f"The first prediction is {number(given)}, from which this objective "
                "cannot start: it takes the logarithm, so no tree can be fitted."
            ),
            value=given,
            threshold=0.0,
            advice=_start_near,
        )
    low, mean, high, _ = facts.labels
    return Description(
        message=(
            f"The first prediction is {number(given)}, but all labels lie between "
            f"{number(low)} and {number(high)} (mean {number(mean)}). The first trees "
            "only correct this, and splits are lost on it."
        ),
        value=facts.distance,
        threshold=0.0,
        advice=_start_near,
    )


def _start_near(words: Vocabulary) -> str:
    return words.starting_near


def _share(of_all: float) -> str:
    return f"{number(100 * of_all, 2)}%"
