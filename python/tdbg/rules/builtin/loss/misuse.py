"""LossMisuse: losses with inputs, or in a use, that they are not made for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tdbg.config.kinds import Kind
from tdbg.config.needs import BEGINNING, Needs, with_beginning
from tdbg.config.quantities import number, plural
from tdbg.modes import TRAINING
from tdbg.rules.builtin.loss.episode_texts import chances_as_scores
from tdbg.rules.builtin.loss.loss_inputs import (
    ignored_labels,
    metric_of_scores,
    of_wrong_labels,
    of_wrong_scores,
    probabilities_are_scores,
    softmax_for_bits,
    wrong_inputs,
)
from tdbg.rules.builtin.loss.loss_series import FIRST, LossRule, losses_of
from tdbg.rules.columns import kind_of, median, model_info_of_steps
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import (
    UNKNOWN,
    Advice,
    Bools,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity, Stage
from tdbg.run.loss_facts import LossFact, LossFault
from tdbg.run.model_info import ModelInfo

__all__ = ["LossMisuse"]

# A loss summed over the batch has failed when it is this many times the first one, or
# if after this many steps it is not below this share of the first ones.
RISEN = 2.0
ENOUGH_STEPS = 50
FALLEN = 0.95
# A loss below zero has no bound if it reaches this many times its first size, or 1:
# negative likelihoods of densities reach a few times that.
NO_BOUND = 1000.0
# Leaving out fewer samples than this share is what zero_infinity=True is for.
MANY = 0.5
# Number of last and first losses to compare: the loss may soon stop being finite.
SOON = 3
# Of which the layers themselves show that they are given scores.
_OF_PROBABILITIES = frozenset({Kind.BCE, Kind.CROSS_ENTROPY_OF_PROBABILITIES})
# Advice where cross_entropy cannot replace the loss.
_WITH_LOG_SOFTMAX = {
    "ctc_loss": (
        "Give it scores.log_softmax(-1): the last axis of the input of CTCLoss holds "
        "the classes and the blank."
    ),
    "kl_div": (
        "Give it the student's scores.log_softmax(1): the first argument of KLDivLoss "
        "holds logarithms, the second one probabilities (or logarithms as well, with "
        "log_target=True)."
    ),
}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossMisuse(LossRule):
    """Report losses that cannot measure what they should.

    The rule finds

    - a softmax or sigmoid applied twice, over the samples, or to a single class;
    - a likelihood of scores or probabilities instead of logarithms;
    - scores instead of probabilities, in the loss or in a metric;
    - a loss of independent outputs that gets the shares of classes;
    - outputs and targets that broadcast against each other;
    - a distance that the training maximizes;
    - a sum over the batch in place of a mean, or a mean over the classes, too;
    - targets that the last activation cannot come near;
    - batches whose labels are all ignored, or too long for CTC;
    - a loss without a lower bound, or without a graph.

    Args:
        risen: A loss summed over the batch is a warning once it is this many times as
            large as at first.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING, Severity.ERROR)
    stage = Stage.SETUP

    risen: float = RISEN

    def __post_init__(self) -> None:
        check_number(self, "risen", above=1.0)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Losses; rows of their inputs, and values of these at first."""
        given = Needs(collections=frozenset({"predictions", "labels"}))
        predictions = Needs(
            collections=frozenset({"predictions"}),
            raw=True,
            interval=1,
            first_steps=BEGINNING,
        )
        # Only the shape of labels is needed.
        labels = Needs(collections=frozenset({"labels"}), raw=True, first_steps=1)
        losses = Needs(collections=frozenset({"losses"}))
        return losses, *with_beginning(given), predictions, labels

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return "a loss that tdbg knows, with the predictions and labels given to it"

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that nobody can misuse the loss of boosted trees, if so."""
        return "boosted trees compute their loss" if training.has_trees else ""

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and their inputs."""
        return tensor.role in {"loss", "prediction", "label"}

    @property
    def lookback(self) -> int:
        """The last losses, whose median the rule takes."""
        return FIRST - 1

    @property
    def head_rows(self) -> int:
        """The first rows, at which the loss began."""
        return FIRST

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge losses by their graphs or, where these are unknown, by their inputs."""
        for table in window.tables(*TRAINING):
            losses = [i for i, role in enumerate(table.roles) if role == "loss"]
            for model_info, steps in model_info_of_steps(window, table):
                facts = () if model_info is None else _certain(model_info)
                new = slice(max(steps.start, table.start), steps.stop)
                if facts and losses and new.start < new.stop:
                    yield self._judge(table, losses[0], new, facts, model_info)
            info = window.model_info_at(int(table.steps[-1]))
            if info is None or not info.is_surrogate:
                yield from (_falling_without_end(table, i) for i in losses)
            yield from ignored_labels(table, info)
            for evaluation in wrong_inputs(table, info):
                if not _is_shown(info, kind_of(info, evaluation.names[0])):
                    yield evaluation

    def _judge(
        self,
        table: Table,
        i: int,
        new: slice,
        facts: Sequence[LossFact],
        model_info: ModelInfo | None,
    ) -> Evaluation:
        known = table.known[i, new]
        first = facts[0]
        severities = np.where(known, int(Severity.WARNING), UNKNOWN).astype(np.int8)
        has_failed = np.zeros(len(severities), dtype=bool)
        if first.fault == LossFault.SUMMED:
            if _uses_size_of_gradients(model_info):
                has_failed = self._failed(table, i)[new]
            severities[known & ~has_failed] = Severity.INFO
        elif first.fault in {LossFault.SOFTMAX_FOR_BITS, LossFault.BITS_FOR_CLASSES}:
            severities[known] = Severity.INFO
        elif first.fault == LossFault.MEAN_OVER_CLASSES:
            is_alone = _size(first, 1, of=1) <= 1
            if is_alone and not _uses_size_of_gradients(model_info):
                severities[known] = Severity.INFO
        elif first.fault == LossFault.TARGETS_TOO_LONG:
            n_left, n_samples = _size(first, 0), _size(first, 1)
            if n_left < MANY * n_samples:
                severities[known] = Severity.INFO
        described = [_describe(fact) for fact in facts]
        message = " ".join(each.message for each in described)
        found = Description(
            message=message,
            value=described[0].value,
            threshold=described[0].threshold,
            advice=described[0].advice,
        )
        return Evaluation.of_one(
            table.names[i], table.steps[new], table.mode, severities, lambda _: found
        )

    def _failed(self, table: Table, i: int) -> Bools:
        """Find where the loss is not finite, far above its start, or late not below."""
        known = np.flatnonzero(table.known[i])
        loss = np.where(table.known[i], table["mean"][i], np.nan)
        finite = losses_of(table, i)
        beginning = finite[known][table.ordinal[i, known] <= FIRST]
        start = float(median(beginning))
        # If the model learns at once, the first losses are far above the others.
        highest = max(abs(start), *np.abs(beginning[:1]))
        failed: Bools = table.known[i] & ~(np.abs(loss) <= self.risen * highest)
        if len(known) >= FIRST:
            last = np.median(sliding_window_view(finite[known], FIRST), axis=1)
            late = known[FIRST - 1 :]
            is_late = table.ordinal[i, late] >= ENOUGH_STEPS
            failed[late] |= is_late & ~(last < FALLEN * start)
        return failed


def _falling_without_end(table: Table, i: int) -> Evaluation:
    """Judge whether the loss is below zero by orders of magnitude of its first size.

    The finding begins at the first loss.
    """
    known = np.flatnonzero(table.known[i])
    loss = losses_of(table, i)[known]
    is_first = table.ordinal[i, known] <= SOON
    severities = np.full(len(table.steps), UNKNOWN, dtype=np.int8)
    start = float(np.median(np.abs(loss[is_first]))) if is_first.any() else math.nan
    last = np.full(len(known), np.nan)
    if len(known) >= SOON:
        last[SOON - 1 :] = np.median(sliding_window_view(loss, SOON), axis=1)
    has_fallen = last < -NO_BOUND * max(start, 1.0)
    severities[known[has_fallen & ~is_first]] = Severity.WARNING
    began = int(table.steps[known[0]]) if len(known) else 0

    def describe(j: int) -> Description:
        low = float(last[np.searchsorted(known, j + table.start)])
        return Description(
            message=(
                f"The loss falls without end because nothing bounds it from below. It "
                f"is {number(low)} now; its size was about {number(start)} at first."
            ),
            value=low,
            threshold=-NO_BOUND * max(start, 1.0),
            advice=(
                "Check the sign. Optimizers minimize, so use the negative of a "
                "likelihood or a reward (loss = -log_prob.mean()). If the sign is "
                "right, a density may have collapsed onto single points: bound its "
                "scale from below, or add noise to the data."
            ),
            since=began,
            stage=Stage.NUMBERS,
        )

    return table.judge_one(table.names[i], severities[table.start :], describe)


def _certain(model_info: ModelInfo) -> Sequence[LossFact]:
    """Return the faults, the worst first; an adversary may maximize a loss."""
    order = list(_DESCRIBED)
    facts = [
        fact
        for fact in model_info.loss_facts
        if fact.fault != LossFault.NEGATED or not model_info.has_several_optimizers
    ]
    return sorted(facts, key=lambda fact: order.index(fact.fault))


def _names_logarithms(model_info: ModelInfo | None) -> bool:
    """Return whether the graph shows that a loss is not given logarithms."""
    faults = {LossFault.LIKELIHOOD_OF_PROBABILITIES, LossFault.LIKELIHOOD_OF_SCORES}
    facts = () if model_info is None else model_info.loss_facts
    return any(fact.fault in faults for fact in facts)


def _is_shown(info: ModelInfo | None, kind: str | None) -> bool:
    """Return whether graphs or layers show for certain what a loss is given."""
    if info is None:
        return False
    faults = {fact.fault for fact in info.loss_facts}
    if kind in _OF_PROBABILITIES and LossFault.PROBABILITIES_ARE_SCORES in faults:
        return True
    return info.is_loss_open and (kind != Kind.KL_DIV or _names_logarithms(info))


def _uses_size_of_gradients(model_info: ModelInfo | None) -> bool:
    """Return whether a larger gradient makes a larger step, unlike in Adam."""
    optimizers = () if model_info is None else model_info.optimizers
    return not optimizers or any("SGD" in name for name in optimizers)


def _describe(fact: LossFact) -> Description:
    return _DESCRIBED[fact.fault](fact)


def _plain(message: str, advice: Advice) -> Description:
    return Description(message=message, value=1.0, threshold=0.0, advice=advice)


def _softmax_twice(fact: LossFact) -> Description:
    if fact.operation == "Categorical":
        return _plain(*chances_as_scores(fact.shapes))
    classes = _size(fact, 1)
    # The loss of a model that is right and certain.
    floor = math.log(math.e + classes - 1.0) - 1.0
    return Description(
        message=(
            f"{fact.operation} gets the result of a softmax{_of(fact)} and applies a "
            f"softmax once more, so the loss cannot fall below {number(floor)}."
        ),
        value=floor,
        threshold=0.0,
        advice=lambda words: (
            "Give the loss the scores from before the softmax. It applies a softmax "
            f"itself ({words.cross_entropy})."
        ),
    )


def _sigmoid_twice(fact: LossFact) -> Description:
    floor = math.log1p(1 / math.e)
    return Description(
        message=(
            f"{fact.operation} gets the result of a sigmoid{_of(fact)} and applies a "
            f"sigmoid once more, so the loss cannot fall below {number(floor)}."
        ),
        value=floor,
        threshold=0.0,
        advice=(
            "Give the loss the scores from before the sigmoid. It applies a sigmoid "
            "itself. Or call binary_cross_entropy instead."
        ),
    )


def _of_scores(fact: LossFact) -> Description:
    return _plain(
        f"{fact.operation} gets scores{_of(fact)} instead of logarithms of "
        "probabilities. It does not measure a likelihood, and falls without end as the "
        "scores grow.",
        _WITH_LOG_SOFTMAX.get(
            fact.operation,
            "Call cross_entropy instead (torch.nn.CrossEntropyLoss), or apply "
            "log_softmax over the classes before this loss.",
        ),
    )


def _of_probabilities(fact: LossFact) -> Description:
    return _plain(
        f"{fact.operation} gets probabilities, the result of a softmax{_of(fact)}, "
        "instead of their logarithms. It does not measure a likelihood, and its "
        "gradient is weak where the model is wrong.",
        _WITH_LOG_SOFTMAX.get(
            fact.operation,
            "Apply log_softmax instead of softmax, or give the scores from before it "
            "to cross_entropy (torch.nn.CrossEntropyLoss).",
        ),
    )


def _over_samples(fact: LossFact) -> Description:
    samples, classes = _size(fact, 0), _size(fact, 1)
    over, instead = f"the {samples:,} samples", f"the {classes:,} classes"
    if not fact.shapes:
        over, instead = "the samples", "the classes"
    return Description(
        message=(
            f"The softmax before {fact.operation} is over {over} of a batch instead of "
            f"{instead}, so each prediction depends on the other samples of its batch."
        ),
        value=float(samples),
        threshold=1.0,
        advice=lambda words: (
            f"Apply it over the classes, which are {words.class_axis}."
        ),
    )


def _of_one(fact: LossFact) -> Description:
    # A loss over classes, which makes shares of what it is given.
    is_loss = fact.operation.endswith("Crossentropy")
    what = fact.operation if is_loss else "The softmax"
    return Description(
        message=(
            f"{what} has a single input for each sample{_of(fact)}. "
            f"{'That share of all classes' if is_loss else 'Its result'} is always 1, "
            "whatever the model outputs, so the model cannot learn."
        ),
        value=1.0,
        threshold=1.0,
        advice=lambda words: (
            f"Use {words.one_output}, or give the model one output for each class."
        ),
    )


def _broadcast(fact: LossFact) -> Description:
    outputs, both = fact.shapes if len(fact.shapes) == 2 else ((), ())
    return Description(
        message=(
            f"In {fact.operation}, outputs of shape {outputs} and targets of another "
            f"shape broadcast to {both}. The loss compares each output with the "
            "targets of all samples, so the model learns to predict their mean."
        ),
        value=float(math.prod(both)),
        threshold=float(math.prod(outputs)),
        advice=lambda words: (
            f"Give both the same shape: {words.same_shape}. Before the loss, assert "
            "outputs.shape == targets.shape."
        ),
    )


def _negated(fact: LossFact) -> Description:
    return Description(
        message=(
            f"The loss is the negative of {fact.operation}, so the training makes the "
            "distance between outputs and targets as large as it can."
        ),
        value=-1.0,
        threshold=0.0,
        advice="Remove the minus sign: optimizers minimize the loss.",
    )


def _no_graph(fact: LossFact) -> Description:
    return Description(
        message=(
            f"The program calls backward() on a {fact.operation} without a graph, so "
            "no parameter gets a gradient."
        ),
        value=0.0,
        threshold=0.0,
        advice=(
            "Call backward() on the loss itself instead of a copy of its value "
            "(torch.tensor(loss), loss.item(), loss.detach())."
        ),
    )


def _summed(fact: LossFact) -> Description:
    samples = _size(fact, 0)
    return Description(
        message=(
            f"{fact.operation} is a sum over the batch instead of a mean "
            f'(reduction="sum"{_of(fact)}). Loss and gradients grow with the batch and '
            f"are about {samples:,} times as large."
        ),
        value=float(samples),
        threshold=1.0,
        advice=(
            'Use the mean (reduction="mean"), or divide the loss by the batch size. '
            "Usual learning rates are for means, and with a sum, every batch size "
            "needs its own."
        ),
    )


def _too_long(fact: LossFact) -> Description:
    n_left, n_samples = _size(fact, 0), _size(fact, 1)
    return Description(
        message=(
            f"{fact.operation} leaves out {n_left:,} of {plural(n_samples, 'sample')} "
            "of a batch, since their targets are longer than their inputs: with "
            "zero_infinity=True their loss is 0, so the model learns nothing from them."
        ),
        value=float(n_left),
        threshold=0.0,
        advice=(
            "CTC needs an input step for each symbol of a target, and one more between "
            "two equal symbols. Reduce the time axis less, or leave these samples out. "
            "Check that input_lengths counts steps of the model's output, and "
            "target_lengths symbols."
        ),
    )


def _mean_over_classes(fact: LossFact) -> Description:
    classes, n_terms = _size(fact, 0, of=1), _size(fact, 1, of=1)
    beside = (
        f" Beside {plural(n_terms - 1, 'other term')} it weighs too little."
        if n_terms > 1
        else ""
    )
    return Description(
        message=(
            f"{fact.operation}{_of(fact)} is a mean over all elements, so the "
            f"divergence is divided by the {classes:,} classes as well as by the "
            f"number of samples.{beside}"
        ),
        value=1.0 / classes,
        threshold=1.0,
        advice=(
            'Use reduction="batchmean", as PyTorch itself advises: only then is it the '
            "divergence. Its gradients grow by the number of classes."
        ),
    )


def _errors_cancel(fact: LossFact) -> Description:
    return _plain(
        f"The loss takes the mean of the errors{_of(fact)}, and then its square or "
        "absolute value, so errors with opposite signs cancel. The model only learns "
        "to be right on average.",
        "Square first: ((outputs - targets) ** 2).mean(), or call mse_loss. A root "
        "comes last.",
    )


def _swapped(fact: LossFact) -> Description:
    return _plain(
        f"{fact.operation} gets its arguments the wrong way round: labels where it "
        f"takes outputs, and outputs as labels{_of(fact)}.",
        f"Outputs come first: {fact.operation}(outputs, labels).",
    )


def _bits_for_classes(fact: LossFact) -> Description:
    return _plain(
        f"{fact.operation} takes the probabilities of classes, which add up to 1, but "
        f"the last layer is a sigmoid: each of its {_size(fact, 0):,} outputs is a "
        "probability by itself.",
        "End the model with a softmax, or with no activation and from_logits=True in "
        "the loss. If several classes can be right at once, keep the sigmoid and use "
        "BinaryCrossentropy.",
    )


def _out_of_reach(fact: LossFact) -> Description:
    n_beyond, n_targets = _size(fact, 0), _size(fact, 1)
    low, high = _size(fact, 0, of=1), _size(fact, 1, of=1)
    reach = _REACH.get(fact.operation, f"{fact.operation} has bounds")
    return Description(
        message=(
            f"{n_beyond:,} of {plural(n_targets, 'target')} of a batch lie out of "
            f"reach: {reach}, and these targets lie between {low:,} and {high:,}."
        ),
        value=n_beyond / max(1, n_targets),
        threshold=0.0,
        advice=(
            "Scale the targets into that range, or remove the last activation if "
            "targets may have any size. Labels of two classes must be 0 and 1."
        ),
    )


_REACH = {
    "sigmoid": "a sigmoid gives numbers from 0 to 1",
    "softmax": "a softmax gives numbers from 0 to 1",
    "tanh": "the last activation, tanh, gives numbers from -1 to 1",
    "relu": "the last activation, relu, gives no number below 0",
    "softplus": "the last activation, softplus, gives no number below 0",
    "exp": "the last activation, exp, gives no number below 0",
    "binary_cross_entropy_with_logits": (
        "binary_cross_entropy_with_logits takes targets from 0 to 1"
    ),
    "sigmoid_binary_cross_entropy": (
        "sigmoid_binary_cross_entropy takes targets from 0 to 1"
    ),
}


# The worst first.
_DESCRIBED: Mapping[LossFault, Callable[[LossFact], Description]] = {
    LossFault.NO_GRAPH: _no_graph,
    LossFault.SOFTMAX_OF_ONE: _of_one,
    LossFault.SOFTMAX_OVER_SAMPLES: _over_samples,
    LossFault.PROBABILITIES_ARE_SCORES: probabilities_are_scores,
    LossFault.LIKELIHOOD_OF_SCORES: _of_scores,
    LossFault.LIKELIHOOD_OF_PROBABILITIES: _of_probabilities,
    LossFault.NEGATED: _negated,
    LossFault.BROADCAST: _broadcast,
    LossFault.TARGETS_OUT_OF_REACH: _out_of_reach,
    LossFault.SOFTMAX_TWICE: _softmax_twice,
    LossFault.SIGMOID_TWICE: _sigmoid_twice,
    LossFault.ERRORS_CANCEL: _errors_cancel,
    LossFault.ARGUMENTS_SWAPPED: _swapped,
    LossFault.SYMBOL_IS_BLANK: of_wrong_labels,
    LossFault.LABELS_NOT_SIGNS: of_wrong_labels,
    LossFault.EXPONENTIAL_TWICE: of_wrong_scores,
    LossFault.SCORES_BOUNDED: of_wrong_scores,
    LossFault.SCORES_DROPPED: of_wrong_scores,
    LossFault.TARGETS_TOO_LONG: _too_long,
    LossFault.MEAN_OVER_CLASSES: _mean_over_classes,
    LossFault.METRIC_OF_SCORES: metric_of_scores,
    LossFault.SOFTMAX_FOR_BITS: softmax_for_bits,
    LossFault.BITS_FOR_CLASSES: _bits_for_classes,
    LossFault.SUMMED: _summed,
}


def _of(fact: LossFact) -> str:
    return f", of shape {fact.shapes[0]}" if fact.shapes else ""


def _size(fact: LossFact, axis: int, of: int = 0) -> int:
    shape = fact.shapes[of] if of < len(fact.shapes) else ()
    return shape[axis] if axis < len(shape) else 1
