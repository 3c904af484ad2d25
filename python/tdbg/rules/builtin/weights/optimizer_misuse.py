"""OptimizerMisuse: optimizers that hold, decay or leave out the wrong parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tdbg.config.kinds import Kind
from tdbg.config.quantities import join_names, number, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["OptimizerMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerMisuse(ObservedRule):
    """Report optimizers that are set up wrongly.

    The rule finds

    - weight decay on normalizations, where biases are exempt from it;
    - an optimizer that also has the parameters of a judge, which another one trains;
    - gradients of another network's loss that nobody clears;
    - an optimizer that never steps;
    - an optimizer that begins anew at each step, or is made anew again and again;
    - weight decay that makes weights grow, or that leaves out all weights;
    - gradients that are cleared before their step, used twice, or still scaled;
    - an optimizer that has a copy of the model;
    - layers that are frozen, or trained, other than their flags say;
    - flags for freezing, and settings of groups, that PyTorch does not read;
    - the two betas of Adam, exchanged;
    - a compiled step that computes with arrays that the program has replaced.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.DECAYED_NORMALIZATION,
            Fault.GRADIENTS_OF_ANOTHER_LOSS,
            Fault.OPTIMIZER_NEVER_STEPS,
            Fault.SHARED_BY_OPTIMIZERS,
            Fault.OPTIMIZER_STATE_DROPPED,
            Fault.OPTIMIZER_MADE_ANEW,
            Fault.FREEZING_NOT_COMPILED,
            Fault.DECAY_GROWS,
            Fault.MASKED_NOT_FROZEN,
            Fault.TAKEN_IN_AND_REPLACED,
            Fault.DECAY_UPSIDE_DOWN,
            Fault.CLEARED_BEFORE_STEP,
            Fault.STEPPED_TWICE,
            Fault.STEPPED_SCALED,
            Fault.OPTIMIZER_OF_COPY,
            Fault.LOSSES_NOT_READ,
            Fault.LOSS_NOT_SCALED,
            Fault.FLAG_NOT_READ,
            Fault.SETTING_NOT_READ,
            Fault.BETAS_EXCHANGED,
        }
    )
    hooks = frozenset({"JAX", "Keras", "PyTorch"})

    def severity_of(self, observation: Observation) -> Severity:
        """Return INFO for what some programs do on purpose, else WARNING.

        Recipes for convolutional networks decay batch normalizations, and clients of
        federated learning begin anew in each round.
        """
        is_usual = (
            observation.fault == Fault.DECAYED_NORMALIZATION
            and observation.words.get("kind") == Kind.BATCH_NORM
        )
        is_usual |= observation.fault == Fault.OPTIMIZER_MADE_ANEW
        return Severity.INFO if is_usual else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Say what the optimizer does."""
        return _DESCRIBED[observation.fault](observation)


def _decayed(seen: Observation) -> Description:
    decay = seen.numbers.get("decay", 0.0)
    n = int(seen.numbers.get("parameters", len(seen.names)))
    optimizer = seen.words.get("optimizer", "The optimizer")
    return Description(
        message=(
            f"{optimizer} applies weight decay ({number(decay)}) to "
            f"{plural(n, 'parameter')} of normalizations, although it exempts biases, "
            f"or others of their kind: {join_names(seen.names)}."
        ),
        value=float(n),
        threshold=0.0,
        advice=lambda words: (
            f"Exempt the scales and biases of normalizations, too: "
            f"{words.exempting_from_decay}. Decay pulls scales to 0, which is not "
            "where they are neutral."
        ),
    )


def _shared(seen: Observation) -> Description:
    larger, smaller = (seen.words.get(key, "one") for key in ("larger", "smaller"))
    return Description(
        message=(
            f"Two optimizers train {join_names(seen.names)}: {smaller}, which has a "
            f"loss for them alone, and {larger}, which also trains what is judged by "
            "them. Its steps make the judge lenient."
        ),
        value=float(len(seen.names)),
        threshold=0.0,
        advice=(
            f"Give {larger} the parameters of its own network only, not those of the "
            "other one as well (generator.parameters(), not those of both). The "
            "gradient still passes through the judge."
        ),
    )


def _filled(seen: Observation) -> Description:
    other, own = (seen.words.get(key, "another") for key in ("other", "own"))
    return Description(
        message=(
            f"The optimizer {own} uses gradients of another loss: the loss that trains "
            f"the parameters of {other} leaves gradients in {join_names(seen.names)}, "
            "and nobody clears them before the next loss adds to them."
        ),
        value=float(len(seen.names)),
        threshold=0.0,
        advice=(
            "Call zero_grad() of that optimizer right before the backward pass of its "
            "own loss, instead of after its step. Or freeze these parameters while the "
            "other network is trained."
        ),
    )


def _never_steps(seen: Observation) -> Description:
    steps = int(seen.numbers.get("steps", 0))
    return Description(
        message=(
            f"The optimizer {seen.words.get('own', '')} has never stepped in "
            f"{plural(steps, 'step')} of the others, so {join_names(seen.names)} "
            f"{'gets' if len(seen.names) == 1 else 'get'} gradients but "
            f"{'does' if len(seen.names) == 1 else 'do'} not change."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Call its step() after the backward pass, and its zero_grad() before. If "
            "you do not want to train these parameters, freeze them."
        ),
    )


def _begins_anew(seen: Observation) -> Description:
    calls = int(seen.numbers.get("calls", 0))
    how = seen.words.get("how")
    again = "one that had counted no step" if how == "made" else "the first one again"
    what = {
        "inside": (
            f"each of {plural(calls, 'call')} made its state inside of the training "
            "step, by init"
        ),
        "handed on": (
            f"in each of {plural(calls, 'call')}, the training step used the state, "
            "threw the new one away, and returned the one that it was given"
        ),
    }.get(
        str(how),
        f"in each of {plural(calls, 'call')}, the training step returned a new state "
        f"of the optimizer, and the next call got {again}",
    )
    return Description(
        message=(
            f"The optimizer begins anew at each step: {what}. Its averages of "
            "gradients and its count of steps never grow, so momentum, bias "
            "correction and learning rate schedules do nothing."
        ),
        value=float(calls),
        threshold=0.0,
        advice=(
            "Return the state that the optimizer's update returns, and assign it to "
            "the variable that you give to the next call: params, opt_state, loss = "
            "step(params, opt_state, batch). Make the first state once, before the "
            "loop."
        ),
    )


def _made_anew(seen: Observation) -> Description:
    count = int(seen.numbers.get("optimizers", 0))
    steps = int(seen.numbers.get("steps", 0))
    name = seen.words.get("optimizer", "optimizer")
    return Description(
        message=(
            f"The program makes a new {name} again and again: by step {steps:,}, "
            f"{count:,} of them with the same settings have trained the same "
            "parameters, one after the other. Each forgets the averages of gradients "
            "that the last one had, so momentum and bias correction start anew."
        ),
        value=float(count),
        threshold=1.0,
        advice=(
            "Make the optimizer once, before the loop over epochs. To change the "
            'learning rate, use a schedule, or set group["lr"] for each group in '
            "optimizer.param_groups. If you begin anew on purpose, as in federated "
            "learning, ignore this."
        ),
    )


def _not_compiled(seen: Observation) -> Description:
    steps = int(seen.numbers.get("steps", 1))
    n = int(seen.numbers.get("parameters", len(seen.names)))
    if seen.words.get("how") == "freed":
        return _not_freed(seen, steps, n)
    return Description(
        message=(
            f"{plural(n, 'frozen parameter')} still "
            f"{'trains' if n == 1 else 'train'}: trainable is False of "
            f"{join_names(seen.names)}, but {plural(steps, 'step')} changed "
            f"{'it' if n == 1 else 'them'}. You set the flag after the model was "
            "compiled, and the compiled step does not know it."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            "Call model.compile(...) again after each change of trainable. The new "
            "optimizer then trains what is trainable, and frozen normalizations keep "
            "their statistics."
        ),
    )


def _not_freed(seen: Observation, steps: int, n: int) -> Description:
    return Description(
        message=(
            f"{plural(n, 'parameter')} that you unfroze "
            f"{'stays' if n == 1 else 'stay'} frozen: trainable is True of "
            f"{join_names(seen.names)}, but {plural(steps, 'step')} changed nothing "
            "there. You set the flag after the model was compiled, and the compiled "
            "step does not know it."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            "Call model.compile(...) again after each change of trainable, with a low "
            "learning rate if you tune pretrained layers."
        ),
    )


def _grows(seen: Observation) -> Description:
    decay = seen.numbers.get("decay", 0.0)
    return Description(
        message=(
            f"Weight decay ({number(decay)}) makes the weights grow: "
            "optax.add_decayed_weights stands behind the learning rate in optax.chain, "
            f"so each step adds {number(decay)} times the weights to them, instead of "
            "taking a share away."
        ),
        value=decay,
        threshold=0.0,
        advice=(
            "Put optax.add_decayed_weights before the learning rate: "
            "optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(...), "
            "optax.scale_by_learning_rate(...)), or use optax.adamw."
        ),
    )


def _not_frozen(seen: Observation) -> Description:
    n = round(seen.numbers.get("parameters", 1.0))
    names = ", ".join(seen.names) + (", ..." if n > len(seen.names) else "")
    return Description(
        message=(
            "optax.masked freezes nothing: the update is the gradient itself for "
            f"{plural(n, 'parameter')} that its mask leaves out ({names}). "
            "optax.apply_updates adds it, so these move uphill, with a learning rate "
            "of 1."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            "Set the updates of the others to zero: optax.multi_transform({'train': "
            "..., 'freeze': optax.set_to_zero()}, labels), or optax.chain your "
            "optax.masked with optax.masked(optax.set_to_zero(), the inverted mask)."
        ),
    )


def _taken_in(seen: Observation) -> Description:
    calls, name = int(seen.numbers.get("calls", 0)), seen.names[0]
    used = (
        f"The compiled step computes with old values of {name}: jax.jit took them in "
        "when it compiled the step. The program has replaced them since, and "
        f"{plural(calls, 'call')} still used the first ones."
    )
    if seen.words.get("kind") == "number":
        first, latest = seen.numbers.get("first", 0.0), seen.numbers.get("latest", 0.0)
        used = (
            f"The compiled step computes with {name} = {number(first)}, which jax.jit "
            "read when it traced the step, and never again. The program has changed it "
            f"since, to {number(latest)}, and the step goes on with the first one."
        )
    return Description(
        message=used,
        value=float(calls),
        threshold=0.0,
        advice=(
            f"Give {name} to the step as an argument, and return what it changes: "
            "params, opt_state = step(params, opt_state, batch). jax.jit reads "
            "variables from outside of the function, and attributes of self, only "
            "once."
        ),
    )


def _upside_down(seen: Observation) -> Description:
    decay = seen.numbers.get("decay", 0.0)
    n = int(seen.numbers.get("parameters", len(seen.names)))
    optimizer = seen.words.get("optimizer", "The optimizer")
    return Description(
        message=(
            f"{optimizer} decays biases and normalizations only, and no weight: the "
            f"group with weight decay ({number(decay)}) has {plural(n, 'parameter')} "
            f"such as {join_names(seen.names)}, and the group without has the weights."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            "Exchange the two groups: decay weights (parameter.ndim > 1), and exempt "
            "biases and normalizations."
        ),
    )


def _cleared(seen: Observation) -> Description:
    optimizer = seen.words.get("optimizer", "The optimizer")
    return Description(
        message=(
            f"Gradients are cleared before the optimizer ({optimizer}) uses them: the "
            "backward pass has computed them, and none is left at step(). The model "
            "does not learn."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Call zero_grad() before the backward pass or after step(), never between "
            "them: optimizer.zero_grad(); loss.backward(); optimizer.step()."
        ),
    )


def _twice(seen: Observation) -> Description:
    optimizer, earlier = (seen.words.get(key, "") for key in ("optimizer", "earlier"))
    who = (
        f"a step of {earlier} and one of another optimizer ({optimizer})"
        if earlier
        else f"two steps of {optimizer}"
    )
    return Description(
        message=(
            f"The same gradients are used twice: after one backward pass, {who} move "
            "the same parameters by them. The second step is one that no loss has "
            "asked for."
        ),
        value=2.0,
        threshold=1.0,
        advice=(
            "Call step() once after each backward pass. With a scaler, "
            "scaler.step(optimizer) is that call. If there are two optimizers, give "
            "each of them its own parameters."
        ),
    )


def _scaled(seen: Observation) -> Description:
    optimizer = seen.words.get("optimizer", "The optimizer")
    scale = seen.numbers.get("scale", 0.0)
    return Description(
        message=(
            f"The optimizer ({optimizer}) uses gradients that are still multiplied by "
            f"the scale of GradScaler ({number(scale)}): the program scales the loss, "
            "and calls optimizer.step() instead of scaler.step(optimizer)."
        ),
        value=scale,
        threshold=1.0,
        advice=(
            "Call scaler.step(optimizer), then scaler.update(). It divides the "
            "gradients by the scale, and skips steps whose gradients are infinite."
        ),
    )


def _losses_left_out(seen: Observation) -> Description:
    n = int(seen.numbers.get("layers", len(seen.names)))
    return Description(
        message=(
            f"The optimizer never sees the losses of {plural(n, 'layer')}: "
            f"{join_names(seen.names)}. Regularizers and add_loss make them, and your "
            "train_step does not add them to its loss."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            "Write loss += sum(self.losses) inside the tape, or take "
            "self.compute_loss(x, y, y_pred), which adds them."
        ),
    )


def _not_scaled(seen: Observation) -> Description:
    return Description(
        message=(
            f"{seen.names[0]} divides gradients by a scale that your loss never had: "
            "your train_step does not call optimizer.scale_loss. So the updates are "
            "32,768 times too small at first, or small ones are lost in half precision."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Scale the loss inside the tape, and take gradients of that: scaled = "
            "self.optimizer.scale_loss(loss). The optimizer divides them again."
        ),
    )


def _of_copy(seen: Observation) -> Description:
    optimizer = seen.words.get("optimizer", "The optimizer")
    n = int(seen.numbers.get("parameters", 0))
    return Description(
        message=(
            f"The optimizer ({optimizer}) has the parameters of another model: its "
            f"{plural(n, 'parameter')} have the shapes of yours, but never get "
            "gradients. Those of the model that you train do, and no optimizer has "
            "them, so the model does not learn."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Create the optimizer after the last line that makes, copies or replaces "
            "the model, with model.parameters() of the one that you call."
        ),
    )


def _not_read(seen: Observation) -> Description:
    flag, of = (seen.words.get(key, "") for key in ("flag", "of"))
    n = int(seen.numbers.get("parameters", len(seen.names)))
    is_frozen = bool(seen.numbers.get("frozen"))
    was, stays = ("unfroze", "frozen") if is_frozen else ("froze", "trained")
    value = str(is_frozen)
    return Description(
        message=(
            f"The program {was} {plural(n, 'parameter')} by a name that PyTorch does "
            f"not read, so {'it stays' if n == 1 else 'they stay'} {stays}: it sets "
            f"{flag} = {value} on {'a module' if of == 'module' else 'parameters'} "
            f"({join_names(seen.names)})."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            f"Call module.requires_grad_({value}), or set parameter.requires_grad = "
            f"{value} on each parameter, before you create the optimizer."
        ),
    )


def _unread(seen: Observation) -> Description:
    optimizer, key, setting = (
        seen.words.get(each, "") for each in ("optimizer", "key", "setting")
    )
    value, used = seen.numbers.get("value", 0.0), seen.numbers.get("used", 0.0)
    return Description(
        message=(
            f'{optimizer} does not read the setting "{key}" of one of its groups, '
            f"{number(value)}: PyTorch takes any key, and calls this one {setting}. So "
            f"{setting} is {number(used)} for {join_names(seen.names)}, as for groups "
            "that set nothing."
        ),
        value=used,
        threshold=value,
        advice=(
            f'Write {{"params": ..., "{setting}": {number(value)}}}. If your own code '
            f'reads group["{key}"], ignore this.'
        ),
    )


def _exchanged(seen: Observation) -> Description:
    optimizer = seen.words.get("optimizer", "Adam")
    first, second = (seen.numbers.get(each, 0.0) for each in ("first", "second"))
    return Description(
        message=(
            f"The two betas of {optimizer} are exchanged: betas = ({number(first)}, "
            f"{number(second)}). The first one is for the average of gradients, and "
            f"now covers about {1 / max(1 - first, 1e-9):,.0f} steps. The second one "
            "is for the average of their squares, which should be the longer one."
        ),
        value=first,
        threshold=second,
        advice=(
            f"Write betas=({number(second)}, {number(first)}), as in the default, "
            "betas=(0.9, 0.999)."
        ),
    )


_DESCRIBED: Mapping[Fault, Callable[[Observation], Description]] = {
    Fault.DECAYED_NORMALIZATION: _decayed,
    Fault.GRADIENTS_OF_ANOTHER_LOSS: _filled,
    Fault.OPTIMIZER_NEVER_STEPS: _never_steps,
    Fault.SHARED_BY_OPTIMIZERS: _shared,
    Fault.OPTIMIZER_STATE_DROPPED: _begins_anew,
    Fault.OPTIMIZER_MADE_ANEW: _made_anew,
    Fault.FREEZING_NOT_COMPILED: _not_compiled,
    Fault.DECAY_GROWS: _grows,
    Fault.MASKED_NOT_FROZEN: _not_frozen,
    Fault.TAKEN_IN_AND_REPLACED: _taken_in,
    Fault.DECAY_UPSIDE_DOWN: _upside_down,
    Fault.CLEARED_BEFORE_STEP: _cleared,
    Fault.STEPPED_TWICE: _twice,
    Fault.STEPPED_SCALED: _scaled,
    Fault.OPTIMIZER_OF_COPY: _of_copy,
    Fault.LOSSES_NOT_READ: _losses_left_out,
    Fault.LOSS_NOT_SCALED: _not_scaled,
    Fault.FLAG_NOT_READ: _not_read,
    Fault.SETTING_NOT_READ: _unread,
    Fault.BETAS_EXCHANGED: _exchanged,
}
