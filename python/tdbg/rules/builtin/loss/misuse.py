"""LossMisuse: losses that are given, or used as, something they are not made for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tdbg.config.kinds import Kind
from tdbg.config.needs import BEGINNING, Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.builtin.loss.loss_inputs import wrong_inputs
from tdbg.rules.builtin.loss.loss_series import FIRST, LossRule, losses_of
from tdbg.rules.columns import kind_of, median, model_info_of_steps
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import (
    UNKNOWN,
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

# A sum of the losses of a batch has failed when it is so many times the first one, or
# if after so many steps it is not below this share of the first ones.
RISEN = 2.0
ENOUGH_STEPS = 50
FALLEN = 0.95
# A loss that falls below zero has no bound if it comes to so many times what it was, or
# one, at first: negative likelihoods of densities come to some times that.
NO_BOUND = 1000.0
# The last and the first losses whose medians are compared: it may soon be not finite.
SOON = 3
# What to do where cross_entropy cannot take the place of the loss.
_WITH_LOG_SOFTMAX = {
    "ctc_loss": (
        "give it scores.log_softmax(-1), over the classes and the blank, as the last "
        "axis of what CTCLoss is given has them"
    )
}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossMisuse(LossRule):
    """Report losses that cannot measure what they are meant to.

    A softmax or sigmoid is taken twice, over the samples, or of a single class; a
    likelihood is given scores or probabilities in place of logarithms; outputs and
    targets are broadcast against each other; a distance is maximized; a sum over the
    batch takes the place of the mean; nothing bounds the loss below; or it has no
    graph.

    Args:
        risen: A loss that is summed up over the batch is a warning when it is so many
            times what it was at first.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
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

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and their inputs."""
        return tensor.role in {"loss", "prediction", "label"}

    @property
    def lookback(self) -> int:
        """The last losses, of which the median is taken."""
        return FIRST - 1

    @property
    def head_rows(self) -> int:
        """The first rows, at which the loss began."""
        return FIRST

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge by what the graphs of the losses say; else by their inputs."""
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
            for evaluation in wrong_inputs(table, info):
                # The graph tells everything else for certain.
                kind = kind_of(info, evaluation.names[0])
                if info is None or not info.is_loss_open or kind == Kind.KL_DIV:
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
        described = [_describe(fact) for fact in facts]
        message = "; moreover, ".join(each.message for each in described)
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
        """Where the loss is not finite, far above its start, or late not below it."""
        known = np.flatnonzero(table.known[i])
        loss = np.where(table.known[i], table["mean"][i], np.nan)
        finite = losses_of(table, i)
        beginning = finite[known][table.ordinal[i, known] <= FIRST]
        start = float(median(beginning))
        # The first losses of a training that learns at once are far above the others.
        highest = max(abs(start), *np.abs(beginning[:1]))
        failed: Bools = table.known[i] & ~(np.abs(loss) <= self.risen * highest)
        if len(known) >= FIRST:
            last = np.median(sliding_window_view(finite[known], FIRST), axis=1)
            late = known[FIRST - 1 :]
            is_late = table.ordinal[i, late] >= ENOUGH_STEPS
            failed[late] |= is_late & ~(last < FALLEN * start)
        return failed


def _falling_without_end(table: Table, i: int) -> Evaluation:
    """Where the last losses are far below zero, by orders of magnitude from the first.

    It is said to be so from the first one on.
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
                f"the loss falls without end: to {low:.3g} by now, where it was "
                f"{start:.3g} or so (its size) at first; nothing bounds it below"
            ),
            value=low,
            threshold=-NO_BOUND * max(start, 1.0),
            advice=(
                "see whether it has the right sign: optimizers minimize, so of a "
                "likelihood or a reward take the negative (loss = -log_prob.mean()); "
                "with the right sign, a density that collapses onto single points "
                "falls so, too: bound its scale from below, or add noise to the data"
            ),
            since=began,
            stage=Stage.NUMBERS,
        )

    return table.judge_one(table.names[i], severities[table.start :], describe)


def _certain(model_info: ModelInfo) -> Sequence[LossFact]:
    """The faults, the worst first; with adversaries one side may maximize a loss."""
    order = list(_DESCRIBED)
    facts = [
        fact
        for fact in model_info.loss_facts
        if fact.fault != LossFault.NEGATED or not model_info.has_several_optimizers
    ]
    return sorted(facts, key=lambda fact: order.index(fact.fault))


def _uses_size_of_gradients(model_info: ModelInfo | None) -> bool:
    """Whether a gradient that is larger makes a larger step: not with Adam's kind."""
    optimizers = () if model_info is None else model_info.optimizers
    return not optimizers or any("SGD" in name for name in optimizers)


def _describe(fact: LossFact) -> Description:
    return _DESCRIBED[fact.fault](fact)


def _softmax_twice(fact: LossFact) -> Description:
    classes = _size(fact, 1)
    # The loss of a model that is right and certain.
    floor = math.log(math.e + classes - 1.0) - 1.0
    return Description(
        message=(
            f"{fact.operation} is given the result of a softmax{_of(fact)} and takes "
            f"a softmax of it once more: the loss cannot come below {floor:.3g}"
        ),
        value=floor,
        threshold=0.0,
        advice=(
            "give the loss what comes before the softmax, which it does itself "
            "(torch.nn.CrossEntropyLoss)"
        ),
    )


def _sigmoid_twice(fact: LossFact) -> Description:
    floor = math.log1p(1 / math.e)
    return Description(
        message=(
            f"{fact.operation} is given the result of a sigmoid{_of(fact)} and takes "
            f"a sigmoid of it once more: the loss cannot come below {floor:.3g}"
        ),
        value=floor,
        threshold=0.0,
        advice=(
            "give the loss what comes before the sigmoid, which it does itself, or "
            "call binary_cross_entropy in its place"
        ),
    )


def _of_scores(fact: LossFact) -> Description:
    return Description(
        message=(
            f"{fact.operation} is given scores{_of(fact)}, and no logarithms of "
            "probabilities: it falls without end as they grow, and does not measure a "
            "likelihood"
        ),
        value=1.0,
        threshold=0.0,
        advice=_WITH_LOG_SOFTMAX.get(
            fact.operation,
            "call cross_entropy in its place (torch.nn.CrossEntropyLoss), or put a "
            "log_softmax over the classes before this loss",
        ),
    )


def _of_probabilities(fact: LossFact) -> Description:
    return Description(
        message=(
            f"{fact.operation} is given probabilities, the result of a softmax"
            f"{_of(fact)}, and no logarithms of them: the loss does not measure a "
            "likelihood, and its gradient is weak where the model is wrong"
        ),
        value=1.0,
        threshold=0.0,
        advice=_WITH_LOG_SOFTMAX.get(
            fact.operation,
            "take log_softmax in place of softmax, or give what comes before it to "
            "cross_entropy (torch.nn.CrossEntropyLoss)",
        ),
    )


def _over_samples(fact: LossFact) -> Description:
    samples, classes = _size(fact, 0), _size(fact, 1)
    return Description(
        message=(
            f"the log_softmax before {fact.operation} is taken over the {samples} "
            f"samples of a batch and not over the {classes} classes: the samples "
            "compete with each other, and a prediction depends on the others"
        ),
        value=float(samples),
        threshold=1.0,
        advice="take it over the classes: log_softmax(..., dim=1)",
    )


def _of_one(fact: LossFact) -> Description:
    return Description(
        message=(
            f"a softmax is taken of a single number{_of(fact)}: it is 1 whatever the "
            "model gives, so that nothing can be learned"
        ),
        value=1.0,
        threshold=1.0,
        advice=(
            "with one output use binary_cross_entropy_with_logits, or give the model "
            "an output for each class"
        ),
    )


def _broadcast(fact: LossFact) -> Description:
    outputs, both = fact.shapes if len(fact.shapes) == 2 else ((), ())
    return Description(
        message=(
            f"outputs of shape {outputs} and targets of another shape are broadcast to "
            f"{both} by {fact.operation}: each output is compared with the targets of "
            "all samples, and the best that the model can answer is their mean"
        ),
        value=float(math.prod(both)),
        threshold=float(math.prod(outputs)),
        advice=(
            "give both the same shape: targets.unsqueeze(1), or outputs.squeeze(1); "
            "to assert outputs.shape == targets.shape before the loss keeps it so"
        ),
    )


def _negated(fact: LossFact) -> Description:
    return Description(
        message=(
            f"the loss is the negative of {fact.operation}: the training makes the "
            "distance between outputs and targets as large as it can"
        ),
        value=-1.0,
        threshold=0.0,
        advice="take the minus away: optimizers minimize",
    )


def _no_graph(fact: LossFact) -> Description:
    return Description(
        message=(
            f"backward() is called on a {fact.operation} that no operation has made: "
            "it has no graph, and no parameter gets a gradient"
        ),
        value=0.0,
        threshold=0.0,
        advice=(
            "call backward() on the loss itself, and not on a copy of its value "
            "(torch.tensor(loss), loss.item(), loss.detach())"
        ),
    )


def _summed(fact: LossFact) -> Description:
    samples = _size(fact, 0)
    return Description(
        message=(
            f"{fact.operation} is the sum over the batch and not the mean "
            f'(reduction="sum"{_of(fact)}): loss and gradients are in proportion to '
            f"the batch, about {samples} times as large"
        ),
        value=float(samples),
        threshold=1.0,
        advice=(
            'take the mean (reduction="mean"), or divide the loss by the size of the '
            "batch: learning rates are meant for means, and a batch of another size "
            "would need another one"
        ),
    )


# The worst first.
_DESCRIBED: Mapping[LossFault, Callable[[LossFact], Description]] = {
    LossFault.NO_GRAPH: _no_graph,
    LossFault.SOFTMAX_OF_ONE: _of_one,
    LossFault.SOFTMAX_OVER_SAMPLES: _over_samples,
    LossFault.LIKELIHOOD_OF_SCORES: _of_scores,
    LossFault.LIKELIHOOD_OF_PROBABILITIES: _of_probabilities,
    LossFault.NEGATED: _negated,
    LossFault.BROADCAST: _broadcast,
    LossFault.SOFTMAX_TWICE: _softmax_twice,
    LossFault.SIGMOID_TWICE: _sigmoid_twice,
    LossFault.SUMMED: _summed,
}


def _of(fact: LossFact) -> str:
    return f", of shape {fact.shapes[0]}" if fact.shapes else ""


def _size(fact: LossFact, axis: int) -> int:
    shape = fact.shapes[0] if fact.shapes else ()
    return shape[axis] if axis < len(shape) else 1
