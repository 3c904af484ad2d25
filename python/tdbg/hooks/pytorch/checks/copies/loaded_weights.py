"""See that a program loads weights that are the model's own.

``state_dict()`` returns references.  A program that keeps them as its best weights, and
loads them later, loads what the model has by then: nothing is restored.  One that loads
them at once, again and again, and has two names for the model, means to copy them to
another network, such as a target.

A program that reads its weights after an evaluation, and not after the next ones, keeps
those of the best.  Rules ask when it did.

``state_dict`` of all modules and ``__deepcopy__`` of parameters are wrapped while
anybody watches.  ``load_state_dict`` is wrapped as soon as this module is
imported, because programs load first and watch then.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.copies.loaded_states import Load, is_own, loads, remember
from tdbg.hooks.pytorch.model.module_tree import OWN_COPY, class_name
from tdbg.modes import EVAL, TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["LoadedWeights"]

# Results of ``state_dict`` that are remembered, at most.
_MOST_TAKEN = 64
# Evaluations after which weights were read, at most.
_MOST_READ = 100
# Loads of what the same object has just returned that are no accident.
_ENOUGH_IN_VAIN = 3
# Loads that are looked at, at most: a program may load at each step.
_MOST_LOADS = 1000


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    def identities(self) -> set[int]: ...


class LoadedWeights:
    """Watch what a program loads into its model.

    Args:
        session: Counts the steps of training, and writes what is seen.
        tables: The parameters of the registered modules; grows.
        two_names: Returns two names that a program has for a module, or none.
    """

    def __init__(
        self,
        session: Session,
        tables: Sequence[_Table],
        two_names: Callable[[nn.Module, FrameType | None], Sequence[str]],
    ) -> None:
        self._session = session
        self._tables = tables
        self._two_names = two_names
        # The results of ``state_dict``, with the moment of each, and whose they are.
        self._taken: list[tuple[weakref.ref[Any], int, weakref.ref[nn.Module]]] = []
        # Moments at which a module was given what it had just returned.
        self._in_vain: list[int] = []
        self._latest = self._n_loads = self._n_restored = 0
        self._n_read, self._n_evaluated = 0, -1
        _watchers.add(self)
        _wrap(nn.Module, "state_dict", _wrap_state_dict)
        _wrap(nn.Parameter, "__deepcopy__", _wrap_copy)
        # Of a hook that nobody closes nothing stays, either.
        weakref.finalize(self, _unwrap).atexit = False

    def took(self, module: nn.Module, state: Any) -> None:
        """Note that the program has the state of a module."""
        if isinstance(state, OrderedDict) and self._is_ours(module):
            self._latest = self._now()
            if len(self._taken) == _MOST_TAKEN:
                self._taken = [each for each in self._taken if each[0]() is not None]
            del self._taken[: max(0, len(self._taken) - _MOST_TAKEN + 1)]
            taken = weakref.ref(state), self._latest, weakref.ref(module)
            self._taken.append(taken)
            self._read_by("state_dict")

    def copied(self, parameter: nn.Parameter, memo: Mapping[Any, Any]) -> None:
        """Note that the program copies a parameter, perhaps with its model."""
        if OWN_COPY not in memo and any(
            id(parameter) in each.identities() for each in self._tables
        ):
            self._read_by("deepcopy")

    def _read_by(self, name: str) -> None:
        """Note, once after each evaluation, that the program has read the weights."""
        step, n_evaluated = self._session.latest_step(EVAL)
        if n_evaluated <= self._n_evaluated or self._n_read >= _MOST_READ:
            return
        self._n_evaluated = n_evaluated
        self._n_read += 1
        self._session.observe(
            Observation(Fault.WEIGHTS_READ, step, (str(step),), {}, {"by": name})
        )

    def loads(self, module: nn.Module, state: Any) -> None:
        """Note that the program is about to load a state."""
        self._n_loads += 1
        if self._n_loads > _MOST_LOADS or not isinstance(state, Mapping):
            return
        if not self._is_ours(module):
            return
        if not _are_own(module, state):
            self._n_restored += 1
        elif self._now() > self._taken_at(state):
            # Not what it has just read.
            self._session.observe(
                Observation(
                    Fault.WEIGHTS_BY_REFERENCE,
                    max(0, self._session.latest_step(TRAIN)[0]),
                    (class_name(module),),
                )
            )
        elif self._is_in_vain(module, state):
            names = self._two_names(module, sys._getframe(1))
            if names:
                words = dict(zip(("kept", "own"), names, strict=True))
                step = max(0, self._session.latest_step(TRAIN)[0])
                fault, name = Fault.TARGET_IS_MODEL, (class_name(module),)
                self._session.observe(Observation(fault, step, name, {}, words))

    def _is_in_vain(self, module: nn.Module, state: Any) -> bool:
        """Return whether this is one too many load of what a module has just given."""
        own = any(each() is state and of() is module for each, _, of in self._taken)
        n_steps = self._session.n_training_steps
        if not own or n_steps == 0 or n_steps in self._in_vain:
            return False
        self._in_vain = [*self._in_vain, n_steps][-_ENOUGH_IN_VAIN - 1 :]
        return len(self._in_vain) == _ENOUGH_IN_VAIN

    def review(self) -> None:
        """Look at what was loaded before the first update of a trained module."""
        for each in loads():
            module = each.module
            if module is None:
                continue
            if not self._is_ours(module):
                # A teacher, or another model that is asked and not trained.
                if each.restored_nothing():
                    self._tell(Fault.LOAD_RESTORED_NOTHING, module, each, role="other")
            elif each.restored_nothing():
                self._tell(Fault.LOAD_RESTORED_NOTHING, module, each)
            elif each.is_own:
                self._tell(Fault.LOAD_OF_OWN, module, each)
            elif each.was_wiped():
                self._tell(Fault.LOAD_WIPED, module, each)

    def remove(self) -> None:
        """Watch no longer."""
        _watchers.discard(self)
        self._taken.clear()
        _unwrap()

    def _tell(
        self, fault: Fault, module: nn.Module, load: Load, *, role: str = ""
    ) -> None:
        remedy = load.remedy
        numbers = {
            "given": float(load.n_given),
            "names": float(load.n_names),
            "matched": float(load.n_matched),
            "remedied": float(remedy.matched),
        }
        words = {
            "stripped": remedy.stripped,
            "added": remedy.added,
            "inside": remedy.inside,
            "role": role,
        }
        step = max(0, self._session.latest_step(TRAIN)[0])
        self._session.observe(
            Observation(fault, step, (class_name(module),), numbers, words)
        )

    def _is_ours(self, module: nn.Module) -> bool:
        first = next(module.parameters(), None)
        return first is not None and any(
            id(first) in each.identities() for each in self._tables
        )

    def _now(self) -> int:
        """Return a number that grows whenever the weights change."""
        return self._session.n_training_steps + self._n_restored

    def _taken_at(self, state: Any) -> int:
        """Return the last moment at which a state may have been taken."""
        for reference, moment, _ in self._taken:
            if reference() is state:
                return moment
        # A copy of the mapping, or one that is older than this training.
        return self._latest


def _are_own(module: nn.Module, state: Mapping[str, Any]) -> bool:
    """Return whether all trained weights in a state are those of the module."""
    given = [
        (state[name], parameter)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name in state
    ]
    return bool(given) and all(_is_same(one, other) for one, other in given)


def _is_same(one: Any, other: torch.Tensor) -> bool:
    return one is other or (
        isinstance(one, torch.Tensor)
        and one.shape == other.shape
        and one.data_ptr() == other.data_ptr() != 0
    )


_ORIGINAL = "_tdbg_original"
_WHILE_WATCHED = (
    (nn.Module, "state_dict"),
    (nn.Parameter, "__deepcopy__"),
)
# While there are any, the methods are wrapped.
_watchers: weakref.WeakSet[LoadedWeights] = weakref.WeakSet()


def _wrap_state_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = original(module, *args, **kwargs)
        # Modules call those inside of them with the mapping to fill.
        if not args and kwargs.get("destination") is None:
            _tell("took", module, state)
        return state

    return state_dict


def _wrap_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = args[0] if args else kwargs.get("state_dict")
        _tell("loads", module, state)
        was_own = False
        with contextlib.suppress(Exception):
            was_own = is_own(module, state)
        result = original(module, *args, **kwargs)
        with contextlib.suppress(Exception):
            # Neither missing nor unexpected names.
            is_whole = isinstance(result, tuple) and not any(result)
            remember(module, state, is_own=was_own, is_whole=is_whole)
        return result

    return load_state_dict


def _wrap_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def deepcopy(parameter: nn.Parameter, memo: Any) -> Any:
        _tell("copied", parameter, memo)
        return original(parameter, memo)

    return deepcopy


def _wrap(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Wrap a function, unless it is."""
    original = getattr(owner, name)
    if not hasattr(original, _ORIGINAL):
        wrapped = wrap(original)
        setattr(wrapped, _ORIGINAL, original)
        setattr(owner, name, wrapped)


def _unwrap() -> None:
    """Put back what is wrapped while anybody watches, if nobody does."""
    if _watchers:
        return
    for owner, name in _WHILE_WATCHED:
        original = getattr(getattr(owner, name), _ORIGINAL, None)
        if original is not None:
            setattr(owner, name, original)


def _tell(method: str, *arguments: Any) -> None:
    for each in list(_watchers):
        # Nothing reaches the training.
        with contextlib.suppress(Exception):
            each._session.run(getattr(each, method), *arguments)


_wrap(nn.Module, "load_state_dict", _wrap_load)
