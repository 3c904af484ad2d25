"""Find target networks: copies of a model that make its targets.

Methods of temporal differences (DQN, DDPG, SAC) compare a network with a copy of itself
that follows it.  The targets move, so the loss need not fall.

Such a copy is certain as a training begins: no optimizer has it, its class and weights
are those of a trained network, and the program calls it at each step.  An average of
weights is called for evaluation only, and a teacher has other weights.

An average keeps a share of itself at each update, and takes the rest from the model.
Two looks with an update between them show the share: what is left of the difference.

Thread safety: the training's thread.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling

from tdbg.hooks.pytorch.checks.copies.average_swaps import AVERAGE
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.tensors import sample_of
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import modules_of, named_modules
from tdbg.hooks.pytorch.model.numbers import pairs_of_steps
from tdbg.hooks.pytorch.model.variables import locals_of, namespaces

__all__ = [
    "Likeness",
    "Questions",
    "TargetNetworks",
    "copies_in",
    "is_called_an_average",
    "is_follower",
    "strangers_in",
]

# Calls that are looked at, and steps of training at which there must be some.
_MOST_CALLS, _LEAST_STEPS = 60, 3
# Copies that are looked at, and modules that are compared with some, at most.
_MOST_COPIES, _MOST_COMPARED = 16, 2000
# What the rounding of an update changes, at most, in units of the number format.
_ROUNDING = 4


class TargetNetworks:
    """The copies of a model that make its targets.

    Args:
        step: Returns the global step of training.

    Attributes:
        exist: Whether one was called in several steps.
        parameters: The ids of those of all copies.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._hooks = UncompiledHooks()
        self._steps: set[int] = set()
        self._n_calls = 0
        self.exist = False
        self.parameters: set[int] = set()

    def watch(self, copies: Iterable[nn.Module]) -> None:
        """Watch the calls of copies of trained modules."""
        if not self._hooks.may_be_added:
            return  # No call inside a compiled graph is seen.
        for each in copies:
            self.parameters |= _identities(each)
            self._hooks.add(each, _Called(self))

    def remove(self) -> None:
        """Look at calls no longer."""
        self._hooks.remove()

    def called(self) -> None:
        """A copy is called."""
        self._n_calls += 1
        self._steps.add(self._step())
        self.exist |= len(self._steps) >= _LEAST_STEPS
        if self.exist or self._n_calls >= _MOST_CALLS:
            self.remove()


def copies_in(
    roots: Sequence[nn.Module], modules: Sequence[nn.Module], held: AbstractSet[int]
) -> list[tuple[nn.Module, nn.Module]]:
    """Return copies of trained modules in these roots, each with its original.

    Call it before the first update.

    Args:
        roots: Modules that are trained.
        modules: All modules of the process.
        held: The ids of what its optimizers hold.
    """
    classes = {type(each) for root in roots for each in modules_of(root)}
    if _are_held([each for each in modules if type(each) in classes], held):
        return []
    trained = _trained(roots, held)
    # The largest first: the parts of a copy are no copies of their own.
    parts, n_compared = set[int](), 0
    classes = {kind[0] for kind in trained}
    others = [each for each in modules if type(each) in classes]
    found: list[tuple[nn.Module, nn.Module]] = []
    for each in sorted(others, key=_size, reverse=True):
        if id(each) in parts or _is_trained(each.parameters(), held):
            continue
        alike = trained.get(_kind(each), [])
        n_compared += len(alike)
        if n_compared > _MOST_COMPARED or len(found) >= _MOST_COPIES:
            break
        original = next((of for of in alike if _is_copy(each, of)), None)
        if original is not None:
            parts.update(map(id, each.modules()))
            found.append((each, original))
    return found


def strangers_in(
    roots: Sequence[nn.Module], modules: Sequence[nn.Module], held: AbstractSet[int]
) -> list[tuple[nn.Module, nn.Module]]:
    """Return modules like a root that no optimizer has, and that have other weights.

    Each comes with the root.  Call it before the first update, as ``copies_in``.
    """
    classes, ours = {type(each) for each in roots}, set(map(id, roots))
    others = [
        each for each in modules if type(each) in classes and id(each) not in ours
    ]
    if not others:
        return []
    trained = {_kind(each): each for each in roots if held >= _identities(each)}
    found = [
        (each, trained[_kind(each)])
        for each in others
        if _kind(each) in trained and held.isdisjoint(_identities(each))
    ]
    apart = [(each, of) for each, of in found if not _is_copy(each, of)]
    return apart[:_MOST_COPIES]


def _are_held(modules: Iterable[nn.Module], held: AbstractSet[int]) -> bool:
    """Return whether optimizers have all parameters that are these modules' own."""
    return not [
        each
        for module in modules
        for each in module._parameters.values()
        if each is not None and not (each.requires_grad and id(each) in held)
    ]


def _is_trained(parameters: Iterable[nn.Parameter], held: AbstractSet[int]) -> bool:
    """Return whether optimizers change some; they may hold what is frozen."""
    return any(each.requires_grad and id(each) in held for each in parameters)


def _trained(
    roots: Iterable[nn.Module], held: AbstractSet[int]
) -> dict[_Kind, list[nn.Module]]:
    """Return the modules in these roots that optimizers train as a whole."""
    trained: dict[_Kind, list[nn.Module]] = {}
    for root in roots:
        for module in root.modules():
            is_trained = _is_trained(module.parameters(), held)
            if is_trained and held >= _identities(module):
                trained.setdefault(_kind(module), []).append(module)
    return trained


class _Called(Inert):
    """The hook of a copy."""

    __slots__ = ("_networks",)

    def __init__(self, networks: TargetNetworks) -> None:
        self._networks = networks

    def __call__(self, *_: Any) -> None:
        if not (is_dynamo_compiling() or compiler._is_compiling_flag):
            # Nothing reaches the training.
            with contextlib.suppress(Exception):
                self._networks.called()


never_compiled(_Called.__call__)


# A class, and the shapes of the parameters.
_Kind = tuple[type, tuple[torch.Size, ...]]


def _kind(module: nn.Module) -> _Kind:
    return type(module), tuple(each.shape for each in module.parameters())


def _size(module: nn.Module) -> int:
    return sum(1 for _ in module.modules())


def _identities(module: nn.Module) -> AbstractSet[int]:
    return set(map(id, module.parameters()))


def _is_copy(module: nn.Module, of: nn.Module) -> bool:
    """Return whether all weights are equal, beyond those of every new layer.

    A program may have updated the copy before the first loss, with what it is equal to:
    then they differ by rounding.
    """
    is_varied = False
    for one, other in zip(module.parameters(), of.parameters(), strict=True):
        sample, theirs = sample_of(one), sample_of(other)
        if sample.dtype != theirs.dtype or not _are_close(sample, theirs):
            return False
        is_varied |= bool((sample != sample[:1]).any())
    return is_varied


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    if not one.is_floating_point() or one.shape != other.shape:
        return False
    tolerance = _ROUNDING * torch.finfo(one.dtype).eps
    return torch.allclose(one, other, rtol=tolerance, atol=0.0)


# ---- whether a copy is the model -----------------------------------------------------

# An average that is closer to the model than a share of a step is the model.
_SHARE_OF_STEP = 0.1
# Updates that show the share that they keep; shares that nobody means; how far these
# differ, and the direction from that of an average; rounding, in units of the format.
_ENOUGH_UPDATES, _SMALL, _SPREAD, _ASIDE, _ROUNDED = 5, 0.09, 1.2, 0.05, 20


class Likeness:
    """Whether a copy is the model itself, or the model one step before.

    Attributes:
        latest: The steps that were made before the latest look.
        n: Looks at which the model had moved since the one before.
        n_alike: Those at which both were the same.
    """

    def __init__(self) -> None:
        self.latest = -1
        self.n = self.n_alike = self._n_next = 0
        self._model: torch.Tensor | None = None
        self._copy: torch.Tensor | None = None
        # The share that each update of the copy has kept, if it averaged with the model
        # after the step, or before; NaN: that was no such average.
        self._shares: tuple[list[float], list[float]] = [], []

    @property
    def is_always(self) -> bool:
        """Whether both were the same whenever somebody looked."""
        return self.n == self.n_alike

    @property
    def is_at_most_steps(self) -> bool:
        """Whether somebody looked again one step later, mostly."""
        return 2 * self._n_next >= self.n

    def note(self, copy: torch.Tensor, model: torch.Tensor, n_steps: int) -> None:
        """Compare some weights."""
        if self._model is not None and not torch.equal(self._model, model):
            way = float((model - self._model).norm()) / (n_steps - self.latest)
            self.n += 1
            self._n_next += n_steps == self.latest + 1
            self.n_alike += float((model - copy).norm()) <= _SHARE_OF_STEP * way
            if n_steps == self.latest + 1 and self._copy is not None:
                self._note_update(self._copy, copy, (model, self._model))
        self._model, self._copy, self.latest = model, copy, n_steps

    def left(self) -> float:
        """Return the small share that all updates have kept; 0: not seen."""
        for few in self._shares:
            is_seen = len(few) >= _ENOUGH_UPDATES and all(each > 0 for each in few)
            if is_seen and max(few) <= min(_SMALL, _SPREAD * min(few)):
                return sum(few) / len(few)
        return 0.0

    def _note_update(
        self,
        before: torch.Tensor,
        after: torch.Tensor,
        models: tuple[torch.Tensor, ...],
    ) -> None:
        """Note the share that an update of the copy between two steps has kept."""
        if torch.equal(before, after):
            return
        rounding = _ROUNDED * torch.finfo(torch.float32).eps * float(after.norm())
        for model, shares in zip(models, self._shares, strict=True):
            old, new = before - model, after - model
            left = float(old @ new) / max(float(old @ old), 1e-300)
            aside = float((new - left * old).norm())
            size = float(new.norm())
            if size <= rounding:
                continue  # It is the model, as far as can be told.
            is_average = aside <= max(_ASIDE * size, rounding / 4)
            shares.append(left if is_average else float("nan"))


# ---- what targets are asked --------------------------------------------------------

# What programs call a target.
_TARGET = re.compile(r"targ|tgt|(^|_)t$|_hat$", re.IGNORECASE)
# Steps in which a target is asked about the present only; questions that are heard, and
# parts that are listened to, at most.
_ENOUGH_QUESTIONS, _MOST_QUESTIONS, _MOST_PARTS = 10, 60, 64


class Questions:
    """Whether somebody asks a copy, and whether about what comes or what is.

    Args:
        module: The copy.
        frame: The program, which has a name for it.

    Attributes:
        name: That name, if it is that of a target; else "".
        is_asked: Whether it, or a part of it, was called; or nobody could tell.
        about: The observations that it was asked about, and what comes a step later.
    """

    def __init__(self, module: nn.Module, frame: FrameType | None) -> None:
        self.name = next(
            (
                name
                for names in namespaces(frame)
                for name, value in names.items()
                if value is module and _TARGET.search(name)
            ),
            "",
        )
        self.about = "", ""
        self._n_questions, self._is_over = 0, not self.name
        # Those in which all questions were about the present.
        self._steps: set[int] = set()
        self._hooks = UncompiledHooks()
        parts = [
            each
            for each in modules_of(module)
            if each._parameters and not each._modules
        ][:_MOST_PARTS]
        self.is_asked = not (parts and self.name and self._hooks.may_be_added)
        if not self.is_asked:
            for each in {id(each): each for each in (module, *parts)}.values():
                self._hooks.add(each, _Asked(self))

    def asked(self) -> None:
        """Note that the copy, or a part of it, is called."""
        self.is_asked = True
        self._hooks.remove()

    def note(self, args: Sequence[Any], frame: FrameType | None, n_steps: int) -> bool:
        """Note a question; return whether that is one too many about the present.

        A rollout may ask about each state before it asks about the last one.
        """
        self._n_questions += 1
        if self._is_over or self._n_questions > _MOST_QUESTIONS:
            return False
        given = next((each for each in args if isinstance(each, torch.Tensor)), None)
        about = None if given is None else _present(given, frame)
        if about is None:
            self._is_over = True
            return False
        self.about = about
        self._steps.add(n_steps)
        self._is_over = len(self._steps) >= _ENOUGH_QUESTIONS
        return self._is_over

    def remove(self) -> None:
        """Listen no longer."""
        self._hooks.remove()


class _Asked(Inert):
    """The hook of a copy and its parts."""

    __slots__ = ("_questions",)

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    def __call__(self, *_: Any) -> None:
        self._questions.asked()


never_compiled(_Asked.__call__)


def _present(given: torch.Tensor, frame: FrameType | None) -> tuple[str, str] | None:
    """Return the name of observations, and that of other ones that come a step later.

    None: it has no such name.
    """
    for names in namespaces(frame):
        for name, later in pairs_of_steps(names):
            other = names[later]
            if names[name] is given and isinstance(other, torch.Tensor):
                is_other = other.shape == given.shape and not torch.equal(other, given)
                return (name, later) if is_other else None
            if other is given:
                return None
    return None


# ---- names of copies -----------------------------------------------------------------

# What they call the class of an average of weights.
_AVERAGE_CLASS = re.compile(r"EMA|Ema|SWA|Averag")
# What they call a part of a model that follows another part.
_FOLLOWER = re.compile(
    r"(^|_)(target|momentum|ema|shadow|polyak|slow)(_|$|[0-9])"
    r"|(^|_)(encoder_k|key_encoder|k_encoder|teacher_ema|mean_teacher)$",
    re.IGNORECASE,
)
# Frames from the call of a copy outwards in which its names are looked for.
_MOST_FRAMES = 30


def is_called_an_average(module: nn.Module, frame: FrameType | None) -> bool:
    """Return whether the program calls a module an average of weights.

    So it does if a variable or an attribute has a name such as ``ema``, or an object
    that has such a name, or such a class, holds the module.
    """
    innermost = frame
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        for name, value in locals_of(frame).items():
            if _says(name, value, module):
                return True
        frame = frame.f_back
    return any(
        _says(name, value, module)
        for names in namespaces(innermost)
        for name, value in names.items()
    )


def is_follower(module: nn.Module, roots: Sequence[nn.Module]) -> bool:
    """Return whether a model calls one of its parts a target, or the like."""
    return any(
        each is module and _FOLLOWER.search(path.rpartition(".")[2])
        for root in roots
        for path, each in named_modules(root)
    )


def _says(name: str, value: Any, module: nn.Module) -> bool:
    if value is module:
        return AVERAGE.search(name) is not None
    if isinstance(value, type | ModuleType | FunctionType):
        return False
    held = _name_in(value, module)
    if not held:
        return False
    is_average = any(map(AVERAGE.search, (name, held)))
    return is_average or _AVERAGE_CLASS.search(type(value).__name__) is not None


def _name_in(value: Any, module: nn.Module) -> str:
    """Return what an object calls a module that it holds, or nothing."""
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is not dict:
        return ""
    places = [attributes]
    if isinstance(value, nn.Module):
        places.append(value._modules)
    return next(
        (str(key) for each in places for key, it in each.items() if it is module), ""
    )
