"""The collections of boosted trees, and which tensors they hold.

No role tells a tensor of trees apart from others: a hook puts each by its name into a
collection before anything of it is captured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.policy import Policy
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config import HookConfig
from tdbg.config.collections import CollectionKeys, Role
from tdbg.config.schedules import Default, SaveConfig
from tdbg.hooks.framework import make_policy

__all__ = ["INTERVAL", "Group", "policy_of_trees"]

Floats = NDArray[np.float64]

#: Rounds from one capture to the next, of everything but metrics and losses: a round
#: takes milliseconds, and the trees of one are megabytes in a hundred rounds.
INTERVAL = Default(10)


def policy_of_trees(config: HookConfig) -> Policy:
    """Make the policy of a hook of boosted trees.

    Metrics and losses are captured at every round, everything else at every tenth
    where the configuration has no schedule: rules read the values of trees, and those
    of deep learning, every ``SAVE_INTERVAL`` steps, would be none.

    Raises:
        ConfigurationError: If a rule is unknown, or one of its parameters is bad.
    """
    policy = make_policy(config)
    if config.save_config is None:
        policy.save_config = SaveConfig(
            save_interval=INTERVAL, statistics_interval=INTERVAL
        )
    metrics = policy.registry.get(CollectionKeys.METRICS.value)
    if metrics.save_config is None:
        every = Default(1)
        metrics.save_config = SaveConfig(save_interval=every, statistics_interval=every)
    policy.registry.include(metrics.name)
    return policy


class _Requested(NamedTuple):
    """What is captured of numbers at the steps of a plan.

    Attributes:
        names: Of all of them.
        entries: Of those that are captured.
        flags: What is captured of these.
        places: Which ones these are; None: all.
    """

    names: tuple[str, ...]
    entries: list[TensorEntry]
    flags: list[int]
    places: list[int] | None


class Group:
    """The tensors of one collection that are captured together, or not at all.

    Args:
        session: The session that captures them.
        collection: Name of the collection.
        role: What the tensors are.

    All of them are captured alike unless a collection tells their names apart.  So the
    first name stands for all, and the others have no entries before any is captured:
    a hundred features are five hundred importances.

    Attributes:
        name: Name of the collection.
        entries: The entries of names so far; there is one as soon as one is expected.
    """

    def __init__(
        self, session: Session, collection: str, role: Role = Role.OTHER
    ) -> None:
        self._session = session
        self._role = role
        self.name = collection
        self.entries: dict[str, TensorEntry] = {}
        # Names without an entry, in the order in which they came.
        self._expected: dict[str, None] = {}
        # One entry of each capture class.
        self._classes: list[TensorEntry] = []
        # The answers so far: there are few plans, and a round asks each group.
        self._due: dict[StepPlan, bool] = {}
        # What is captured of numbers, by their names and the plan.
        self._requested: dict[tuple[int, StepPlan], _Requested] = {}
        self._is_stale = True
        session.listen(change=self._collections_change)

    def expect(self, names: Iterable[str]) -> None:
        """Note names that tensors of the group will have."""
        known = self.entries.keys() | self._expected.keys()
        new = dict.fromkeys(name for name in names if name not in known)
        if not new:
            return
        self._session.collections.get(self.name).tensor_names.update(new)
        self._expected |= new
        if not self.entries:
            self.entry(next(iter(new)))
        self._is_stale = True

    def entry(self, name: str) -> TensorEntry:
        """Return the entry of a name."""
        entry = self.entries.get(name)
        if entry is None:
            if name not in self._expected:
                self._session.collections.get(self.name).tensor_names.add(name)
            self._expected.pop(name, None)
            entry = self.entries[name] = self._session.entry(name, self._role)
            self._is_stale = True
        return entry

    def take_numbers(
        self, context: StepContext, names: tuple[str, ...], numbers: Floats
    ) -> None:
        """Capture those numbers that the step captures.

        Args:
            context: The step.
            names: Their names, which had better be the same object at each step.
            numbers: One of each name: contiguous, of one dimension.
        """
        key = id(names), context.step_plan
        found = self._requested.get(key)
        if found is None or found.names is not names:
            entries = [self.entry(name) for name in names]
            flags = [context.step_plan.of_entry(each) for each in entries]
            places = [i for i, each in enumerate(flags) if each]
            found = _Requested(
                names,
                [entries[i] for i in places],
                [flags[i] for i in places],
                None if len(places) == len(names) else places,
            )
            self._requested[key] = found
        if found.entries:
            some = numbers if found.places is None else numbers[found.places]
            self._session.take_numbers(context, found.entries, some, found.flags)

    def due(self, step_plan: StepPlan) -> bool:
        """Return whether a step captures any of them."""
        if self._is_stale:
            if self._are_told_apart():
                for name in list(self._expected):
                    self.entry(name)
            self._is_stale = False
            classes = {each.capture_class: each for each in self.entries.values()}
            self._classes = list(classes.values())
            self._due.clear()
            self._requested.clear()
        found = self._due.get(step_plan)
        if found is None:
            found = any(step_plan.of_entry(each) for each in self._classes)
            self._due[step_plan] = found
        return found

    def _collections_change(self) -> None:
        self._is_stale = True

    def _are_told_apart(self) -> bool:
        """Return whether a captured collection has only some of these names."""
        return any(
            item.include_regex
            or (
                item.name != self.name
                and not item.tensor_names.isdisjoint(self._expected)
            )
            for item in self._session.collections.captured()
        )
