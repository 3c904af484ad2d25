"""InputSkew: evaluation that is given other inputs than training."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["InputSkew"]

# A factor as large as that between bytes and fractions is no property of data.
_CERTAIN = 20.0


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class InputSkew(ObservedRule):
    """Report inputs that are prepared otherwise in evaluation than in training.

    And rows of evaluation that were split off so that they have other classes,
    integers that their type cannot hold, and bytes that are scaled twice.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.CHANNELS_EXCHANGED,
            Fault.CLASSES_NOT_TRAINED,
            Fault.FITTED_ANEW,
            Fault.INPUTS_SCALED,
            Fault.INTEGERS_WRAP,
            Fault.RESCALED_TWICE,
            Fault.SCALED_BY_BATCH,
            Fault.SCALED_BY_ITSELF,
        }
    )
    hooks = frozenset({"JAX", "Keras", "PyTorch"})

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning, unless it is a factor that data may have.

        Categories have the same codes again if the evaluation has all of them.
        """
        kind = observation.words.get("kind", "").partition(" ")[0]
        if kind.endswith(("Encoder", "Binarizer")) and kind != "TargetEncoder":
            return Severity.INFO
        factor = observation.numbers.get("factor", _CERTAIN)
        is_certain = not 1 / _CERTAIN < factor < _CERTAIN
        return Severity.WARNING if is_certain else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Describe the difference."""
        describe = {
            Fault.CHANNELS_EXCHANGED: _of_order,
            Fault.CLASSES_NOT_TRAINED: _of_classes,
            Fault.FITTED_ANEW: _of_fit,
            Fault.INPUTS_SCALED: _of_scale,
            Fault.INTEGERS_WRAP: _of_integers,
            Fault.RESCALED_TWICE: _of_bytes,
            Fault.SCALED_BY_ITSELF: _of_itself,
        }.get(observation.fault, _of_batches)
        return describe(observation)


def _of_order(observation: Observation) -> Description:
    order = observation.words.get("order", "?")
    return Description(
        message=(
            "In evaluation the channels of the inputs have changed places: their means "
            f"and deviations are those of channels {order} in training, in this order."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Read images in the same order of channels in training and evaluation: "
            "OpenCV gives blue, green, red (cv2.cvtColor with COLOR_BGR2RGB), PIL "
            "gives red, green, blue."
        ),
    )


def _of_classes(observation: Observation) -> Description:
    numbers = observation.numbers
    n, untrained = (int(numbers.get(key, 0)) for key in ("samples", "untrained"))
    first, n_classes = int(numbers.get("class", 0)), int(numbers.get("classes", 1))
    if untrained:
        others = f" and {n_classes - 1} more" if n_classes > 1 else ""
        found = (
            f"{untrained:,} of the {n:,} validation samples belong to classes that "
            f"training never sees (class {first}{others})"
        )
    else:
        share = numbers.get("share", 0.0)
        found = (
            f"all {n:,} validation samples belong to class {first}, which only "
            f"{share:.0%} of the training samples do"
        )
    return Description(
        message=(
            f"The validation data have other classes than the training data: {found}. "
            f"{observation.words.get('setting', 'The split')} takes the last rows, and "
            "your rows are sorted by class."
        ),
        value=float(untrained or n),
        threshold=0.0,
        advice=(
            "Shuffle inputs and labels together before you split them, or split by "
            "classes yourself: train_test_split(x, y, stratify=y), and pass "
            "validation_data."
        ),
    )


def _of_integers(observation: Observation) -> Description:
    n_wrapped, n = (
        round(observation.numbers.get(key, 0)) for key in ("wrapped", "numbers")
    )
    operation, kind = (observation.words.get(key, "") for key in ("operation", "type"))
    how = {"sub": "a subtraction", "add": "an addition", "mul": "a product"}
    if operation == "argument":
        return Description(
            message=(
                f"{n_wrapped:,} of {n:,} integers of an argument do not fit {kind}, "
                "into which JAX converts them without a word: each becomes another "
                "number."
            ),
            value=float(n_wrapped),
            threshold=0.0,
            advice=(
                "Number your ids from 0 before the step, or hash them in NumPy "
                "(ids % buckets). JAX has 64 bits with jax_enable_x64 only."
            ),
        )
    return Description(
        message=(
            f"The step computes {how.get(operation, operation)} of the batch in "
            f"{kind}, and {n_wrapped:,} of {n:,} results do not fit that type. They "
            "wrap around: dark pixels become bright ones, and the reverse."
        ),
        value=float(n_wrapped),
        threshold=0.0,
        advice=(
            "Convert the inputs to floating point before you compute with them: "
            "x = x.astype(jnp.float32)."
        ),
    )


def _of_fit(observation: Observation) -> Description:
    words, line = observation.words, round(observation.numbers.get("line", 0))
    kind, _, how = words.get("kind", "").partition(" ")
    where = f"`{words.get('text', '')}` (line {line} of {words.get('file', '')})"
    message = f"{where} fits a {kind} to evaluation data, as another line to training's"
    if how == "function":
        message = (
            f"{where} prepares evaluation data by a function that fits a {kind} in "
            "each call, and another line calls it for training data"
        )
    return Description(
        message=(
            f"The evaluation data get their own {kind}: {message}. So the same value "
            "becomes another number in training than in evaluation."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            f"Fit one {kind} to the training data, and keep it: only call transform "
            "for all other data, with the same object."
        ),
    )


def _of_scale(observation: Observation) -> Description:
    factor = observation.numbers.get("factor", 1.0)
    return Description(
        message=(
            f"In evaluation all channels of the inputs are {number(factor)} times as "
            "large as in training, by their means and deviations."
        ),
        value=factor,
        threshold=1.0,
        advice=(
            "Use the same transform in training and evaluation: divide bytes by 255 "
            "in both, and normalize with the statistics of the training data in both."
        ),
    )


def _of_batches(observation: Observation) -> Description:
    n = round(observation.numbers.get("batches", 2))
    return Description(
        message=(
            f"In evaluation, each of {n} batches has mean 0 and deviation 1 exactly, "
            "in all channels, and in training batches differ: evaluation scales each "
            "batch by the statistics of that batch."
        ),
        value=0.0,
        threshold=0.0,
        advice=(
            "Fit the scaler to the training data once and only apply it in evaluation: "
            "transform, not fit_transform, with the training statistics."
        ),
    )


def _of_itself(observation: Observation) -> Description:
    trained, evaluated = (
        round(observation.numbers.get(key, 0)) for key in ("rows", "evaluated")
    )
    scale = "mean 0 and deviation 1"
    if observation.words.get("how") == "range":
        scale = "a smallest value of 0 and a largest of 1"
    return Description(
        message=(
            f"The validation data are scaled by their own statistics: the {trained:,} "
            f"training samples and the {evaluated:,} validation samples each have "
            f"{scale} in all columns, to the last digits. So the same measurement is "
            "another number in training than in validation."
        ),
        value=0.0,
        threshold=0.0,
        advice=(
            "Call fit_transform on the training data and transform on all others: "
            "x_val = scaler.transform(x_val). A model in use gets single samples, "
            "which have no statistics."
        ),
    )


def _of_bytes(observation: Observation) -> Description:
    highest, scale = (observation.numbers.get(key, 1.0) for key in ("highest", "scale"))
    return Description(
        message=(
            f"The inputs are scaled twice: {observation.names[0]} multiplies bytes "
            f"from 0 to 255 by {number(scale)}, and gets numbers from 0 to "
            f"{number(highest)}. What is left between images is "
            f"{number(scale * highest)} at most."
        ),
        value=highest,
        threshold=255.0,
        advice=(
            "Scale once: remove the division by 255 (or rescale=1/255) from your data, "
            "or the Rescaling layer from the model. EfficientNet and MobileNetV3 of "
            "keras.applications scale their inputs themselves."
        ),
    )
