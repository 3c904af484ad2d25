"""Find targets of values that go on past the end of an episode, or never see beyond.

They may also be those of other steps, of another action, or of the present.

The target of a temporal difference is a reward and a share of the next value, which
does not count where an episode has ended.  Returns are summed from the end, and sums of
errors stop where an episode does.  Rewards, ends and values are among the variables of
the program; its equation holds for all samples to the precision of the numbers.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.checks.graphs.weighed_chances import (
    PASSES,
    are_in_order,
    weighed_chances,
)
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.numbers import (
    REWARD,
    ProgramNumbers,
    as_numbers,
    as_tensor,
    discounted,
    is_taken,
    larger_of_two,
    numbers_in,
    standardized,
)
from tdbg.run.observations import Fault

__all__ = ["Bootstraps", "LossVariables"]

# Losses that are read, those of them that show nothing, and operations of one, at most.
_MOST_LOSSES, _MOST_IN_VAIN, _MOST_OF_END = 40, 6, 60
# Samples of a loss, ends among all of them, and losses that must be right, at least.
_LEAST_SAMPLES, _LEAST_ENDS, _ENOUGH_SOUND = 8, 3, 3
# Ends that say more than those of episodes that were cut off at a limit.
_OF_LIMITS = 3.0
# Equal numbers differ by rounding, by so much of the largest; others by far more.
_ROUNDING, _FAR = 1e-5, 100.0
# A discount is not above 1, and seldom lower than this.
_LEAST_DISCOUNT = 0.5
# Targets and rewards that are looked at, at most; steps of an episode, at least.
_MOST_TARGETS, _LEAST_STEPS = 4, 4
# How far equal numbers may be apart once standardized.
_ALIKE = 1e-3
# Operations from a comparison to a largest value.
_MOST_TO_LARGEST = 12
# Next values that are compared, and choices that a table of values has, at most.
_MOST_VALUES, _MOST_PAIRED, _MOST_CHOICES = 48, 10, 1024

# What programs call targets, where the graph does not have them.
_TARGET = re.compile(
    r"target|(^|_)(returns?|rtgs?|expected|backups?|y|ys|tds?|bellman|gs?|q_?next)(_|$)",
    re.IGNORECASE,
)

_NEXT = re.compile(r"next|boot|target|(^|_)(q|v)|value|disc", re.IGNORECASE)
_GAIN = re.compile(r"(^|_)(adv|advs|advantages?|gaes?)(_|$)", re.IGNORECASE)
# Between what compares numbers and the loss.
_TO_END = PASSES | {"Abs", "Pow"}
_COMPARISONS = {"HuberLoss", "MseLoss", "SmoothL1Loss"}
_TO_LARGEST = SHAPING | _COMPARISONS | {"Abs", "Mul", "Pow", "Sub"}

_Numbers = NDArray[np.float64]
# What a loss compares with; None: the graph does not have it.
_Learned = Sequence[_Numbers | None]
_Named = Sequence[tuple[str, _Numbers]]


class LossVariables:
    """The numbers of a program, by name, where it computed the latest loss.

    One of the checks of ``FirstBatches``.

    Attributes:
        is_open: Whether it must still hear of losses and steps.
        make_targets: Whether targets are rewards and what is expected to follow.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.make_targets = False
        self._n_in_vain = 0
        self._latest: ProgramNumbers | None = None

    def note_call(self, model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        """Ignore a call of a module."""

    def note_loss(self, _: Any) -> None:
        """Read the variables: a loss is computed."""
        if self.is_open and not is_recording():
            with contextlib.suppress(Exception):
                names = numbers_in(sys._getframe(1))
                self._latest = names if names.rewards else None
            self._n_in_vain = 0 if self._latest is not None else self._n_in_vain + 1

    def take(self) -> ProgramNumbers | None:
        """Return those of the latest loss, once."""
        latest, self._latest = self._latest, None
        return latest

    def step_ends(self) -> None:
        """Note that an optimizer has stepped."""
        self.is_open &= self._n_in_vain < _MOST_IN_VAIN

    def remove(self) -> None:
        """Read no more."""
        self.is_open = False
        self._latest = None


class Bootstraps(StepCheck):
    """Read what the first losses compare values with.

    Args:
        note: Called with what is found out.
        variables: Those where losses are computed.
    """

    def __init__(self, note: Note, variables: LossVariables) -> None:
        self._note = note
        self._variables = variables
        self._n_losses = self._n_in_vain = self._n_sound = 0
        # Ends that were met, and how many there must be.
        self._seen: dict[Fault, tuple[int, float]] = {}
        self._told: set[Fault] = set()
        # Sums that were looked at.
        self._met: set[int] = set()
        # Losses whose observations are the same, and those that are not, by name.
        self._n_same: dict[tuple[str, Fault], int] = {}
        self._moving: set[str] = set()
        self._kept: dict[str, torch.Tensor] = {}

    def loss_begins(self, graph: Graph) -> None:
        """Read the loss at which a backward pass begins."""
        self._n_losses += 1
        learned = [] if graph.root is None else list(_learned(graph.root))
        names = self._variables.take()
        if names is None and learned:
            names = numbers_in(sys._getframe(1))
        if not learned or names is None or not names.rewards:
            self._n_in_vain += 1
        else:
            self._n_in_vain = 0
            self._look_at_steps(learned, names)
            self._look_at_choices(graph.root, names)
            self._look_at_targets(learned, names)
            self._look_at_sums(graph.root, learned, names)
        is_sound = self._n_sound >= _ENOUGH_SOUND
        is_known = self._told or (is_sound and self._n_losses > _ENOUGH_SOUND)
        if (
            is_known
            or self._n_in_vain >= _MOST_IN_VAIN
            or self._n_losses >= _MOST_LOSSES
        ):
            self.remove()

    def remove(self) -> None:
        """Read no more."""
        super().remove()
        self._variables.remove()

    # ---- steps themselves ------------------------------------------------------------

    def _look_at_steps(self, learned: _Learned, names: ProgramNumbers) -> None:
        """Look for observations that are the same before and after each step."""
        sizes = {0 if each is None else each.size for each in learned}
        for name, later, one, other in names.steps[:_MOST_TARGETS]:
            now, then = as_tensor(one), as_tensor(other)
            if now is None or then is None or now.shape != then.shape:
                continue
            if not _are_of_loss(len(now), sizes, names):
                continue
            if now.data_ptr() == then.data_ptr() or not torch.equal(now, then):
                self._moving.add(name)
                continue
            fault = self._fault_of_same(name, now, names)
            if fault is None:
                continue
            seen = self._n_same[name, fault] = self._n_same.get((name, fault), 0) + 1
            if seen == _ENOUGH_SOUND and name not in self._moving:
                self._told.add(fault)
                numbers = {"samples": float(len(now))}
                self._note(fault, numbers, {"name": name, "later": later})

    def _fault_of_same(
        self, name: str, now: torch.Tensor, names: ProgramNumbers
    ) -> Fault | None:
        """Return what observations show that no step has changed."""
        if not bool((now == now[:1]).all()):
            return Fault.NOTHING_HAPPENS
        # There may be only one state, or a group of choices in it.
        first = self._kept.setdefault(name, now[0].clone())
        rewards = [each for _, each in names.rewards if each.size == len(now)]
        is_one = torch.equal(first, now[0]) or not any(e.std() > 0 for e in rewards)
        return None if is_one else Fault.OBSERVATION_KEPT_ONCE

    def _look_at_choices(self, root: Any, names: ProgramNumbers) -> None:
        """Look for largest values that learn in the place of those of the actions."""
        for node in _compared(root):
            best = _largest_below(node)
            if best is None:
                continue
            for name, each in names.every:
                if not is_taken(name):
                    continue
                if (
                    not _LEAST_SAMPLES <= each.size == best.size
                    or each.min() < 0
                    or (each % 1).any()
                ):
                    continue
                others = int((each.reshape(-1) != best).sum())
                key = (name, Fault.LARGEST_VALUE_LEARNS)
                seen = self._n_same[key] = self._n_same.get(key, 0) + (others > 0)
                if seen == _ENOUGH_SOUND:
                    self._told.add(key[1])
                    numbers = {"samples": float(best.size), "others": float(others)}
                    self._note(key[1], numbers, {"name": name})

    # ---- batches of single steps -----------------------------------------------------

    def _look_at_targets(self, learned: _Learned, names: ProgramNumbers) -> None:
        limit = min(names.limits, default=math.inf)
        targets = [each for each in learned if each is not None]
        if any(each is None for each in learned):
            targets += [
                each.reshape(-1) for name, each in names.every if _TARGET.search(name)
            ]
        for target in targets[:_MOST_TARGETS]:
            n = target.size
            ends, masks, rewards = (
                [(name, each.reshape(-1)) for name, each in every if each.size == n]
                for every in (names.ends, names.masks, names.rewards)
            )
            if n < _LEAST_SAMPLES or not (ends or masks):
                continue
            values = None
            steps = [_Step(target, each) for _, each in rewards[:_MOST_TARGETS]]
            for step in steps:
                if step.is_trivial:
                    continue
                self._look_at_critics(step, names)
                values = list(_values(names, n)) if values is None else values
                self._judge(step, ends, masks, values, limit)

    def _look_at_critics(self, step: _Step, names: ProgramNumbers) -> None:
        if name := larger_of_two(step.beyond, names):
            self._add(Fault.LARGER_OF_CRITICS, 2, name)

    def _judge(
        self,
        step: _Step,
        ends: _Named,
        masks: _Named,
        values: Sequence[tuple[bool, _Numbers]],
        limit: float,
    ) -> None:
        if any(step.stops_at(each) for _, each in (*ends, *masks)):
            self._n_sound += 1
            self._variables.make_targets |= self._n_sound >= _ENOUGH_SOUND
            return
        for name, each in ends or masks:
            if step.stops_before(each):
                self._add(Fault.ENDS_INVERTED, int(each.sum()), name)
                return
        # What ends here may only have been cut off, where nothing else ends.
        found = [
            step.goes_past(each, values) if each.any() else 0
            for _, each in ends or masks
        ]
        if all(found):
            self._add(
                Fault.TARGET_PAST_END, min(found), (ends or masks)[0][0], step.n / limit
            )

    # ---- whole episodes --------------------------------------------------------------

    def _look_at_sums(
        self, root: Any, learned: _Learned, names: ProgramNumbers
    ) -> None:
        """Look at sums of rewards over the steps of episodes."""
        for _, reward in names.rewards[:_MOST_TARGETS]:
            if len(reward) < _LEAST_STEPS:
                continue
            sums = [
                (name, each)
                for name, each in names.every
                if each.shape == reward.shape
                and (_TARGET.search(name) or _GAIN.search(name))
                and not REWARD.search(name)
            ][:_MOST_TARGETS]
            key = hash(b"".join(each.tobytes() for _, each in sums))
            if not sums or key in self._met:
                continue
            self._met.add(key)
            for name, each in sums:
                fault = _order_of(each, reward, names)
                is_known = fault is Fault.RETURNS_OF_PAST or are_in_order(
                    root, len(each)
                )
                if fault is not None and is_known and _is_learned(each, learned):
                    self._add(fault, 2, name)
            self._look_at_ends(reward, sums, names)
            self._look_at_present(reward, sums, names)

    def _look_at_present(
        self, reward: _Numbers, sums: _Named, names: ProgramNumbers
    ) -> None:
        """Find advantages that have the value of the present twice."""
        values = names.values_beside(reward)
        ends = [each for _, each in names.ends if each.shape == reward.shape]
        for name, each in sums:
            if _GAIN.search(name) and any(
                _is_of_present(each, reward, value, ends) for value in values
            ):
                self._add(Fault.SUM_OF_PRESENT, _ENOUGH_SOUND - 1, name)

    def _look_at_ends(
        self, reward: _Numbers, sums: _Named, names: ProgramNumbers
    ) -> None:
        """Find sums that go on where an episode has ended."""
        ends = [each for each in names.ends if each[1].shape == reward.shape]
        if not ends or not all(each[1:-1].any() for _, each in ends):
            return
        values = names.values_beside(reward)
        for name, each in sums:
            equations = [_Sum(each, reward, None)]
            equations += [_Sum(each, reward, value) for value in values[:2]]
            equations += [_Sum(each - value, reward, value) for value in values[:2]]
            found = [min(each.goes_past(end) for _, end in ends) for each in equations]
            if max(found) > 0:
                n_limits = reward.size / min(names.limits, default=math.inf)
                self._add(Fault.SUM_PAST_END, max(found), name, n_limits)

    def _add(self, fault: Fault, n_ends: int, name: str, n_limits: float = 0.0) -> None:
        """Count ends, and those that there may be because steps are limited."""
        seen, least = self._seen.get(fault, (0, float(_LEAST_ENDS)))
        seen, least = seen + n_ends, least + _OF_LIMITS * n_limits
        self._seen[fault] = seen, least
        if seen >= least and fault not in self._told:
            self._told.add(fault)
            self._note(fault, {"ends": float(seen)}, {"name": name})


class _Sum:
    """Sums over the steps of episodes, and what each should be made of.

    A return is a reward and a share of the next return.  An advantage is an error of
    the value, and a share of the next advantage.
    """

    def __init__(
        self, given: _Numbers, reward: _Numbers, value: _Numbers | None
    ) -> None:
        n = len(given) - 1
        beyond, after = given[:n] - reward[:n], [given[1:]]
        if value is not None:
            beyond, after = beyond + value[:n], [value[1:], given[1:]]
        parts = np.stack([each.reshape(-1) for each in after], axis=1)
        self._shape = given[:n].shape
        size = max(np.abs(each).max() for each in (given, reward, *after))
        self._rounding = _ROUNDING * float(max(size, 1e-6))
        shares, *_ = np.linalg.lstsq(parts, beyond.reshape(-1), rcond=None)
        told = parts @ shares
        self._told = told.reshape(self._shape)
        is_all = np.abs(told - beyond.reshape(-1)).max() <= self._rounding
        is_share = shares.min() > -_ROUNDING and shares.max() <= 1.0 + _ROUNDING
        self._holds = bool(is_all and is_share and shares.max() >= _LEAST_DISCOUNT)

    def goes_past(self, ends: _Numbers) -> int:
        """Return at how many ends a sum contains what follows."""
        if not self._holds:
            return 0
        is_far = np.abs(self._told) > _FAR * self._rounding
        # Ends may be marked at the last step, or at the first one after it.
        marks = (ends[:-1] > 0, ends[1:] > 0)
        return min(int((is_far & each).sum()) for each in marks)


def _is_of_present(
    given: _Numbers, reward: _Numbers, value: _Numbers, ends: Sequence[_Numbers]
) -> bool:
    """Return whether errors have the value of a state where that of the next belongs.

    An advantage is the reward, a share of the next value, less the value, and a share
    of the next advantage.  In a return, the value has a share of 1.
    """
    goes_on = np.ones(reward[:-1].shape, dtype=bool)
    for end in ends:
        goes_on &= (end[:-1] == 0) & (end[1:] == 0)
    if goes_on.sum() < _LEAST_SAMPLES or value.std() <= 0:
        return False
    left = (given[:-1] - reward[:-1] + value[:-1])[goes_on]
    rounding = _ROUNDING * float(max(np.abs(given).max(), np.abs(reward).max(), 1e-6))
    apart = []
    for of in (value[1:], value[:-1]):
        parts = np.stack([of[goes_on], given[1:][goes_on]], axis=1)
        shares, *_ = np.linalg.lstsq(parts, left, rcond=None)
        is_share = _LEAST_DISCOUNT <= shares[0] < 0.9999 and 0 < shares[1] <= shares[0]
        error = float(np.abs(parts @ shares - left).max())
        apart.append(error if is_share else math.inf)
    return apart[1] <= rounding and apart[0] > _FAR * rounding


def _order_of(given: _Numbers, reward: _Numbers, names: ProgramNumbers) -> Fault | None:
    """Return whether sums contain what was before each step, or are the wrong way."""
    if given.ndim != 1:
        return None
    known = [each for each in names.discounts if _LEAST_DISCOUNT <= each < 1.0]
    for share in known[:4]:
        past, future = discounted(reward, share), discounted(reward[::-1], share)[::-1]
        for of in (lambda each: each, standardized):
            rounding = 10 * _ROUNDING * float(np.abs(of(given)).max())
            apart = [
                np.abs(of(given) - of(e)).max() for e in (future, past, future[::-1])
            ]
            if apart[0] <= rounding:
                return None
            if min(apart[1:]) <= rounding:
                is_past = apart[1] <= rounding
                return Fault.RETURNS_OF_PAST if is_past else Fault.RETURNS_REVERSED
    return None


def _is_learned(given: _Numbers, learned: Sequence[_Numbers | None]) -> bool:
    """Return whether a loss contains numbers, perhaps standardized."""
    one = np.sort(standardized(given.reshape(-1)))
    for each in learned:
        if each is None:
            return True
        for other in (each, -each):
            if other.size == one.size:
                apart = one - np.sort(standardized(other))
                if np.abs(apart).max() <= _ALIKE:
                    return True
    return False


class _Step:
    """Targets and rewards of a batch of steps.

    Attributes:
        n: How many there are.
        beyond: Targets less rewards.
        is_trivial: Whether the targets are the rewards.
    """

    def __init__(self, target: _Numbers, reward: _Numbers) -> None:
        self.n = target.size
        self.beyond = target - reward
        size = float(max(np.abs(target).max(), np.abs(reward).max(), 1e-6))
        self._rounding = _ROUNDING * size
        self._is_none = np.abs(self.beyond) <= self._rounding
        self.is_trivial = bool(self._is_none.all())

    def stops_at(self, ends: _Numbers) -> bool:
        """Return whether targets are rewards where episodes end."""
        return bool(ends.any() and self._is_none[ends > 0].all())

    def stops_before(self, ends: _Numbers) -> bool:
        """Return whether targets are rewards where no episode ends, and only there."""
        is_end = ends > 0
        is_few = 0 < is_end.sum() < 0.5 * len(ends)
        return bool(
            is_few
            and (~is_end).sum() >= _LEAST_SAMPLES
            and self._is_none[~is_end].all()
            and not self._is_none[is_end].any()
        )

    def goes_past(self, ends: _Numbers, values: Sequence[tuple[bool, _Numbers]]) -> int:
        """Return at how many ends targets have the next value; 0: that is unknown.

        They have it if rewards and a share of certain values make up all targets.
        """
        beyond, is_end = self.beyond, ends > 0
        for is_named, each in values:
            square = float(each @ each)
            if square <= 0.0 or each.std() <= _FAR * self._rounding:
                continue
            share = float(beyond @ each) / square
            if (
                not _LEAST_DISCOUNT
                <= share
                <= (1.0 + _ROUNDING if is_named else 0.9999)
            ):
                continue
            if np.abs(beyond - share * each).max() <= self._rounding:
                past = np.abs(share * each[is_end]) > _FAR * self._rounding
                return int(past.sum())
        return 0


# ---- what there is -------------------------------------------------------------------


def _compared(root: Any) -> Iterator[Any]:
    """Yield what compares numbers with numbers near the end of a loss."""
    for node in walk(root, _MOST_OF_END, _TO_END):
        name = name_of(node)
        if name in _COMPARISONS:
            yield node
        elif name in {"Pow", "Abs", "Mul"}:
            pair = next(iter(operands_of(node)), node)
            if (
                name_of(pair) == "Sub"
                and len(operands_of(pair)) == 1
                and shape_of(pair)
            ):
                yield node


def _are_of_loss(n: int, sizes: AbstractSet[int], names: ProgramNumbers) -> bool:
    """Return whether a loss is of so many steps, and some of them go on."""
    is_end = any(each.size == n and each.all() for _, each in names.ends)
    has_reward = any(each.size == n for _, each in names.rewards)
    is_used = n in sizes or (0 in sizes and has_reward)
    return n >= _LEAST_SAMPLES and is_used and not is_end


def _largest_below(node: Any) -> _Numbers | None:
    """Return the places of the largest values that are compared, if they are."""
    for each in walk(node, _MOST_TO_LARGEST, _TO_LARGEST):
        if name_of(each) == "Max" and saved_of(each, "indices") is not None:
            found: _Numbers | None = as_numbers(saved_of(each, "indices"))
            return None if found is None else found.reshape(-1)
        values = saved_of(each, "self") if name_of(each) == "Amax" else None
        if isinstance(values, torch.Tensor) and values.dim() == 2:
            return as_numbers(values.argmax(1))
        if name_of(each) in {"Gather", "Index"}:
            return None
    return None


def _learned(root: Any) -> Iterator[_Numbers | None]:
    """Yield the numbers that a loss compares values with, and those it weighs by.

    None: numbers that the graph does not have.
    """
    for node in _compared(root):
        if name_of(node) in {"Pow", "Abs", "Mul"}:
            yield None
            continue
        is_swapped = node.next_functions[0][0] is None
        found = saved_of(node, "self" if is_swapped else "target")
        numbers = as_numbers(found)
        if numbers is not None and numbers.size >= _LEAST_STEPS:
            yield numbers.reshape(-1)
    several = [each.weights for each in weighed_chances(root)]
    yield from (each for each in several if each.size >= _LEAST_STEPS)
    ones = [each for each in several if each.size == 1]
    if len(ones) >= _LEAST_STEPS:
        yield np.concatenate(ones)


def _values(names: ProgramNumbers, n: int) -> Iterator[tuple[bool, _Numbers]]:
    """Yield what may be the values of the next states, and whether a name says so."""
    found = list[tuple[bool, _Numbers]]()
    for name, each in names.every:
        is_named = bool(_NEXT.search(name))
        if each.size == n:
            found.append((is_named, each.reshape(-1)))
        elif each.ndim == 2 and len(each) == n and each.shape[1] <= _MOST_CHOICES:
            found.append((is_named, each.max(1)))
    found = [each for each in found if not np.isin(each[1], (0.0, 1.0)).all()]
    yield from found[:_MOST_VALUES]
    for (is_named, one), (_, other) in itertools.combinations(found[:_MOST_PAIRED], 2):
        yield is_named, np.minimum(one, other)
