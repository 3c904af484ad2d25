"""Find optimizers that were set up wrongly, in the first steps of a training.

Five facts need no statistic: what an optimizer decays, with whom it shares parameters,
whether it steps at all, flags for freezing that nobody reads, and a state that the
program has for it and does not load.  The graphs of the
first losses say which parameters a loss reaches, and through which others.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import permutations
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.copies.loaded_states import state_not_loaded
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    MOST_NODES,
    Graph,
    leaf_of,
    operands_of,
)
from tdbg.hooks.pytorch.checks.updates.group_settings import (
    KnownParameter,
    exchanged_betas,
    fault_of_decay,
    has_exempt_groups,
    unread_settings,
)
from tdbg.hooks.pytorch.model.kinds import kind_of
from tdbg.hooks.pytorch.model.module_tree import named_modules
from tdbg.hooks.pytorch.model.process_objects import (
    held_ids,
    parameters_of,
)
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.run.observations import Fault, Observation

__all__ = ["OptimizerSetup"]

# Steps of both optimizers after which what they share is no accident.
_ENOUGH = 2
# Optimizers of the same kind, one after the other, that are no phases of a training.
_OFTEN = 5
# Steps of other optimizers in which one that is used would have stepped: a critic may
# be trained for long before; and so many if the training is over.
_SURELY, _AT_END = 250, 20
# Elements of a gradient that is looked at, and names of parameters that are told.
_MOST_ELEMENTS, _MOST_NAMES = 65_536, 20
# What programs write where they mean ``requires_grad``.
_FLAG = re.compile(r"req\w*grad\w*", re.IGNORECASE)


class _Root(Protocol):
    """A registered module, which a ``ModuleCapture`` is."""

    @property
    def module(self) -> nn.Module | None: ...
    @property
    def prefix(self) -> str: ...


class _Pair(NamedTuple):
    """Two optimizers by their keys, of which one has all parameters of the other."""

    larger: int
    smaller: int


class _Renewed(NamedTuple):
    """Optimizers with these settings, one after the other."""

    settings: tuple[Any, ...]
    times: int


class OptimizerSetup:
    """The optimizers of a training.

    Args:
        roots: The registered modules; grows.
        step: Returns the global step of training.
        observe: Takes what was found.
        first_step: Called when an optimizer is about to step for the first time.

    Attributes:
        hears_steps: Whether steps tell more: not those of one that is alone.
    """

    def __init__(
        self,
        roots: Sequence[_Root],
        step: Callable[[], int],
        observe: Callable[[Observation], None],
        first_step: Callable[[Optimizer], None],
    ) -> None:
        self._roots = roots
        self._first_step = first_step
        self._found: dict[int, weakref.ref[Optimizer]] = {}
        self.hears_steps = True
        self._step = step
        self._observe = observe
        # Optimizers whose groups were not looked at yet.
        self._new: set[int] = set()
        # Steps in which optimizers were seen to step, as far as they are followed.
        self._stepped: Counter[int] = Counter()
        # Pairs whose smaller one has a loss of its own, and those where a loss reaches
        # the others' parameters through the shared ones.
        self._apart: set[_Pair] = set()
        self._through: set[_Pair] = set()
        # Of an optimizer whose gradients a loss has begun: the others that the loss
        # reaches, and whether these have stepped since.
        self._since: dict[int, dict[int, bool]] = {}
        self._met: Counter[_Pair] = Counter()
        # How often an optimizer took the place of its like, by parameters.
        self._renewed: dict[frozenset[int], _Renewed] = {}

    def add(self, key: int, optimizer: Optimizer) -> None:
        """Note an optimizer that holds parameters of the registered modules."""
        self._found[key] = weakref.ref(optimizer)
        self._new.add(key)
        self.hears_steps = True

    def loss_begins(self, graph: Graph) -> None:
        """Note which parameters a loss reaches, as its backward pass begins."""
        optimizers = self._optimizers()
        if len(optimizers) < 2 or graph.root is None:
            return
        reached = {id(leaf): leaf for leaf, _ in graph.leaves}
        held = {key: held_ids(each) for key, each in optimizers.items()}
        for larger, smaller in permutations(held, 2):
            # What others train, too, it has for a loss of both networks, as in InfoGAN.
            others = (ids for key, ids in held.items() if key != larger)
            shared, own = held[smaller], held[larger].difference(*others)
            if own and shared and shared < held[larger]:
                pair = _Pair(larger, smaller)
                self._note_reach(pair, graph.root, reached, shared, own)
        self._note_gradients(reached, held)

    def step_begins(self, key: int) -> None:
        """Note that an optimizer steps; not every step of one is reported."""
        self._stepped[key] += 1
        if self._since:
            self._since.pop(key, None)
            for others in self._since.values():
                if key in others:
                    others[key] = True
        if self._stepped[key] == 1:
            self.look()
            with contextlib.suppress(Exception):
                self._look_at_renewal(self._optimizers()[key])
            with contextlib.suppress(Exception):
                self._look_for_state(self._optimizers()[key], sys._getframe(1))
            with contextlib.suppress(Exception):
                self._first_step(self._optimizers()[key])
        if self._apart and self._stepped[key] >= _ENOUGH:
            self._tell_of_shared()
        self.hears_steps = len(self._found) > 1 or self._stepped[key] < _ENOUGH

    def look(self, *, at_end: bool = False) -> None:
        """Look at the groups of new optimizers, and for those that never step."""
        with contextlib.suppress(Exception):
            optimizers = self._optimizers()
            for key in self._new & optimizers.keys():
                self._look_at_groups(optimizers[key])
                self._look_at_settings(optimizers[key], sys._getframe(1))
                self._look_at_flags(optimizers[key])
            self._new.clear()
            self._look_for_idle(optimizers, _AT_END if at_end else _SURELY)

    def _optimizers(self) -> dict[int, Optimizer]:
        """Return those that live, by their keys."""
        every = {key: each() for key, each in self._found.items()}
        return {key: each for key, each in every.items() if each is not None}

    # ---- what they share --------------------------------------------------------

    def _note_reach(
        self,
        pair: _Pair,
        root: Any,
        reached: Mapping[int, torch.Tensor],
        shared: AbstractSet[int],
        own: AbstractSet[int],
    ) -> None:
        if shared.isdisjoint(reached):
            return
        if own.isdisjoint(reached):
            self._apart.add(pair)
        elif pair not in self._through and _reaches_through(root, shared, own):
            self._through.add(pair)

    def _tell_of_shared(self) -> None:
        pairs = self._apart & self._through
        self._apart -= pairs
        optimizers = self._optimizers() if pairs else {}
        for pair in pairs:
            if min(self._stepped[pair.larger], self._stepped[pair.smaller]) < _ENOUGH:
                self._apart.add(pair)
                continue
            self._tell(
                Fault.SHARED_BY_OPTIMIZERS,
                self._names(held_ids(optimizers[pair.smaller])),
                _words(optimizers, larger=pair.larger, smaller=pair.smaller),
            )

    def _note_gradients(
        self, reached: Mapping[int, torch.Tensor], held: Mapping[int, set[int]]
    ) -> None:
        """Note gradients of another loss that this one's are about to be added to."""
        of = {key for key, ids in held.items() if not ids.isdisjoint(reached)}
        for key in of:
            before = self._since.pop(key, {})
            others = [each for each, has_stepped in before.items() if has_stepped]
            own = held[key].difference(*(held[each] for each in others))
            if not _has_gradient(own, reached):
                # Nobody has added to them yet.
                self._since[key] = dict.fromkeys(of - {key}, False)
                continue
            for other in set(others) - of:
                self._met[_Pair(other, key)] += 1
        found = [pair for pair, count in self._met.items() if count == _ENOUGH]
        optimizers = self._optimizers() if found else {}
        for pair in found:
            self._met[pair] += 1
            self._tell(
                Fault.GRADIENTS_OF_ANOTHER_LOSS,
                self._names(held[pair.smaller]),
                _words(optimizers, other=pair.larger, own=pair.smaller),
            )

    # ---- whether they step ------------------------------------------------------

    def _look_for_idle(self, optimizers: Mapping[int, Optimizer], most: int) -> None:
        active = [key for key in optimizers if self._stepped[key]]
        idle = [key for key in optimizers if not self._stepped[key]]
        if not (active and idle) or self._step() < most:
            return
        stepped = set[int]().union(*(held_ids(optimizers[key]) for key in active))
        for key in idle:
            waiting = [
                each
                for each in parameters_of(optimizers[key])
                if each.requires_grad and each.grad is not None
            ]
            # Another one that steps may have taken its place.
            if waiting and stepped.isdisjoint(held_ids(optimizers[key])):
                self._tell(
                    Fault.OPTIMIZER_NEVER_STEPS,
                    self._names(set(map(id, waiting))),
                    _words(optimizers, own=key),
                    steps=self._step() + 1,
                )

    def _look_at_renewal(self, optimizer: Optimizer) -> None:
        """See whether an optimizer begins again what its like has begun."""
        held = frozenset(held_ids(optimizer))
        settings = _settings_of(optimizer)
        last = self._renewed.get(held)
        if not settings or optimizer.state:
            self._renewed.pop(held, None)
        elif last is None or last.settings != settings:
            self._renewed[held] = _Renewed(settings, 1)
        else:
            self._renewed[held] = _Renewed(settings, last.times + 1)
            if last.times + 1 == _OFTEN:
                self._tell(
                    Fault.OPTIMIZER_MADE_ANEW,
                    self._names(held),
                    {"optimizer": type(optimizer).__name__},
                    optimizers=_OFTEN,
                    steps=self._step(),
                )

    def _look_for_state(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        """See whether the program has a state for an optimizer that begins without."""
        if optimizer.state or not _settings_of(optimizer):
            return
        found = state_not_loaded(list(parameters_of(optimizer)), namespaces(frame))
        if found is None:
            return
        name, steps = found
        # It is of this very moment of the training.
        is_sure = abs(steps - max(0, self._step())) <= 1
        self._tell(
            Fault.OPTIMIZER_BEGINS_ANEW,
            (name,),
            {"optimizer": type(optimizer).__name__, "place": name},
            steps=float(steps),
            sure=float(is_sure),
        )

    # ---- what they decay --------------------------------------------------------

    def _look_at_settings(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        """Look for settings that the program does not mean."""
        name = {"optimizer": type(optimizer).__name__}
        for key, setting, value, used, ids in unread_settings(optimizer, frame):
            words = {**name, "key": key, "setting": setting}
            names = self._names(ids)
            self._tell(Fault.SETTING_NOT_READ, names, words, value=value, used=used)
            break
        if betas := exchanged_betas(optimizer):
            names = self._names(held_ids(optimizer))
            numbers = {"first": betas[0], "second": betas[1]}
            self._tell(Fault.BETAS_EXCHANGED, names, name, **numbers)

    def _look_at_groups(self, optimizer: Optimizer) -> None:
        """Look for groups whose decay is that of others."""
        if not has_exempt_groups(optimizer):
            return
        found = fault_of_decay(optimizer, self._places())
        if found is not None:
            words = {"optimizer": type(optimizer).__name__, "kind": found.kind}
            numbers = {"parameters": len(found.ids), "decay": found.decay}
            self._tell(found.fault, self._names(found.ids), words, **numbers)

    # ---- what they train --------------------------------------------------------

    def _look_at_flags(self, optimizer: Optimizer) -> None:
        """Look for attributes that were meant to freeze parameters, and do not."""
        misread = {
            id(each): flag
            for each in parameters_of(optimizer)
            for flag, value in vars(each).items()
            if isinstance(value, bool)
            and value is not each.requires_grad
            and _FLAG.fullmatch(flag)
        }
        is_frozen, of = False, "parameter"
        if misread:
            flagged = [e for e in parameters_of(optimizer) if id(e) in misread]
            is_frozen = not flagged[0].requires_grad
        else:
            misread, of = self._flags_of_modules(held_ids(optimizer)), "module"
        if misread:
            words = {
                "flag": next(iter(misread.values())),
                "of": of,
                "optimizer": type(optimizer).__name__,
            }
            names = self._names(misread)
            numbers = {"parameters": len(misread), "frozen": float(is_frozen)}
            self._tell(Fault.FLAG_NOT_READ, names, words, **numbers)

    def _flags_of_modules(self, held: AbstractSet[int]) -> dict[int, str]:
        """Return parameters that train, of modules with a flag that says no, by id."""
        modules = [
            module
            for each in self._roots
            if (root := each.module) is not None
            for _, module in named_modules(root)
        ]
        return {
            id(parameter): flag
            for module in modules
            for flag, value in vars(module).items()
            if value is False and _FLAG.fullmatch(flag)
            for parameter in module.parameters()
            if id(parameter) in held and parameter.grad is not None
        }

    # ---- names ------------------------------------------------------------------

    def _places(self) -> dict[int, KnownParameter]:
        """Return where all parameters of the registered modules belong, by id."""
        found: dict[int, KnownParameter] = {}
        for each in self._roots:
            root = each.module
            if root is None:
                continue
            for path, module in named_modules(root):
                start = each.prefix + (f"{path}." if path else "")
                kind = kind_of(module)
                for name, parameter in module._parameters.items():
                    if parameter is not None:
                        place = KnownParameter(start + name, kind)
                        found.setdefault(id(parameter), place)
        return found

    def _names(self, ids: Iterable[int]) -> tuple[str, ...]:
        chosen = set(ids)
        places = self._places().items()
        names = [place.name for key, place in places if key in chosen]
        return tuple(names[:_MOST_NAMES])

    def _tell(
        self,
        fault: Fault,
        names: tuple[str, ...],
        words: Mapping[str, str],
        **numbers: float,
    ) -> None:
        if names:
            self._observe(
                Observation(fault, max(0, self._step()), names, numbers, words)
            )


def _settings_of(optimizer: Optimizer) -> tuple[Any, ...]:
    """Return the class and the settings of an optimizer that keeps averages, if so."""
    given = optimizer.defaults
    if not ("betas" in given or given.get("momentum") or "alpha" in given):
        return ()
    settings = sorted((key, str(given[key])) for key in given if key != "lr")
    return type(optimizer), *settings


def _words(optimizers: Mapping[int, Optimizer], **keys: int) -> dict[str, str]:
    """Return what optimizers are called: their class, and which of several it is."""
    order = list(optimizers)
    return {
        role: f"{type(optimizers[key]).__name__} ({order.index(key) + 1})"
        for role, key in keys.items()
    }


def _has_gradient(ids: AbstractSet[int], reached: Mapping[int, torch.Tensor]) -> bool:
    """Return whether the smallest of these parameters has a gradient that is not zero.

    Gradients on other devices are read, too: it happens in the first steps only.
    """
    some = [
        leaf.grad
        for key, leaf in reached.items()
        if key in ids and leaf.grad is not None and leaf.numel() <= _MOST_ELEMENTS
    ]
    return bool(some) and bool(min(some, key=torch.Tensor.numel).detach().any())


def _reaches_through(
    root: Any, shared: AbstractSet[int], own: AbstractSet[int]
) -> bool:
    """Return whether parameters are reached through operations of the shared ones.

    The shared ones are then nearer to the loss, as those of a judge are.
    """
    below = list(_below_users_of(root, shared))
    seen = set(below)
    while below and len(seen) < MOST_NODES:
        node = below.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) in own:
            return True
        for each in operands_of(node):
            if each not in seen:
                seen.add(each)
                below.append(each)
    return False


def _below_users_of(root: Any, ids: AbstractSet[int]) -> Iterator[Any]:
    """Yield the nearest operations that take one of these parameters."""
    seen, waiting = {root}, [root]
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if any(leaf_of(each) in ids for each in operands_of(node)):
            yield node
            continue
        for each in operands_of(node):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
