"""Find what a program keeps as a copy of its model, and what is the model itself.

``best_model = model`` binds a name, and ``best = model.state_dict()`` keeps references:
both go on changing as the training does.  A name says that a copy is meant, and the
memory says that there is none.

Names are looked up where an evaluation is called from, and where the hook is closed: in
the variables of the functions, and in the attributes of the objects there.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.average_swaps import AverageSwaps
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.module_tree import class_name, unwrapped
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.modes import TRAIN
from tdbg.profiler.checkpoints import forget_saves, watch_saves
from tdbg.run.observations import Fault, Observation

__all__ = ["KeptReferences"]

# What programs call the copies of a model or of its weights that they keep.
_KEPT = re.compile(r"(^|_)(best|snapshot)(_|[0-9]|$)", re.IGNORECASE)
# What they call networks that follow another one.
_FOLLOWS = re.compile(
    r"(^|_)target_(net|network|model|q|critic|actor|policy|value)|momentum_encoder"
    r"|((^|_)(net|network|model|q|qf|critic|actor|policy|value)_?[12]?_target($|_))"
    r"|(^|_)(encoder_k|key_encoder|teacher_(net|model)|ema_model)$",
    re.IGNORECASE,
)
# Looks, and saved states that are remembered, at most.
_MOST_LOOKS, _MOST_SAVES = 24, 64


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    @property
    def module(self) -> nn.Module | None: ...


class KeptReferences:
    """The names that a program has for copies of its models.

    Args:
        session: Counts the steps of training, and writes what is seen.
        tables: The parameters of the registered modules; grows.
    """

    def __init__(self, session: Session, tables: Sequence[_Table]) -> None:
        self._session = session
        self._tables = tables
        self._n_looks = 0
        self._latest = -1
        # When names were seen first with their objects, which are not kept alive.
        self._since: dict[tuple[str, str, int], int] = {}
        self._told = set[str]()
        # What was written to files, by number, and the steps made before.
        self._saves: list[tuple[int, int]] = []
        self._swaps = AverageSwaps(session)
        watch_saves(self)

    def saved(self, given: Any) -> None:
        """Note that the program is about to write an object to a file."""
        with contextlib.suppress(Exception):
            self._session.run(self._note_save, given)

    def _note_save(self, given: Any) -> None:
        every = [given]
        if isinstance(given, Mapping):
            every += [each for each in given.values() if isinstance(each, Mapping)]
        ids = {id(each) for each in every}
        ids |= {
            id(root)
            for root in self.roots()
            for each in every
            if isinstance(each, Mapping) and _are_weights_of(root, each)
        }
        n_steps = self._session.n_training_steps
        self._saves += [(each, n_steps) for each in ids]
        del self._saves[:-_MOST_SAVES]

    def loss_begins(self, frame: FrameType | None) -> None:
        """Report networks that follow themselves: the first loss begins.

        Args:
            frame: Where to look, and outwards from there.
        """
        for names in namespaces(frame):
            for name, own, module in _followers(names):
                if name not in self._told:
                    self._told.add(name)
                    words = {"kept": name, "own": own}
                    self._tell(Fault.TARGET_IS_MODEL, module, words, 0)

    def look(self, frame: FrameType | None, *, is_last: bool = False) -> None:
        """Report names that have stood for the model itself in several steps.

        Args:
            frame: Where to look, and outwards from there.
            is_last: Whether training ends; else, an evaluation begins.
        """
        n_steps = self._session.n_training_steps
        if n_steps == self._latest or not (is_last or self._n_looks < _MOST_LOOKS):
            return
        if n_steps == 0 or is_recording():
            return
        # Other code defines what objects are equal to, and what they hold.
        with contextlib.suppress(Exception):
            self._look(frame, n_steps, is_last=is_last)

    def _look(self, frame: FrameType | None, n_steps: int, *, is_last: bool) -> None:
        self._n_looks += 1
        self._latest = n_steps
        roots, met = self.roots(), set[tuple[str, str, int]]()
        spaces = list(namespaces(frame))
        for names in spaces:
            for name, own, value in _references(names, roots):
                key = name, own, id(value)
                met.add(key)
                since = self._since.setdefault(key, n_steps)
                was_saved = any(
                    each == id(value) and step <= since for each, step in self._saves
                )
                if since < n_steps and name not in self._told and not was_saved:
                    self._told.add(name)
                    words = {"kept": name, "own": own}
                    self._tell(Fault.BEST_IS_MODEL, roots[0], words, since)
        # What was not met may be gone, and its number may be another's.
        self._since = {key: self._since[key] for key in met}
        if not is_last:
            self._swaps.evaluation_begins(spaces, roots)

    def conclude(self, frame: FrameType | None) -> None:
        """Look for the last time: training ends."""
        self.look(frame, is_last=True)
        forget_saves(self)
        self.remove()

    def remove(self) -> None:
        """Look no longer."""
        self._swaps.remove()

    def roots(self) -> list[nn.Module]:
        """Return the models that are trained."""
        found = (each.module for each in self._tables)
        return [each for each in found if each is not None]

    def _tell(
        self, fault: Fault, root: nn.Module, words: Mapping[str, str], since: int
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        numbers = {"since": float(since)}
        name = class_name(root)
        self._session.observe(Observation(fault, step, (name,), numbers, words))


def _references(
    names: Mapping[str, Any], roots: Sequence[nn.Module]
) -> Iterator[tuple[str, str, Any]]:
    """Yield names for copies, a name of the model if they are it, and what they are."""
    for name, value in names.items():
        if not _KEPT.search(name):
            continue
        if isinstance(value, nn.Module):
            own = [
                other
                for other, each in names.items()
                if isinstance(each, nn.Module)
                and not _KEPT.search(other)
                and any(unwrapped(each) is root for root in roots)
                and _share_all(unwrapped(value), unwrapped(each))
            ]
            if own:
                yield name, own[0], value
        elif isinstance(value, Mapping):
            for each in (value, *_mappings_in(value)):
                if any(_are_weights_of(root, each) for root in roots):
                    yield name, "", each
                    break


def _followers(names: Mapping[str, Any]) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield names of networks that follow what they are, and what that is."""
    modules = {key: each for key, each in names.items() if isinstance(each, nn.Module)}
    for name, value in modules.items():
        if not _FOLLOWS.search(name):
            continue
        for other, each in modules.items():
            if not _FOLLOWS.search(other) and _share_all(value, each):
                yield name, other, each
                break


def _share_all(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two networks of one class have the same memory."""
    if type(one) is not type(other):
        return False
    is_trained = any(each.requires_grad for each in other.parameters())
    return is_trained and (
        one is other or _are_weights_of(other, dict(one.named_parameters()))
    )


def _mappings_in(value: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
    return [each for each in [*value.values()][:8] if isinstance(each, Mapping)]


def _are_weights_of(root: nn.Module, state: Mapping[Any, Any]) -> bool:
    """Return whether a state has all trained weights of a model, in their memory."""
    first = next(iter(state.values()), None)
    if not isinstance(first, torch.Tensor):
        return False
    places = {
        each.data_ptr() for each in state.values() if isinstance(each, torch.Tensor)
    }
    own = {
        each.data_ptr()
        for each in root.parameters()
        if each.requires_grad and each.numel()
    }
    return bool(own) and 0 not in own and own <= places
