"""LabelMisuse: labels that count and should not, or do not, or that inputs have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["LabelMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMisuse(ObservedRule):
    """Report labels of padding, of tokens that were not masked, and missing ones.

    One may be missing of a sample that is mixed of two, too.  And labels that the
    inputs have, or that are two classes where a model takes them for numbers.

    The labels of the first batches are compared with the inputs of the model, and with
    the label that the loss ignores.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.PADDING_COUNTS,
            Fault.UNMASKED_COUNT,
            Fault.CLASS_NEVER_COUNTS,
            Fault.END_NEVER_COUNTS,
            Fault.PADDING_IS_TEXT,
            Fault.LABEL_AMONG_INPUTS,
            Fault.FLIPPED_APART,
            Fault.MIXED_LABEL_FORGOTTEN,
            Fault.LABELS_FROM_ONE,
            Fault.CLASSES_AS_NUMBERS,
            Fault.MASK_NOT_READ,
            Fault.SHUFFLED_APART,
            Fault.WEIGHTS_NOT_READ,
        }
    )
    hooks = frozenset({"JAX", "Keras", "PyTorch"})

    def severity_of(self, observation: Observation) -> Severity:
        """Return an info for a column that only goes with the label, else a warning."""
        is_scaled = observation.words.get("how") == "scaled"
        return Severity.INFO if is_scaled else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Say which labels count, or do not."""
        return _DESCRIBED[observation.fault](observation)


def _as_numbers(observation: Observation) -> Description:
    n, name = round(observation.numbers.get("samples", 0.0)), observation.names[0]
    return Description(
        message=(
            f"{name} computes a regression: with num_labels=1, transformers takes the "
            f"mean squared error, and all {n:,} labels so far are 0 or 1. Its output "
            "is a number between them, and no logit of a class."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            "Use num_labels=2 with whole labels, or "
            "problem_type='multi_label_classification' with one output and float "
            "labels. If you mean a regression, set problem_type='regression'."
        ),
    )


def _of_orders(observation: Observation) -> Description:
    words, line = observation.words, round(observation.numbers.get("line", 0))
    where = f"`{words.get('text', '')}` (line {line} of {words.get('file', '')})"
    return Description(
        message=(
            f"The labels belong to other inputs: {where} draws one order, and the line "
            "for the other of the two draws its own. A model can still learn them by "
            "heart, so the training loss falls."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Draw one order for both: order = np.random.permutation(len(x)), and then "
            "x[order], y[order]; or give both to one call, as in "
            "train_test_split(x, y)."
        ),
    )


def _of_column(observation: Observation) -> Description:
    n = round(observation.numbers.get("samples", 0.0))
    place, name = observation.words.get("place", "[:, 0]"), observation.names[0]
    is_equal = observation.words.get("how") != "scaled"
    known = "equal" if is_equal else "equal but for a factor and an offset"
    later = " A model that copies it has nothing else to learn."
    if place.startswith("[:, -1"):
        later = (
            " The target is the latest value that the model sees, so it learns to "
            "repeat that and predicts nothing."
        )
    return Description(
        message=(
            f"The inputs of {name} hold the label: inputs{place} and the targets are "
            f"{known} for all {n:,} samples that were compared.{later}"
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Remove the target's column before you make the inputs. If these are "
            "windows of a series, begin the target one step after the window's end."
        ),
    )


def _from_one(observation: Observation) -> Description:
    numbers = observation.numbers
    n_classes, beyond, n = (
        round(numbers.get(key, 0)) for key in ("classes", "beyond", "labels")
    )
    return Description(
        message=(
            f"Labels lie between 1 and {n_classes:,}, but {observation.names[0]} makes "
            f"{n_classes:,} classes that begin with 0. The {beyond:,} of {n:,} labels "
            f"that are {n_classes:,} become rows of zeros, so these samples do not "
            "count, and class 0 has none."
        ),
        value=float(beyond),
        threshold=0.0,
        advice=(
            "Subtract 1 from the labels. If 0 is a class that this batch lacks, use "
            f"{n_classes + 1:,} classes."
        ),
    )


def _of_weights(observation: Observation) -> Description:
    del observation
    return Description(
        message=(
            "All samples count alike: fit gives your train_step a weight for each "
            "sample (sample_weight, or class_weight), and nothing is computed of them."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Hand them on: compute_loss(x, y, y_pred, sample_weight), or loss_fn(y, "
            "y_pred, sample_weight=sample_weight)."
        ),
    )


def _of_mask(observation: Observation) -> Description:
    share = observation.numbers.get("share", 0.0)
    label = int(observation.numbers.get("label", 0.0))
    return Description(
        message=(
            f"{share:.0%} of the labels are padding and count: the step is given a "
            f"mask ({observation.words.get('argument')}), and nothing is computed of "
            f"it. All of these labels are {label}, so the loss falls as the model "
            "learns to repeat padding."
        ),
        value=share,
        threshold=0.0,
        advice=(
            "Multiply the losses of all places by the mask, and divide their sum by "
            "that of the mask."
        ),
    )


def _of_padding(observation: Observation) -> Description:
    share = observation.numbers.get("share", 0.0)
    label = int(observation.numbers.get("label", 0.0))
    knows = {
        "mask": "your mask says that these are padding",
        "settings": "the model's settings have this token as pad_token_id",
    }.get(
        observation.words.get("known_by", ""),
        "an embedding has this token as its padding_idx",
    )
    return Description(
        message=(
            f"{share:.0%} of the labels of {observation.names[0]} count though their "
            f"inputs are padding ({knows}). All of them are {label}, so the loss falls "
            "as the model learns to repeat padding."
        ),
        value=share,
        threshold=0.0,
        advice=(
            "Set the labels at padding to -100, or give the loss their number "
            f"(ignore_index={label}) if no other label has it."
        ),
    )


def _padding_is_text(observation: Observation) -> Description:
    token = int(observation.numbers.get("token", 0.0))
    inside = observation.numbers.get("inside", 0.0)
    times = int(observation.numbers.get("times", 0.0))
    return Description(
        message=(
            f"Token {token} is the padding_idx of an embedding, but no padding: "
            f"{inside:.0%} of the {times:,} that {observation.names[0]} was given "
            "stand inside texts, between others, and count as labels. Its row in the "
            "embedding gets no gradient, so the model never learns what it means."
        ),
        value=inside,
        threshold=0.0,
        advice=(
            "Leave out padding_idx if nothing is padded. Otherwise give padding a "
            "number of its own."
        ),
    )


def _flipped_apart(observation: Observation) -> Description:
    n = int(observation.numbers.get("samples", 0.0))
    n_mirrored = int(observation.numbers.get("mirrored", 0.0))
    return Description(
        message=(
            f"Images and targets are flipped apart: {n_mirrored:,} of {n:,} targets of "
            f"{observation.names[0]} fit their image only if you mirror one of the two "
            "(by correlation), and the others fit as they are."
        ),
        value=n_mirrored / max(1, n),
        threshold=0.0,
        advice=(
            "Draw each flip once, and apply it to the image and to its mask: pass both "
            "to one transform, or draw the random number outside of it."
        ),
    )


def _of_unmasked(observation: Observation) -> Description:
    share = observation.numbers.get("share", 0.0)
    masked = observation.numbers.get("masked", 0.0)
    token = int(observation.numbers.get("token", 0.0))
    return Description(
        message=(
            f"{share:.0%} of the labels of {observation.names[0]} are the inputs "
            f"themselves: token {token} masks {masked:.0%} of the places, and the loss "
            "counts all others, too. The model is trained to copy most of the time."
        ),
        value=share,
        threshold=0.0,
        advice=(
            "Set the labels of tokens that were not masked to -100. If the model is to "
            "restore whole texts (a denoising autoencoder), nothing is wrong."
        ),
    )


def _of_class(observation: Observation) -> Description:
    label = int(observation.numbers.get("class", 0.0))
    share = observation.numbers.get("share", 0.0)
    return Description(
        message=(
            f"The loss of {observation.names[0]} ignores class {label} (ignore_index="
            f"{label}), which {share:.0%} of the samples have: as many as the other "
            "classes have. The model never learns to answer it."
        ),
        value=share,
        threshold=0.0,
        advice=(
            "Leave out ignore_index, or give samples without a label a number that is "
            "no class (-100)."
        ),
    )


def _of_end(observation: Observation) -> Description:
    token = int(observation.numbers.get("token", 0.0))
    n_texts = int(observation.numbers.get("texts", 0.0))
    knows = {
        "settings": "the model's settings say so",
        "mask": "your mask counts the first one behind a text as text",
        "widths": "the longest text of each batch ends with one",
    }.get(observation.words.get("known_by", ""), "")
    return Description(
        message=(
            f"Token {token} ends texts ({knows}), and is never a label: "
            f"{observation.names[0]} got {n_texts} texts in its first batches, and the "
            "loss ignored the end of each. The model will not learn to stop."
        ),
        value=float(n_texts),
        threshold=0.0,
        advice=(
            f"Let the first token {token} behind each text count. If it pads batches, "
            "too, mask labels by length and not by the token, or pad with another one."
        ),
    )


def _of_mixed(observation: Observation) -> Description:
    numbers = observation.numbers
    least, most = numbers.get("least", 0.0), numbers.get("most", 1.0)
    n = round(numbers.get("batches", 1))
    kind = observation.words.get("kind", "mixup")
    return Description(
        message=(
            f"The loss forgets the second label of mixed samples: in {n} batches, each "
            f"input of {observation.names[0]} is mixed of two samples ({kind}), and "
            "the loss was given one label only. The sample that has it makes up "
            f"between {least:.0%} and {most:.0%} of the input, or the rest."
        ),
        value=least,
        threshold=0.0,
        advice=(
            "Weigh the losses of both labels by their shares: share * loss(outputs, "
            "labels) + (1 - share) * loss(outputs, labels[other]), where other is the "
            "permutation that chose the second samples. Or pass mixed labels as "
            "probabilities."
        ),
    )


_DESCRIBED: Mapping[Fault, Callable[[Observation], Description]] = {
    Fault.CLASSES_AS_NUMBERS: _as_numbers,
    Fault.CLASS_NEVER_COUNTS: _of_class,
    Fault.END_NEVER_COUNTS: _of_end,
    Fault.FLIPPED_APART: _flipped_apart,
    Fault.LABELS_FROM_ONE: _from_one,
    Fault.LABEL_AMONG_INPUTS: _of_column,
    Fault.MASK_NOT_READ: _of_mask,
    Fault.MIXED_LABEL_FORGOTTEN: _of_mixed,
    Fault.PADDING_COUNTS: _of_padding,
    Fault.PADDING_IS_TEXT: _padding_is_text,
    Fault.SHUFFLED_APART: _of_orders,
    Fault.UNMASKED_COUNT: _of_unmasked,
    Fault.WEIGHTS_NOT_READ: _of_weights,
}
