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
import functools
import inspect
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, never_compiled, now
from tdbg.hooks.pytorch.device.tensors import is_recording, sample_of
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import class_name, unwrapped
from tdbg.modes import TRAIN
from tdbg.profiler.checkpoints import forget_saves, watch_saves
from tdbg.run.observations import Fault, Observation

__all__ = ["AVERAGE", "KeptReferences", "locals_of", "namespaces"]

# What programs call the copies of a model or of its weights that they keep.
_KEPT = re.compile(r"(^|_)(best|snapshot)(_|[0-9]|$)", re.IGNORECASE)
# Frames from the evaluation outwards, names in each, objects in each whose attributes
# are looked at, and looks, at most.
_MOST_FRAMES, _MOST_NAMES, _MOST_OBJECTS, _MOST_LOOKS = 30, 400, 40, 24
# What they call networks that follow another one.
_FOLLOWS = re.compile(
    r"(^|_)target_(net|network|model|q|critic|actor|policy|value)|momentum_encoder"
    r"|((^|_)(net|network|model|q|qf|critic|actor|policy|value)_?[12]?_target($|_))"
    r"|(^|_)(encoder_k|key_encoder|teacher_(net|model)|ema_model)$",
    re.IGNORECASE,
)
AVERAGE = re.compile(
    r"(^|_)(ema|swa|avg|averaged?|shadow|moving)(_|$|[0-9])", re.IGNORECASE
)
"""What programs call averages of weights."""
# How deep these lie in objects, and the tensors of each that are looked at, at most.
_DEEPEST, _MOST_TENSORS = 3, 4000
# What it calls the weights that it puts aside meanwhile.
_ASIDE = re.compile(r"backup|collected|stored|saved|orig|temp|cache|old", re.IGNORECASE)
# Forwards of training in which an average must move.
_MOST_FORWARDS = 50
# Evaluations in a row after which the model goes on from its average.
_ENOUGH_SWAPS = 2
# References to the variables of a frame that nobody else has asked for.
_REFERENCES = 3
# Saved states that are remembered.
_MOST_SAVES = 64
# Packages whose objects are not those of a program.
_FOREIGN = re.compile(
    r"(torch|numpy|tdbg|builtins|importlib|logging|pandas|PIL|pytest|_pytest)(\.|$)"
)


# Returns the tensor of an average, if there is one.
_Read = Callable[[], torch.Tensor | None]


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    @property
    def module(self) -> nn.Module | None: ...


class KeptReferences:
    """The names that a program has for copies and averages of its models.

    Args:
        session: Counts the steps of training, and writes what is seen.
        tables: The parameters of the registered modules; grows.

    Attributes:
        born: When it was made, for the compiler.
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
        self._swap: _Swap | None = None
        self._n_swaps = 0
        self.born = now()
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
        if not is_last and self._swap is None and hooks_may_go(self):
            self._swap = next(_swaps(spaces, roots), None)
            if self._swap is not None:
                self._swap.watch(self)

    def swap_ends(self, *, is_restored: bool) -> None:
        """Count averages that the model was trained from after an evaluation."""
        swap, self._swap = self._swap, None
        if swap is None or is_restored:
            self._n_swaps = 0
            return
        self._n_swaps += 1
        if self._n_swaps == _ENOUGH_SWAPS and (root := swap.root()) is not None:
            words = {"kept": swap.name}
            self._tell(Fault.AVERAGE_NOT_RESTORED, root, words, swap.n_steps)

    def set_idle(self, is_idle: bool) -> None:
        """Let the compiler trace no hooks of these."""
        if not is_idle:
            self.remove()

    def conclude(self, frame: FrameType | None) -> None:
        """Look for the last time: training ends."""
        self.look(frame, is_last=True)
        forget_saves(self)
        self.remove()

    def remove(self) -> None:
        """Look no longer."""
        if self._swap is not None:
            self._swap.remove()
            self._swap = None

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


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame, without keeping them alive.

    A function's frame keeps what it was last asked for, until the function ends.
    """
    found = frame.f_locals
    copied = dict(found)
    is_snapshot = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if is_snapshot and sys.version_info < (3, 13):
        # Nobody else has it: the frame, this variable and the call.
        if sys.getrefcount(found) <= _REFERENCES:
            found.clear()
    return copied


def namespaces(frame: FrameType | None) -> Iterator[Mapping[str, Any]]:
    """Yield the variables of frames, and the attributes of the objects in them."""
    seen = set[int]()
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if not _FOREIGN.match(str(frame.f_globals.get("__name__"))):
            yield from _of_scope(locals_of(frame), seen)
        frame = frame.f_back
    main = sys.modules.get("__main__")
    if main is not None:
        yield from _of_scope(vars(main), seen)


def _of_scope(scope: Mapping[str, Any], seen: set[int]) -> Iterator[Mapping[str, Any]]:
    names = _some_of(scope)
    yield names
    n_objects = 0
    for value in names.values():
        if isinstance(value, type | ModuleType | FunctionType | Optimizer):
            continue
        is_foreign = _FOREIGN.match(type(value).__module__ or "")
        if (is_foreign and not isinstance(value, nn.Module)) or id(value) in seen:
            continue
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and n_objects < _MOST_OBJECTS:
            n_objects += 1
            seen.add(id(value))
            inside = value._modules if isinstance(value, nn.Module) else {}
            yield {**_some_of(attributes), **inside}


def _some_of(scope: Mapping[Any, Any]) -> dict[str, Any]:
    some = [*scope.items()][:_MOST_NAMES]
    return {name: value for name, value in some if type(name) is str}


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


# ---- averages in the place of the model ----------------------------------------------


class _Swap:
    """An average whose weights the model has as an evaluation begins.

    Attributes:
        name: What the program calls the average.
        n_steps: The steps that were made before.
    """

    def __init__(
        self, name: str, root: nn.Module, pivot: nn.Parameter, average: _Read
    ) -> None:
        self.name = name
        self.n_steps = 0
        self.root = weakref.ref(root)
        self._pivot = weakref.ref(pivot)
        self._read = average
        self._sample = sample_of(pivot)
        self._handle: Any = None
        self._n_forwards = 0

    def watch(self, kept: KeptReferences) -> None:
        """Look at the next forwards of training."""
        self.n_steps = kept._session.n_training_steps
        root = self.root()
        if root is not None:
            called = _TrainsAgain(kept, self)
            self._handle = root.register_forward_pre_hook(called)

    def remove(self) -> None:
        """Look no longer."""
        if self._handle is not None:
            self._handle.remove()

    def is_restored(self) -> bool | None:
        """Return whether the model is its own again; None: that is not known yet.

        The first forward trains from the average.  At a later one, the average has
        moved, and not to where the model is: programs copy the model at first.
        """
        pivot, average = self._pivot(), self._read()
        self._n_forwards += 1
        if pivot is None or average is None or self._n_forwards > _MOST_FORWARDS:
            return True
        if self._n_forwards == 1:
            if not torch.equal(self._sample, sample_of(pivot)):
                return True
            return False if average.data_ptr() == pivot.data_ptr() else None
        present = sample_of(average)
        if torch.equal(present, self._sample):
            return None
        return torch.equal(present, sample_of(pivot))


class _TrainsAgain(Inert):
    """The hook of a model that was evaluated with the weights of its average."""

    __slots__ = ("_kept", "_swap")

    def __init__(self, kept: KeptReferences, swap: _Swap) -> None:
        self._kept = weakref.ref(kept)
        self._swap = swap

    def __call__(self, module: nn.Module, *_: Any) -> None:
        kept, swap = self._kept(), self._swap
        if kept is None or not (module.training and torch.is_grad_enabled()):
            return
        if is_dynamo_compiling() or compiler._is_compiling_flag or is_recording():
            return
        kept._session.run(self._look, kept, swap)

    def _look(self, kept: KeptReferences, swap: _Swap) -> None:
        is_restored = swap.is_restored()
        if is_restored is not None:
            swap.remove()
            kept.swap_ends(is_restored=is_restored)


never_compiled(_TrainsAgain.__call__)


def _swaps(
    spaces: Sequence[Mapping[str, Any]], roots: Sequence[nn.Module]
) -> Iterator[_Swap]:
    """Yield the averages whose weights a model has."""
    for root in roots:
        pivot = _pivot_of(root)
        sample = None if pivot is None else sample_of(pivot)
        if pivot is None or sample is None or not bool((sample != sample[:1]).any()):
            continue
        for names in spaces:
            for name, value in names.items():
                if not AVERAGE.search(name):
                    continue
                for each, read in _tensors_in(value, _DEEPEST):
                    if (
                        each is not pivot
                        and each.shape == pivot.shape
                        and each.dtype == pivot.dtype
                        and torch.equal(sample_of(each), sample)
                    ):
                        yield _Swap(name, root, pivot, read)


def _pivot_of(root: nn.Module) -> nn.Parameter | None:
    """Return the largest trained matrix of a model."""
    found = [each for each in root.parameters() if each.requires_grad and each.ndim > 1]
    return max(found, key=torch.Tensor.numel, default=None)


def _tensors_in(value: Any, depth: int) -> Iterator[tuple[torch.Tensor, _Read]]:
    """Yield tensors, each with what returns the one that is in its place later."""
    if isinstance(value, nn.Module):
        for each in value.parameters():
            yield each, weakref.ref(each)
    elif isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in [*members][:_MOST_TENSORS] if depth else ():
            if isinstance(each, torch.Tensor):
                yield each, functools.partial(_member, value, key)
            else:
                yield from _tensors_in(each, depth - 1)
    elif depth and type(getattr(value, "__dict__", None)) is dict:
        for name, each in vars(value).items():
            if not (isinstance(each, nn.Module) or _ASIDE.search(name)):
                yield from _tensors_in(each, depth - 1)


def _member(container: Any, key: Any) -> torch.Tensor | None:
    try:
        found = container[key]
    except LookupError:
        return None
    return found if isinstance(found, torch.Tensor) else None


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
