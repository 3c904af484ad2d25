"""Finds the optimizers of a model, and says when they step.

An optimizer need not be registered: one that exists at the first forward in
training is found among the objects of the process, and one that steps is seen by
a global hook.
"""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.hooks.pytorch.around_step import AroundStep
from tdbg.hooks.pytorch.compiled import never_compiled
from tdbg.hooks.pytorch.compiled_late import Unheard
from tdbg.hooks.pytorch.compiled_steps import StepBegins, StepEnds
from tdbg.hooks.pytorch.cuda import CudaTensors, number_of, scale_of
from tdbg.hooks.pytorch.model_facts import ModelFacts
from tdbg.hooks.pytorch.modules import ModuleTap
from tdbg.hooks.pytorch.scaler import unwatch_scalers, watch_scalers
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = ["OptimizerWatch"]

# Forwards in training without an optimizer before which one is looked for; the
# second is the first at which it would make a difference.
SEARCHES = 2


class OptimizerWatch:
    """Watches the optimizers that hold parameters of the registered modules.

    Args:
        session: Where their events go.
        taps: The registered modules; grows.
        mode: Says the present mode.
        remote: Reads what optimizers hold on devices.
        facts: Is told of them and of their steps.
    """

    def __init__(
        self,
        session: Session,
        taps: list[ModuleTap],
        mode: Callable[[], ModeKeys],
        remote: CudaTensors,
        facts: ModelFacts,
    ) -> None:
        self._session = session
        self._facts = facts
        facts.optimizers = self._known
        self._remote = remote
        self._taps = taps
        self._mode = mode
        # By references without a callback, which all of an object are one: to look
        # for a key takes no call of Python's.
        self._keys: dict[weakref.ref[Optimizer], int] = {}
        # Those that stepped without parameters of ours, with how many they held.
        self._strangers: weakref.WeakKeyDictionary[Optimizer, list[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._numbers = itertools.count()
        self._searches = SEARCHES
        self._has_stepped = False
        # Of the scaler whose step is under way.
        self._loss_scale: Any = None
        self.around = AroundStep(session, taps, remote)
        self._unheard = Unheard(taps)
        # The hook is global: it must not keep this training alive.
        me, keys = weakref.ref(self), self._keys

        def meet(optimizer: Optimizer, *_: Any) -> None:
            if is_compiling() or weakref.ref(optimizer) in keys:
                return
            watch = me()
            if watch is not None:
                watch._session.run(watch._consider, optimizer)

        never_compiled(meet)
        self._handles = [register_optimizer_step_pre_hook(meet)]
        watch_scalers(self)

    def add(self, optimizer: Optimizer, *, defines_step: bool = False) -> None:
        """Watch this optimizer."""
        key = self._keys.get(weakref.ref(optimizer))
        if key is None:
            key = self._keys[weakref.ref(optimizer)] = next(self._numbers)
            self._facts.change()
            gone = self._session.machine.optimizer_gone
            forget = functools.partial(_forget, self._keys, key, gone)
            weakref.finalize(optimizer, forget).atexit = False
            # On the optimizer itself, so as to come after the hooks that it has:
            # what they change (clipping, say) it is about to use.
            self._handles += [
                optimizer.register_step_pre_hook(
                    StepBegins(optimizer, key, self._session, self._begin)
                ),
                optimizer.register_step_post_hook(
                    StepEnds(optimizer, key, self._session, self._end)
                ),
            ]
        self._session.machine.optimizer_found(key, defines_step=defines_step)

    def search(self) -> None:
        """Look for an optimizer that has not stepped yet."""
        if self._searches == 0 or self._session.machine.optimizers:
            return
        self._searches -= 1
        for item in gc.get_objects():
            # By type: isinstance would wake lazy proxies.
            if issubclass(type(item), Optimizer) and self._holds_ours(item):
                self.add(item)

    def _known(self) -> list[Optimizer]:
        """Those that are watched, as they were found."""
        every = sorted(self._keys, key=self._keys.__getitem__)
        return [found for each in every if (found := each()) is not None]

    def _held(self) -> frozenset[int]:
        """The ids of all that they hold."""
        return frozenset(item for each in self._known() for item in _identities(each))

    def remove(self) -> None:
        """Watch no longer."""
        while self._session.unfinished:
            self._session.unfinished.pop()()
        unwatch_scalers(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.around.remove()

    # ---- called by optimizers and scalers -------------------------------------

    def scaler_steps(self, scale: Any) -> None:
        """A scaler begins the step of an optimizer; None: it has ended."""
        self._loss_scale = scale

    def scaler_begins(self, _: Optimizer) -> None:
        """A scaler is about to decide whether the optimizer steps."""
        self._has_stepped = False

    def scaler_ends(self, optimizer: Optimizer) -> None:
        """It has decided, and the optimizer has stepped if it was to."""
        if not self._has_stepped:
            self._session.run(self._skip, optimizer)

    # ---- what it means --------------------------------------------------------

    def _consider(self, optimizer: Optimizer) -> None:
        groups = getattr(optimizer, "param_groups", ())
        sizes = [len(group["params"]) for group in groups]
        if self._strangers.get(optimizer) == sizes:
            return
        if self._holds_ours(optimizer):
            self.add(optimizer)
        else:
            self._strangers[optimizer] = sizes

    def _holds_ours(self, optimizer: Optimizer) -> bool:
        if "_optimizer_step_pre_hooks" not in vars(optimizer):
            return False  # It stands for another one (Lightning's, accelerate's).
        # While a forward begins, a sharded module may hold others than its optimizer.
        ours = set[int]().union(*(tap.parameters.identities() for tap in self._taps))
        return not ours.isdisjoint(_identities(optimizer))

    def _begin(self, key: int, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The optimizer is about to step: other arguments, or None to leave them."""
        self._has_stepped = True
        self._fence()
        # PyTorch counts the optimizer itself among the arguments.
        place = 1 if args and args[0] is optimizer else 0
        closure = args[place] if len(args) > place else kwargs.get("closure")
        has_closure = callable(closure)
        mode = TRAIN
        # It only matters where a step begins here.
        if self._session.machine.training is None:
            mode = self._mode_of(key, has_closure=has_closure)
        context = self._session.optimizer_begins(key, mode)
        is_light = context is None or context.wants.is_light
        if not is_light and not has_closure:
            self._capture(key, context, optimizer)
        if not is_light or self.around.has_scalars:
            self.around.begin(key, context, optimizer, has_closure=has_closure)
        if not has_closure:
            if self._unheard.listens:
                self._unheard.step(context)
            return None
        # With a closure the gradients come into being inside the step.
        wrapped = self._wrap(closure, key, context, optimizer)
        if len(args) > place:
            return (*args[:place], wrapped, *args[place + 1 :]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def _end(self, key: int, optimizer: Optimizer) -> None:
        """The optimizer has stepped."""
        found = getattr(optimizer, "found_inf", None)
        number = 0.0 if found is None else number_of(found, self._remote)
        # Of a device, the step waits for it, not the training.
        skipped = bool(number) if isinstance(number, float) else number or False
        try:
            if key in self.around.contexts:
                self.around.end(key, optimizer, skipped=skipped is True)
            self._facts.optimizer_stepped()
        finally:
            self._session.optimizer_ends(key, skipped)

    def _skip(self, optimizer: Optimizer) -> None:
        if weakref.ref(optimizer) not in self._keys:
            self._consider(optimizer)
        key = self._keys.get(weakref.ref(optimizer))
        if key is not None:
            context = self._session.optimizer_begins(key, self._mode_of(key))
            self._fence()
            self._capture(key, context, optimizer)
            self._session.optimizer_ends(key, True)

    def _mode_of(self, key: int, *, has_closure: bool = False) -> ModeKeys:
        """The mode of the step that an optimizer is about to end."""
        machine = self._session.machine
        mode = self._mode()
        # Gradients of a closure are yet to come; others are of what was called last.
        step = None
        if mode is EVAL and not has_closure:
            step = machine.evaluation_trains(key)
        if step is not None:
            self._facts.mode_changed()
            if step.context is not None:
                wants = self._session.policy.wants(step.mode, step.mode_step)
                step.context.wants = wants
        return mode

    def _fence(self) -> None:
        for tap in self._taps:
            if tap.parameters.early.copies:
                tap.parameters.fence()

    def _capture(
        self, key: int, context: StepContext | None, optimizer: Optimizer
    ) -> None:
        if context is None or not context.takes or not context.step.is_open:
            return
        # The defining optimizer's step is the last chance for all parameters.
        is_last = self._session.machine.defines_step(key)
        only = None if is_last else frozenset(_identities(optimizer))
        # Fused optimizers divide by the loss scale themselves.
        factor = getattr(optimizer, "grad_scale", None)
        scale = 1.0 if factor is None else scale_of(factor)
        for tap in self._taps:
            tap.optimizer_steps(context, scale, only, self._held)
        divisor = self._loss_scale
        undo = scale if divisor is None else scale_of(divisor)
        self.around.gradients(context, undo, only)

    def _wrap(
        self,
        closure: Callable[[], Any],
        key: int,
        context: StepContext | None,
        optimizer: Optimizer,
    ) -> Callable[[], Any]:
        run, machine = self._session.run, self._session.machine

        def evaluate() -> Any:
            run(machine.closure_begins)
            try:
                loss = closure()
            except BaseException:
                run(machine.closure_fails)
                raise
            run(self._fence)
            if self._unheard.listens:
                run(self._unheard.step, context)  # Its forwards were inside.
            # The first evaluation is that with the weights before the update.
            run(self._capture, key, context, optimizer)
            run(machine.closure_ends)
            return loss

        return evaluate


def _forget(
    keys: dict[weakref.ref[Optimizer], int], key: int, gone: Callable[[int], None]
) -> None:
    """The optimizer of that key does not exist any longer."""
    for each, number in list(keys.items()):
        if number == key:
            del keys[each]
    gone(key)


def _identities(optimizer: Optimizer) -> list[int]:
    return [id(item) for group in optimizer.param_groups for item in group["params"]]
