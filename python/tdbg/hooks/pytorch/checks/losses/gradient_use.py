"""Find out in the first steps whether optimizers use the gradients that losses make.

A gradient may be gone before its step: it was cleared in between.  It may be used
twice, by two optimizers or by two calls of one.  It may still be multiplied by the
scale of a scaler that does not make the step.  Or the optimizer has other parameters:
those of a copy of the model, which never get gradients.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.device.tensors import gradient_of, is_recording
from tdbg.hooks.pytorch.functions.backward_calls import unscaled
from tdbg.hooks.pytorch.model.process_objects import parameters_of
from tdbg.run.observations import Fault

__all__ = ["GradientUse"]

# Steps with the same fault that prove it, and steps that are looked at, at most.
_ENOUGH, _MOST_STEPS = 4, 12
# Steps of an optimizer without gradients that prove that it has another model.
_ENOUGH_STRANGE = 5
# An optimizer's parameters that are compared, at most, and elements of the one whose
# gradients are watched.
_MOST_COMPARED, _MOST_ELEMENTS = 16, 1_000_000
# A scale below is no proof.
_LEAST_SCALE = 128.0


class _Use(NamedTuple):
    """A gradient that a step has used, its version, and the optimizer."""

    gradient: TensorWeakRef
    version: int
    by: weakref.ref[Optimizer]


class _Arrivals:
    """The gradients that arrive at one parameter of an optimizer.

    Attributes:
        version: That of the latest gradient; -1: none has arrived since the last step.
        size: The sum of its absolute values, where the gradient lies.
    """

    def __init__(self, parameter: torch.Tensor) -> None:
        self.version = -1
        self.size = torch.zeros(())
        me = weakref.ref(self)

        def arrived(leaf: torch.Tensor) -> None:
            arrivals, gradient = me(), gradient_of(leaf)
            if arrivals is None or is_recording():
                return
            # Nothing reaches the backward pass, and nobody waits for a device in it.
            with contextlib.suppress(Exception), torch.no_grad():
                if isinstance(gradient, torch.Tensor):
                    arrivals.size = gradient.abs().sum()
                    arrivals.version = gradient._version

        register: Any = parameter.register_post_accumulate_grad_hook
        self._parameter = weakref.ref(parameter)
        self._handle = register(arrived)

    @property
    def gradient(self) -> Any:
        """The present gradient."""
        parameter = self._parameter()
        return None if parameter is None else gradient_of(parameter)

    def remove(self) -> None:
        """Watch no longer."""
        self._handle.remove()


class GradientUse(StepCheck):
    """Compare the gradients that losses make with those that optimizers use.

    Args:
        parameters: Yields the parameters of the registered modules.
        note: Called with what is found out.
    """

    def __init__(
        self, parameters: Callable[[], Iterable[torch.Tensor]], note: Note
    ) -> None:
        self._parameters = parameters
        self._note = note
        self._n_steps = self._n_losses = 0
        self._counts: Counter[tuple[Fault, int]] = Counter()
        self._told: set[Fault] = set()
        self._arrivals: dict[int, _Arrivals] = {}
        # The scale of the latest loss, and the optimizer that a scaler steps now.
        self._scale = 1.0
        self._scaled: weakref.ref[Optimizer] | None = None
        # What steps have used since the latest loss, by parameter.
        self._used: dict[int, _Use] = {}

    def loss_begins(self, graph: Graph) -> None:
        """Note that a backward pass is about to make gradients."""
        self._n_losses += 1
        self._used.clear()
        before = unscaled(graph.loss)
        self._scale = 1.0
        if before is not graph.loss and before.data_ptr() != graph.loss.data_ptr():
            number = float(before)
            self._scale = float(graph.loss.detach()) / number if number else 1.0

    def scaler_steps(self, optimizer: Optimizer) -> None:
        """Note that a scaler is about to step an optimizer."""
        self._scaled = weakref.ref(optimizer)

    def step_begins(self, optimizer: Optimizer) -> None:
        """Look at the gradients that an optimizer is about to use."""
        is_by_scaler = self._scaled is not None and self._scaled() is optimizer
        self._scaled = None
        name = type(optimizer).__name__
        key, held = id(optimizer), parameters_of(optimizer)
        arrivals = self._arrivals.get(key)
        if arrivals is None:
            self._watch(key, held)
        elif arrivals.version >= 0:
            self._look_at_arrived(optimizer, arrivals, is_by_scaler=is_by_scaler)
            arrivals.version = -1
        earlier = self._who_used(held)
        words = {"optimizer": name}
        if earlier is not optimizer:
            words["earlier"] = type(earlier).__name__
        self._count(Fault.STEPPED_TWICE, key, earlier is not None, {}, words)

    def step_ends(self, optimizer: Optimizer) -> None:
        """Note which gradients an optimizer has used."""
        self._n_steps += 1
        if self._n_steps >= _MOST_STEPS:
            self.remove()
            return
        used = (
            (id(each), each.grad)
            for each in parameters_of(optimizer)
            if each.grad is not None
        )
        user = weakref.ref(optimizer)
        self._used |= {
            key: _Use(TensorWeakRef(gradient), gradient._version, user)
            for key, gradient in itertools.islice(used, _MOST_COMPARED)
        }

    def stranger_steps(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that has no parameter of the model and steps."""
        held = parameters_of(optimizer)
        own = [each for each in self._parameters() if each.requires_grad]
        is_copy = (
            self._n_steps == 0
            and self._n_losses > 0
            and len(own) > 1
            and all(each.grad is None and each.requires_grad for each in held)
            and any(each.grad is not None for each in own)
            and Counter(each.shape for each in held)
            == Counter(each.shape for each in own)
        )
        if not is_copy:
            self._counts.pop((Fault.OPTIMIZER_OF_COPY, id(optimizer)), None)
            return
        key = Fault.OPTIMIZER_OF_COPY, id(optimizer)
        self._counts[key] += 1
        if self._counts[key] == _ENOUGH_STRANGE:
            numbers = {"parameters": float(len(held))}
            self._tell(key[0], numbers, {"optimizer": type(optimizer).__name__})

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        while self._arrivals:
            self._arrivals.popitem()[1].remove()
        self._used.clear()

    # ---- inside ----------------------------------------------------------------

    def _watch(self, key: int, held: Iterable[torch.Tensor]) -> None:
        """Watch the gradients of one parameter that has one."""
        found = [
            each
            for each in held
            if type(gradient_of(each)) is torch.Tensor
            and each.numel() <= _MOST_ELEMENTS
            and each.is_leaf
        ]
        ours = set(map(id, self._parameters()))
        # Before the first step the gradient may be gone.
        found = (
            found
            or [
                each
                for each in held
                if id(each) in ours and each.requires_grad and each.is_leaf
            ][-1:]
        )
        if found:
            self._arrivals[key] = _Arrivals(found[-1])

    def _look_at_arrived(
        self, optimizer: Optimizer, arrivals: _Arrivals, *, is_by_scaler: bool
    ) -> None:
        key, gradient = id(optimizer), arrivals.gradient
        words = {"optimizer": type(optimizer).__name__}
        before = float(arrivals.size)
        size = 0.0 if gradient is None else float(gradient.detach().abs().sum())
        is_gone = gradient is None or (before > 0.0 and size == 0.0)
        is_cleared = is_gone and all(
            each.grad is None or not bool(each.grad.detach().any())
            for each in parameters_of(optimizer)[:_MOST_COMPARED]
        )
        self._count(Fault.CLEARED_BEFORE_STEP, key, is_cleared, {}, words)
        is_scaled = (
            gradient is not None
            and not is_by_scaler
            and self._scale >= _LEAST_SCALE
            and gradient._version == arrivals.version
            # A scaler that unscales writes past the version.
            and size == before
        )
        numbers = {"scale": self._scale}
        self._count(Fault.STEPPED_SCALED, key, is_scaled, numbers, words)

    def _who_used(self, held: Iterable[torch.Tensor]) -> Optimizer | None:
        """Return which optimizer has used these gradients already, as they are."""
        known = [
            (gradient, self._used[id(each)])
            for each in held
            if id(each) in self._used and (gradient := each.grad) is not None
        ]
        is_again = bool(known) and all(
            use.gradient() is gradient and gradient._version == use.version
            for gradient, use in known
        )
        is_any = is_again and any(bool(each.detach().any()) for each, _ in known)
        return known[0][1].by() if is_any else None

    def _count(
        self,
        fault: Fault,
        key: int,
        is_found: bool,
        numbers: Mapping[str, float],
        words: Mapping[str, str],
    ) -> None:
        """Count steps of an optimizer that have a fault one after the other."""
        if is_found:
            self._counts[fault, key] += 1
            if self._counts[fault, key] == _ENOUGH:
                self._tell(fault, numbers, words)
        elif fault is not Fault.STEPPED_TWICE:
            self._counts.pop((fault, key), None)

    def _tell(
        self, fault: Fault, numbers: Mapping[str, float], words: Mapping[str, str]
    ) -> None:
        if fault not in self._told:
            self._told.add(fault)
            self._note(fault, numbers, words)
