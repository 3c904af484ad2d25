"""MetricMisuse: evaluations that misread what the model says."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["MetricMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MetricMisuse(ObservedRule):
    """Report metrics that cannot say how good the model is.

    The rule finds evaluations that

    - compare scores with 0.5, as if they were probabilities;
    - make the same answer of all outputs;
    - take the largest score, or a softmax, over the samples;
    - compare each sample with the targets of all;
    - have a metric of Keras that was made for other outputs or labels;
    - keep the lowest accuracy as the best.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.SCORES_ABOVE_HALF,
            Fault.ANSWER_IS_CONSTANT,
            Fault.READ_OVER_SAMPLES,
            Fault.METRIC_MISFITS,
            Fault.METRIC_OF_ALL_PAIRS,
            Fault.LOWEST_IS_BEST,
        }
    )
    hooks = frozenset({"Keras", "PyTorch"})

    def describe(self, observation: Observation) -> Description:
        """Say what the evaluation does, and what it should do."""
        message, advice = _TEXTS[observation.fault](observation)
        return Description(message=message, value=1.0, threshold=0.0, advice=advice)


def _of_half(seen: Observation) -> tuple[str, str]:
    n, between = (round(seen.numbers.get(key, 0)) for key in ("outputs", "between"))
    message = (
        f"Your evaluation compares the scores of {seen.names[0]} with 0.5, as if they "
        "were probabilities. Your loss takes them for logits, for which a probability "
        f"of 0.5 is 0. In one evaluation, {between:,} of {n:,} scores were between 0 "
        "and 0.5: the model says yes, and your metric counts a no."
    )
    return message, (
        "Compare logits with 0 (outputs > 0), or probabilities with 0.5 "
        "(torch.sigmoid(outputs) > 0.5). Until then, your metric is not that of the "
        "model."
    )


_CAUSES = {
    "probabilities": "They are probabilities",
    "softmax of one": "They come from a softmax over a single number, which is 1",
    "sigmoid twice": "A sigmoid was applied to them twice",
}


def _of_constant(seen: Observation) -> tuple[str, str]:
    how, name = seen.words.get("how", ""), seen.names[0]
    if how == "argmax of one":
        shape = seen.words.get("shape", "(n, 1)")
        return (
            f"Your evaluation takes the argmax over the outputs of {name}, of shape "
            f"{shape}, along an axis of size 1. The result is always 0, so your metric "
            "counts how many samples belong to class 0."
        ), (
            "With one output for each sample, compare it with a threshold: outputs > 0 "
            "for logits, outputs > 0.5 for probabilities. Take argmax(1) if there is "
            "one output for each class."
        )
    if how == "truncated":
        return (
            f"Your evaluation converts the probabilities of {name} to whole numbers, "
            "which cuts off their digits: all answers are the same."
        ), (
            "Compare first, then convert: (probabilities > 0.5).long(). Or round: "
            "probabilities.round().long()."
        )
    low, high, threshold = (seen.numbers.get(key, 0.0) for key in _LIMITS)
    cause = _CAUSES.get(how, "They are probabilities")
    between = f"are {number(low)}"
    if low < high:
        between = f"lie between {number(low)} and {number(high)}"
    return (
        f"Your evaluation compares outputs of {name} with {number(threshold)}, and all "
        f"of them {between}. {cause}. So the answer is the same for each sample, and "
        "your metric says nothing about the model."
    ), (
        "Apply one sigmoid, either in the model or after it, and compare probabilities "
        "with 0.5, or compare logits with 0."
    )


_LIMITS = "low", "high", "number"


def _over_samples(seen: Observation) -> tuple[str, str]:
    name = seen.names[0]
    if seen.words.get("how") == "softmax":
        shape = seen.words.get("shape", "(n, classes)")
        return (
            f"Your evaluation applies a softmax to the outputs of {name}, of shape "
            f"{shape}, along dim=0: samples compete with each other, and the answer "
            "for one depends on the others."
        ), "Take it over the classes: softmax(dim=1)."
    return (
        f"Your evaluation takes one argmax of all outputs of {name} and compares it "
        "with the label of each sample: argmax without a dim returns a single place in "
        "the whole batch."
    ), "Take it over the classes: outputs.argmax(dim=1)."


def _of_pairs(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("rows", 2))
    operation = seen.words.get("operation", "-")
    message = (
        f"Your evaluation compares all pairs: for {n:,} outputs of {seen.names[0]} and "
        f"{n:,} targets, {operation} makes a table of {n:,} times {n:,} numbers, "
        f"because one has shape ({n}, 1) and the other ({n},). Your metric compares "
        "each output with the targets of all samples."
    )
    return message, (
        "Give both the same shape: outputs.squeeze(1) for targets of shape (n,), or "
        "targets.unsqueeze(1) for outputs of shape (n, 1)."
    )


def _of_lowest(seen: Observation) -> tuple[str, str]:
    low, high = (seen.numbers.get(key, 0.0) for key in ("low", "high"))
    n = round(seen.numbers.get("passes", 4.0))
    message = (
        f"What your program calls {seen.names[0]} is the lowest accuracy of {n} "
        f"evaluations, {low:.1%}: it has been {high:.1%}. So what you keep as the best "
        "model is the worst."
    )
    return message, (
        "Keep the model when its accuracy rises: if accuracy > best. In a class with a "
        'mode, pass mode="max"; "min" is for losses, and often the default.'
    )


def _of_misfit(seen: Observation) -> tuple[str, str]:
    kind = seen.words.get("class", "metric")
    n = round(seen.numbers.get("units", 0.0))
    why, advice = _MISFITS[seen.words.get("how", "equality")]
    message = f"The metric {seen.names[0]} ({kind}) does not measure your model: "
    return message + why.format(n=n, right=(n - 1) / max(1, n)), advice


# By what the metric makes of the outputs.
_MISFITS = {
    "equality": (
        (
            "it counts outputs that equal their label to the last digit, and your "
            "model outputs numbers with digits."
        ),
        (
            'Write metrics=["accuracy"], which chooses by your loss, or '
            "BinaryAccuracy, CategoricalAccuracy or SparseCategoricalAccuracy "
            "yourself."
        ),
    ),
    "truncated": (
        (
            "it takes outputs for class numbers and cuts off their digits, so a "
            "probability below 1 counts as class 0."
        ),
        (
            "Use BinaryIoU for one sigmoid. For a softmax, pass sparse_y_pred=False, "
            "so that the metric takes the argmax."
        ),
    ),
    "bits": (
        (
            "it judges each of the {n} outputs of a sample by itself. A model that "
            "always says no to all classes is {right:.0%} right."
        ),
        'Use CategoricalAccuracy, or metrics=["accuracy"].',
    ),
    "one label": (
        (
            "it takes the argmax over each label, but your loss (Sparse...) gets class "
            "numbers. The argmax of a single number is 0, so the metric counts how "
            "often the model says class 0."
        ),
        'Use SparseCategoricalAccuracy, or metrics=["accuracy"].',
    ),
    "scores": (
        (
            "it expects probabilities, and your model outputs scores "
            "(from_logits=True). All scores below 0 count alike, and so do all above "
            "1."
        ),
        "Pass from_logits=True to the metric, too.",
    ),
    "measures": (
        (
            "it counts classes, and your targets are measures. An output is right only "
            "if it falls on the target, which numbers with digits never do."
        ),
        'Use metrics=["mae"], or R2Score, for a regression.',
    ),
}
_TEXTS = {
    Fault.METRIC_MISFITS: _of_misfit,
    Fault.SCORES_ABOVE_HALF: _of_half,
    Fault.ANSWER_IS_CONSTANT: _of_constant,
    Fault.READ_OVER_SAMPLES: _over_samples,
    Fault.METRIC_OF_ALL_PAIRS: _of_pairs,
    Fault.LOWEST_IS_BEST: _of_lowest,
}
