"""ReplicaDivergence: replicas of one model that are not equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tdbg.config.quantities import join_names, percent, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.training_facts import ONE_WORKER, TrainingFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["ReplicaDivergence"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDivergence(ObservedRule):
    """Report replicas of a model that differ between ranks, with the likely reason.

    Data-parallel ranks begin with equal weights and apply equal gradients, so their
    weights are equal to the last bit.
    """

    faults = frozenset(
        {
            Fault.REPLICAS_BYPASS,
            Fault.REPLICAS_UNSYNCED,
            Fault.REPLICAS_LATE_PARAMETERS,
            Fault.REPLICAS_START,
            Fault.REPLICAS_ELEMENT,
            Fault.REPLICAS_ROUNDING,
            Fault.REPLICAS_STEPS,
            Fault.REPLICAS_UPDATES,
            Fault.REPLICAS_SCALED,
            Fault.REPLICAS_GRADIENTS,
            Fault.REPLICAS_BUFFERS,
            Fault.REPLICAS_DEVICES,
        }
    )
    hooks = frozenset({"JAX", "PyTorch"})
    severities = (Severity.INFO, Severity.WARNING, Severity.ERROR)
    stage = Stage.SETUP

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there is one rank, if so; JAX has several devices in one."""
        is_alone = training.n_ranks < 2 and training.hook != "JAX"
        return ONE_WORKER if is_alone else ObservedRule.inapplicable(self, training)

    def severity_of(self, observation: Observation) -> Severity:
        """Return ERROR where nothing explains equal replicas that became different."""
        return _SEVERITIES.get(observation.fault, Severity.ERROR)

    def describe(self, observation: Observation) -> Description:
        """Say which ranks differ, since when, where, and what to do."""
        reason = _REASONS[observation.fault]
        numbers = observation.numbers
        first = int(numbers.get("first", observation.step))
        return Description(
            message=" ".join(
                (_where(observation), _when(observation), reason(observation))
            ),
            value=numbers.get("relative", math.nan),
            threshold=0.0,
            since=first if first >= 0 else None,
            advice=_ADVICE[observation.fault],
        )


_SEVERITIES = {
    Fault.REPLICAS_BUFFERS: Severity.INFO,
    Fault.REPLICAS_ROUNDING: Severity.INFO,
    Fault.REPLICAS_UNSYNCED: Severity.WARNING,
    Fault.REPLICAS_LATE_PARAMETERS: Severity.WARNING,
    Fault.REPLICAS_GRADIENTS: Severity.WARNING,
}


def _where(observation: Observation) -> str:
    """Say which tensors differ, and on which ranks."""
    numbers, words = observation.numbers, observation.words
    n_differ, n = int(numbers.get("differ", 1)), int(numbers.get("tensors", 1))
    names = join_names(observation.names)
    what = names if n_differ == 1 else f"{n_differ:,} of {n:,} tensors ({names})"
    verb = "differs" if n_differ == 1 else "differ"
    odd, ranks = words.get("odd", ""), words.get("ranks", "")
    is_one_process = observation.fault is Fault.REPLICAS_DEVICES
    who = f"between {'devices' if is_one_process else 'ranks'} {ranks}"
    if odd:
        agree = [each for each in ranks.split(", ") if each not in odd.split(", ")]
        others = f"rank{'s' * (len(agree) > 1)} {', '.join(agree)}"
        who = f"on rank{'s' * (', ' in odd)} {odd} from {others}, which agree"
    size = numbers.get("relative", math.nan)
    whose = "its" if n_differ == 1 else "their"
    by = f", by about {percent(size)} of {whose} size" if size >= _LEAST_SHOWN else ""
    return f"{what} {verb} {who}{by}."


# A share below this says nothing in percent.
_LEAST_SHOWN = 1e-4


def _when(observation: Observation) -> str:
    first = int(observation.numbers.get("first", observation.step))
    equal = int(observation.numbers.get("equal_at", -1))
    if equal < 0:
        return f"That was so at step {first:,}."
    return f"All were equal at step {equal:,}, and no longer at step {first:,}."


def _bypass(_: Observation) -> str:
    return (
        "DistributedDataParallel has them, but nothing has ever called it, so no "
        "gradient is reduced: each rank trains on its own data alone."
    )


def _unsynced(observation: Observation) -> str:
    n_apart = int(observation.numbers.get("apart", 0))
    return (
        "DistributedDataParallel has them, but its latest forward before each look ran "
        "in no_sync() or without gradients, so nothing was reduced. The ranks were not "
        f"equal at any of {plural(n_apart, 'step')}, as they would be now and then "
        "with local SGD."
    )


def _late(_: Observation) -> str:
    return (
        "DistributedDataParallel did not train them when you wrapped the model: they "
        "were created, replaced or unfrozen afterwards, so it does not reduce their "
        "gradients."
    )


def _start(_: Observation) -> str:
    return (
        "DistributedDataParallel makes weights equal once, when you wrap the model; "
        "they were changed after that, differently on each rank."
    )


def _element(observation: Observation) -> str:
    index, bit = (observation.numbers.get(key) for key in ("index", "bit"))
    where = "" if index is None else f" (element {int(index):,} of the flat tensor)"
    what = "in one element" if bit is None else f"in one bit, number {int(bit)}, of one"
    element = "" if bit is None else " element"
    return (
        f"They differ {what}{element} alone{where}: no step of an optimizer does that. "
        "Silent corruption of a device's memory does."
    )


def _rounding(_: Observation) -> str:
    return (
        "The difference is as small as rounding: these ranks compute updates on "
        "different hardware or with different settings."
    )


def _steps(observation: Observation) -> str:
    least, most = (int(observation.numbers.get(key, 0)) for key in ("least", "most"))
    return (
        f"For as many steps of the optimizer, ranks have made {least:,} and {most:,} "
        "forwards: a rank leaves out steps that others make."
    )


def _updates(_: Observation) -> str:
    return (
        "Their gradients are equal, so a rank made another update of the same "
        "gradient, or changed its weights in between."
    )


def _scaled(observation: Observation) -> str:
    ratio = observation.numbers.get("ratio", math.nan)
    return (
        "The gradients that optimizers use point the same way and differ in length, by "
        f"a factor of {ratio:.4g}: a rank clips or scales them after the reduction."
    )


def _gradients(_: Observation) -> str:
    return (
        "The gradients that optimizers use differ, too: a rank changes them after the "
        "reduction, or they are not reduced."
    )


def _buffers(_: Observation) -> str:
    return (
        "With broadcast_buffers=False, each rank updates them from its own data; "
        "usually, only the first rank's are saved."
    )


def _devices(_: Observation) -> str:
    return (
        "The step returns them as arrays that are equal on all devices, and nothing "
        "checks it: each device updates its copy with the gradients of its own part of "
        "the batch, and only the first copy is saved."
    )


_REASONS: dict[Fault, Callable[[Observation], str]] = {
    Fault.REPLICAS_BYPASS: _bypass,
    Fault.REPLICAS_UNSYNCED: _unsynced,
    Fault.REPLICAS_LATE_PARAMETERS: _late,
    Fault.REPLICAS_START: _start,
    Fault.REPLICAS_ELEMENT: _element,
    Fault.REPLICAS_ROUNDING: _rounding,
    Fault.REPLICAS_STEPS: _steps,
    Fault.REPLICAS_UPDATES: _updates,
    Fault.REPLICAS_SCALED: _scaled,
    Fault.REPLICAS_GRADIENTS: _gradients,
    Fault.REPLICAS_BUFFERS: _buffers,
    Fault.REPLICAS_DEVICES: _devices,
}
_ADVICE = {
    Fault.REPLICAS_BYPASS: (
        "Call the wrapper: ddp(x), not ddp.module(x), nor the model that you passed "
        "to it. Only the wrapper's forward prepares the reduction. If you need "
        "another method of the model, call it inside forward()."
    ),
    Fault.REPLICAS_UNSYNCED: (
        "Leave no_sync() for the last micro-batch before the optimizer steps, and run "
        "that forward through the wrapper, not through ddp.module. If you mean local "
        "SGD with longer periods than that, ignore this."
    ),
    Fault.REPLICAS_LATE_PARAMETERS: (
        "Create, replace and unfreeze parameters first, then wrap the model in "
        "DistributedDataParallel, then create the optimizer. If each rank is to have "
        "its own, keep them outside the wrapped module."
    ),
    Fault.REPLICAS_START: (
        "Initialize and load weights before you wrap the model, or load the same "
        "checkpoint on each rank."
    ),
    Fault.REPLICAS_ELEMENT: (
        "Check the memory of that rank's device (for NVIDIA: dcgmi diag -r 3, and ECC "
        "errors in nvidia-smi -q), and go back to a checkpoint from before. If your "
        "program writes single weights, make it do so on all ranks."
    ),
    Fault.REPLICAS_ROUNDING: (
        "Use the same hardware, library versions and settings (TF32, deterministic "
        "algorithms) on all ranks, or broadcast the weights now and then."
    ),
    Fault.REPLICAS_STEPS: (
        "Decide on all ranks alike whether to leave out a step: all-reduce the "
        "condition (a NaN, a threshold) before you test it."
    ),
    Fault.REPLICAS_UPDATES: (
        "Give each rank's optimizer the same learning rate, weight decay and state, "
        "and look for code that leaves out a step, or writes weights, on one rank "
        "alone (if rank == 0)."
    ),
    Fault.REPLICAS_SCALED: (
        "Clip on all ranks with the same limit, and scale gradients by the same "
        "number everywhere."
    ),
    Fault.REPLICAS_GRADIENTS: (
        "Look for code between backward() and the optimizer's step that runs on some "
        "ranks only, for backward passes past the wrapper, and for parameters whose "
        "gradients your program does not reduce."
    ),
    Fault.REPLICAS_BUFFERS: (
        "If all ranks are to share them (codebooks, averages, counters), all-reduce "
        "them after each update, or leave broadcast_buffers at True."
    ),
    Fault.REPLICAS_DEVICES: (
        "Reduce gradients before the optimizer uses them: jax.lax.pmean(grads, axis) "
        "inside the function that shard_map maps. Leave check_vma on: it refuses "
        "out_specs=P() for what differs."
    ),
}
