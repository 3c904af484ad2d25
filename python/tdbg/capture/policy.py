"""Decides which tensors are captured at which step, and what of them.

Implements docs/steps.md, "Two schedules".  ``Policy`` combines the collections, the
configuration of the hook and the needs of rules.  Tensors that are captured alike
form a capture class; for each step, a ``StepPlan`` has the flags of each class.

Thread safety: none; the thread of the training.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.capture.mode_schedule import EVERY_STEP, ONLY_IN_TRAINING, ModeSchedule
from tdbg.capture.naming import Naming
from tdbg.capture.rule_needs import ACTIVATIONS, RuleNeeds
from tdbg.capture.schedule import (
    HISTOGRAM,
    ROWS,
    SMALL_VALUES,
    VALUES,
    Quiet,
    Schedule,
    StepPlan,
    Throttle,
)
from tdbg.config.collections import Collection, CollectionRegistry, Role
from tdbg.config.hook_config import HookConfig
from tdbg.config.needs import Needs
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.modes import ModeKeys

__all__ = ["Policy"]


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
        seen_from: From this step of mode TRAIN on, no step passes unseen.
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
        # Everything that follows from the rest: a change forgets it.
        self._compiled: dict[ModeKeys, ModeSchedule] = {}
        self.revision = registry.revision
        self.seen_from = sys.maxsize

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
        self._compiled.clear()

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

    @property
    def is_disabled(self) -> bool:
        """Whether nothing is captured, since this rank does not write."""
        return self._is_disabled

    def measure(self) -> None:
        """Capture everything at the first step of each mode: this is a dry run."""
        self._measures = True
        self._compiled.clear()

    def set_throttle(self, throttle: Throttle) -> None:
        """Set what a budget leaves out, from the next step on."""
        self.throttle = throttle
        self._compiled.clear()

    def differ(self, one: Throttle, other: Throttle) -> bool:
        """Whether two throttles leave out different things in this run."""
        kept, found = self.throttle, []
        try:
            for throttle in (one, other):
                self.throttle = throttle
                found.append([self._schedules_of(mode) for mode in ModeKeys])
        finally:
            self.throttle = kept
        return found[0] != found[1]

    def refresh(self) -> bool:
        """Take over changes of collections; False if there were none."""
        revision = self.registry.revision
        if revision == self.revision:
            return False
        self.revision = revision
        self._compiled.clear()
        return True

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

    def of_mode(self, mode: ModeKeys) -> ModeSchedule:
        """Return what the steps of a mode capture, until something changes."""
        return self._compiled.get(mode) or self._compile(mode)

    def step_plan(self, mode: ModeKeys, mode_step: int) -> StepPlan:
        """Return what is captured at a step."""
        # In every step: as `ModeSchedule.step_plan`, without its call.
        compiled = self._compiled.get(mode) or self._compile(mode)
        span = compiled.span
        if span.first <= mode_step < span.end:
            return span.step_plan
        return compiled.step_plan(mode_step)

    def quiet(self, mode: ModeKeys, mode_step: int) -> Quiet:
        """Return the steps from this one on that capture losses at most."""
        found = self.of_mode(mode).quiet(mode_step)
        if found.end > self.seen_from:
            found = found._replace(end=max(self.seen_from, mode_step))
        return found

    def n_alike(self, mode: ModeKeys, mode_step: int, most: int) -> int:
        """Return how many steps from this one on, up to *most*, capture the same.

        The count is 0 if the step captures more than losses.
        """
        most = max(0, min(most, self.seen_from - mode_step))
        return self.of_mode(mode).n_alike(mode_step, most) if most else 0

    def scalars_due(self, mode: ModeKeys, mode_step: int) -> bool | None:
        """Whether all numbers of optimizers are due, or changed ones; None: none is."""
        return self.of_mode(mode).scalars_due(mode_step)

    @property
    def has_written_schedules(self) -> bool:
        """Whether the user wrote an interval, for a collection or for all."""
        configs = [item.save_config for item in self.registry.captured()]
        return any(
            each.of(mode).is_written
            for each in (self.save_config, *configs)
            for mode in ModeKeys
            if each is not None
        )

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
            names = [ONLY_IN_TRAINING + name for name in names]
        return self._intern(tuple(names))

    def _intern(self, names: tuple[str, ...]) -> int:
        if names not in self.capture_classes:
            self.capture_classes.append(names)
        return self.capture_classes.index(names)

    def _compile(self, mode: ModeKeys) -> ModeSchedule:
        made = self._compiled[mode] = ModeSchedule(
            self._schedules_of(mode),
            self._configs[mode].times(
                self.throttle.others, keeps_written=self.throttle.keeps_written
            ),
            self.capture_classes,
            is_training=mode not in _EVALUATION,
            captures_scalars=self.may_capture(Role.SCALAR),
            captures_first=self._measures,
            every=self.throttle.steps,
        )
        return made

    def _schedules_of(self, mode: ModeKeys) -> dict[str, Schedule]:
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
        holds = bool(item.include_regex) or not ACTIVATIONS.isdisjoint(item.roles)
        config = hook if item.save_config is None else item.save_config.of(mode, hook)
        saves_values = reduction.saves_values(config)
        counts = self.save_histogram
        if item.save_histogram is not None:
            counts = item.save_histogram
        if item.name not in EVERY_STEP:
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
