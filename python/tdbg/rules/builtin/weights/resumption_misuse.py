"""ResumptionMisuse: trainings that go on with a part of what they were, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["ResumptionMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ResumptionMisuse(ObservedRule):
    """Report what a resumed training has not restored.

    The optimizer or the schedule begins anew: one of the two has been restored, which
    shows that the training is a resumed one.  Or the program loads weights, and the
    model has none of them.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.OPTIMIZER_BEGINS_ANEW,
            Fault.SCHEDULE_BEGINS_ANEW,
            Fault.LOAD_RESTORED_NOTHING,
            Fault.LOAD_OF_OWN,
            Fault.LOAD_WIPED,
        }
    )

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning, unless the program may mean it, or has restored weights."""
        is_known = observation.fault is not Fault.LOAD_OF_OWN
        is_known &= bool(observation.numbers.get("sure", 1.0))
        return Severity.WARNING if is_known else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Say what begins anew."""
        name = next(iter(observation.names), "")
        of_loads = {
            Fault.LOAD_RESTORED_NOTHING: _unmatched,
            Fault.LOAD_OF_OWN: _own,
            Fault.LOAD_WIPED: _wiped,
        }
        if observation.fault in of_loads:
            return of_loads[observation.fault](name, observation)
        steps = int(observation.numbers.get("steps", 0.0))
        optimizer = observation.words.get("optimizer", "")
        if observation.fault is Fault.OPTIMIZER_BEGINS_ANEW:
            place = observation.words.get("place", "")
            if place:
                return _unused_state(place, steps, optimizer)
            return _optimizer(name, steps, optimizer)
        numbers = observation.numbers
        return _schedule(name, steps, optimizer, numbers["rate"], numbers["meant"])


def _optimizer(name: str, steps: int, optimizer: str) -> Description:
    return Description(
        message=(
            f"The training was resumed, but its optimizer ({optimizer}) begins anew: "
            f"the schedule ({name}) is at step {steps:,}, while the optimizer has no "
            "state. Its averages of gradients are lost, so the first updates are "
            "unlike those before."
        ),
        value=float(steps),
        threshold=0.0,
        since=0,
        advice=(
            "Save optimizer.state_dict() in the checkpoint, and call "
            "optimizer.load_state_dict() before you resume. If you mean the optimizer "
            "to begin anew, ignore this."
        ),
    )


def _unused_state(place: str, steps: int, optimizer: str) -> Description:
    return Description(
        message=(
            f"The optimizer ({optimizer}) begins anew although your program has a "
            f"state for it: {place} holds the optimizer's state after "
            f"{plural(steps, 'step')}, for the same parameters, and you have loaded "
            "weights. Its averages of gradients are lost, so the first updates are "
            "unlike those before."
        ),
        value=float(steps),
        threshold=0.0,
        since=0,
        advice=(
            "Call optimizer.load_state_dict() with that state before you go on. If you "
            "fine-tune, or mean the optimizer to begin anew, ignore this."
        ),
    )


def _schedule(
    name: str, steps: int, optimizer: str, rate: float, meant: float
) -> Description:
    made = f"made {plural(steps, 'step')}" if steps else "momentum from before"
    return Description(
        message=(
            f"The training was resumed, but its schedule ({name}) begins anew: the "
            f"optimizer ({optimizer}) has {made} and has its "
            f"learning rate from then ({number(rate)}), while the schedule is at step "
            f"0, where it would be {number(meant)}."
        ),
        value=float(steps),
        threshold=0.0,
        since=0,
        advice=(
            "Save scheduler.state_dict() in the checkpoint, and call "
            "scheduler.load_state_dict() before you resume. If you mean to begin a new "
            "schedule, set the learning rate of the optimizer first."
        ),
    )


# ---- weights -------------------------------------------------------------------------


def _unmatched(name: str, observation: Observation) -> Description:
    numbers = observation.numbers
    names, matched = int(numbers["names"]), int(numbers["matched"])
    reason, advice = _remedy(observation.words)
    restored = f"only {matched:,}" if matched else "none"
    effect = (
        "It answers with its initial weights."
        if observation.words.get("role")
        else "The model is trained from its initial weights."
    )
    return Description(
        message=(
            f"load_state_dict(strict=False) restored {restored} of the "
            f"{plural(names, 'tensor')} of {name}: the names in the state are others."
            f"{reason} {effect}"
        ),
        value=float(matched),
        threshold=float(names),
        since=0,
        advice=(
            f"{advice} Read what load_state_dict() returns: it lists the missing and "
            "the unexpected names."
        ),
    )


def _remedy(words: Mapping[str, str]) -> tuple[str, str]:
    """Return why names do not match, and what to do."""
    stripped, added, inside = (
        words.get(key, "") for key in ("stripped", "added", "inside")
    )
    if stripped:
        reason = f' They begin with "{stripped}".'
        advice = (
            f'Remove it: {{k.removeprefix("{stripped}"): v for k, v in '
            "state.items()}. Then load with strict=True."
        )
        wrappers = {
            "module.": "DataParallel or DistributedDataParallel",
            "_orig_mod.": "torch.compile",
        }
        if stripped in wrappers:
            advice += f" {wrappers[stripped]} has added it."
        return reason, advice
    if added:
        part = added.rstrip(".")
        reason = f' In the model, they begin with "{added}".'
        return reason, f"Load the state into that part: model.{part}.load_state_dict()."
    if inside:
        return (
            f' The weights are in its entry "{inside}".',
            f'Load that entry: model.load_state_dict(checkpoint["{inside}"]).',
        )
    return "", "Compare the names, and load with strict=True."


def _own(name: str, observation: Observation) -> Description:
    return Description(
        message=(
            f"load_state_dict() got the own weights of {name} back before the first "
            "step: every tensor in the state is the model's. If your program copies "
            "matching weights from a checkpoint into this state, none has matched."
        ),
        value=observation.numbers["matched"],
        threshold=0.0,
        since=0,
        advice=(
            "Count the names that match before you load. Names in checkpoints may "
            'begin with "module." or "_orig_mod.", or lie in an entry of their own. If '
            "you wrote into these tensors in place, ignore this."
        ),
    )


def _wiped(name: str, observation: Observation) -> Description:
    tensors = plural(int(observation.numbers["names"]), "tensor")
    return Description(
        message=(
            f"An initialization has wiped the weights that {name} loaded: "
            f"load_state_dict() restored {tensors}, and your program made all weights "
            "anew before the first step. They have nothing in common with the loaded "
            "ones."
        ),
        value=1.0,
        threshold=0.0,
        since=0,
        advice=(
            "Initialize first (reset_parameters(), model.apply(init_weights)) and load "
            "then. To begin anew on purpose, leave out the load."
        ),
    )
