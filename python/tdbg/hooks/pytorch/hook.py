"""``Hook``: users of PyTorch make one, register their model with it, and close it."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.naming import UniqueNames
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.config.kinds import Kind
from tdbg.config.profiler import ProfilerConfig
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import FrameworkHook
from tdbg.hooks.pytorch.adapter import TorchAdapter
from tdbg.hooks.pytorch.capture.counted_hooks import CountingHooks
from tdbg.hooks.pytorch.capture.function_calls import FunctionCalls
from tdbg.hooks.pytorch.capture.gradients_without_optimizer import (
    AccumulatedGradients,
    ReturnedGradients,
)
from tdbg.hooks.pytorch.capture.losses import CapturedLoss
from tdbg.hooks.pytorch.capture.model_info import TorchModel
from tdbg.hooks.pytorch.capture.optimizers import OptimizerWatch
from tdbg.hooks.pytorch.capture.parameters_and_gradients import ParameterTable
from tdbg.hooks.pytorch.capture.registered_modules import (
    ModuleCapture,
    keywords_of,
    registered_session,
)
from tdbg.hooks.pytorch.capture.replicas import ReplicaTensors
from tdbg.hooks.pytorch.checks.copies.copies import Copies
from tdbg.hooks.pytorch.checks.copies.kept_references import KeptReferences, two_names
from tdbg.hooks.pytorch.checks.copies.loaded_weights import LoadedWeights
from tdbg.hooks.pytorch.checks.copies.running_statistics import NormStatistics
from tdbg.hooks.pytorch.checks.copies.shared_weights import SharedWeights
from tdbg.hooks.pytorch.checks.copies.teachers import Teachers
from tdbg.hooks.pytorch.checks.data.batch_origins import BatchOrigins
from tdbg.hooks.pytorch.checks.data.evaluated_outputs import EvaluatedOutputs
from tdbg.hooks.pytorch.checks.data.first_inputs import FirstInputs, LabelsBesideInputs
from tdbg.hooks.pytorch.checks.data.metric_sums import MetricSums
from tdbg.hooks.pytorch.checks.first_losses import FirstLosses
from tdbg.hooks.pytorch.checks.first_updates import FirstUpdates
from tdbg.hooks.pytorch.checks.graphs.graph_reader import GraphReader
from tdbg.hooks.pytorch.checks.losses.bootstraps import LossVariables
from tdbg.hooks.pytorch.checks.probes.function_probes import FunctionProbes
from tdbg.hooks.pytorch.checks.probes.probe_batch import (
    FirstBatches,
    LabelFacts,
    note_calls,
    settings_of,
)
from tdbg.hooks.pytorch.checks.updates.kept_gradients import UpdatesByHand
from tdbg.hooks.pytorch.checks.updates.optimizer_setup import OptimizerSetup
from tdbg.hooks.pytorch.checks.updates.schedules import Schedules
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.cuda_graphs import GraphCapture
from tdbg.hooks.pytorch.device.tensors import warn_of_flat_parameters
from tdbg.hooks.pytorch.functions.backward_calls import BackwardRoots
from tdbg.hooks.pytorch.functions.timed_calls import add_clock, remove_clock
from tdbg.hooks.pytorch.model.callbacks import leave_out_of_copies
from tdbg.hooks.pytorch.model.kinds import loss_name
from tdbg.hooks.pytorch.model.mode import TorchMode
from tdbg.hooks.pytorch.model.module_tree import class_name, unwrapped
from tdbg.hooks.pytorch.model.process_objects import empty_loader
from tdbg.modes import ModeKeys
from tdbg.run.observations import Observation

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

_Loss = TypeVar("_Loss", bound=Callable[..., Any])


class Hook(FrameworkHook):
    """Capture a training of PyTorch; its losses unless you ask for something else.

    Its arguments are those of ``HookBase``: docs/configuration.md.  The
    ``register_...`` methods raise ConfigurationError for an object that they cannot
    use.  Nothing else raises into the training but ``TrainingStopped``.
    """

    # Whether to capture functions that the model calls, like its modules.
    _follows_functions = True
    _timed_backward: BackwardRoots | None = None

    def _make_adapter(self) -> TorchAdapter:
        self._torch = TorchAdapter()
        return self._torch

    def _attach(self, session: Session) -> CurrentMode:
        self._names = UniqueNames()
        self._module_captures: list[ModuleCapture] = []
        self._tables: list[ParameterTable] = []
        self._roots: list[weakref.ref[nn.Module]] = []
        self._losses: list[CapturedLoss] = []
        self._registered_losses: list[tuple[weakref.ref[Any], CapturedLoss]] = []
        self._gradients: list[AccumulatedGradients] = []
        self._returned: ReturnedGradients | None = None
        self._functions: FunctionCalls | None = None
        probes = FunctionProbes(session, is_open=session.may_probe)
        self._inputs = FirstInputs(is_open=session.ranks is not None)
        self._variables = LossVariables()
        self._evaluated = EvaluatedOutputs(session, MetricSums())
        facts = (LabelFacts(session), BatchOrigins(session), self._variables)
        checks = (probes, self._inputs, *facts, LabelsBesideInputs(session))
        self._batches = FirstBatches(checks)
        self._called_parts = UncompiledHooks()
        self._schedules = Schedules(session)
        self._model = TorchModel(self._module_captures, self._losses, self._schedules)
        self._model_info = ModelInfoWriter(
            session,
            self._model,
            self._model.stands_still,
            self._new_optimizer,
            self._model.at_end,
        )
        self._statistics = self._model.statistics = NormStatistics(session)
        self._loaded: LoadedWeights | None = None
        self._kept: KeptReferences | None = None
        self._watch: OptimizerWatch | None = None
        self._by_hand: UpdatesByHand | None = None
        self._graphs: GraphCapture | None = None
        mode = self._torch_mode = TorchMode(session, self._roots)
        self._current_mode = mode.now
        if session.is_live:
            self._graphs = GraphCapture(session, mode.now)
            leave_out_of_copies(session)
            if self._follows_functions:
                self._functions = FunctionCalls(
                    session, mode, self._names, self._losses
                )
                self._functions.on_dropping = self._model_info.evaluation_changed
                self._functions.saw_arguments = self._batches.note_loss
                self._model.functions = self._functions
        return mode

    # ---- registration ----------------------------------------------------------

    def register_module(self, module: nn.Module, *, name: str | None = None) -> None:
        """Capture a module.

        Its own inputs and outputs are named by its class, and the modules inside it
        by their paths. If you register a second module, or pass a *name*, that name
        (or else the class) stands before all names of the module. A hook that had the
        module before is closed. If you pass a wrapper (DistributedDataParallel,
        DataParallel), the hook takes the module inside.

        Raises:
            ConfigurationError: If *module* is no ``nn.Module``.
        """
        given: object = module
        if not isinstance(given, nn.Module):
            msg = f"register_module needs an nn.Module, not {type(given).__name__}"
            raise ConfigurationError(msg)
        if not self._session.is_live:
            return
        warn_of_flat_parameters(module)
        module = unwrapped(module)
        previous = registered_session(module)
        if previous is self._session:
            return
        if previous is not None:
            previous.close("another hook took over the module")
        root = self._names.take(name or class_name(module))
        prefix = f"{root}." if name or self._module_captures else ""
        module_capture = ModuleCapture(
            self._session,
            module,
            root,
            prefix,
            self._torch_mode,
            self._training_is_about_to,
            self._training_forward_begins,
            self._evaluation_begins,
            self._functions,
            self._batches,
            self._evaluated,
        )
        self._module_captures.append(module_capture)
        self._tables.append(module_capture.parameters)
        self._roots.append(weakref.ref(module))
        self._session.listen(change=module_capture.refresh)
        self._session.run(self._statistics.register, module, prefix)
        if self._watch is None:
            self._watch_optimizers()
        else:
            self._watch.around.refresh()
        self._session.run(self._shared.register, module, prefix)

    def register_loss(self, loss: _Loss, *, name: str | None = None) -> _Loss:
        """Capture a loss, a module or any function, at every step.

        Returns:
            The module itself, or a function that you call in place of *loss*.

        Raises:
            ConfigurationError: If *loss* cannot be called.
        """
        given: object = loss
        if not callable(given):
            msg = f"register_loss needs something to call, not {given!r}"
            raise ConfigurationError(msg)
        if not self._session.is_live:
            return loss
        capture = self._capture_of(loss)
        if capture is None:
            make = functools.partial(
                self._capture_loss,
                name or loss_name(loss),
                loss_name(loss),
                self._torch.kind_of(loss),
                settings_of(loss),
            )
            capture = make(make)
            self._session.listen(change=capture.refresh)
            self._remember_loss(loss, capture)
            if isinstance(loss, nn.Module):
                capture.hook(loss)
        if isinstance(loss, nn.Module):
            return loss
        wrapped: Any = capture.wrap(loss)
        self._remember_loss(wrapped, capture)
        return wrapped  # type: ignore[no-any-return]

    def register_optimizer(
        self, optimizer: Optimizer, *, defines_step: bool = False
    ) -> None:
        """Register an optimizer; only needed to say which of several ends a step.

        Raises:
            ConfigurationError: If *optimizer* is no ``torch.optim.Optimizer``.
        """
        given: object = optimizer
        if not isinstance(given, Optimizer):
            msg = (
                f"register_optimizer needs a torch.optim.Optimizer, "
                f"not {type(given).__name__}"
            )
            raise ConfigurationError(msg)
        if not self._session.is_live:
            return
        watch = self._watch or self._watch_optimizers()
        watch.add(optimizer, defines_step=defines_step)

    def begin_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Begin the call of a root or a loss that was registered during this call.

        Args:
            module: The root, or the loss.
            args: Its positional arguments; its keyword arguments are looked up.

        Raises:
            TrainingStopped: If somebody has asked to stop the training.
        """
        kwargs = keywords_of(module)
        for module_capture in self._module_captures:
            if module_capture.module is module:
                module_capture.begin_late(module, args, kwargs)
        loss = self._capture_of(module)
        if loss is not None:
            loss.begin_late(args, kwargs)

    def counters(self) -> dict[str, int]:
        """Return the counts of records offered, written, dropped, failed and more."""
        unseen = sum(
            module_capture.n_unseen for module_capture in self._module_captures
        )
        return {**super().counters(), "unseen_modules": unseen}

    # ---- inside ----------------------------------------------------------------

    def _follow_losses(self) -> None:
        """Capture losses that are functions, and the number where a backward begins."""
        if self._functions is not None:
            self._functions.follow_losses()

    def _follow_arguments_of_losses(self) -> None:
        """Capture what functions that are losses get; others record the losses."""
        if self._functions is not None:
            self._functions.follow_arguments()

    def _look_at_part(self, root: nn.Module, part: nn.Module) -> None:
        """Look at the batches of a part, which computes all that its root learns."""
        for each in self._module_captures:
            if each.module is root and self._called_parts.may_be_added:
                each.batches = None
                note_calls(self._called_parts, part, self._batches)

    def _begin_pass(self, mode: ModeKeys) -> None:
        super()._begin_pass(mode)
        if self._functions is not None:
            roots = [each.name for each in self._module_captures]
            self._functions.forward_begins(roots[0] if roots else "forward", mode)

    def _watch_optimizers(self) -> OptimizerWatch:
        session = self._session

        def step() -> int:
            return session.latest_step(ModeKeys.TRAIN)[0]

        def observe(seen: Observation) -> None:
            session.run(session.observe, seen)

        setup = self._model.setup = OptimizerSetup(
            self._module_captures, step, observe, self._schedules.step_begins
        )
        reader = GraphReader()
        kept = self._kept = KeptReferences(session, self._tables)
        self._loaded = LoadedWeights(session, self._tables, two_names)
        losses = self._model.first_losses = FirstLosses(
            self._tables,
            step,
            session.spend_once,
            reader,
            Copies(session, self._loaded, kept),
            Teachers(session),
            self._variables,
            setup.loss_begins,
        )
        self._shared = SharedWeights(step, observe)
        watch = self._watch = OptimizerWatch(
            self._session,
            self._module_captures,
            self._tables,
            self._current_mode,
            self._torch.cuda,
            self._model_info,
            losses.begin_anew,
            FirstUpdates(
                *(self._tables, step, observe, session.spend_once, reader),
                *(self._shared, self._variables, self._evaluated),
                may_probe=session.may_probe,
            ),
            setup,
            self._batches,
        )
        self._model.watch = watch
        if self._session.ranks is not None:
            replicas = ReplicaTensors(
                self._session,
                self._session.ranks,
                self._module_captures,
                self._inputs,
            )
            watch.step_defined = replicas.optimizer_begins
        self._counting = CountingHooks(
            self._session, self._torch_mode, self._module_captures, watch
        )
        self._by_hand = UpdatesByHand(self._parameters, watch.gradients_are_kept)
        self._returned = ReturnedGradients(
            self._session, self._tables, self._torch_mode, self._loss_is_known
        )
        return watch

    def _loss_is_known(self, loss: torch.Tensor) -> None:
        """Note that a function has computed the gradients of *loss*."""
        if self._functions is not None and self._functions.follows_losses:
            self._functions.backward_begins(loss)

    def _parameters(self) -> Iterator[torch.Tensor]:
        for table in self._tables:
            for parameter, _ in table.parameters():
                yield parameter

    def _capture_loss(
        self,
        name: str,
        class_name: str,
        kind: Kind | None,
        settings: Mapping[str, Any],
        another: Callable[[], CapturedLoss] | None = None,
    ) -> CapturedLoss:
        capture = CapturedLoss(
            self._session,
            self._names.take(name),
            self._torch_mode.of_loss,
            class_name,
            kind,
            another,
        )
        if self._functions is not None:
            capture.saw = self._functions.saw
        capture.inputs.saw = functools.partial(
            self._batches.note_loss, settings=settings
        )
        self._losses.append(capture)
        self._model_info.changed()
        return capture

    def _capture_of(self, loss: object) -> CapturedLoss | None:
        """Return the capture of a loss that is registered."""
        for each, capture in self._registered_losses:
            known = each()
            # Every time a method is asked for it is another object.
            if known is loss or (isinstance(loss, MethodType) and known == loss):
                return capture
        return None

    def _remember_loss(self, loss: object, capture: CapturedLoss) -> None:
        with contextlib.suppress(TypeError):  # Not everything can be referred to.
            ref: weakref.ref[Any] = (
                weakref.WeakMethod(loss)
                if isinstance(loss, MethodType)
                else weakref.ref(loss)
            )
            self._registered_losses.append((ref, capture))

    def _evaluation_begins(self) -> None:
        self._model_info.evaluation_begins()
        self._statistics.evaluation_begins()
        if self._kept is not None:
            self._kept.look(sys._getframe(1))

    def _training_is_about_to(self) -> None:
        if self._evaluated.is_following:
            self._evaluated.pass_ends()
        if self._kept is not None and self._kept.weights.waits:
            self._kept.weights.training_resumes()
        self._before_training_forward()

    def _before_training_forward(self) -> None:
        around = None if self._watch is None else self._watch.around
        if around is not None and (around.contexts or around.has_unclipped):
            around.forward_begins(self._current_mode)
        has_optimizer = bool(self._session.optimizers)
        self._model_info.forward_begins(
            has_optimizer=has_optimizer,
            has_gradients=torch.is_grad_enabled(),
        )
        if has_optimizer:
            if self._by_hand is not None:
                self._by_hand.remove()
                self._by_hand = None
            for each in self._gradients:
                each.remove()
            self._gradients.clear()
        elif self._watch is not None:
            self._watch.search()
            if self._by_hand is not None:
                self._by_hand.forward_begins()
            if self._returned is not None:
                self._returned.forward_begins()
            requested = self._session.may_capture(Role.GRADIENT)
            if requested and not self._session.optimizers:
                known = {each.table for each in self._gradients}
                self._gradients += [
                    AccumulatedGradients(self._session, table)
                    for table in self._tables
                    if table not in known
                ]
                self._watch_gradients()

    def _new_optimizer(self) -> Sequence[int] | None:
        """Look for an optimizer, and for a loader without a batch."""
        if self._watch is None:
            return None
        self._watch.search_now()
        optimizers = self._watch.optimizers()
        # The state of one that has been loaded is there: a checkpoint is evaluated.
        if not optimizers or any(each.state for each in optimizers):
            return None
        return empty_loader()

    def _training_forward_begins(self, context: StepContext) -> None:
        if self._watch is not None:
            self._watch.record_custom(context)

    def _watch_gradients(self) -> None:
        """Watch for a step without an optimizer, if one begins."""
        step_plan = self._session.next_plan(self._current_mode())
        for each in self._gradients:
            each.watch(step_plan)

    def _start_profiler(self, session: Session, settings: ProfilerConfig) -> None:
        super()._start_profiler(session, settings)
        if session.clock.is_on:
            add_clock(session.clock)
            weakref.finalize(session, remove_clock, session.clock).atexit = False
            self._timed_backward = BackwardRoots(counter=session.step_counter)
            session.listen(close=self._stop_timing, rest=self._stop_timing)

    def _stop_timing(self) -> None:
        remove_clock(self._session.clock)
        if self._timed_backward is not None:
            self._timed_backward.remove()
            self._timed_backward = None

    def _detach(self) -> None:
        self._session.run(self._model_info.conclude)
        hooks: list[Any] = [*self._module_captures, *self._losses, *self._gradients]
        for each in hooks:
            each.remove()
        watches = (self._watch, self._graphs, self._model.first_losses)
        self._session.run(self._statistics.remove)
        self._session.run(self._evaluated.conclude)
        if self._kept is not None:
            self._session.run(self._kept.conclude, sys._getframe(1))
        by_hand = (self._by_hand, self._returned, self._loaded, self._called_parts)
        for watch in (*watches, *by_hand, self._batches, self._schedules):
            if watch is not None:
                watch.remove()

    def _capture_before_forward(
        self, context: StepContext, *, is_training: bool
    ) -> None:
        if is_training and not self._session.optimizers:
            self._training_forward_begins(context)
        for module_capture in self._module_captures:
            if not is_training or not self._session.optimizers:
                module_capture.parameters.capture(context, gradients=False)
            else:
                module_capture.parameters.begin_values(context)


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
