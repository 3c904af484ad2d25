"""Find the optimizers of a model, and report their steps.

You need not register an optimizer.  One that exists at the first forward in training is
found among the objects of the process, and a global hook sees one that steps.

Thread safety: the training's thread.  Errors: none but ``TrainingStopped``.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from torch import compiler
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tdbg.capture.counted_steps import StepEvent
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.step_clock import OPTIMIZER
from tdbg.hooks.pytorch.capture.optimizer_hooks import StepBegins, StepEnds
from tdbg.hooks.pytorch.capture.optimizer_step import OptimizerStep
from tdbg.hooks.pytorch.capture.parameters_and_gradients import ParameterTable
from tdbg.hooks.pytorch.capture.registered_modules import ModuleCapture, remove_all
from tdbg.hooks.pytorch.checks.compiled_before import SilentModel
from tdbg.hooks.pytorch.checks.first_updates import FirstUpdates
from tdbg.hooks.pytorch.checks.probes.probe_batch import FirstBatches
from tdbg.hooks.pytorch.checks.updates.kept_gradients import KeptGradients
from tdbg.hooks.pytorch.checks.updates.optimizer_setup import OptimizerSetup
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.device.cuda import CudaTensors, number_of, scale_of
from tdbg.hooks.pytorch.functions.scaler_calls import (
    ScalerStep,
    unwatch_scalers,
    watch_scalers,
)
from tdbg.hooks.pytorch.model.process_objects import (
    custom_optimizers,
    held_ids,
    living,
    parameters_of,
)
from tdbg.modes import ModeKeys

__all__ = ["OptimizerEvents", "OptimizerWatch"]


# Forwards in training without an optimizer before which tdbg looks for one; it matters
# from the second on.
_SEARCHES = 2


class OptimizerWatch:
    """Watch the optimizers that hold parameters of the registered modules.

    Args:
        session: Where their events go.
        module_captures: Those of the registered modules; grows.
        tables: The parameters of these; grows.
        mode: Returns the present mode.
        remote: Reads what optimizers hold on devices.
        model_info: Writes what changes with them, and counts their steps.
        found: Called when an optimizer is found.
        first_updates: Told of the first steps of optimizers.
        setup: Told of them, and of their first steps.
        batches: Hears of each step that is over and no part of a graph.

    Attributes:
        around: Captures around the step of an optimizer.
        keeps_gradients: Whether nobody clears the gradients of one of them.
        meets: The key of the hook of all optimizers, which finds them.
        step_defined: Called when the optimizer that ends a step is about to step.
    """

    def __init__(
        self,
        session: Session,
        module_captures: list[ModuleCapture],
        tables: list[ParameterTable],
        mode: Callable[[], ModeKeys],
        remote: CudaTensors,
        model_info: ModelInfoWriter,
        found: Callable[[], None],
        first_updates: FirstUpdates,
        setup: OptimizerSetup,
        batches: FirstBatches,
    ) -> None:
        self._session = session
        self._batches = batches
        self._found = found
        self._first_updates = first_updates
        self._setup = setup
        self._model_info = model_info
        self._remote = remote
        self._module_captures = module_captures
        self._tables = tables
        self._mode = mode
        # By references without a callback: an object has only one, so finding a key
        # takes no Python call.
        self._keys: dict[weakref.ref[Optimizer], int] = {}
        # Optimizers that stepped without our parameters, with their groups' sizes.
        self._foreign: weakref.WeakKeyDictionary[Optimizer, list[int]] = (
            weakref.WeakKeyDictionary()
        )
        self.n_foreign = 0
        self._custom: list[tuple[int, weakref.ref[Any]]] = []  # Not PyTorch's.
        self._custom_step = -1  # At which their numbers were recorded last.
        self._numbers = itertools.count()
        self._searches = _SEARCHES
        self._has_stepped = False
        # Counted events when a scaler began to decide.
        self._n_counted = 0
        self._has_closure = False  # Of the step under way.
        # The scale of the scaler whose step is under way.
        self._loss_scale: Any = None
        self.around = OptimizerStep(session, tables, remote)
        self.step_defined: Callable[[], None] | None = None
        self.keeps_gradients = False
        self._kept: dict[int, KeptGradients] = {}
        self._silent_model = SilentModel(module_captures)
        self._events: dict[int, OptimizerEvents] = {}
        self._handles: list[Any] = []
        self.meets = self._meet_all()
        # No hook outlasts a training that nobody closes.
        weakref.finalize(self, remove_all, self._handles).atexit = False
        watch_scalers(self)

    def _meet_all(self) -> int:
        """Hear of the steps of all optimizers; return the key of the hook."""
        # The hook is global: it must not keep this training alive.
        me, keys = weakref.ref(self), self._keys

        def met(optimizer: Optimizer, *_: Any) -> None:
            if is_dynamo_compiling() or weakref.ref(optimizer) in keys:
                return
            watch = me()
            if watch is not None and not compiler._is_compiling_flag:
                watch._session.run(watch._consider, optimizer)

        never_compiled(met)
        handle = register_optimizer_step_pre_hook(met)
        self._handles.append(handle)
        return handle.id

    def add(self, optimizer: Optimizer, *, defines_step: bool = False) -> None:
        """Watch this optimizer."""
        key = self._keys.get(weakref.ref(optimizer))
        if key is None:
            key = self._keys[weakref.ref(optimizer)] = next(self._numbers)
            self._model_info.changed()
            self._found()
            self._kept[key] = KeptGradients(self.gradients_are_kept)
            self._events[key] = OptimizerEvents(self, key, optimizer)
            self._setup.add(key, optimizer)
            # The methods themselves would keep the session alive.
            gone = [
                weakref.WeakMethod(method)
                for method in (self._session.optimizer_gone, self.around.optimizer_gone)
            ]
            forget = functools.partial(_forget, self._keys, key, gone)
            weakref.finalize(optimizer, forget).atexit = False
            # On the optimizer itself, to come after the hooks that it has: it uses what
            # they have changed, for example by clipping.
            self._handles += [
                optimizer.register_step_pre_hook(
                    StepBegins(optimizer, key, self._session, self._begin)
                ),
                optimizer.register_step_post_hook(
                    StepEnds(optimizer, key, self._session, self._end, self._batches)
                ),
            ]
        self._session.optimizer_found(key, defines_step=defines_step)

    def search(self) -> None:
        """Look for an optimizer that has not stepped yet."""
        if self._searches == 0 or self._session.optimizers:
            return
        self._searches -= 1
        self.search_now()
        if not (self._session.optimizers or self._custom):
            self._custom = [
                (next(self._numbers), found)
                for found in custom_optimizers()
                if self._trains_ours(found())
            ]

    def search_now(self) -> None:
        """Look for optimizers of PyTorch, however often that was done."""
        for optimizer in living(Optimizer):
            if self._holds_ours(optimizer):
                self.add(optimizer)

    def record_custom(self, context: StepContext) -> None:
        """Record the numbers of optimizers that are not PyTorch's.

        Call it as the first forward of a step begins: schedules change the numbers
        between steps.
        """
        if context.step.number == self._custom_step:
            return
        self._custom_step = context.step.number
        for key, found in self._custom:
            optimizer = found()
            if optimizer is not None:
                self.around.take_scalars(key, context, optimizer.param_groups)

    def optimizers(self) -> list[Optimizer]:
        """Return the watched optimizers, in the order in which they were found."""
        every = sorted(self._keys, key=self._keys.__getitem__)
        return [found for each in every if (found := each()) is not None]

    def others(self) -> list[Optimizer]:
        """Return optimizers that have stepped for a model that is not captured."""
        return [each for each in self._foreign if weakref.ref(each) not in self._keys]

    def events(self, optimizer: Optimizer) -> OptimizerEvents | None:
        """Return the events of an optimizer; None if it is not watched."""
        key = self._keys.get(weakref.ref(optimizer))
        return None if key is None else self._events.get(key)

    def has_news(self, optimizer: Optimizer) -> bool:
        """Return whether numbers of an optimizer have changed and must be recorded."""
        key = self._keys.get(weakref.ref(optimizer))
        return key is None or self.around.has_news(key, optimizer)

    def _held(self) -> frozenset[int]:
        """Return the ids of all parameters that they hold."""
        return frozenset[int]().union(*map(held_ids, self.optimizers()))

    def remove(self) -> None:
        """Watch no longer."""
        self._session.settle()
        unwatch_scalers(self)
        self._first_updates.remove()
        while self._kept:
            self._kept.popitem()[1].remove()
        remove_all(self._handles)
        self._handles.clear()
        self.around.remove()

    # ---- called by optimizers and scalers -------------------------------------

    def scaler_steps(self, step: ScalerStep | None) -> None:
        """Note that a scaler steps an optimizer; None: it has ended."""
        scale = self._loss_scale = None if step is None else step.scale
        if step is None or scale is None:
            self._session.clock.leave(OPTIMIZER)
            return
        self._session.clock.enter(OPTIMIZER)
        if not self._first_updates.is_over:
            self._first_updates.scaler_steps(step, lambda: float(scale))

    def scaler_begins(self, _: Optimizer) -> None:
        """Note that a scaler is about to decide whether the optimizer steps."""
        self._has_stepped = False
        self._n_counted = self._session.n_counted_events

    def scaler_ends(self, optimizer: Optimizer) -> None:
        """Note the decision: the optimizer has stepped, or is skipped."""
        is_counted = self._session.n_counted_events != self._n_counted
        if not (self._has_stepped or is_counted):
            self._session.run(self._skip, optimizer)

    # ---- what it means --------------------------------------------------------

    def _consider(self, optimizer: Optimizer) -> None:
        groups = getattr(optimizer, "param_groups", ())
        sizes = [len(group["params"]) for group in groups]
        if self._foreign.get(optimizer) == sizes:
            if not self._first_updates.is_over:
                self._first_updates.stranger_steps(optimizer)
            return
        if self._holds_ours(optimizer):
            self.add(optimizer)
        else:
            if optimizer not in self._foreign:
                self.n_foreign += 1
                self._model_info.changed()
            self._foreign[optimizer] = sizes

    def _holds_ours(self, optimizer: Optimizer) -> bool:
        if "_optimizer_step_pre_hooks" not in vars(optimizer):
            return False  # It wraps another optimizer (Lightning, accelerate).
        return self._trains_ours(optimizer)

    def _trains_ours(self, optimizer: Any) -> bool:
        # As a forward begins, a sharded module may hold other parameters than its
        # optimizer does.
        ours = set[int]().union(*(table.identities() for table in self._tables))
        return optimizer is not None and not ours.isdisjoint(held_ids(optimizer))

    def _begin(self, key: int, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Capture before the step; return other arguments, or None to keep them."""
        self._has_stepped = True
        if self._setup.hears_steps:
            self._setup.step_begins(key)
        self._fence()
        # PyTorch passes the optimizer itself among the arguments.
        place = 1 if args and args[0] is optimizer else 0
        closure = args[place] if len(args) > place else kwargs.get("closure")
        has_closure = self._has_closure = callable(closure)
        if has_closure:
            wrapped = self._begin_with_closure(key, optimizer, closure)
            if len(args) > place:
                return (*args[:place], wrapped, *args[place + 1 :]), kwargs
            return args, {**kwargs, "closure": wrapped}
        self._look_at_first_steps(key, optimizer)
        context = self._session.optimizer_begins(key, self._mode, from_latest=True)
        self._tell_step(key)
        is_light = context is None or context.step_plan.is_light
        if not is_light:
            # First, for parameters are copied as they are captured.
            self.around.prepare(key, context, optimizer, has_closure=False)
            self._capture(key, context, optimizer)
        if not is_light or self.around.has_scalars:
            self.around.begin(key, context, optimizer)
        if self._silent_model.listens:
            self._silent_model.step(context)
        elif key not in self._kept and self._first_updates.is_over:
            # Nobody needs to see each step any longer.
            self._session.add_event(self._events[key].begins)
        return None

    def _begin_with_closure(
        self, key: int, optimizer: Optimizer, closure: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Capture before a step whose closure computes the gradients inside.

        Returns:
            The function that the optimizer calls in place of the closure.
        """
        context = self._session.optimizer_begins(key, self._mode, from_latest=False)
        self._tell_step(key)
        if context is not None and not context.step_plan.is_light:
            self.around.prepare(key, context, optimizer, has_closure=True)
        self.around.begin(key, context, optimizer)
        return self._wrap(closure, key, context, optimizer)

    def _end(self, key: int, optimizer: Optimizer) -> None:
        """Capture after the step, and end the step."""
        found = getattr(optimizer, "found_inf", None)
        number = 0.0 if found is None else number_of(found, self._remote)
        # If a device has the answer, the step waits for it, not the training.
        skipped = bool(number) if isinstance(number, float) else number or False
        try:
            if key in self.around.contexts:
                self.around.end(key, optimizer, skipped=skipped is True)
                self._model_info.step_captured()
            if key in self._kept and not self._has_closure:
                self._kept[key].step_ends(parameters_of(optimizer))
            if not self._first_updates.is_over:
                self._first_updates.step_ends(optimizer)
            self._model_info.optimizer_stepped()
        finally:
            self._session.add_event(self._events[key].ends)
            self._session.optimizer_ends(key, skipped)

    def _tell_step(self, key: int) -> None:
        if self.step_defined is not None and self._session.defines_step(key):
            self.step_defined()

    def _look_at_first_steps(self, key: int, optimizer: Optimizer) -> None:
        self._look_at_kept(key)
        if not self._first_updates.is_over:
            self._first_updates.step_begins(optimizer)

    def _look_at_kept(self, key: int) -> None:
        kept = self._kept.get(key)
        if kept is None:
            return
        kept.step_begins()
        if kept.is_over:
            self._kept.pop(key).remove()

    def gradients_are_kept(self) -> None:
        """Note that nobody clears the gradients."""
        self.keeps_gradients = True
        self._model_info.changed()

    def _skip(self, optimizer: Optimizer) -> None:
        if weakref.ref(optimizer) not in self._keys:
            self._consider(optimizer)
        key = self._keys.get(weakref.ref(optimizer))
        if key is not None:
            context = self._session.optimizer_begins(key, self._mode)
            self._fence()
            self._capture(key, context, optimizer)
            self._session.optimizer_ends(key, True)

    def _fence(self) -> None:
        for table in self._tables:
            if table.early.copies:
                table.fence()

    def _capture(
        self, key: int, context: StepContext | None, optimizer: Optimizer
    ) -> None:
        if context is None or not context.takes or not context.step.is_open:
            return
        # The step of the defining optimizer is the last chance for all parameters.
        is_last = self._session.defines_step(key)
        only = None if is_last else frozenset(held_ids(optimizer))
        # Fused optimizers divide by the loss scale themselves.
        factor = getattr(optimizer, "grad_scale", None)
        scale = 1.0 if factor is None else scale_of(factor)
        for module_capture in self._module_captures:
            module_capture.optimizer_steps(context, scale, only, self._held)
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
        session = self._session
        run = session.run

        def evaluate() -> Any:
            run(session.closure_begins)
            try:
                loss = closure()
            except BaseException:
                run(session.closure_fails)
                raise
            run(self._fence)
            if self._silent_model.listens:
                run(self._silent_model.step, context)  # Its forwards were inside.
            # The first evaluation is that with the weights before the update.
            run(self._capture, key, context, optimizer)
            run(self._first_updates.step_begins, optimizer)
            run(session.closure_ends)
            # The next evaluation finds the gradients that this one leaves.
            self._look_at_kept(key)
            if key in self._kept:
                self._kept[key].step_ends(parameters_of(optimizer))
            return loss

        return evaluate


class OptimizerEvents:
    """The events of one optimizer.

    Attributes:
        begins: The optimizer is about to step.
        ends: The optimizer has stepped.
    """

    def __init__(self, watch: OptimizerWatch, key: int, optimizer: Optimizer) -> None:
        self._watch, self._key = weakref.ref(watch), key
        self._optimizer = weakref.ref(optimizer)
        self.begins = StepEvent(self._begin)
        self.ends = StepEvent(self._end, may_be_last=True)

    def _begin(self) -> None:
        watch, optimizer = self._watch(), self._optimizer()
        if watch is not None and optimizer is not None:
            watch._begin(self._key, optimizer, (), {})

    def _end(self) -> None:
        watch, optimizer = self._watch(), self._optimizer()
        if watch is not None and optimizer is not None:
            watch._end(self._key, optimizer)


def _forget(
    keys: dict[weakref.ref[Optimizer], int],
    key: int,
    gone: list[weakref.WeakMethod[Any]],
) -> None:
    """Forget the optimizer of that key, which no longer exists."""
    for each, number in list(keys.items()):
        if number == key:
            del keys[each]
    for each in gone:
        report = each()
        if report is not None:
            report(key)
