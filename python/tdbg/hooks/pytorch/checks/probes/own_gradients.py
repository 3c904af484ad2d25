"""Compare the gradients that a program has written itself with finite differences.

An ``autograd.Function`` whose backward is not the derivative of its forward trains all
the same, to something else.  The arguments of one call are kept, and copies of them
are moved a little.  Many functions are meant to have another gradient: those that pass
it straight through a step, reverse it or limit it.  So a slope of zero, and a function
that returns its input, say nothing.

Thread safety: the training's thread.  The state of random generators is put back.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found, StepCheck
from tdbg.hooks.pytorch.checks.probes.function_reader import FunctionReader
from tdbg.hooks.pytorch.checks.probes.outside_names import (
    FUNCTIONS,
    PLAIN,
    OutsideValue,
)
from tdbg.hooks.pytorch.checks.probes.probe_batch import Unsuitable
from tdbg.hooks.pytorch.checks.probes.pure_libraries import is_allowed, is_pure
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.model.program_sources import functions_of
from tdbg.run.observations import Fault, Observation

__all__ = ["OwnGradients"]

# Losses and functions that are looked at, and numbers of a call, at most.
_MOST_LOSSES, _MOST_FUNCTIONS, _MOST_NUMBERS = 4, 4, 1 << 18
# By how much arguments are moved; slopes of smooth functions agree to this share.
_STEPS, _SMOOTH = (1e-6, 1e-4), 1e-2
# A step of a function's arguments, in their deviations, that steps of rounding show in.
_LARGE, _COARSE = 0.03, 0.1
# Slopes that say nothing, and how far gradients may be off, as a share of the largest.
_FLAT, _ROUGH = 1e-6, 0.05
# The share of slopes that must say something, and of these, that of wrong gradients.
_LEAST_SHARE, _LEAST_WRONG = 0.5, 0.3
_N_DRAWS = 3

_Call = tuple[tuple[Any, ...], tuple[bool, ...]]


class OwnGradients(StepCheck):
    """Compares the gradients of the functions in the first losses.

    Args:
        step: Returns the global step of training.
        observe: Writes an observation.
        is_open: Whether functions of the program may be called.
    """

    def __init__(
        self,
        step: Callable[[], int],
        observe: Callable[[Observation], None],
        *,
        is_open: bool,
    ) -> None:
        self._step = step
        self._observe = observe
        self._n_losses = 0
        self._kept: dict[Any, _Kept] = {}
        self.is_over = not is_open

    def loss_begins(self, graph: Graph) -> None:
        """Compare what was kept, and keep the next calls of what is new."""
        for kind, kept in self._kept.items():
            if kept.call is not None and not kept.is_done:
                kept.is_done = True
                self._compare(kind, kept.call)
        for kind in graph.own_functions:
            is_new = kind not in self._kept and len(self._kept) < _MOST_FUNCTIONS
            if is_new and not is_pure(kind) and _has_no_effects(kind):
                self._kept[kind] = _Kept(kind)
        self._n_losses += 1
        is_done = all(each.is_done for each in self._kept.values())
        if self._n_losses >= _MOST_LOSSES or (self._n_losses > 1 and is_done):
            self.remove()

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        while self._kept:
            self._kept.popitem()[1].remove()

    def _compare(self, kind: Any, call: _Call) -> None:
        devices = {e.device for e in call[0] if isinstance(e, torch.Tensor)}
        cards = [each for each in devices if each.type == "cuda"]
        with torch.random.fork_rng(devices=cards), torch.enable_grad():
            found = _Gradients(kind, *call).fault()
        if found is not None:
            fault, numbers, words = found
            step = max(0, self._step())
            seen = Observation(fault, step, (kind.__name__,), numbers, words)
            self._observe(seen)


class _Kept:
    """Keeps the arguments of the next call of a function.

    Attributes:
        call: The arguments, and which of them need a gradient; None: there was no call.
        is_done: Whether they were looked at.
    """

    def __init__(self, kind: Any) -> None:
        self.call: _Call | None = None
        self.is_done = False
        self._kind = kind
        given = vars(kind)["forward"]
        self._given = given
        function = given.__func__
        has_context = "setup_context" not in vars(kind)

        def forward(*args: Any) -> Any:
            if self.call is None:
                self.remove()
                with contextlib.suppress(Exception):
                    self.call = _copied(args[has_context:])
            return function(*args)

        never_compiled(forward)
        kind.forward = staticmethod(forward)

    def remove(self) -> None:
        """Give the function its own forward back."""
        if vars(self._kind).get("forward") is not self._given:
            self._kind.forward = self._given


def _copied(args: tuple[Any, ...]) -> _Call | None:
    """Return copies of arguments, in double precision; None: they may not be used.

    Another object, such as a module, could have effects.
    """
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    if not all(isinstance(each, (torch.Tensor, *PLAIN)) for each in args):
        return None
    if sum(each.numel() for each in tensors) > _MOST_NUMBERS:
        return None
    copies = tuple(
        each.detach().clone().to(torch.float64 if each.is_floating_point() else None)
        if isinstance(each, torch.Tensor)
        else each
        for each in args
    )
    needs = tuple(isinstance(e, torch.Tensor) and e.requires_grad for e in args)
    return copies, needs


class _Gradients:
    """The gradients of one call of a function, and its slopes.

    Args:
        kind: The function.
        args: Its arguments.
        needs: Which of them need a gradient.
    """

    def __init__(
        self, kind: Any, args: tuple[Any, ...], needs: tuple[bool, ...]
    ) -> None:
        self._kind = kind
        self._args = args
        self._needs = needs
        self._random = torch.Generator().manual_seed(0)

    def fault(self) -> Found | None:
        """Return what is wrong with the gradients; None: nothing that is known."""
        result = self._result({})
        if result is None or not torch.equal(result, self._needed({})):
            return None
        for i in itertools.compress(range(len(self._args)), self._needs):
            given = self._args[i]
            if given.shape == result.shape:
                if torch.allclose(given, result):
                    return None
                if self._is_of_elements(i, result):
                    found = self._of_elements(i, result)
                else:
                    found = self._of_all(i, result)
            else:
                found = self._of_all(i, result)
            if found is not None:
                return found
        return None

    def _result(self, moved: dict[int, torch.Tensor]) -> torch.Tensor | None:
        """Return the result of the function, of arguments of which some are others."""
        args = (moved.get(i, each) for i, each in enumerate(self._args))
        results = self._kind.apply(*args)
        every = results if isinstance(results, tuple) else (results,)
        found = [
            each
            for each in every
            if isinstance(each, torch.Tensor) and each.is_floating_point()
        ]
        return found[0] if len(found) == 1 else None

    def _needed(self, moved: dict[int, torch.Tensor]) -> torch.Tensor:
        result = self._result(moved)
        if result is None:
            msg = "the function returns something else"
            raise ValueError(msg)
        return result.detach()

    def _gradient(self, i: int, weights: torch.Tensor) -> torch.Tensor:
        own = self._args[i].clone().requires_grad_()
        result = self._result({i: own})
        if result is None or not result.requires_grad:
            return torch.zeros_like(own)
        (found,) = torch.autograd.grad(result, own, weights, allow_unused=True)
        return torch.zeros_like(own) if found is None else found.detach()

    def _slopes(
        self, i: int, way: torch.Tensor, steps: Iterable[float] = _STEPS
    ) -> Iterator[torch.Tensor]:
        """Yield by how much the result changes along a way, for steps of some sizes."""
        for step in steps:
            ahead, behind = (
                self._needed({i: self._args[i] + sign * step * way}) for sign in (1, -1)
            )
            yield (ahead - behind) / (2 * step)

    def _noise(self, like: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(like.shape, generator=self._random, dtype=like.dtype)
        return drawn.to(like.device)

    # ---- functions of single elements ------------------------------------------------

    def _is_of_elements(self, i: int, result: torch.Tensor) -> bool:
        """Return whether each element of the result follows from its own alone."""
        moved = self._noise(result) > 0
        given = self._args[i]
        other = self._needed({i: torch.where(moved, given + 0.1, given)})
        return torch.equal(other[~moved], result.detach()[~moved])

    def _of_elements(self, i: int, result: torch.Tensor) -> Found | None:
        small, large = self._slopes(i, torch.ones_like(result))
        says = (small - large).abs() <= _SMOOTH * small.abs().clamp_min(_FLAT)
        says &= small.abs() > _FLAT
        if float(says.double().mean()) < _LEAST_SHARE:
            return None
        slopes = small[says]
        if bool(((slopes - 1).abs() < _FLAT).all()):
            return None
        weights = self._noise(result)
        weighed, plain = (
            self._gradient(i, each)[says] for each in (weights, torch.ones_like(result))
        )
        if bool(weighed.any()) and torch.equal(weighed, plain):
            return _found("ignored", 1.0)
        limit = _ROUGH * float(slopes.abs().max())
        off = (plain - slopes).abs()
        if float((off > limit).double().mean()) < _LEAST_WRONG:
            return None
        worst = int(off.argmax())
        return _found(
            "elements",
            float(plain[worst]),
            float(slopes[worst]),
            float(self._args[i][says][worst]),
        )

    # ---- all others ------------------------------------------------------------------

    def _of_all(self, i: int, result: torch.Tensor) -> Found | None:
        """Compare along some ways: a gradient may be off by a factor, or in general."""
        ratios = list[float]()
        for _ in range(_N_DRAWS):
            way, weights = self._noise(self._args[i]), self._noise(result)
            steps = (*_STEPS, _LARGE * float(self._args[i].std()))
            small, middle, large = (
                float((each * weights).sum()) for each in self._slopes(i, way, steps)
            )
            if abs(small) <= _FLAT or abs(small - middle) > _SMOOTH * abs(small):
                return None
            if not abs(small - large) <= _COARSE * abs(small):
                return None
            gradient = self._gradient(i, weights)
            if not bool(gradient.any()):
                return None
            is_ignored = torch.equal(gradient, self._gradient(i, 2 * weights))
            if is_ignored and result.numel() > 1:
                return _found("ignored", float(i))
            ratios.append(float((gradient * way).sum()) / small)
        mean = sum(ratios) / len(ratios)
        is_factor = max(abs(each - mean) for each in ratios) <= _SMOOTH * abs(mean)
        if is_factor and mean > 0 and abs(mean - 1) > _ROUGH:
            return _found("factor", mean)
        is_off = min(abs(each - 1) for each in ratios) > 2 * _ROUGH
        return _found("general", mean) if is_off and not is_factor else None


def _found(kind: str, got: float, slope: float = 0.0, at: float = 0.0) -> Found:
    numbers = {"got": got, "slope": slope, "at": at}
    return Fault.WRONG_BACKWARD, numbers, {"kind": kind}


# ---- effects -------------------------------------------------------------------------


def _has_no_effects(kind: Any) -> bool:
    """Return whether a function only computes, by its source."""
    reader = _Reader()
    try:
        for name in ("forward", "backward", "setup_context"):
            member = vars(kind).get(name)
            if isinstance(member, staticmethod):
                reader.read(member.__func__)
            elif name != "setup_context":
                return False
    except Unsuitable:
        return False
    return True


class _Reader:
    """Reads functions, and refuses those that reach what can be changed.

    Attributes:
        names: All names of attributes.
        of_classes: What all objects of a class share; nothing.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.of_classes: dict[str, Any] = {}
        self._met: set[int] = set()

    def read(self, function: Any) -> None:
        """Read a function and those that it names.

        Raises:
            Unsuitable: If it may have effects, or its source is unknown.
        """
        if id(function) in self._met:
            return
        self._met.add(id(function))
        nodes = functions_of(function.__code__)
        if not nodes:
            self.refuse(function, "its source")
        for node in nodes:
            FunctionReader(self, function, node).read()

    def load(self, function: Any, name: str, value: Any) -> OutsideValue | None:
        """Return something outside that a function names; None: it cannot change.

        Raises:
            Unsuitable: If it has effects, or is unknown.
        """
        if isinstance(value, PLAIN):
            return None
        where = getattr(value, "__module__", None) or ""
        if isinstance(value, types.ModuleType):
            where, is_known = value.__name__, True
        else:
            where = f"{where}.{getattr(value, '__name__', name)}"
            is_known = isinstance(value, FUNCTIONS)
        if not is_known or not is_allowed(where):
            self.refuse(function, name)
        if isinstance(value, types.FunctionType) and not is_pure(value):
            self.read(value)
        return OutsideValue(name, value)

    def refuse(self, function: Any, name: str) -> None:
        """Refuse the function.

        Raises:
            Unsuitable: Always.
        """
        msg = f"{getattr(function, '__qualname__', function)} uses `{name}`"
        raise Unsuitable(msg)
