"""ModelCopies: averages, targets and best weights that are not what they should be."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["ModelCopies"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCopies(ObservedRule):
    """Report copies of a model that are stale, never move, or are no copies at all."""

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.WEIGHTS_BY_REFERENCE,
            Fault.STATISTICS_LEFT_BEHIND,
            Fault.AVERAGE_NEVER_MOVES,
            Fault.AVERAGE_NEVER_FED,
            Fault.TARGET_NEVER_MOVES,
            Fault.BEST_IS_MODEL,
            Fault.AVERAGE_IS_MODEL,
            Fault.TARGET_IS_MODEL,
            Fault.AVERAGE_NOT_RESTORED,
            Fault.AVERAGE_OF_ANOTHER,
            Fault.COPY_PARTLY_STALE,
            Fault.TARGET_NEVER_ASKED,
            Fault.TARGET_OF_PRESENT,
        }
    )

    def severity_of(self, observation: Observation) -> Severity:
        """Return INFO for a branch that may be meant to be the model itself."""
        is_sure = observation.numbers.get("sure", 1.0)
        return Severity.WARNING if is_sure else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Describe the copy."""
        describe = {
            Fault.WEIGHTS_BY_REFERENCE: _of_reference,
            Fault.STATISTICS_LEFT_BEHIND: _of_statistics,
            Fault.AVERAGE_NEVER_MOVES: _of_average,
            Fault.AVERAGE_NEVER_FED: _of_mean,
            Fault.BEST_IS_MODEL: _of_best,
            Fault.AVERAGE_IS_MODEL: _of_no_average,
            Fault.TARGET_IS_MODEL: _of_no_target,
            Fault.AVERAGE_NOT_RESTORED: _of_swap,
            Fault.AVERAGE_OF_ANOTHER: _of_another,
            Fault.COPY_PARTLY_STALE: _of_parts,
            Fault.TARGET_NEVER_ASKED: _of_unasked,
            Fault.TARGET_OF_PRESENT: _of_present,
        }.get(observation.fault, _of_target)
        return describe(observation)


def _of_reference(observation: Observation) -> Description:
    name = _name(observation)
    return Description(
        message=(
            f"load_state_dict() restored nothing: the weights that {name} was given "
            "are its own. state_dict() returns references, not copies, so that the "
            "weights kept earlier went on changing with the model."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Copy what you keep: best = copy.deepcopy(model.state_dict()), or "
            "{k: v.clone() for k, v in model.state_dict().items()}, or save it to a "
            "file with torch.save and load that."
        ),
    )


def _of_statistics(observation: Observation) -> Description:
    distance = observation.numbers.get("distance", 0.0)
    return Description(
        message=(
            f"A copy of {_name(observation)} evaluates with stale running statistics: "
            "its weights follow the model's, its BatchNorm buffers never changed. "
            f"Their means are up to {number(distance)} standard deviations from the "
            "model's."
        ),
        value=distance,
        threshold=0.0,
        advice=(
            "Copy the buffers, too, when you update the average: for ours, theirs in "
            "zip(ema.buffers(), model.buffers()): ours.copy_(theirs), as "
            "torch.optim.swa_utils.AveragedModel does. Or call "
            "update_bn(loader, averaged) before you evaluate it."
        ),
    )


def _of_average(observation: Observation) -> Description:
    steps = round(observation.numbers.get("steps", 0))
    is_written = bool(observation.numbers.get("written", 0.0))
    reason = (
        "although your program writes to them: the decay is 1, or each change is too "
        "small for their number format"
        if is_written
        else "and nobody has written to them"
    )
    return Description(
        message=(
            f"The average of weights never moves: after {steps:,} steps, the copy of "
            f"{_name(observation)} that is evaluated still has the weights of the "
            f"beginning, {reason}."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Update the average in place after each optimizer step: "
            "ours.mul_(decay).add_(theirs, alpha=1 - decay) under torch.no_grad(), or "
            "averaged.update_parameters(model). ours = decay * ours + ... only binds "
            "a name. Keep the average in float32, with a decay below 1."
        ),
    )


def _of_mean(observation: Observation) -> Description:
    models = round(observation.numbers.get("models", 0))
    return Description(
        message=(
            f"The running statistics of an average of {models:,} models are stale: "
            "nobody has updated its BatchNorm layers since you averaged the weights. "
            "AveragedModel has copied their means and variances from the last "
            f"{_name(observation)}, and they do not fit the average."
        ),
        value=float(models),
        threshold=1.0,
        advice=(
            "Call torch.optim.swa_utils.update_bn(loader, averaged) after the last "
            "update_parameters(), before you evaluate or save the average."
        ),
    )


def _of_target(observation: Observation) -> Description:
    steps = round(observation.numbers.get("steps", 0))
    return Description(
        message=(
            f"The target network never moves: up to step {steps:,}, nobody has updated "
            f"the copy of {_name(observation)} that makes the targets."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Copy the weights to the target network now and then "
            "(target.load_state_dict(model.state_dict())), or move it a little after "
            "each step. If you update it less often than this training is long, "
            "update it more often."
        ),
    )


def _of_best(observation: Observation) -> Description:
    kept, own = (observation.words.get(key, "") for key in ("kept", "own"))
    since = round(observation.numbers.get("since", 0))
    if own:
        message = (
            f"{kept} is no copy: it is the same object as {own}, since step {since:,} "
            "or before. The model that your program keeps as its best goes on changing "
            "with the training."
        )
        advice = f"Copy the model when you keep it: {kept} = copy.deepcopy({own})."
    else:
        message = (
            f"{kept} keeps no weights: since step {since:,} or before, it has "
            f"references to the weights of {_name(observation)}, which go on changing "
            "with the training. state_dict(), detach() and, on a CPU, cpu() do not "
            "copy."
        )
        advice = (
            f"Copy what you keep: {kept} = copy.deepcopy(model.state_dict()), or "
            "{k: v.clone() for k, v in model.state_dict().items()}, or save it to a "
            "file at once."
        )
    return Description(message=message, value=1.0, threshold=0.0, advice=advice)


def _of_no_average(observation: Observation) -> Description:
    looks = round(observation.numbers.get("looks", 0))
    return Description(
        message=(
            f"The average of weights is no average: it equals the model. At all "
            f"{looks:,} evaluations, the copy of {_name(observation)} had the weights "
            "that the model itself had then, or those of one step before."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "The decay is the share of the average that stays, such as 0.999: "
            "ours.mul_(decay).add_(theirs, alpha=1 - decay). Check that decay and "
            "1 - decay are not exchanged, and that a warm-up of the average ends "
            "before the training does."
        ),
    )


def _of_no_target(observation: Observation) -> Description:
    kept, own = (observation.words.get(key, "") for key in ("kept", "own"))
    if kept:
        return _of_name(kept, own, is_sure=bool(observation.numbers.get("sure", 1.0)))
    steps = round(observation.numbers.get("looks", 0))
    if share := observation.numbers.get("left", 0.0):
        return _of_exchanged(_name(observation), share, steps)
    return Description(
        message=(
            f"The target network is no target: it equals the model. In all {steps:,} "
            f"steps that were looked at, it had the very weights of "
            f"{_name(observation)}, which it is to follow slowly. The network learns "
            "from its own latest answers."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Copy the weights to the target network every few hundred steps, or move "
            "it by a small share: ours.lerp_(theirs, 0.005). tau is the share of the "
            "new weights. If you want no target network, leave it out."
        ),
    )


def _of_name(kept: str, own: str, *, is_sure: bool) -> Description:
    meant = (
        ""
        if is_sure
        else " If this branch is meant to be the model, as in SimSiam, ignore this."
    )
    return Description(
        message=(
            f"{kept} is no network of its own: it shares all its weights with {own}, "
            "in the same memory. It moves with each step instead of following slowly."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            f"Copy the network when you make {kept}: copy.deepcopy({own}). "
            f"copy.copy(), an assignment, and p.data = q.data share the memory.{meant}"
        ),
    )


def _of_exchanged(name: str, share: float, steps: int) -> Description:
    return Description(
        message=(
            f"The copy of {name} that your program averages follows at once: in all "
            f"{steps:,} steps that were looked at, each update left "
            f"{percent(100 * share)} of the copy's own weights and took the rest from "
            "the model. It nearly equals the model, and is no slow average or target."
        ),
        value=share,
        threshold=1.0,
        advice=(
            "The decay and 1 - decay are exchanged. The share that stays is the large "
            f"one: ours.mul_({number(1 - share, 3)}).add_(theirs, "
            f"alpha={number(share, 2)}). "
            "tau and the momentum of some libraries are the share of the new weights."
        ),
    )


def _of_swap(observation: Observation) -> Description:
    kept = observation.words.get("kept", "")
    return Description(
        message=(
            f"The training goes on from its average: your program copies {kept} into "
            f"{_name(observation)} to evaluate it, and does not put the model's own "
            "weights back. The next steps start from averaged weights, with an "
            "optimizer that knows others."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Keep the weights before you evaluate, and restore them afterwards, before "
            "the next training step. Or evaluate a copy of the model that has the "
            "averaged weights. If you mean to continue from the average, ignore this."
        ),
    )


def _of_another(observation: Observation) -> Description:
    steps = round(observation.numbers.get("steps", 0))
    return Description(
        message=(
            f"The average of weights is one of another model: after {steps:,} steps, "
            f"its weights have no more in common with those of {_name(observation)} "
            "than two new models have. It did not begin as a copy of the model that "
            "you train."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Copy the model to its average after you have loaded or initialized it: "
            "ema = copy.deepcopy(model), or ema.load_state_dict(model.state_dict())."
        ),
    )


def _of_parts(observation: Observation) -> Description:
    stale, n = (
        round(observation.numbers.get(key, 0)) for key in ("stale", "parameters")
    )
    return Description(
        message=(
            f"A copy of {_name(observation)} follows the model in part: of {n:,} of "
            f"its parameters that were looked at, {stale:,} "
            f"{'has' if stale == 1 else 'have'} never changed since the beginning, and "
            "the others follow. Old and new layers do not fit each other."
        ),
        value=float(stale),
        threshold=0.0,
        advice=(
            "Update all parameters of the copy: zip(copy.parameters(), "
            "model.parameters()) of the whole model, with its head, and with the same "
            "names on both sides."
        ),
    )


def _name(observation: Observation) -> str:
    return next(iter(observation.names), "the model")


def _of_unasked(observation: Observation) -> Description:
    name, target = observation.names[0], observation.words.get("target", "target")
    steps = int(observation.numbers.get("steps", 0))
    return Description(
        message=(
            f"The program updates the target network {target} ({name}), but has never "
            f"called it in {plural(steps, 'step')}: the targets come from other "
            "networks, perhaps from the one that learns them."
        ),
        value=0.0,
        threshold=1.0,
        since=0,
        advice=(
            f"Compute the targets with it: next_values = {target}(next_states), under "
            "torch.no_grad()."
        ),
    )


def _of_present(observation: Observation) -> Description:
    name = observation.names[0]
    target, present, later = (
        observation.words.get(each, "") for each in ("target", "present", "later")
    )
    return Description(
        message=(
            f"The target network {target} ({name}) is asked about {present}, and never "
            f"about {later}: the target of each step has the value of the state that "
            "the step begins in, not of the one that it leads to."
        ),
        value=0.0,
        threshold=1.0,
        since=0,
        advice=f"Give it what comes after the step: {target}({later}).",
    )
