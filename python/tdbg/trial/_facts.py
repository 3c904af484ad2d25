"""What the workers said of the model, put together.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from tdbg.facts import Facts, ParameterFacts, gather
from tdbg.trial._run import RunState

__all__ = ["facts"]


def facts(run: RunState) -> tuple[Facts, ...]:
    """The facts by the step from which they hold.

    Of several workers, what they have together; of several attempts, what counts.
    """
    by_attempt: dict[int, list[list[Facts]]] = {}
    for lane in run.lanes:
        events = lane.writer.events
        found = gather(each.data for each in events if each.kind == "configuration")
        known = [each for each in found if lane.start <= each.step < lane.stop]
        by_attempt.setdefault(lane.attempt, []).append(known)
    every: list[Facts] = []
    for workers in by_attempt.values():
        every += _together(workers)
    return tuple(sorted(every, key=lambda each: each.step))


def _together(workers: Sequence[Sequence[Facts]]) -> list[Facts]:
    """Of one attempt: at each step at which one said something, what all had said."""
    found: list[Facts] = []
    for step in sorted({each.step for worker in workers for each in worker}):
        latest = [
            [each for each in worker if each.step <= step][-1:] for worker in workers
        ]
        merged = _merge([each for held in latest for each in held], step)
        if not found or merged != dataclasses.replace(found[-1], step=step):
            found.append(merged)
    return found


def _merge(held: Sequence[Facts], step: int) -> Facts:
    """What workers have together; most have the same."""
    first, *others = held
    optimizers = list(first.optimizers)
    modules = dict(first.modules)
    parameters = dict(first.parameters)
    for other in others:
        # Stages of a pipeline have optimizers of their own.
        offset = 0 if list(other.optimizers) == optimizers else len(optimizers)
        if offset:
            optimizers += other.optimizers
        for path, name in other.modules.items():
            modules.setdefault(path, name)
        for path, parameter in other.parameters.items():
            parameters.setdefault(path, _renumbered(parameter, offset))
    return Facts(
        step=step,
        models=_union(each.models for each in held),
        losses=_union(each.losses for each in held),
        optimizers=tuple(optimizers),
        modules=modules,
        parameters=parameters,
        complete=all(each.complete for each in held),
        evaluating=_union(each.evaluating for each in held),
    )


def _renumbered(parameter: ParameterFacts, offset: int) -> ParameterFacts:
    if parameter.optimizer is None or not offset:
        return parameter
    return dataclasses.replace(parameter, optimizer=parameter.optimizer + offset)


def _union(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """What one of them has; several of a class as often as one of them has it."""
    found: tuple[str, ...] = ()
    for each in names:
        if tuple(each) != found:
            found += tuple(name for name in each if name not in found)
    return found
