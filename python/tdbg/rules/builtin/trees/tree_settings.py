"""TreeSettings: settings that keep boosted trees from learning, or from stopping."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
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
from tdbg.run.tree_facts import TreeFact, TreeFacts, TreeFault

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["TreeSettings"]

# A smoke test has fewer rounds, which go nowhere with any usual rate.
ROUNDS = 20
_MAY_BE_MEANT = {TreeFault.STOPS_BY_NOTHING, TreeFault.STOPS_BY_TEST}
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
      predictions;
    - early stopping that waits for the wrong direction, goes by the test data, or has
      no data to go by;
    - classes without weight, or whose weights are made even twice or upside down;
    - a feature that is the label;
    - rows of validation that are trained on, and classes of it that are not;
    - an objective of your own that no tree can follow, or that leads away;
    - a metric of probabilities that gets sums of trees;
    - settings that the library does not know, that do nothing, or that are arguments
      of its function;
    - a ranking of all samples as one query;
    - features and labels of validation that lie beyond those of training.

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
                for fact in facts.faults:
                    # A last training on all data may keep the parameters of others.
                    is_meant = fact.fault in _MAY_BE_MEANT or (
                        fact.fault == TreeFault.ONE_QUERY and bool(fact.words)
                    )
                    level = Severity.INFO if is_meant else Severity.WARNING
                    levels = np.full(len(new), level, dtype=np.int8)
                    said = partial(_fact_said, fact)
                    name = str(fact.fault)
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


def _fact_said(fact: TreeFact, _: int) -> Description:
    # The settings are those of the first round, whenever they have shown.
    return dataclasses.replace(_DESCRIBED[fact.fault](fact), since=0)


def _wrong_way(fact: TreeFact) -> Description:
    first, latest, n_rounds, rises = fact.numbers
    waits, does = ("fall", "rises") if rises else ("rise", "falls")
    return Description(
        message=(
            f"Early stopping waits for {fact.name} to {waits}, but this metric {does} "
            f"as the model gets better: from {number(first)} to {number(latest)} in "
            f"the first {n_rounds:.0f} rounds. So the training takes its first rounds "
            "for the best ones, and stops."
        ),
        value=latest,
        threshold=first,
        advice=f"Turn the direction around: {fact.words[0]}.",
    )


def _by_nothing(fact: TreeFact) -> Description:
    return Description(
        message=(
            f"Early stopping has no data to go by: {fact.name} is set, but the "
            "training gets no validation data, so it runs all rounds."
        ),
        value=0.0,
        threshold=1.0,
        advice=lambda words: (
            "Hold data back (sklearn.model_selection.train_test_split), and "
            f"{words.validating}. If you mean to train all rounds, remove {fact.name}."
        ),
    )


def _without_weight(fact: TreeFact) -> Description:
    n_samples, n_classes = fact.numbers
    others = f", and {n_classes - 1:.0f} more like it" if n_classes > 1 else ""
    return Description(
        message=(
            f"Class {fact.name} has no weight: the weights of all its "
            f"{n_samples:,.0f} samples are 0{others}. So the training leaves them out, "
            "and the model never predicts this class."
        ),
        value=0.0,
        threshold=0.0,
        advice=(
            "Check how you compute the weights: a weight of 0 removes a sample. If you "
            "mean to remove the class, remove its samples and number the classes anew."
        ),
    )


def _balanced_twice(fact: TreeFact) -> Description:
    factor, ratio = fact.numbers
    return Description(
        message=(
            "The classes are balanced twice: the weights of the samples already give "
            f"both classes the same total, and {fact.name} multiplies the rare class "
            f"by {number(factor)} once more. One class has {number(ratio)} times as "
            "many samples as the other."
        ),
        value=factor,
        threshold=1.0,
        advice=(
            f"Use one of them: remove {fact.name}, or the weights of the samples. With "
            "both, the model predicts the rare class far too often."
        ),
    )


def _weights_reversed(fact: TreeFact) -> Description:
    often, n_often, _, rare, n_rare, weight = fact.numbers
    setting = f" ({fact.name})" if fact.name else ""
    return Description(
        message=(
            f"The weights of the classes{setting} are upside down: class {often:g}, "
            f"with {n_often:,.0f} samples, weighs 1, and class {rare:g}, with "
            f"{n_rare:,.0f}, weighs {number(weight)}. So the rare class counts even "
            "less than without weights."
        ),
        value=weight,
        threshold=1.0,
        advice=(
            "Turn the ratio around: scale_pos_weight is the number of samples of class "
            "0 divided by that of class 1, and a sample's weight is the number of all "
            "samples divided by that of its class."
        ),
    )


def _label_among(fact: TreeFact) -> Description:
    n_samples, n_values, is_same = fact.numbers
    how = "has the value of the label" if is_same else "follows from the label alone"
    if n_values > 2 and not is_same:
        how = "is the label times a factor, plus a constant,"
    return Description(
        message=(
            f"The label is among the features: {fact.name} {how} in all "
            f"{n_samples:,.0f} training samples. The trees only copy it, and where you "
            "predict, nobody knows it."
        ),
        value=n_samples,
        threshold=0.0,
        advice=(
            f"Remove {fact.name}: drop the column of the label, and columns that are "
            "computed of it, before you make the features."
        ),
    )


def _rows_overlap(fact: TreeFact) -> Description:
    n_trained, n_rows = fact.numbers
    share = n_trained / n_rows
    return Description(
        message=(
            f"Data leakage: {n_trained:,.0f} of the {n_rows:,.0f} different rows of "
            f"the validation data {fact.name!r} ({_share(share)}) are training rows, "
            "too. Their score promises more than new data will show."
        ),
        value=100 * share,
        threshold=0.0,
        advice=(
            "Split first, and only then oversample or augment. Remove duplicates "
            "before you split, and keep all rows of a person or thing on one side."
        ),
    )


def _not_trained(fact: TreeFact) -> Description:
    n_unknown, n_rows, n_classes = fact.numbers
    others = f", and of {n_classes - 1:.0f} more classes" if n_classes > 1 else ""
    return Description(
        message=(
            f"{n_unknown:,.0f} of the {n_rows:,.0f} samples of the validation data "
            f"{fact.words[0]!r} belong to classes that the training data lack: they "
            f"have no sample of class {fact.name}{others}. The model cannot predict "
            "these classes."
        ),
        value=n_unknown,
        threshold=0.0,
        advice=(
            "Shuffle before you split, or split by classes: train_test_split(x, y, "
            "stratify=y). Rows that are sorted by class end up on one side."
        ),
    )


def _not_positive(fact: TreeFact) -> Description:
    low, high = fact.numbers
    return Description(
        message=(
            "Your objective returns a hessian that is above 0 for no sample (it lies "
            f"between {number(low)} and {number(high)}). Boosting divides by it, so no "
            "split gains anything and the trees learn nothing."
        ),
        value=high,
        threshold=0.0,
        advice=(
            "Return the second derivative by the prediction, with its sign: "
            "p * (1 - p) for a logistic loss, 1 for half a squared error. Where it is "
            "0, as of an absolute error, return ones."
        ),
    )


def _reversed(fact: TreeFact) -> Description:
    of_one, of_zero = fact.numbers
    return Description(
        message=(
            "Your objective leads away from the labels: its gradient is above 0 for "
            f"every sample of class 1 (mean {number(of_one)}) and below 0 for every "
            f"sample of class 0 (mean {number(of_zero)}). Trees go against the "
            "gradient, so predictions fall for class 1 and rise for class 0."
        ),
        value=of_one,
        threshold=0.0,
        advice=(
            "Turn the sign around: the gradient is the derivative of the loss by the "
            "prediction, so prediction - label for a logistic loss and half a squared "
            "error."
        ),
    )


def _of_margins(fact: TreeFact) -> Description:
    low, high, share = fact.numbers
    return Description(
        message=(
            f"The metric {fact.name} needs probabilities, but gets sums of trees "
            f"between {number(low)} and {number(high)}: with an objective of your own, "
            "nobody applies a sigmoid or softmax before a built-in metric. Its values "
            "mean nothing."
        ),
        value=100 * share,
        threshold=0.0,
        advice=(
            "Pass a metric of your own that applies the sigmoid or softmax first "
            "(custom_metric in XGBoost, feval in LightGBM). Early stopping by this "
            "metric chooses a wrong round."
        ),
    )


def _unknown(fact: TreeFact) -> Description:
    near = fact.words[0] if fact.words else "?"
    return Description(
        message=(
            f"{fact.name} is no setting of this library, which passes over it: the "
            f"training uses the default of {near}."
        ),
        value=1.0,
        threshold=0.0,
        advice=f"Write {near}. If {fact.name} is meant for somebody else, ignore this.",
    )


def _ignored(fact: TreeFact) -> Description:
    share = fact.numbers[0]
    name, alias = fact.words
    return Description(
        message=(
            f"{fact.name}={number(share)} does nothing, because {name} is 0. LightGBM "
            "draws a part of the samples only if you say how often. Each tree is "
            "fitted to all samples."
        ),
        value=share,
        threshold=1.0,
        advice=(
            f"Set {name}=1 ({alias}=1 in LGBMClassifier and LGBMRegressor) to draw "
            f"for each tree, or remove {fact.name}."
        ),
    )


def _is_argument(fact: TreeFact) -> Description:
    meant, *used = fact.numbers
    (argument,) = fact.words
    instead = (
        f"the training has {number(used[0])} rounds"
        if argument == "num_boost_round" and used
        else "the training runs all rounds"
    )
    return Description(
        message=(
            f"{fact.name}={number(meant)} is among the parameters, where the library "
            f"does not use it: it is an argument of train, and {instead}."
        ),
        value=meant,
        threshold=used[0] if used else 0.0,
        advice=f"Pass it to train itself: {argument}={number(meant)}.",
    )


def _one_query(fact: TreeFact) -> Description:
    n_rows = fact.numbers[0]
    why = "the program gives no queries" if not fact.words else "there is one query"
    return Description(
        message=(
            f"The ranking compares all {n_rows:,.0f} samples with each other, because "
            f"{why}. The model learns which query has better documents, and its "
            "metric (NDCG, MAP) is that of one list."
        ),
        value=1.0,
        threshold=2.0,
        advice=(
            "Give each sample its query: qid in XGBoost, group (the number of samples "
            "of each query, in the order of the rows) in LightGBM. If all samples "
            "really are one list, ignore this."
        ),
    )


def _rows_out(fact: TreeFact) -> Description:
    n_out, n_columns = fact.numbers
    return Description(
        message=(
            f"{n_out:.0f} of {n_columns:.0f} features of the validation data "
            f"{fact.name!r} lie beyond all that the training data have: smaller than "
            "the least value or larger than the largest. Trees have no threshold "
            "there, so they treat all these samples alike."
        ),
        value=n_out,
        threshold=0.0,
        advice=(
            "Prepare both parts alike: fit the scaler and the encoders to the training "
            "data, and apply them to both. Check that both have the same columns in "
            "the same order and unit. For series that grow, train on differences."
        ),
    )


def _labels_out(fact: TreeFact) -> Description:
    n_out, n_rows, low, high, other_low, other_high = fact.numbers
    return Description(
        message=(
            f"{n_out:,.0f} of {n_rows:,.0f} labels of the validation data "
            f"{fact.name!r} lie beyond those of training: {number(other_low)} to "
            f"{number(other_high)}, and the training's {number(low)} to "
            f"{number(high)}. Trees predict nothing beyond the labels that they are "
            "fitted to."
        ),
        value=n_out,
        threshold=0.0,
        advice=(
            "Transform the labels of both parts alike (log1p, a scaler), and "
            "transform predictions back. For series that grow, predict differences."
        ),
    )


def _by_test(fact: TreeFact) -> Description:
    return Description(
        message=(
            f"Early stopping goes by {fact.name}, which your program calls test data: "
            "the number of trees is the one that fits these samples best. A score on "
            "the same samples promises more than new data will show."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Split three ways: train, stop early on validation data, and score the "
            "test data once, at the end."
        ),
    )


_DESCRIBED: Mapping[TreeFault, Callable[[TreeFact], Description]] = {
    TreeFault.STOPS_WRONG_WAY: _wrong_way,
    TreeFault.STOPS_BY_NOTHING: _by_nothing,
    TreeFault.STOPS_BY_TEST: _by_test,
    TreeFault.CLASS_WITHOUT_WEIGHT: _without_weight,
    TreeFault.BALANCED_TWICE: _balanced_twice,
    TreeFault.WEIGHTS_REVERSED: _weights_reversed,
    TreeFault.LABEL_IS_FEATURE: _label_among,
    TreeFault.ROWS_OVERLAP: _rows_overlap,
    TreeFault.CLASS_NOT_TRAINED: _not_trained,
    TreeFault.HESSIAN_NOT_POSITIVE: _not_positive,
    TreeFault.GRADIENT_REVERSED: _reversed,
    TreeFault.METRIC_OF_MARGINS: _of_margins,
    TreeFault.SETTING_UNKNOWN: _unknown,
    TreeFault.SETTING_IGNORED: _ignored,
    TreeFault.SETTING_IS_ARGUMENT: _is_argument,
    TreeFault.ONE_QUERY: _one_query,
    TreeFault.ROWS_OUT_OF_RANGE: _rows_out,
    TreeFault.LABELS_OUT_OF_RANGE: _labels_out,
}


def _share(of_all: float) -> str:
    return f"{number(100 * of_all, 2)}%"
