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
    - keep the lowest accuracy as the best, or never set the best;
    - divide by another count than that of the samples, or add up all evaluations;
    - take the last batch alone, or average what is no mean over samples;
    - rank samples by classes, where scores are meant;
    - exchange labels and answers, lose the order of answers, count what the loss
      ignores, or ask which fractions equal a label;
    - log what training computes under a name of validation, or test the last weights.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.SCORES_ABOVE_HALF,
            Fault.ANSWER_IS_CONSTANT,
            Fault.READ_OVER_SAMPLES,
            Fault.METRIC_MISFITS,
            Fault.METRIC_OF_ALL_PAIRS,
            Fault.LOWEST_IS_BEST,
            Fault.DIVIDED_BY_OTHER_COUNT,
            Fault.COUNTS_GO_ON,
            Fault.LAST_BATCH_COUNTS,
            Fault.SCORE_OF_BATCHES,
            Fault.CLASSES_FOR_SCORES,
            Fault.ANSWERS_FOR_LABELS,
            Fault.ORDER_OF_ANSWERS_LOST,
            Fault.OUTPUTS_EQUAL_LABELS,
            Fault.CELLS_COUNTED,
            Fault.METRIC_OF_IGNORED,
            Fault.MEANS_BY_SAMPLES,
            Fault.BEST_NEVER_MOVES,
            Fault.LOGGED_AS_VALIDATION,
            Fault.LAST_IS_TESTED,
            Fault.METRIC_STATE_KEPT,
        }
    )
    hooks = frozenset({"Keras", "PyTorch"})

    def severity_of(self, observation: Observation) -> Severity:
        """Warn, except if models keep their order, or if only a name accuses."""
        numbers = observation.numbers
        if observation.fault in {Fault.LAST_IS_TESTED, Fault.MEANS_BY_SAMPLES}:
            return Severity.INFO
        if observation.fault is not Fault.LOGGED_AS_VALIDATION:
            return Severity.WARNING
        is_sure = numbers.get("is_loss") or numbers.get("watched")
        return Severity.WARNING if is_sure else Severity.INFO

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


def _of_count(seen: Observation) -> tuple[str, str]:
    count, n = (round(seen.numbers.get(key, 0)) for key in ("count", "samples"))
    by = seen.words.get("by", "")
    where = f" ({by})" if by else ""
    message = (
        f"Your evaluation divides {seen.names[0]} by {count:,}{where}, but goes "
        f"through {n:,} samples. So your metric is {number(n / count)} times what it "
        "should be."
    )
    return message, (
        "Divide by the number of samples that you evaluate: add labels.size(0) up in "
        "the loop, or take len(loader.sampler). len(loader.dataset) counts all samples "
        "of the dataset, also those that your sampler leaves out or drop_last drops."
    )


def _of_sums(seen: Observation) -> tuple[str, str]:
    said, last = (seen.numbers.get(key, 0.0) for key in ("said", "last"))
    n = round(seen.numbers.get("passes", 3.0))
    message = (
        f"{seen.names[0]} counts the right answers of all {n} evaluations so far: it "
        f"is {said:.1%}, and the last evaluation alone has {last:.1%}. Nobody sets the "
        "counts to 0 before an evaluation."
    )
    return message, (
        "Set both counts to 0 at the beginning of each evaluation: correct = total = 0 "
        "inside the loop over epochs. A metric with a state needs metric.reset()."
    )


def _of_last(seen: Observation) -> tuple[str, str]:
    n, name = round(seen.numbers.get("batches", 2)), seen.names[0]
    message = (
        f"Your evaluation goes through {n:,} batches, and {name} is that of the last "
        "one alone: each batch overwrites it, and your program uses it after the loop."
    )
    return message, (
        f"Add up in the loop (total += {name}.item() * labels.size(0)), and divide by "
        "the number of samples after it."
    )


def _of_batches(seen: Observation) -> tuple[str, str]:
    n, name = round(seen.numbers.get("batches", 2)), seen.names[0]
    what = seen.words.get("what", "")
    if what in {"exp", "sqrt"}:
        outer = {"exp": "exponential", "sqrt": "root"}[what]
        message = (
            f"Your evaluation takes the {outer} of each batch's mean and adds it to "
            f"{name}, for {n:,} batches. The mean of these numbers is not the {outer} "
            "of the mean, and depends on the size of your batches."
        )
        return message, (
            f"Average over all samples first, and take the {outer} once, after your "
            "loop."
        )
    does = f"averages {what} over {n:,} batches"
    if seen.words.get("way") == "calls":
        does = f"calls {what} for each of {n:,} batches, and never for all samples"
    message = (
        f"Your evaluation {does}. It is no mean over "
        "samples, so the result depends on the size of your batches and on which "
        "samples share one."
    )
    return message, (
        f"Collect labels and answers of all batches, and call {what} once, after the "
        "loop."
    )


def _of_classes(seen: Observation) -> tuple[str, str]:
    n, name = round(seen.numbers.get("samples", 2)), seen.names[0]
    message = (
        f"Your evaluation gives {name} classes where it expects scores: each of {n:,} "
        "values is 0 or 1. It ranks samples by their scores, and classes leave two "
        "ranks, so the result is that of a single threshold."
    )
    return message, (
        f"Call {name} with what the model says before any threshold: probabilities, "
        "logits, or predict_proba(x)[:, 1]."
    )


def _of_exchanged(seen: Observation) -> tuple[str, str]:
    n, name = round(seen.numbers.get("samples", 2)), seen.names[0]
    return (
        f"Your evaluation gives {name} the model's answers as y_true, and your labels "
        f"as y_pred: y_true equals what the model said for each of {n:,} samples. So "
        "precision and recall change places, a confusion matrix is transposed, and an "
        "R² compares with the variance of the answers."
    ), f"Labels come first in scikit-learn: {name}(y_true, y_pred)."


def _of_order(seen: Observation) -> tuple[str, str]:
    loader, other = seen.names[0], seen.words.get("with", "labels")
    return (
        f"Your evaluation collects answers from {loader}, which shuffles, and drops "
        f"the labels that come with each batch. {other} then meets them in another "
        "order: each answer is compared with the label of another sample."
    ), (
        "Make this loader with shuffle=False, or collect labels and answers in the "
        "same loop."
    )


def _of_cells(seen: Observation) -> tuple[str, str]:
    n = max(2, round(seen.numbers.get("classes", 2.0)))
    message = (
        f"`{seen.names[0]}` is no accuracy: it counts cells, not samples. Each label "
        f"has one 1 among {n:,} cells, and the share of cells that agree is "
        f"{seen.numbers.get('share', 0.0):.1f}%. Answers that are all 0 would have "
        f"{100 - 100 / n:.1f}%."
    )
    return message, (
        "Compare the largest output with the class: (outputs.argmax(1) == "
        "labels.argmax(1)).float().mean()."
    )


def _of_equality(seen: Observation) -> tuple[str, str]:
    n, digits = (round(seen.numbers.get(key, 1)) for key in ("samples", "digits"))
    return (
        f"Your evaluation asks which outputs equal their labels. Of {n:,} outputs, "
        f"{digits:,} are fractions, and your labels are whole numbers. So your metric "
        "counts none of these, however good they are."
    ), (
        "Make classes of them first: (probabilities > 0.5), (logits > 0), "
        "outputs.argmax(dim=1), or round() for counts."
    )


def _of_ignored(seen: Observation) -> tuple[str, str]:
    n, kept = (round(seen.numbers.get(key, 1)) for key in ("samples", "kept"))
    return (
        f"{seen.names[0]} counts places that your loss ignores: {n - kept:,} of {n:,} "
        "labels in one evaluation are its ignore_index. Padding is in your metric, so "
        "it depends on how long your sequences are."
    ), (
        "Leave them out above and below the line: mask = labels != ignore_index, then "
        "(answers[mask] == labels[mask]).float().mean()."
    )


def _of_means(seen: Observation) -> tuple[str, str]:
    batches, n = (seen.numbers.get(key, 1.0) for key in ("batches", "samples"))
    name, by = seen.names[0], seen.words.get("by", "")
    if seen.words.get("way") == "batches":
        return (
            f"{name} adds up the loss of each sample, and you divide it by {by}, the "
            f"number of batches. It is {number(n / batches)} times the mean loss."
        ), "Divide by the number of samples: len(loader.dataset)."
    return (
        f"{name} adds up the mean loss of each of {batches:,.0f} batches, and you "
        f"divide it by {by}, which counts {n:,.0f} samples. It is "
        f"{number(batches / n)} times the mean loss."
    ), (
        f"Add up {name} += loss.item() * labels.size(0), or divide by len(loader). You "
        "can compare these numbers only if sizes of batches and datasets are the same."
    )


def _of_unset(seen: Observation) -> tuple[str, str]:
    name, value = seen.names[0], seen.words.get("value", "what it was")
    message = (
        f"Your program compares each evaluation with {name}, and never sets it: it is "
        f"still {value}. So every evaluation counts as the best, and what you keep is "
        "the last model."
    )
    return message, (
        f"Set {name} where you keep the model: if loss < {name}: {name} = loss."
        if "loss" in name
        else f"Set {name} where you keep the model, to the metric that you compare."
    )


def _of_names(seen: Observation) -> tuple[str, str]:
    name, step = seen.names[0], seen.words.get("step", "training_step")
    what = "the training loss" if seen.numbers.get("is_loss") else "a metric"
    effect = "It says nothing about new data."
    if seen.numbers.get("watched"):
        effect = "Your callbacks keep models or stop by it, on training data alone."
    return (
        f"{step} logs {what} as {name}, so what you read as validation is computed of "
        f"training batches. {effect}"
    ), (
        f"Log it under a name of its own in {step}, such as train_loss, and log {name} "
        "in validation_step."
    )


def _of_state(seen: Observation) -> tuple[str, str]:
    before, after = (round(seen.numbers.get(key, 0)) for key in ("before", "after"))
    name = f"{seen.names[0]} ({seen.words.get('class', 'Metric')})"
    held = (
        f"when the last validation began, it held {before:,} batches from before, and "
        f"{after:,} when it was computed"
    )
    if seen.words.get("how") == "mixed":
        return (
            f"The metric {name} counts training and validation together: {held}. So "
            "what you log of it for validation is computed of training batches, too."
        ), "Make two metrics: self.train_acc for training, self.val_acc for validation."
    if seen.words.get("how") == "loop":
        return (
            f"The metric {name} is never reset: it holds the {after:,} batches of "
            "three evaluations. So what you compute of it is an average over all "
            "evaluations so far."
        ), "Call reset() after compute(), in each evaluation."
    return (
        f"The metric {name} is never reset: {held}. So what you compute of it is an "
        "average over all validations so far."
    ), (
        "Call reset() after compute() in on_validation_epoch_end. Or log the metric "
        "itself, as in self.log(name, metric): then Lightning computes and resets it."
    )


def _of_tested(seen: Observation) -> tuple[str, str]:
    best, last = (seen.numbers.get(key, 0.0) for key in ("best", "last"))
    monitor = seen.words.get("monitor", "the metric")
    return (
        f"The test has the weights of the last step, with {monitor} = {number(last)}. "
        f"{seen.names[0]} has kept better ones, with {monitor} = {number(best)}, and "
        "nobody loads them."
    ), (
        'Test the checkpoint: trainer.test(model, loader, ckpt_path="best"). If you '
        "want to know the last weights, ignore this."
    )


_TEXTS = {
    Fault.DIVIDED_BY_OTHER_COUNT: _of_count,
    Fault.COUNTS_GO_ON: _of_sums,
    Fault.LAST_BATCH_COUNTS: _of_last,
    Fault.SCORE_OF_BATCHES: _of_batches,
    Fault.CLASSES_FOR_SCORES: _of_classes,
    Fault.BEST_NEVER_MOVES: _of_unset,
    Fault.ANSWERS_FOR_LABELS: _of_exchanged,
    Fault.ORDER_OF_ANSWERS_LOST: _of_order,
    Fault.OUTPUTS_EQUAL_LABELS: _of_equality,
    Fault.CELLS_COUNTED: _of_cells,
    Fault.METRIC_OF_IGNORED: _of_ignored,
    Fault.MEANS_BY_SAMPLES: _of_means,
    Fault.METRIC_MISFITS: _of_misfit,
    Fault.SCORES_ABOVE_HALF: _of_half,
    Fault.ANSWER_IS_CONSTANT: _of_constant,
    Fault.READ_OVER_SAMPLES: _over_samples,
    Fault.METRIC_OF_ALL_PAIRS: _of_pairs,
    Fault.LOWEST_IS_BEST: _of_lowest,
    Fault.LOGGED_AS_VALIDATION: _of_names,
    Fault.LAST_IS_TESTED: _of_tested,
    Fault.METRIC_STATE_KEPT: _of_state,
}
