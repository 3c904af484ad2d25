"""What writers and the engine reported, put in order.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import BUILT_IN, Collection, Role, role_numbered
from tdbg.config.quantities import plural
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding
from tdbg.run.json_values import is_integer, list_of, mapping_of, texts_of
from tdbg.run.model_info import ModelInfo, ParameterFacts, gather
from tdbg.run.observations import Fault, Observation
from tdbg.trial.row_index import step_records
from tdbg.trial.run import RunState
from tdbg.trial.writers import NO_END, EventRecord, WriterReader

__all__ = [
    "RunOverhead",
    "ScalarSeries",
    "collections",
    "configuration",
    "counters",
    "events",
    "findings",
    "model_info",
    "n_trained",
    "observations",
    "overhead",
    "rule_statuses",
    "scalars",
    "selected",
    "stop_reason",
]


_Value = TypeVar("_Value")

# Number of a device, as the key of an object.
DEVICE = re.compile("[0-9]{1,9}")
# Statuses of a rule that somebody is at, and what becomes of them without him.
UNDER_WAY = ("InProgress", "StopState")
STOPPED = {"status": "Stopped", "message": "the process that judged is gone"}


@dataclass(frozen=True, slots=True, eq=False)
class ScalarSeries:
    """The values of a scalar, in the order in which they were saved.

    Attributes:
        name: Its name.
        steps: Steps, in the count that was asked for.
        values: The values.
        wall_ns: When each was saved, in ns since 1970 UTC.
    """

    name: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    wall_ns: NDArray[np.int64]


def events(run: RunState, kind: str | None = None) -> list[EventRecord]:
    """Events of everybody who wrote, by time."""
    found = [
        event
        for writer in run.everyone
        for event in writer.events
        if kind is None or event.kind == kind
    ]
    return sorted(found, key=lambda event: event.wall_ns)


def stop_reason(found: Iterable[EventRecord]) -> str | None:
    """Why a training was stopped, by its events; None: it was not."""
    told = [e.data for e in found if e.data.get("training") == "stopped"]
    if not told:
        return None
    return str(told[-1].get("reason") or "somebody asked it to stop")


def n_trained(table: NDArray[np.void]) -> int:
    """How many steps a training took: from the first that was recorded to the last.

    More than were recorded where it records every tenth only.

    Args:
        table: As ``Trial.step_table``.
    """
    steps = table["step"]
    return int(steps[-1] - steps[0]) + 1 if len(steps) else 0


def steps_made(run: RunState) -> dict[ModeKeys, tuple[int, int]]:
    """Return the first step of each mode, and the one after the last, in its count.

    A training that has ended in order says it; of others the recorded steps do.
    """
    found = _recorded_span(run)
    told = [(_told_span(writer), writer in run.newest) for writer in _writers(run)]
    for spans, is_newest in told:
        for mode, (first, end) in spans.items():
            known = found.get(mode, (first, 0))
            ends = max(end, known[1]) if is_newest else known[1]
            found[mode] = min(first, known[0]), ends
    return {mode: span for mode, span in found.items() if span[0] < span[1]}


def _writers(run: RunState) -> list[WriterReader]:
    return [source.writer for source in run.sources]


def _recorded_span(run: RunState) -> dict[ModeKeys, tuple[int, int]]:
    found = {}
    for mode in ModeKeys:
        if mode is ModeKeys.GLOBAL:
            of_mode = run.table.column("mode") == mode.value
            steps = run.table.column("mode_step")[of_mode]
        else:
            steps = run.table.of_mode(mode)[0]
        if len(steps):
            found[mode] = int(steps.min()), int(steps.max()) + 1
    return found


def _told_span(writer: WriterReader) -> dict[ModeKeys, tuple[int, int]]:
    found = {}
    for event in _changes(writer, "steps"):
        for name, span in mapping_of(event.data.get("modes")).items():
            numbers = list_of(span)
            if name not in ModeKeys.__members__ or not all(map(is_integer, numbers)):
                continue
            if len(numbers) == 2 and 0 <= numbers[0] < numbers[1]:
                found[ModeKeys[name]] = numbers[0], numbers[1]
    return found


def findings(run: RunState) -> list[Finding]:
    """Return all engines' findings, by step; what two of them found is there once.

    One rule may judge one tensor by several limits; each has findings of its own.
    """
    found: dict[tuple[str, str, int, str, float | None], Finding] = {}
    for event in events(run, "finding"):
        try:
            finding = Finding.from_json(event.data)
        except ValueError:
            continue  # A later tdbg's; the event itself is in events().
        place = finding.rule, finding.tensor, finding.step, finding.phase
        found[*place, finding.threshold] = finding
    in_order = sorted(found.values(), key=lambda finding: finding.step)
    return [each.in_training(run.training_steps_at) for each in in_order]


def rule_statuses(run: RunState) -> dict[str, dict[str, Any]]:
    """What the engine last said about each rule, by the rule's name.

    An engine that was killed says no more: what it had under way has stopped.
    """
    gone = {writer.name for writer in run.everyone if writer.liveness == "dead"}
    found: dict[str, dict[str, Any]] = {}
    for event in events(run, "status"):
        rule = event.data.get("rule")
        if not isinstance(rule, str):
            continue
        found[rule] = event.data
        if event.writer in gone and event.data.get("status") in UNDER_WAY:
            found[rule] = {**event.data, **STOPPED}
    return dict(sorted(found.items()))


def configuration(run: RunState) -> dict[str, Any]:
    """Return the configuration that the first worker reported; empty if none."""
    for writer in run.newest:
        for event in reversed(writer.events):
            # One that is about something in particular is not that.
            if event.kind == "configuration" and "what" not in event.data:
                data = event.data
                if not isinstance(data.get("hook", {}), Mapping):
                    data = {name: data[name] for name in data if name != "hook"}
                return _with_attached(data, writer.events)
    return {}


def _with_attached(
    data: dict[str, Any], events: Sequence[EventRecord]
) -> dict[str, Any]:
    """Add to a configuration the rules' needs that somebody attached meanwhile."""
    needs = [
        need
        for event in events
        if event.kind == "change" and event.data.get("state") == "accepted"
        for need in list_of(mapping_of(event.data.get("asked")).get("needs"))
    ]
    if not needs:
        return data
    hook = data.get("hook", data)
    hook = {**hook, "needs": [*list_of(hook.get("needs")), *needs]}
    return {**data, "hook": hook} if "hook" in data else hook


def collections(run: RunState, *chosen: str) -> dict[str, Collection]:
    """The built-in collections and the run's own, with the names in them.

    Args:
        run: The run.
        chosen: Names of those that are asked for; none: all.
    """
    built_in = [name for name in BUILT_IN if not chosen or name in chosen]
    found = {name: Collection(name) for name in built_in}
    for writer in run.newest:
        for event in writer.events:
            if event.kind == "collections":
                found |= _collections_of(event.data)
    if chosen:
        found = {name: found[name] for name in chosen if name in found}
    names = _names_by_role(run) if found else {}
    for collection in found.values():
        collection.tensor_names.update(collection.chosen(names))
    return found


def selected(run: RunState, collection: Collection) -> set[str]:
    """The names of the tensors that a collection selects."""
    return collection.chosen(_names_by_role(run))


def _names_by_role(run: RunState) -> dict[Role, list[str]]:
    """The names of the tensors of each role that were saved so far."""
    table = run.tensors
    found: dict[Role, list[str]] = {}
    for number in np.unique(table.roles).tolist():
        of_number = np.flatnonzero(table.roles == number).tolist()
        of_role = found.setdefault(role_numbered(number), [])
        of_role += [table.names[i] for i in of_number]
    return found


def _collections_of(data: Mapping[str, Any]) -> dict[str, Collection]:
    content = mapping_of(data.get("collections", data))
    found: dict[str, Collection] = {}
    for name, description in content.items():
        if not isinstance(description, Mapping):
            continue
        saves = description.get("save_histogram")
        try:
            collection = Collection(
                name,
                texts_of(description.get("include_regex")) or None,
                save_histogram=saves if isinstance(saves, bool) else None,
            )
        except ConfigurationError:
            continue  # A later tdbg's; the event itself is in events().
        collection.tensor_names.update(texts_of(description.get("tensor_names")))
        found[name] = collection
    return found


def scalars(
    run: RunState,
    mode: ModeKeys,
    start: int | None = None,
    end: int | None = None,
) -> dict[str, ScalarSeries]:
    """Every scalar, of the first worker that saved it, at ``start <= step < end``."""
    found: dict[str, ScalarSeries] = {}
    for rank in sorted({source.writer.rank for source in run.sources}):
        of_rank: dict[str, list[NDArray[np.void]]] = {}
        for source in run.sources:
            if source.writer.rank != rank:
                continue
            first = source.start if start is None else max(start, source.start)
            stop = source.stop if end is None else min(end, source.stop)
            rows, _ = source.writer.reader.find_scalars(first, stop)
            for number in np.unique(rows["definition"]).tolist():
                if number in source.writer.definitions:
                    name = source.writer.definitions[number].name
                    mine = rows[rows["definition"] == number]
                    of_rank.setdefault(name, []).append(mine)
        for name, parts in of_rank.items():
            rows = np.concatenate(parts)
            numbers = rows["step"]
            if mode is not ModeKeys.GLOBAL:
                steps, at = run.table.of_mode(mode)
                recorded = run.table.steps[at]
                rows = rows[np.isin(numbers, recorded)]
                order = np.argsort(recorded)
                where = np.searchsorted(recorded[order], rows["step"])
                numbers = steps[order][where]
            series = ScalarSeries(name, numbers, rows["value"], rows["wall_ns"])
            found.setdefault(name, series)
    return dict(sorted(found.items()))


def counters(run: RunState) -> dict[str, int]:
    """Records offered, written, dropped and failed, over all recorded steps."""
    names = ("offered", "written", "dropped", "failed")
    return {name: int(run.table.column(name).sum()) for name in names}


def model_info(run: RunState) -> tuple[ModelInfo, ...]:
    """The facts by the step from which they hold.

    Of several workers, what they have together; of several attempts, what counts.
    """
    by_attempt: dict[int, list[list[ModelInfo]]] = {}
    for source in run.sources:
        events = source.writer.events
        found = gather(each.data for each in events if each.kind == "configuration")
        known = [each for each in found if source.start <= each.step < source.stop]
        by_attempt.setdefault(source.attempt, []).append(known)
    every: list[ModelInfo] = []
    for workers in by_attempt.values():
        every += _together(workers)
    return tuple(sorted(every, key=lambda each: each.step))


def observations(run: RunState) -> tuple[Observation, ...]:
    """Return what hooks saw, by step: once, if several workers saw it."""
    found: dict[tuple[Fault, tuple[str, ...]], Observation] = {}
    for source in run.sources:
        for event in source.writer.events:
            seen = Observation.from_json(event.data)
            if seen is None or not source.start <= seen.step < source.stop:
                continue
            first = found.setdefault((seen.fault, seen.names), seen)
            if seen.step < first.step:
                found[seen.fault, seen.names] = seen
    return tuple(sorted(found.values(), key=lambda each: each.step))


def _together(workers: Sequence[Sequence[ModelInfo]]) -> list[ModelInfo]:
    """Join one attempt's reports: at each step, what all workers had said by then."""
    found: list[ModelInfo] = []
    for step in sorted({each.step for worker in workers for each in worker}):
        latest = [
            [each for each in worker if each.step <= step][-1:] for worker in workers
        ]
        merged = _merge([each for held in latest for each in held], step)
        if not found or merged != dataclasses.replace(found[-1], step=step):
            found.append(merged)
    return found


def _merge(held: Sequence[ModelInfo], step: int) -> ModelInfo:
    """Merge the model infos of workers, most of which are alike."""
    first, *others = held
    optimizers = list(first.optimizers)
    modules = dict(first.modules)
    kinds = dict(first.kinds)
    input_handling = dict(first.input_handling)
    parameters = dict(first.parameters)
    for other in others:
        # Stages of a pipeline have optimizers of their own.
        offset = 0 if list(other.optimizers) == optimizers else len(optimizers)
        if offset:
            optimizers += other.optimizers
        for path, name in other.modules.items():
            modules.setdefault(path, name)
        for name, kind in other.kinds.items():
            kinds.setdefault(name, kind)
        input_handling = {**other.input_handling, **input_handling}
        for path, parameter in other.parameters.items():
            parameters.setdefault(path, _renumbered(parameter, offset))
    return ModelInfo(
        step=step,
        models=_union(each.models for each in held),
        losses=_union(each.losses for each in held),
        optimizers=tuple(optimizers),
        modules=modules,
        kinds=kinds,
        input_handling=input_handling,
        parameters=parameters,
        complete=all(each.complete for each in held),
        evaluating=_union(each.evaluating for each in held),
        dropping=_union(each.dropping for each in held),
        keeps_gradients=any(each.keeps_gradients for each in held),
        has_stopped=any(each.has_stopped for each in held),
        loss_facts=_union(each.loss_facts for each in held),
        is_loss_open=all(each.is_loss_open for each in held),
        is_surrogate=any(each.is_surrogate for each in held),
        idle_losses=_union(each.idle_losses for each in held),
        logit_scale=max(each.logit_scale for each in held),
        makes_targets=any(each.makes_targets for each in held),
        untrained=_union(each.untrained for each in held),
        made_inputs=_union(each.made_inputs for each in held),
        never_trained=all(each.never_trained for each in held),
        empty_loader=next((each.empty_loader for each in held), ()),
        schedules=_union(each.schedules for each in held),
        trees=next((each.trees for each in held if each.trees is not None), None),
        evaluates={
            name: other for each in held for name, other in each.evaluates.items()
        },
    )


def _renumbered(parameter: ParameterFacts, offset: int) -> ParameterFacts:
    if parameter.optimizer is None or not offset:
        return parameter
    return dataclasses.replace(parameter, optimizer=parameter.optimizer + offset)


def _union(values: Iterable[Sequence[_Value]]) -> tuple[_Value, ...]:
    """Unite values: each as often as the worker that has it most often."""
    found: tuple[_Value, ...] = ()
    for each in values:
        if tuple(each) != found:
            found += tuple(value for value in each if value not in found)
    return found


# Of shorter trainings the cost is not told: what is done once, and the beginning that
# rules have captured at every step, is most of it.  A minute tells whatever it has.
LEAST_STEPS = 100
LEAST_SECONDS = 1.0
ENOUGH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunOverhead:
    """The cost of capture, as the training's own clock measured it.

    What PyTorch itself spends on calling hooks is not in it: about 1 us a module.

    Attributes:
        steps: How many were measured, in all workers together.
        capture_seconds: Time of the training thread in tdbg.
        step_seconds: Duration of these steps, capture included.
        budget: The share that was allowed, or None.
        budget_seconds: What it allows in the first minute as a whole, in seconds;
            0.0 if it is a share from the first step on.
        changes: What was changed to stay inside it, oldest first: ``step``, ``why``,
            ``measured``, ``level``, ``text``, ...
        devices: How tensors on CUDA devices were taken, of trainings that have ended:
            ``worker``, ``device``, and what ``hook.device_state()`` says.
    """

    steps: int = 0
    capture_seconds: float = 0.0
    step_seconds: float = 0.0
    budget: float | None = None
    budget_seconds: float = 0.0
    changes: tuple[dict[str, Any], ...] = ()
    devices: tuple[dict[str, Any], ...] = ()

    @property
    def share(self) -> float:
        """Time in tdbg, relative to the steps without it."""
        rest = self.rest_seconds
        return self.capture_seconds / rest if rest > 0 else 0.0

    @property
    def rest_seconds(self) -> float:
        """Return the seconds of the steps without the time in tdbg."""
        return self.step_seconds - self.capture_seconds

    @property
    def is_telling(self) -> bool:
        """Whether the training was long enough for ``share`` to mean something."""
        seconds = self.rest_seconds
        is_long = self.steps >= LEAST_STEPS and seconds >= LEAST_SECONDS
        return is_long or seconds >= ENOUGH_SECONDS

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "share": self.share,
            "is_telling": self.is_telling,
            "steps": self.steps,
            "capture_seconds": self.capture_seconds,
            "step_seconds": self.step_seconds,
            "budget": self.budget,
            "budget_seconds": self.budget_seconds,
            "changes": list(self.changes),
            "devices": list(self.devices),
        }

    def __str__(self) -> str:
        text = f"measured cost: steps take {100 * self.share:.1f} % longer"
        if not self.is_telling:
            text = (
                f"measured cost: too short to tell ({self.rest_seconds:.1f} s in "
                f"steps, and {self.capture_seconds:.1f} s in tdbg)"
            )
        if self.budget is not None:
            text += self._of_budget(self.budget)
        if self.changes:
            left_out = str(self.changes[-1].get("text") or "nothing left out now")
            text += f"; changed {plural(len(self.changes), 'time')}: {left_out}"
        for each in self.devices:
            if not each.get("is_usable"):
                text += f"; device {each['device']} without kernels: {each['reason']}"
        return text

    def _of_budget(self, budget: float) -> str:
        """Say what was spent of what the budget allows."""
        share = f"{100 * budget:g} %"
        if budget * self.rest_seconds >= self.budget_seconds:
            if not self.is_telling:
                return f"; the budget is {share}"
            is_more = self.share > budget
            return f", {'more than' if is_more else 'within'} the budget of {share}"
        spent = f" ({self.capture_seconds:.1f} s in all)" if self.is_telling else ""
        allowed = f"{self.budget_seconds:.1f} s in the first minute"
        return f"{spent}; the budget of {share} allows {allowed}"


def overhead(run: RunState, mode: ModeKeys) -> RunOverhead:
    """The cost in the newest attempt, in one mode or (GLOBAL) in all."""
    steps = capture = duration = 0
    budget, changes, devices, allowed = None, [], [], 0.0
    for writer in run.newest:
        counts = _of_writer(writer, mode)
        steps, capture = steps + counts[0], capture + counts[1]
        duration += counts[2]
        budget = _of_hook(writer, "budget") or budget
        allowed += _of_hook(writer, "budget_seconds") or 0.0
        changes += [
            {**event.data, "step": event.step, "worker": writer.rank}
            for event in _changes(writer, "budget")
        ]
        devices += _devices(writer)
    changes.sort(key=lambda change: int(change["step"]))
    seconds = capture / 1e9, duration / 1e9
    return RunOverhead(steps, *seconds, budget, allowed, tuple(changes), tuple(devices))


def _of_writer(writer: WriterReader, mode: ModeKeys) -> tuple[int, int, int]:
    """Steps, capture and duration; a step without a record is in the totals only."""
    before, last = (0, 0, 0), -1
    if mode is ModeKeys.GLOBAL:
        for event in _changes(writer, "cost"):
            totals = tuple(
                event.data.get(name) for name in ("steps", "capture_ns", "duration_ns")
            )
            if all(is_integer(value) and value >= 0 for value in totals):
                before = totals  # type: ignore[assignment]
                # Those at the end speak of all steps.
                last = max(last, event.step) if event.step >= 0 else NO_END
    steps, capture, duration = before
    for rows in step_records(writer.reader) if last < writer.last_step else ():
        counts = rows["duration_ns"] > 0
        if mode is ModeKeys.GLOBAL:
            counts &= rows["step"] > last
        else:
            counts &= rows["mode"] == mode.value
        steps += int(np.count_nonzero(counts))
        capture += int(np.sum(rows["capture_ns"][counts]))
        duration += int(np.sum(rows["duration_ns"][counts]))
    return steps, capture, duration


def _changes(writer: WriterReader, what: str) -> list[EventRecord]:
    return [
        event
        for event in writer.events
        if event.kind == "change" and event.data.get("what") == what
    ]


def _devices(writer: WriterReader) -> list[dict[str, Any]]:
    """Return the devices in a writer's latest event about them."""
    for event in reversed(_changes(writer, "devices")):
        devices = event.data.get("devices")
        if isinstance(devices, dict):
            return [
                {"reason": "", **state, "worker": writer.rank, "device": int(number)}
                for number, state in sorted(devices.items())
                if DEVICE.fullmatch(number) and isinstance(state, dict)
            ]
    return []


def _of_hook(writer: WriterReader, name: str) -> float | None:
    """Return a number in the writer's configuration; None if it has none."""
    for event in writer.events:
        if event.kind == "configuration":
            given = mapping_of(event.data.get("hook")).get(name)
            if isinstance(given, bool) or not isinstance(given, int | float):
                return None
            return float(given)
    return None
