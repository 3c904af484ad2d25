"""RunningStatistics: evaluations with statistics, or in a mode, of something else."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.vocabulary import Vocabulary
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["RunningStatistics"]

# Deviations by which a mean moves, from which on it matters for the layers above.
_JUMP, _DRIFT = 0.1, 0.5
# The weight of the latest batch from which on statistics are nearly those of the batch.
_OF_ANOTHER, _HALF = 0.8, 0.5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStatistics(ObservedRule):
    """Report running statistics that are not the training's, and a wrong mode."""

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.NEVER_FED,
            Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK,
            Fault.FROZEN_STATISTICS_MOVE,
            Fault.STATISTICS_DROPPED,
            Fault.EVALUATED_IN_TRAINING,
            Fault.EVALUATED_BY_BATCH,
            Fault.EVALUATED_AS_FLAGGED,
            Fault.TRAINED_IN_EVALUATION,
        }
    )
    hooks = frozenset({"JAX", "Keras", "PyTorch"})

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning, unless statistics have moved little or no name helps."""
        if observation.fault is Fault.EVALUATED_IN_TRAINING:
            is_named = observation.numbers.get("named", 0.0) > 0
            return Severity.WARNING if is_named else Severity.INFO
        if observation.words.get("how") == "part":
            return Severity.INFO  # It may be meant, and no other part is.
        least = {
            Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK: _JUMP,
            Fault.FROZEN_STATISTICS_MOVE: _DRIFT,
        }.get(observation.fault, 0.0)
        is_far = observation.numbers.get("distance", 0.0) >= least
        return Severity.WARNING if is_far else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Describe the statistics."""
        describe = {
            Fault.NEVER_FED: _of_unfed,
            Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK: _of_momentum,
            Fault.STATISTICS_DROPPED: _of_dropped,
            Fault.EVALUATED_IN_TRAINING: _of_mode,
            Fault.EVALUATED_BY_BATCH: _of_batch,
            Fault.EVALUATED_AS_FLAGGED: _of_flags,
            Fault.TRAINED_IN_EVALUATION: _of_training,
        }.get(observation.fault, _of_frozen)
        return describe(observation)


def _of_unfed(observation: Observation) -> Description:
    momentum = observation.numbers.get("momentum")
    is_off = momentum == 0

    how = observation.words.get("how")
    if how == "used":
        return _of_inference(observation)
    if how in {"adapt", "running"}:
        return _of_unfed_in_keras(observation, is_adapted=how == "adapt")
    is_off = is_off or how == "momentum"

    def advice(words: Vocabulary) -> str:
        if how == "momentum":
            return (
                "Set the layer's momentum to 0.99: with 1, it never updates its "
                "running statistics."
            )
        if is_off:
            return (
                "Set the layer's momentum to 0.1: with 0, it never updates its running "
                "statistics."
            )
        return words.feeding_statistics

    return Description(
        message=(
            "The model is evaluated with running statistics that training never fed: "
            f"mean 0 and variance 1, as when {_layers(observation)} made. In training, "
            "the statistics of each batch hide this."
        ),
        value=0.0,
        threshold=1.0,
        advice=advice,
    )


def _of_unfed_in_keras(observation: Observation, *, is_adapted: bool) -> Description:
    named = _named(observation)
    if is_adapted:
        message = (
            f"{named} normalizes nothing: it was never adapted to data, so it has the "
            "mean 0 and the variance 1 that it was made with, and hands its inputs on "
            "as they are."
        )
        advice = (
            "Call layer.adapt(x_train) before you train, or give the layer mean and "
            "variance."
        )
    else:
        message = (
            f"{named} normalizes nothing: it is trained, but called in inference mode, "
            "so it uses the mean 0 and the variance 1 that it was made with, in "
            "training and in evaluation."
        )
        advice = (
            "Hand the argument training of your call() on to the layers, call the "
            "model with training=True in your train_step, and remove training=False "
            "where you call the layer. To keep a layer in inference mode on purpose, "
            "set its trainable to False."
        )
    return Description(message=message, value=0.0, threshold=1.0, advice=advice)


def _of_inference(observation: Observation) -> Description:
    return Description(
        message=(
            f"{_named(observation)} normalizes nothing: the training step uses its "
            "running statistics instead of those of the batch, and they are the mean 0 "
            "and the variance 1 that it was made with, because nothing feeds them."
        ),
        value=0.0,
        threshold=1.0,
        advice=lambda words: (
            "Call the model in training mode in your training step "
            "(use_running_average=False). " + words.feeding_statistics
        ),
    )


def _of_part(observation: Observation) -> Description:
    part, n = observation.names[0], round(observation.numbers.get("layers", 1))
    return Description(
        message=(
            f"{part} is trained in evaluation mode, although the model around it is in "
            f"training mode: {n:,} of its layers, dropout among them, work as in "
            "evaluation, and the optimizer trains the parameters there. A model from "
            "from_pretrained comes in this mode, and Lightning leaves it there."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            f"Call train() on {part} where you load it, or in on_train_start. If you "
            "want it frozen, call requires_grad_(False), too: eval() freezes no "
            "weights."
        ),
    )


def _of_training(observation: Observation) -> Description:
    if observation.words.get("how") == "part":
        return _of_part(observation)
    kinds = observation.words.get("layers", "")
    if observation.words.get("how") == "own step":
        return Description(
            message=(
                "The model is trained in evaluation mode: your train_step calls it "
                f"without training=True, so {_named(observation)} ({kinds}) "
                f"{_verb(observation, 'work')} as in evaluation. Dropout drops "
                "nothing, and running statistics stand still."
            ),
            value=float(observation.numbers.get("layers", 1)),
            threshold=0.0,
            advice=(
                "Write y_pred = self(x, training=True) in your train_step. If you mean "
                "it, say so there: training=False."
            ),
        )
    return Description(
        message=(
            "The model is trained in evaluation mode: by its flags, "
            f"{_named(observation)} ({kinds}) {_verb(observation, 'work')} as in "
            "evaluation, although the optimizer trains the parameters there. Dropout "
            "drops nothing, and running statistics stand still."
        ),
        value=float(observation.numbers.get("layers", 1)),
        threshold=0.0,
        advice=(
            "Set the model to training mode (nnx.Module.train) before the training "
            "loop, and again after each evaluation."
        ),
    )


def _of_batch(observation: Observation) -> Description:
    if observation.words.get("how") == "moved":
        return _of_moved(observation)
    return Description(
        message=(
            "The model is evaluated in training mode: the evaluation is given the "
            f"running statistics of {_named(observation)}, and normalizes by those of "
            "its own batch. So an answer depends on the samples beside it."
        ),
        value=float(observation.numbers.get("layers", 1)),
        threshold=0.0,
        advice=(
            "Call the model with use_running_average=True in evaluation "
            "(train=False). If you adapt to each batch on purpose, ignore this."
        ),
    )


def _of_moved(observation: Observation) -> Description:
    return Description(
        message=(
            f"{_named(observation)} {_verb(observation, 'work')} as in training when "
            "you evaluate: the evaluation moves the running statistics, and normalizes "
            "by those of its own batch. So an answer depends on the samples beside it."
        ),
        value=float(observation.numbers.get("layers", 1)),
        threshold=0.0,
        advice=(
            "Leave the argument training out where you call the layer, or hand on that "
            "of your call(). If you adapt to each batch on purpose, ignore this."
        ),
    )


def _of_flags(observation: Observation) -> Description:
    kinds = observation.words.get("layers", "")
    return Description(
        message=(
            f"The model is evaluated in training mode: in evaluation, "
            f"{_named(observation)} ({kinds}) {_verb(observation, 'draw')} random "
            f"numbers or {_verb(observation, 'move')} running statistics, as in "
            "training."
        ),
        value=float(observation.numbers.get("layers", 1)),
        threshold=0.0,
        advice=(
            "Set the model to evaluation mode (nnx.Module.eval) before each "
            "evaluation, and back (nnx.Module.train) after it. If you mean it (Monte "
            "Carlo dropout), ignore this."
        ),
    )


def _of_mode(observation: Observation) -> Description:
    name = next(iter(observation.names), "the model")
    layers = observation.words.get("layers", "")
    blocks = round(observation.numbers.get("blocks", 0))
    evaluations = round(observation.numbers.get("evaluations", 0))
    when = (
        f"in {evaluations} evaluations"
        if evaluations
        else f"between {blocks} blocks of training steps"
    )
    is_named = observation.numbers.get("named", 0.0) > 0
    what = (
        f"The model is evaluated in training mode: {name} is called without gradients"
        if is_named
        else f"{name} is called in training mode without gradients"
    )
    effects = {
        "dropout": "dropout is on",
        "normalization": (
            "normalization uses the statistics of each batch, and its running "
            "statistics learn from these"
        ),
    }
    found = [effect for layer, effect in effects.items() if layer in layers]
    return Description(
        message=(f"{what} {when}. There, {', and '.join(found)}."),
        value=float(blocks or evaluations),
        threshold=0.0,
        advice=(
            "Call model.eval() before each evaluation, and model.train() after it. "
            "torch.no_grad() does not change the mode. If you mean it (Monte Carlo "
            "dropout, update_bn, samples of a generator), ignore this."
        ),
    )


def _of_dropped(observation: Observation) -> Description:
    calls = round(observation.numbers.get("calls", 0))
    is_initial = bool(observation.numbers.get("initial"))
    state = (
        f"those that {_layers(observation)} made with (mean 0, variance 1), which no "
        "batch has ever fed"
        if is_initial
        else f"the same old ones, of {_named(observation)}"
    )
    return Description(
        message=(
            "The updated running statistics are dropped: in each of "
            f"{plural(calls, 'call')}, the training step returned new ones, and the "
            f"next call got {state}. Training does not show it, because it uses the "
            "statistics of each batch; evaluation uses the stale ones."
        ),
        value=float(calls),
        threshold=0.0,
        advice=lambda words: words.feeding_statistics,
    )


def _of_momentum(observation: Observation) -> Description:
    momentum = observation.numbers.get("momentum", 0.9)
    jump = observation.numbers.get("distance", 0.0)
    # Some frameworks weigh the past by it, others the latest batch.
    is_of_past = momentum < _HALF
    right = number(round(1 - momentum, 6))
    weight = "the past" if is_of_past else "the latest batch"
    return Description(
        message=(
            f"Running statistics are nearly those of the last batch: in "
            f"{_named(observation)}, momentum is {number(momentum)}, the weight of "
            f"{weight}. The running means jump by {number(jump)} standard "
            "deviations, and so does what evaluation sees."
        ),
        value=momentum,
        threshold=1 - _OF_ANOTHER if is_of_past else _OF_ANOTHER,
        advice=lambda words: (
            f"Use momentum={right}. "
            + words.momentum_of_statistics.format(number(momentum), right)
        ),
    )


def _of_frozen(observation: Observation) -> Description:
    distance = observation.numbers.get("distance", 0.0)
    return Description(
        message=(
            f"Frozen layers change: the running statistics of {_named(observation)} "
            f"have moved, the means by up to {number(distance)} standard deviations, "
            "although their weights and those before them are frozen."
        ),
        value=distance,
        threshold=_DRIFT,
        advice=lambda words: (
            f"{words.freezing_statistics} If you adapt them to new data on purpose, "
            "ignore this."
        ),
    )


def _named(observation: Observation) -> str:
    n = round(observation.numbers.get("layers", 1))
    first = next(iter(observation.names), "a normalization")
    return first if n < 2 else f"{first} and {plural(n - 1, 'other layer')}"


def _verb(observation: Observation, verb: str) -> str:
    is_one = observation.numbers.get("layers", 1) < 2
    return f"{verb}s" if is_one else verb


def _layers(observation: Observation) -> str:
    is_one = observation.numbers.get("layers", 1) < 2
    return f"{_named(observation)} {'was' if is_one else 'were'}"
