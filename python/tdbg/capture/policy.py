"""Decides which tensors are captured at which step, and what of them.

Implements docs/steps.md, "Two schedules".  ``Policy`` combines the collections, the
configuration of the hook and the needs of rules.  Tensors that are captured alike
form a capture class; for each step, a ``StepPlan`` has the flags of each class.

Thread safety: none; the thread of the training.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.capture.naming import Naming
from tdbg.capture.rule_needs import ACTIVATIONS, RuleNeeds
from tdbg.capture.schedule import (
    HISTOGRAM,
    NEVER,
    ROWS,
    SMALL_VALUES,
    VALUES,
    Quiet,
    Schedule,
    Span,
    StepPlan,
    Throttle,
    Timing,
)
from tdbg.config.collections import (
    Collection,
    CollectionKeys,
    CollectionRegistry,
    Role,
)
from tdbg.config.hook_config import HookConfig
from tdbg.config.needs import Needs
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.modes import ModeKeys

__all__ = ["Policy"]


# Collections that are saved at every step, unless they have their own schedules.
_EVERY_STEP = frozenset({CollectionKeys.LOSSES.value, CollectionKeys.SCALARS.value})
# The roles of tensors that exist in training steps only.
_TRAINING_ONLY = frozenset(
    {
        Role.GRADIENT,
        Role.GRADIENT_UNCLIPPED,
        Role.GRADIENT_LOCAL,
        Role.UPDATE,
        Role.OPTIMIZER_STATE,
    }
)
_EVALUATION = frozenset({ModeKeys.EVAL, ModeKeys.PREDICT})

# Where so many times in a row something might have been due, and was not.
_MOST_SPANS = 8

# Put before the name of a schedule: holds in training steps only.
_TRAINING = "\0training "


class Policy:
    """What one hook captures.

    Args:
        registry: The collections of the hook.
        save_config: The schedules of collections that have none of their own.
        reduction_config: What is saved of such collections; None: raw values.
        needs: The needs of the hook's rules.
        rules: Descriptions of these rules, for the configuration event.
        save_histogram: Whether collections that do not say so have histograms.
        naming: The scheme of names.

    Attributes:
        capture_classes: For each capture class, the names of the schedules by which
            its tensors are captured.
        rule_needs: The needs of rules.
        throttle: What a budget leaves out.
        asked: The collections of requests that are in effect, of which it leaves out
            nothing.
        revision: The registry's, at the last ``refresh``.
        periods: By mode, what ``period`` has returned; read-only.
        beginnings: By mode, the end of what ``is_beginning`` has found; read-only.
        spans: By mode, the steps that share the latest plan; read-only.
    """

    def __init__(
        self,
        registry: CollectionRegistry,
        save_config: SaveConfig | None = None,
        reduction_config: ReductionConfig | None = None,
        needs: Iterable[Needs | Iterable[Needs]] = (),
        *,
        rules: Iterable[Mapping[str, Any]] = (),
        save_histogram: bool = False,
        naming: Naming | None = None,
    ) -> None:
        self.registry = registry
        self.rules = tuple(rules)
        self.naming = naming or Naming()
        self.save_histogram = save_histogram
        self._is_disabled = False
        self._measures = False
        self.throttle = Throttle()
        self.asked: frozenset[str] = frozenset()
        self._asked_needs: tuple[Needs, ...] = ()
        self.save_config = save_config or SaveConfig()
        self._configs = {mode: self.save_config.of(mode) for mode in ModeKeys}
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        self._own_needs = tuple(needs)
        self.rule_needs = RuleNeeds(self._own_needs, registry)
        self.capture_classes: list[tuple[str, ...]] = []
        self._schedules: dict[ModeKeys, dict[str, Schedule]] = {}
        self.periods: dict[ModeKeys, int] = {}
        self.beginnings: dict[ModeKeys, int] = {}
        self._plans: dict[tuple[int, ...], StepPlan] = {}
        self._timings: dict[ModeKeys, tuple[list[Timing], list[int]]] = {}
        # The step plans by what is due of each timing.
        self._due: dict[tuple[int, ...], StepPlan] = {}
        self.spans: dict[ModeKeys, Span] = {}
        self._quiet: dict[ModeKeys, Quiet] = {}
        # By mode, when the numbers of optimizers are due.
        self._scalars: dict[ModeKeys, SaveConfigMode] = {}
        self.revision = registry.revision

    @classmethod
    def of_config(
        cls,
        config: HookConfig,
        needs: Iterable[Needs] = (),
        rules: Iterable[Mapping[str, Any]] = (),
    ) -> Policy:
        """Make the policy of a hook.

        Args:
            config: The configuration of the hook.
            needs: The needs of its rules.
            rules: Descriptions of these rules, for the configuration event.
        """
        return cls(
            config.registry(),
            config.save_config,
            config.reduction_config,
            needs,
            rules=rules,
            save_histogram=bool(config.save_histogram),
        )

    def disable(self) -> None:
        """Capture nothing from now on: this rank does not write."""
        self._is_disabled = True
        self._own_needs = ()
        self.rule_needs = RuleNeeds((), self.registry)
        self._forget()

    def ask(
        self,
        collections: Iterable[str],
        needs: Iterable[Needs],
        *,
        instead: bool = False,
    ) -> None:
        """Capture what somebody asks for, from the next ``refresh`` on.

        A budget leaves out nothing of it.  Replaces what an earlier call asked for.

        Args:
            collections: Names of collections that are captured.
            needs: Further needs.
            instead: Whether they replace the needs of the hook's own rules too.
        """
        if not self._is_disabled:
            own = () if instead else self._own_needs
            self.asked = frozenset(collections)
            self._asked_needs = tuple(needs)
            self.rule_needs = RuleNeeds((*own, *self._asked_needs), self.registry)
            self.registry.changes.count += 1

    def measure(self) -> None:
        """Capture everything at the first step of each mode: this is a dry run."""
        self._measures = True

    def set_throttle(self, throttle: Throttle) -> None:
        """Set what a budget leaves out, from the next step on."""
        self.throttle = throttle
        self._forget()

    def differ(self, one: Throttle, other: Throttle) -> bool:
        """Whether two throttles leave out different things in this run."""
        kept, found = self.throttle, []
        try:
            for throttle in (one, other):
                self.throttle = throttle
                found.append([self._compile(mode) for mode in ModeKeys])
        finally:
            self.throttle = kept
        return found[0] != found[1]

    def period(self, mode: ModeKeys) -> int:
        """Return the number of steps in which everything scheduled comes once."""
        if mode not in self.periods:
            schedules = self._schedules_of(mode).items()
            found = [each.period for name, each in schedules if name not in _EVERY_STEP]
            self.periods[mode] = max(found, default=1)
        return self.periods[mode]

    def is_beginning(self, mode: ModeKeys, mode_step: int) -> bool:
        """Whether rules need the step because it is one of the first of its mode."""
        end = self.beginnings.get(mode)
        if end is None:
            schedules = self._schedules_of(mode).values()
            ends = [each.first_steps or 0 for each in schedules if each.is_beginning]
            end = self.beginnings[mode] = max(ends, default=0)
        return mode_step < end

    def refresh(self) -> bool:
        """Take over changes of collections; False if there were none."""
        revision = self.registry.revision
        if revision == self.revision:
            return False
        self.revision = revision
        self._forget()
        return True

    def _forget(self) -> None:
        self._schedules.clear()
        self.periods.clear()
        self.beginnings.clear()
        plans = (self._plans, self.spans, self._quiet, self._scalars)
        for each in (*plans, self._timings, self._due):
            each.clear()

    def membership(self, name: str, role: Role) -> list[str]:
        """Return the names of all collections that a tensor belongs to."""
        return [item.name for item in self.registry if item.has(name, role)]

    def capture_class(
        self, name: str, role: Role, classes: AbstractCollection[str] = ()
    ) -> int:
        """Return the number of a tensor's capture class.

        Args:
            name: The tensor's name.
            role: The tensor's role.
            classes: Those of the module that it belongs to, and its kind.
        """
        names = [item.name for item in self.registry.captured() if item.has(name, role)]
        names += self.rule_needs.names_of(name, role, classes)
        # Without effect on a tensor that has no units.
        names += self.rule_needs.units_of(role, classes)
        return self._class_of(names, role)

    def units_class(self, role: Role, classes: AbstractCollection[str]) -> int:
        """Return the capture class of the tensor's unit summary."""
        return self._class_of(self.rule_needs.units_of(role, classes), role)

    def may_capture(
        self, role: Role, classes: AbstractCollection[str] | None = None
    ) -> bool:
        """Whether a tensor of that role may be captured at some step.

        Args:
            role: The role.
            classes: Those of the module that it belongs to, and its kind; None: any
                module.
        """
        return not self._is_disabled and (
            self.rule_needs.may_hold(role, classes)
            or any(item.may_hold(role) for item in self.registry.captured())
        )

    def captures(
        self, name: str, role: Role, classes: AbstractCollection[str] = ()
    ) -> bool:
        """Whether this tensor may be captured at some step.

        Args:
            name: The tensor's name.
            role: The tensor's role.
            classes: Those of the module that it belongs to, and its kind.
        """
        return not self._is_disabled and bool(
            self.capture_classes[self.capture_class(name, role, classes)]
        )

    def step_plan(self, mode: ModeKeys, mode_step: int) -> StepPlan:
        """Return what is captured at a step."""
        span = self.spans.get(mode)
        if span is None or not span.first <= mode_step < span.end:
            span = self.spans[mode] = self._find_span(mode, mode_step)
        return span.step_plan

    def quiet(self, mode: ModeKeys, mode_step: int) -> Quiet:
        """Return the steps from this one on of which at most losses are captured.

        The step before one that captures activations is not among them: as it ends,
        hooks are put back inside the modules.
        """
        found = self._quiet.get(mode)
        if found is None or not found.first <= mode_step < found.end:
            found = self._quiet[mode] = self._find_quiet(mode, mode_step)
        return found

    def scheduled(self, mode: ModeKeys, mode_step: int) -> StepPlan:
        """Return what is captured at a step, unless this is a dry run."""
        timings, places = self._timings_of(mode)
        key = (mode._value_, *[each.due(mode_step) for each in timings])
        found = self._due.get(key)
        if found is None:
            schedules = self._schedules_of(mode).values()
            flags = [
                item.flags_when(key[1 + place])
                for item, place in zip(schedules, places, strict=True)
            ]
            found = self._due[key] = self._intern_plan(mode, tuple(flags))
        return found

    def scalars_due(self, mode: ModeKeys, mode_step: int) -> bool | None:
        """Whether all numbers of optimizers are due, or changed ones; None: none is."""
        config = self._scalars.get(mode) or self._scalars_of(mode)
        if config.should_reduce(mode_step) or (
            self._measures and mode_step == 0 and not config.is_empty
        ):
            return True
        end = config.end_step
        is_within = mode_step >= config.start_step and (end is None or mode_step < end)
        return False if is_within else None

    def _scalars_of(self, mode: ModeKeys) -> SaveConfigMode:
        config = self._configs[mode].times(self.throttle.others)
        self._scalars[mode] = config
        return config

    def _find_quiet(self, mode: ModeKeys, mode_step: int) -> Quiet:
        noted: set[Timing] = set()
        others: set[Timing] = set()
        for item in self._schedules_of(mode).values():
            (noted if item.is_light else others).add(item.timing)
        every = self.throttle.steps
        if len(noted) != 1 or not next(iter(noted)).is_each(every):
            # These are steps to be seen.
            others |= noted
            every = NEVER if every > 1 else 0
        else:
            # Where values are due there may be larger losses.
            others.update(each.of_values for each in noted if each.saves_between)
        latest: float = math.inf
        if self.may_capture(Role.SCALAR):
            config = self._scalars.get(mode) or self._scalars_of(mode)
            others.add(Timing(config))
            if mode_step < config.start_step:
                latest = config.start_step  # From then on those that change.
        end: float = mode_step
        for _ in range(_MOST_SPANS):
            if end == math.inf or any(each.due(int(end)) for each in others):
                break
            after = int(end)
            end = min((each.steady_until(after) for each in others), default=math.inf)
        end = min(end, latest)
        plan = self._find_plan(mode, mode_step + (-mode_step % (every or 1)))
        if mode_step < end < math.inf:
            end -= self._find_plan(mode, int(end)).takes_activations
        return Quiet(mode_step, end, every, plan)

    def _find_span(self, mode: ModeKeys, mode_step: int) -> Span:
        timings, _ = self._timings_of(mode)
        end = min((each.steady_until(mode_step) for each in timings), default=math.inf)
        if self._measures and mode_step == 0:
            end = 1
        return Span(mode_step, end, self._find_plan(mode, mode_step))

    def _schedules_of(self, mode: ModeKeys) -> dict[str, Schedule]:
        if mode not in self._schedules:
            self._schedules[mode] = self._compile(mode)
        return self._schedules[mode]

    def _timings_of(self, mode: ModeKeys) -> tuple[list[Timing], list[int]]:
        """Return the timings of a mode, each once, and which one each schedule has."""
        found = self._timings.get(mode)
        if found is None:
            every = [item.timing for item in self._schedules_of(mode).values()]
            timings = list(dict.fromkeys(every))
            found = timings, [timings.index(each) for each in every]
            self._timings[mode] = found
        return found

    def _find_plan(self, mode: ModeKeys, mode_step: int) -> StepPlan:
        if not self._measures or mode_step != 0:
            return self.scheduled(mode, mode_step)
        schedules = self._schedules_of(mode).values()
        return self._intern_plan(mode, tuple(item.all_flags() for item in schedules))

    def _intern_plan(self, mode: ModeKeys, each_flags: tuple[int, ...]) -> StepPlan:
        schedules = self._schedules_of(mode)
        key = (mode._value_, *each_flags)
        found = self._plans.get(key)
        if found is None:
            flags = dict(zip(schedules, each_flags, strict=True))
            takes_activations = any(
                flags[name] and item.may_hold_activations
                for name, item in schedules.items()
            )
            is_light = not any(
                flags[name] and not item.is_light for name, item in schedules.items()
            )
            if mode not in _EVALUATION:
                flags |= {_TRAINING + name: flag for name, flag in flags.items()}
            found = self._plans[key] = StepPlan(
                self.capture_classes, flags, takes_activations, is_light=is_light
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """Return what the configuration event has of it."""
        return {
            "include_collections": [item.name for item in self.registry.captured()],
            "save_config": self.save_config.as_json(),
            "reduction_config": self.reduction_config.as_json(),
            "save_histogram": self.save_histogram,
            "naming": self.naming.name,
            "rules": [dict(rule) for rule in self.rules],
            "needs": self.rule_needs.as_json(),
        }

    def _class_of(self, names: list[str], role: Role) -> int:
        if role in _TRAINING_ONLY:
            names = [_TRAINING + name for name in names]
        return self._intern(tuple(names))

    def _intern(self, names: tuple[str, ...]) -> int:
        if names not in self.capture_classes:
            self.capture_classes.append(names)
        return self.capture_classes.index(names)

    def _compile(self, mode: ModeKeys) -> dict[str, Schedule]:
        hook = self.save_config.of(mode)
        schedules: dict[str, Schedule] = {}
        if self._is_disabled:
            return schedules
        for item in self.registry.captured():
            schedules[item.name] = self._schedule(item, hook, mode)
        needed = self.rule_needs.schedules(hook, self.throttle, self._asked_needs)
        return schedules | needed

    def _schedule(
        self, item: Collection, hook: SaveConfigMode, mode: ModeKeys
    ) -> Schedule:
        reduction = item.reduction_config or self.reduction_config
        saves_values = reduction.save_raw_tensor
        holds = bool(item.include_regex) or not ACTIVATIONS.isdisjoint(item.roles)
        config = hook if item.save_config is None else item.save_config.of(mode, hook)
        counts = self.save_histogram
        if item.save_histogram is not None:
            counts = item.save_histogram
        if item.name not in _EVERY_STEP:
            flags = ROWS | HISTOGRAM if counts else ROWS
            on_save = flags | VALUES if saves_values else 0
            schedule = Schedule(config, on_save, flags, holds)
            if item.name in self.asked:
                return schedule
            return schedule.throttled(self.throttle)
        flags = ROWS | HISTOGRAM if item.save_histogram else ROWS
        is_light = not item.include_regex and not item.tensor_names
        if item.save_config is not None:
            on_save = flags | VALUES
            return Schedule(config, on_save, flags, holds, is_light=is_light)
        # Statistics at every step, and the values of losses that are one number;
        # larger losses (not reduced over the batch) are saved as the hook says.
        steps = 1 if mode in _EVALUATION else self.throttle.steps
        config = dataclasses.replace(hook, statistics_interval=steps)
        flags |= SMALL_VALUES
        on_save = flags | VALUES if saves_values else 0
        return Schedule(config, on_save, flags, holds, is_light=is_light)
