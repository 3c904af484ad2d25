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
import itertools
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.copies.average_swaps import (
    AverageSwaps,
    WeightsTrainedOn,
)
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.graphs.graph_reader import StepCheck
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.tensors import is_recording, sample_of
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import class_name, unwrapped
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.modes import TRAIN
from tdbg.profiler.checkpoints import forget_saves, watch_saves
from tdbg.run.observations import Fault, Observation

__all__ = ["KeptReferences", "SelfTargets", "two_names"]

# What programs call the copies of a model or of its weights that they keep.
_KEPT = re.compile(r"(^|_)(best|snapshot)(_|[0-9]|$)", re.IGNORECASE)
# What they call networks that follow another one.
_FOLLOWS = re.compile(
    r"(^|_)target_(net|network|model|q|critic|actor|policy|value)|momentum_encoder"
    r"|((^|_)(net|network|model|q|qf|critic|actor|policy|value)_?[12]?_target($|_))"
    r"|(^|_)(encoder_k|key_encoder|teacher_(net|model)|ema_model)$",
    re.IGNORECASE,
)
# What may be a name of one, or of something else: then it must be used as one.
_MAY_FOLLOW = re.compile(
    r"(^|_)(target|teacher|momentum|ema|slow|shadow|polyak|lagged|delayed|tgt)(_|\d|$)"
)
# Names of what changes rarely, or not at all: only one that is written to is updated.
_MAY_LAG = re.compile(
    r"(^|_)(old|prev|previous|frozen|ref|reference|anchor|avg|averaged?|swa)(_|\d|$)"
)
# Modules whose parts have numbers, not names.
_NUMBERED = (nn.ModuleList, nn.Sequential)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Steps with calls for targets, their share, and writes between steps, that show what a
# network is for; steps after which nothing more is learned; modules of a model in which
# names are looked for, and networks, at most.
_ENOUGH_CALLS, _MOST_CALLED, _ENOUGH_WRITES, _MOST_STEPS = 5, 0.8, 3, 2000
_MOST_MODULES, _MOST_NETWORKS = 400, 4
# Steps in which a network must have been called for a target; steps after which one
# that nobody writes to is reported.
_TO_BE_ASKED, _UNWRITTEN = 50, 200
# What rounding changes where a network is averaged with itself.
_ROUNDED = 1e-6
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

    Attributes:
        weights: From which weights the training goes on after an evaluation.
    """

    def __init__(self, session: Session, tables: Sequence[_Table]) -> None:
        self._session = session
        self.weights = WeightsTrainedOn(session)
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
        if n_steps and not (is_last or self.weights.waits):
            self.weights.evaluation_begins(self.roots())
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


class _Network(NamedTuple):
    """A network with the name of one that follows, and what it is.

    Attributes:
        name: What the program calls it.
        own: What it calls the model that it is.
        module: The network.
        calls: Steps in which it was called for a target: without gradients, or again
            before the backward pass.
        blind: Those in which it was called without gradients.
    """

    name: str
    own: str
    module: weakref.ref[nn.Module]
    calls: set[int]
    blind: set[int]


class SelfTargets(StepCheck):
    """Watch networks that are to follow a model, by name, and are that model.

    A name may mean something else.  The program says what it means by how it uses the
    network: it asks it for targets in each step, and writes to it between steps, where
    the optimizer does not.  What it writes is what was there.

    Args:
        tables: The parameters of the registered modules; grows.
        step: Returns the global step of training.
        observe: Writes an observation.
    """

    def __init__(
        self,
        tables: Sequence[_Table],
        step: Callable[[], int],
        observe: Callable[[Observation], None],
    ) -> None:
        self._tables = tables
        self._step = step
        self._observe = observe
        self._networks: list[_Network] | None = None
        self._hooks = UncompiledHooks()
        self._n_steps = self._n_written = self._n_losses = 0
        # The numbers of a network as a step has left them.
        self._left: dict[str, _State] = {}

    def loss_begins(self, graph: Graph) -> None:  # noqa: ARG002
        """Find the networks at the first loss."""
        self._n_losses += 1
        if self._networks is not None:
            return
        self._networks = []
        roots = [root for each in self._tables if (root := each.module) is not None]
        for names in _scopes(sys._getframe(1), roots):
            for name, own, module in _followers(names, _may_follow):
                known = {each.name for each in self._networks}
                if name in known or len(known) >= _MOST_NETWORKS:
                    continue
                if not _FOLLOWS.search(name) and self._hooks.may_be_added:
                    network = _Network(name, own, weakref.ref(module), set(), set())
                    self._networks.append(network)
                    self._hooks.add(module, _Asked(self, network))
        if not self._networks:
            self.remove()

    def step_begins(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """See whether the program has written to a network since the last step."""
        if is_recording():
            self._left.clear()  # No number can be read while a graph is recorded.
        for each in list(self._networks or ()):
            before, after = self._left.get(each.name), _State.of(each)
            if before is None or after is None or not after.was_written(before):
                continue
            self._n_written += 1
            if self._n_written >= _ENOUGH_WRITES and self._are_most(each.calls):
                self._tell(each, sure=1.0)
        self._left.clear()

    def step_ends(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Note the numbers that the optimizer has left."""
        self._n_steps += 1
        if is_recording():
            return
        if self._n_steps == _TO_BE_ASKED:
            # Reading numbers waits for a device, so only those in use are read on.
            self._networks = [each for each in self._networks or () if each.calls]
        for each in list(self._networks or ()):
            if (state := _State.of(each)) is not None:
                self._left[each.name] = state
            if (
                self._n_steps == _UNWRITTEN
                and self._are_most(each.blind)
                and _MAY_FOLLOW.search(_in_words(each.name))
            ):
                self._tell(each, sure=0.0)
        if self._n_steps >= _MOST_STEPS or self._networks == []:
            self.remove()

    def asked(self, network: _Network, *, again: bool) -> None:
        """Note that a network is called."""
        is_blind = not torch.is_grad_enabled()
        if is_blind:
            network.blind.add(self._n_steps)
        if again or is_blind:
            network.calls.add(self._n_steps)

    @property
    def moment(self) -> tuple[int, int]:
        """A moment: the steps and the losses so far."""
        return self._n_steps, self._n_losses

    def _are_most(self, steps: set[int]) -> bool:
        """Return whether these are enough, and most of the steps so far."""
        return len(steps) >= max(_ENOUGH_CALLS, _MOST_CALLED * self._n_steps)

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        self._hooks.remove()
        self._networks = []

    def _tell(self, network: _Network, *, sure: float) -> None:
        self._networks = [each for each in self._networks or () if each is not network]
        module = network.module()
        name = "" if module is None else class_name(module)
        words = {"kept": network.name, "own": network.own}
        step = max(0, self._step())
        fault = Fault.TARGET_IS_MODEL
        self._observe(Observation(fault, step, (name,), {"sure": sure}, words))


class _Asked(Inert):
    """The hook of a network that is to follow a model."""

    __slots__ = ("_latest", "_network", "_targets")

    def __init__(self, targets: SelfTargets, network: _Network) -> None:
        self._targets = weakref.ref(targets)
        self._network = network
        self._latest = (-1, -1)

    def __call__(self, *_: Any) -> None:
        targets = self._targets()
        if targets is None or is_recording():
            return
        moment = targets.moment
        with contextlib.suppress(Exception):
            targets.asked(self._network, again=moment == self._latest)
        self._latest = moment


never_compiled(_Asked.__call__)


class _State(NamedTuple):
    """The numbers of a network, and how often it was written to."""

    place: int
    version: int
    sample: torch.Tensor

    @classmethod
    def of(cls, network: _Network) -> _State | None:
        """Return those of its largest parameter."""
        module = network.module()
        every = [] if module is None else list(module.parameters())
        if not every:
            return None
        pivot = max(every, key=torch.Tensor.numel)
        return cls(pivot.data_ptr(), pivot._version, sample_of(pivot))

    def was_written(self, before: _State) -> bool:
        """Return whether somebody has written what was there, up to a factor.

        ``ours.mul_(decay).add_(theirs, alpha=1 - decay)`` multiplies both, if they are
        one, by ``1 - (1 - decay) ** 2``.
        """
        is_same = torch.equal(self.sample, before.sample)
        if (self.place, self.version) == (before.place, before.version) and is_same:
            return False
        one, other = self.sample.double(), before.sample.double()
        factor = float(one @ other) / max(float(other @ other), 1e-30)
        is_scaled = torch.allclose(one, factor * other, rtol=_ROUNDED, atol=_ROUNDED)
        return factor > 0 and bool(is_scaled)


def _scopes(
    frame: FrameType | None, roots: Sequence[nn.Module]
) -> Iterator[Mapping[str, Any]]:
    """Yield names: of variables and attributes, in dictionaries, and in the models."""
    for names in namespaces(frame):
        yield names
        for each in list(names.values()):
            if type(each) is dict and 1 < len(each) <= _MOST_MODULES:
                yield {key: it for key, it in each.items() if type(key) is str}
    for root in roots:
        for module in itertools.islice(root.modules(), _MOST_MODULES):
            parts = module._modules
            if len(parts) > 1 and not isinstance(module, _NUMBERED):
                yield parts


def two_names(module: nn.Module, frame: FrameType | None) -> tuple[str, ...]:
    """Return two names that one place of the program has for a network, or none.

    The first one is that of a copy, if the program calls it so somewhere.
    """
    found: tuple[str, ...] = ()
    for names in _scopes(frame, ()):
        own = [key for key, value in names.items() if value is module]
        own.sort(key=_may_follow, reverse=True)
        if len(own) > 1 and (not found or _may_follow(own[0])):
            found = tuple(own[:2])
            if _may_follow(own[0]):
                break
    return found


def _in_words(name: str) -> str:
    return _HUMP.sub("_", name).lower()


@functools.lru_cache(maxsize=1000)
def _may_follow(name: str) -> bool:
    words = _in_words(name)
    found = _MAY_FOLLOW.search(words) or _MAY_LAG.search(words) or _FOLLOWS.search(name)
    return found is not None


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


def _followers(
    names: Mapping[str, Any], follows: Callable[[str], Any] = _FOLLOWS.search
) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield names of networks that follow what they are, and what that is."""
    modules = {key: each for key, each in names.items() if isinstance(each, nn.Module)}
    for name, value in modules.items():
        if not follows(name):
            continue
        for other, each in modules.items():
            if not follows(other) and _share_all(value, each):
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
