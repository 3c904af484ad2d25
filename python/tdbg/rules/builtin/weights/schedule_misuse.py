"""ScheduleMisuse: schedules of the learning rate that count something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description, Evaluation, Idle
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["ScheduleMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMisuse(ObservedRule):
    """Report schedules of the learning rate that do not fit the training.

    Lengths are in steps of the schedule, and compared with counted steps of the
    optimizer, forwards, batches of the loader and ranks.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.SCHEDULE_TOO_OFTEN,
            Fault.SCHEDULE_IN_EPOCHS,
            Fault.SCHEDULE_IN_MICRO_BATCHES,
            Fault.SCHEDULE_FOR_ALL_RANKS,
            Fault.WARM_UP_TOO_LONG,
            Fault.WARM_UP_NOT_OVER,
            Fault.PLATEAU_WRONG_WAY,
            Fault.SCHEDULE_OF_ANOTHER,
            Fault.SCHEDULE_OVERWRITTEN,
            Fault.WATCHES_WRONG_WAY,
            Fault.WATCHES_NOTHING,
            Fault.SCHEDULE_IN_BATCHES,
            Fault.DECAYS_IN_EPOCHS,
            Fault.SCHEDULE_NEVER_STEPS,
            Fault.SCHEDULE_MADE_ANEW,
            Fault.PLATEAU_AT_EACH_STEP,
            Fault.PLATEAU_OF_EPOCHS,
            Fault.RATE_SET_ELSEWHERE,
            Fault.FACTOR_IS_RATE,
            Fault.SCHEDULE_AT_ZERO,
        }
    )
    hooks = frozenset({"JAX", "Keras", "PyTorch"})

    def severity_of(self, observation: Observation) -> Severity:
        """Warn where counts agree exactly; a training may have stopped early."""
        is_sure = observation.numbers.get("sure", 1.0)
        return Severity.WARNING if is_sure else Severity.INFO

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Report what became known, except of steps that never came."""
        known = tuple(
            each
            for each in idle.observations
            if each.fault is not Fault.SCHEDULE_AT_ZERO or each.step <= idle.last_step
        )
        yield from ObservedRule.on_idle(self, replace(idle, observations=known))

    def describe(self, observation: Observation) -> Description:
        """Say what the schedule counts, and what it should count."""
        describe = _DESCRIPTIONS[observation.fault]
        name = next(iter(observation.names), "")
        return describe(name, observation.numbers, observation.words)


_Numbers = Mapping[str, float]
_Words = Mapping[str, str]


def _too_often(name: str, numbers: _Numbers, words: _Words) -> Description:
    length, pace = int(numbers["length"]), numbers["pace"]
    now = int(numbers["optimizer_steps"])
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) ended too early: it is "
            f"{plural(length, 'step')} long, but the program steps it "
            f"{number(pace, 2)} times for each step of the optimizer. It was over "
            f"after about {length / pace:,.0f} of {plural(now, 'step')} of the "
            "optimizer, and the training continues."
        ),
        value=pace,
        threshold=1.0,
        since=0,
        advice=(
            "Call scheduler.step() once after each optimizer.step(), not after each "
            "micro-batch. If you mean to step it more often, set its length "
            f"({words['setting']}) to the number of its own steps: micro-batches, or "
            "steps of all processes under Accelerate."
        ),
    )


def _in_epochs(name: str, numbers: _Numbers, words: _Words) -> Description:
    length, batches = int(numbers["length"]), int(numbers["batches"])
    advice = (
        "Call scheduler.step() once an epoch, behind the loop over the batches. "
        "To step it after each batch, set its length "
        f"({words['setting']}) to the number of epochs times len(loader)."
    )
    if words.get("counts") == "steps":
        advice = (
            f"Set its length ({words['setting']}) to the number of epochs times the "
            f"batches in an epoch, {length * batches:,}: Keras counts it in batches."
        )
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) counts epochs, but the "
            f"program steps it after each batch: its length is {length:,}, the number "
            f"of epochs, and an epoch has {plural(batches, 'batch')}. So it "
            f"was over after {plural(length, 'step')} of {length * batches:,}."
        ),
        value=float(length * batches),
        threshold=float(length),
        since=0,
        advice=advice,
    )


def _in_micro_batches(name: str, numbers: _Numbers, words: _Words) -> Description:
    length, steps = int(numbers["length"]), int(numbers["steps"])
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) counts micro-batches, but the "
            f"program steps it with the optimizer: it is {plural(length, 'step')} "
            "long, as many as the training had micro-batches, and made "
            f"{steps:,} ({percent(100 * steps / length)} of its length)."
        ),
        value=100 * steps / length,
        threshold=100.0,
        since=0,
        advice=(
            f"Set its length ({words['setting']}) to the steps of the optimizer: the "
            "number of batches divided by the micro-batches that you accumulate. If "
            "you stopped the training early, ignore this."
        ),
    )


def _for_all_ranks(name: str, numbers: _Numbers, words: _Words) -> Description:
    length, steps = int(numbers["length"]), int(numbers["steps"])
    ranks = int(numbers["ranks"])
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) counts the batches of all "
            f"{ranks:,} ranks, but each rank steps it only with its own: it is "
            f"{plural(length, 'step')} long, and made {steps:,} "
            f"({percent(100 * steps / length)} of its length)."
        ),
        value=100 * steps / length,
        threshold=100.0,
        since=0,
        advice=(
            f"Set its length ({words['setting']}) to the steps of one rank: divide "
            "the number of batches by the number of ranks. If you stopped the training "
            "early, ignore this."
        ),
    )


def _warm_up_too_long(name: str, numbers: _Numbers, words: _Words) -> Description:
    length, warm_up = int(numbers["length"]), int(numbers["warm_up"])
    return Description(
        message=(
            f"The warm-up of the learning rate ({name}) takes "
            f"{plural(warm_up, 'step')}, more than its whole schedule, which is "
            f"{plural(length, 'step')} long: the rate never reaches its largest value."
        ),
        value=float(warm_up),
        threshold=float(length),
        since=0,
        advice=(
            "Give both in the same unit, steps of the optimizer: num_warmup_steps is "
            f"usually 1 to 10% of {words['setting']}."
        ),
    )


def _warm_up_not_over(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    warm_up, steps = int(numbers["warm_up"]), int(numbers["steps"])
    made = int(numbers["optimizer_steps"])
    if numbers["sure"] and "epochs" not in numbers:
        advice = (
            "Call scheduler.step() after each optimizer.step(), not once an epoch; or "
            "set the warm-up to a number of epochs."
        )
    else:
        advice = (
            "Shorten the warm-up to 1 to 10% of the training. If you stopped the "
            "training early, ignore this."
        )
    if "rate" in numbers:
        rate, base = numbers["rate"], numbers["base"]
        message = (
            "The warm-up of the learning rate was not over at the end of the training: "
            f"the rate rose all the time, to {number(rate)}, which is "
            f"{percent(100 * rate / base)} of the optimizer's rate ({number(base)}). "
            f"At this pace, the warm-up takes about {plural(warm_up, 'step')}, and "
            f"the optimizer made {plural(made, 'step')}."
        )
    else:
        message = (
            f"The warm-up of the learning rate ({name}) was not over at the end of the "
            f"training: it takes {plural(warm_up, 'step')}, and the program stepped it "
            f"{plural(steps, 'time')} in {plural(made, 'step')} of the optimizer."
        )
    return Description(
        message=message,
        value=float(steps),
        threshold=float(warm_up),
        since=0,
        advice=advice,
    )


def _wrong_way(name: str, numbers: _Numbers, words: _Words) -> Description:
    is_min = words["mode"] == "min"
    other = "max" if is_min else "min"
    fall, rise = ("fall", "rises") if is_min else ("rise", "falls")
    kind = "as an accuracy does" if is_min else "as a loss does"
    reductions = int(numbers["reductions"])
    return Description(
        message=(
            f'{name} waits for the metric to {fall} (mode="{words["mode"]}"), but the '
            f"metric {rise} as the model gets better, {kind}: from "
            f"{number(numbers['first'])} to {number(numbers['latest'])} in "
            f"{plural(int(numbers['metrics']), 'call')}. So it takes progress for a "
            "plateau, and has lowered the learning rate "
            f"{plural(reductions, 'time')}."
        ),
        value=float(reductions),
        threshold=0.0,
        since=0,
        advice=(
            f'Set mode="{other}" if you pass a metric that {rise} as the model gets '
            "better, or pass the validation "
            f"{'loss' if is_min else 'accuracy'} to scheduler.step()."
        ),
    )


def _of_another(name: str, numbers: _Numbers, words: _Words) -> Description:
    steps = int(numbers["steps"])
    optimizer = words["optimizer"]
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) belongs to another optimizer: "
            f"the program has stepped it {plural(steps, 'time')}, but its optimizer "
            f"never steps. The {optimizer} that trains the same parameters still has "
            f"its first learning rate, {number(numbers['rate'])}, not "
            f"{number(numbers['meant'])}."
        ),
        value=numbers["rate"],
        threshold=numbers["meant"],
        since=0,
        advice=(
            "Make the schedule after the optimizer that you use, and pass it that one: "
            "if you make a new optimizer, make a new schedule as well."
        ),
    )


def _overwritten(name: str, numbers: _Numbers, words: _Words) -> Description:
    other = words["by"]
    return Description(
        message=(
            f"Two schedules set the same learning rate, and {name} has no effect: the "
            f"rate is {number(numbers['rate'])}, as {other} has set it, not "
            f"{number(numbers['meant'])}. {other} computes the rate from the first one "
            "at each of its steps, whatever another schedule has made of it."
        ),
        value=numbers["rate"],
        threshold=numbers["meant"],
        since=0,
        advice=(
            "Put both into one schedule: multiply their factors in one function for "
            "LambdaLR, or step one after the other with SequentialLR."
        ),
    )


def _watches_wrong_way(name: str, numbers: _Numbers, words: _Words) -> Description:
    is_min = words["mode"] == "min"
    other = "max" if is_min else "min"
    fall, rises = ("fall", "rises") if is_min else ("rise", "falls")
    effect = {
        "EarlyStopping": "takes progress for a standstill and stops the training",
        "ModelCheckpoint": "keeps the worst model for the best one",
        "TrainingArguments": "takes the worst checkpoint for the best one",
    }.get(words["class"], "lowers the learning rate while the model learns")
    return Description(
        message=(
            f'{name} waits for {words["monitor"]} to {fall} (mode="{words["mode"]}"), '
            f"but this metric {rises} as the model gets better: from "
            f"{number(numbers['first'])} to {number(numbers['latest'])} in "
            f"{int(numbers['epochs']):,} evaluations. So it {effect}."
        ),
        value=numbers["latest"],
        threshold=numbers["first"],
        since=0,
        advice=words.get("setting")
        or f'Set mode="{other}" in {name}, or leave mode out.',
    )


def _watches_nothing(name: str, numbers: _Numbers, words: _Words) -> Description:
    del numbers
    return Description(
        message=(
            f"{name} does nothing: it watches {words['monitor']}, which is no metric "
            f"of this training. There are {words['metrics']}."
        ),
        value=0.0,
        threshold=1.0,
        since=0,
        advice=(
            "Set monitor to one of these names. Metrics that begin with val_ need "
            "validation_data (or validation_split) in fit."
        ),
    )


def _in_batches(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    at, steps = int(numbers["at"]), int(numbers["steps"])
    batches, epochs = int(numbers["batches"]), int(numbers["epochs"])
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) counts batches, but the "
            f"program steps it once an epoch: what it does at step {at:,} (epoch "
            f"{at // batches:,} of {epochs:,}, with {plural(batches, 'batch')} each) "
            f"has never come, because it was stepped {plural(steps, 'time')}."
        ),
        value=float(steps),
        threshold=float(at),
        since=0,
        advice=(
            "Call scheduler.step() after each optimizer.step() (in Lightning, return "
            'it with "interval": "step"), or give its lengths in epochs, without '
            "len(loader)."
        ),
    )


def _decays_in_epochs(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    at, batches = int(numbers["at"]), int(numbers["batches"])
    epochs, steps = int(numbers["epochs"]), int(numbers["steps"])
    settings = "step_size_up" if name == "CyclicLR" else "step_size or milestones"
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) counts epochs, but the "
            f"program steps it after each batch: it first lowers the rate after "
            f"{plural(at, 'step')}, within the first of {epochs:,} epochs, which have "
            f"{plural(batches, 'batch')} each. It made {steps:,} steps."
        ),
        value=float(steps),
        threshold=float(epochs),
        since=0,
        advice=(
            "Call scheduler.step() once an epoch, behind the loop over the batches. To "
            f"step it after each batch, multiply its {settings} by len(loader)."
        ),
    )


def _never_steps(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    made = int(numbers["optimizer_steps"])
    return Description(
        message=(
            f"The schedule of the learning rate ({name}) has never been stepped: the "
            f"optimizer made {plural(made, 'step')}, all with the rate that the "
            "schedule begins with."
        ),
        value=0.0,
        threshold=1.0,
        since=0,
        advice=(
            "Call scheduler.step() after each optimizer.step(), or once an epoch if it "
            "counts epochs. If you want a constant rate, remove it."
        ),
    )


def _made_anew(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    times, steps = int(numbers["times"]), int(numbers["steps"])
    return Description(
        message=(
            f"The program makes the schedule of the learning rate ({name}) again and "
            f"again: at least {times:,} of them, one after the other, for the same "
            f"optimizer. The rate begins anew each time, and each had made about "
            f"{plural(steps, 'step')} and was not over."
        ),
        value=float(times),
        threshold=1.0,
        since=0,
        advice=(
            "Make the schedule once, next to the optimizer and before the loop over "
            "epochs. For restarts on purpose, use CosineAnnealingWarmRestarts."
        ),
    )


def _plateau_each(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    patience, batches = int(numbers["patience"]), int(numbers["batches"])
    reductions = int(numbers["reductions"])
    return Description(
        message=(
            f"{name} gets a metric at each step, and takes noise for a plateau: its "
            f"patience is {patience:,}, an epoch has {plural(batches, 'batch')}, and "
            f"it has lowered the learning rate {plural(reductions, 'time')} in "
            f"{plural(int(numbers['metrics']), 'step')}."
        ),
        value=float(reductions),
        threshold=0.0,
        since=0,
        advice=(
            "Call scheduler.step(metric) once an epoch, with the mean over the epoch "
            "or the validation loss."
        ),
    )


def _plateau_of_epochs(name: str, numbers: _Numbers, words: _Words) -> Description:
    first, n = int(numbers["first"]), int(numbers["metrics"])
    is_min = words["mode"] == "min"
    effect = (
        "never finds a smaller one, and lowers the learning rate again and again"
        if is_min
        else "always finds a larger one, and never lowers the learning rate"
    )
    return Description(
        message=(
            f"{name} gets the number of the epoch as its metric: {first:,} to "
            f"{first + n - 1:,} in {plural(n, 'call')}. So it {effect}, whatever the "
            "model does."
        ),
        value=float(n),
        threshold=0.0,
        since=0,
        advice=(
            "Give it what it should watch: scheduler.step(validation_loss), not "
            "scheduler.step(epoch)."
        ),
    )


def _set_elsewhere(name: str, numbers: _Numbers, words: _Words) -> Description:
    place = words["place"]
    return Description(
        message=(
            f"The learning rate is set where {name} does not read it: the program has "
            f"changed {place} from {number(numbers['first'])} to "
            f"{number(numbers['latest'])}, and the rate is still "
            f"{number(numbers['rate'])}."
        ),
        value=numbers["rate"],
        threshold=numbers["latest"],
        since=0,
        advice=(
            'Set group["lr"] of each group: for group in optimizer.param_groups: '
            'group["lr"] = rate. Or use a schedule of torch.optim.lr_scheduler.'
        ),
    )


def _factor_is_rate(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    base = number(numbers["base"])
    return Description(
        message=(
            f"The function of {name} returns a learning rate, not a factor: its "
            f"largest value is {base}, and {name} multiplies the first rate, {base}, "
            f"by it. So the largest rate is {number(numbers['base'] ** 2)}."
        ),
        value=numbers["base"] ** 2,
        threshold=numbers["base"],
        since=0,
        advice=(
            "Return a factor that is 1 where the rate should be the one that you gave "
            "to the optimizer, such as min(1, (step + 1) / warmup_steps)."
        ),
    )


def _at_zero(name: str, numbers: _Numbers, words: _Words) -> Description:
    del words
    length = int(numbers["length"])
    return Description(
        message=(
            f"The learning rate is 0: your schedule ({name}) ends at 0 after "
            f"{plural(length, 'step')} of the optimizer, and the training has gone on "
            f"for {_TIMES_OVER} times as long. Nothing has changed since."
        ),
        value=float(_TIMES_OVER * length),
        threshold=float(length),
        since=length,
        advice=(
            "Give the schedule all steps of the optimizer: decay_steps = epochs * "
            "batches in an epoch. optax calls it once for each update, not once an "
            "epoch."
        ),
    )


_TIMES_OVER = 5


_DESCRIPTIONS: Mapping[Fault, Callable[[str, _Numbers, _Words], Description]] = {
    Fault.SCHEDULE_TOO_OFTEN: _too_often,
    Fault.SCHEDULE_IN_EPOCHS: _in_epochs,
    Fault.SCHEDULE_IN_MICRO_BATCHES: _in_micro_batches,
    Fault.SCHEDULE_FOR_ALL_RANKS: _for_all_ranks,
    Fault.WARM_UP_TOO_LONG: _warm_up_too_long,
    Fault.WARM_UP_NOT_OVER: _warm_up_not_over,
    Fault.PLATEAU_WRONG_WAY: _wrong_way,
    Fault.SCHEDULE_OF_ANOTHER: _of_another,
    Fault.SCHEDULE_OVERWRITTEN: _overwritten,
    Fault.WATCHES_WRONG_WAY: _watches_wrong_way,
    Fault.WATCHES_NOTHING: _watches_nothing,
    Fault.SCHEDULE_IN_BATCHES: _in_batches,
    Fault.DECAYS_IN_EPOCHS: _decays_in_epochs,
    Fault.SCHEDULE_NEVER_STEPS: _never_steps,
    Fault.SCHEDULE_MADE_ANEW: _made_anew,
    Fault.PLATEAU_AT_EACH_STEP: _plateau_each,
    Fault.PLATEAU_OF_EPOCHS: _plateau_of_epochs,
    Fault.RATE_SET_ELSEWHERE: _set_elsewhere,
    Fault.FACTOR_IS_RATE: _factor_is_rate,
    Fault.SCHEDULE_AT_ZERO: _at_zero,
}
